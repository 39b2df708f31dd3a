"""Rows of a time line: what is drawn on which row, so that nothing on one row crosses anything else on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints, integers
from specanalyze.exports.export_events import ExportedRank
from specanalyze.formats.event_frame import main_thread
from specschema.events import DEVICE_KINDS

WORKER: Final = "worker"
LAUNCHES: Final = "launches"
STREAM: Final = "stream"
COLLECTIVES: Final = "collectives"
PARTITION: Final = "partition"
REQUESTS: Final = "requests"

SLICES: Final = {
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "detail": pl.String,
    "bucket": pl.String,
    "phase": pl.String,
    "event": pl.Int64,
    "flow_out": pl.Int64,
    "flow_in": pl.Int64,
}
"""Columns of a track's slices. ``detail``: facts in words; ``flow_out`` (launch calls) and ``flow_in`` (their first activity) hold the same
number for an arrow from one to the other. A slice with dur_ns 0 is an instant."""


@dataclass(frozen=True)
class Track:
    """One row of the time line.

    Attributes:
        kind: WORKER, LAUNCHES, STREAM, COLLECTIVES, PARTITION or REQUESTS.
        name: what the row is called, unique within its rank.
        height: how many slices it has.
    """

    kind: str
    name: str
    height: int
    _piece: Callable[[int, int], pl.DataFrame]

    def pieces(self, rows: int) -> Iterator[pl.DataFrame]:
        """Its slices, so many at a time: columns of SLICES, properly nested, by start (outer before inner)."""
        for low in range(0, self.height, rows):
            yield self._piece(low, min(low + rows, self.height))

    @property
    def slices(self) -> pl.DataFrame:
        """All of them, with all their texts."""
        return self._piece(0, self.height)


def process_id(rank: ExportedRank, taken: set[int], largest: int) -> int:
    """The rank's process id, or the smallest free one where that is too large or another rank's (of another host)."""
    process = rank.pid
    if not 0 < process <= largest or process in taken:
        process = next(p for p in range(rank.number + 1, largest) if p not in taken)
    taken.add(process)
    return process


def nests(start: Ints, end: Ints) -> bool:
    """Whether intervals only nest or follow each other, so that they can be drawn as a stack.

    As many intervals are open before each begin as after the same interval's end if, and only if, no two cross.
    """
    if _in_turn(start, end):
        return True
    count = len(start)
    index = np.arange(count)
    when = np.concatenate([start, end])
    is_end = np.concatenate([np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)])
    # At one instant: ends before begins; inner ends first (latest start), outer begins first (longest).
    length = end - start
    tie = np.concatenate([-length, length])
    tie2 = np.concatenate([index, -index])
    order = np.lexsort((tie2, tie, 1 - is_end, when))
    step = np.where(is_end[order] == 1, -1, 1)
    after = np.cumsum(step)
    depth = np.empty(2 * count, dtype=np.int64)
    depth[order] = np.where(step == 1, after - 1, after)
    return bool(np.array_equal(depth[:count], depth[count:]))


def lanes(start: Ints, end: Ints) -> Ints:
    """A lane for each interval such that no two of one lane overlap; the first lane takes whatever fits, greedily.

    Following the chain "the next one that starts after this one's end" would be a loop over all intervals; it is found by
    doubling the length of the jumps instead.
    """
    lane = np.zeros(len(start), dtype=np.int64)
    if _in_turn(start, end):
        return lane
    left = np.lexsort((end, start))
    number = 0
    while len(left):
        count = len(left)
        follower = np.searchsorted(start[left], end[left], side="left")
        jump = np.append(np.maximum(follower, np.arange(count) + 1), count)
        taken: NDArray[np.bool_] = np.zeros(count + 1, dtype=bool)
        taken[0] = True
        while (jump[:-1] < count).any():
            taken[jump[taken]] = True
            jump = jump[jump]
        lane[left[taken[:count]]] = number
        left = left[~taken[:count]]
        number += 1
    return lane


def _in_turn(start: Ints, end: Ints) -> bool:
    """Whether they are in order and none begins before the one before it has ended, as launch calls of a thread are."""
    return bool((start <= end).all() and (end[:-1] <= start[1:]).all())


def tracks(rank: ExportedRank) -> Iterator[Track]:
    """Rows of a rank, in the order they are shown: its worker threads, launches, streams, collectives, partition, requests."""
    drawn = ~rank.of_kinds("node") & (integers(rank.events, "dur_ns", -1) >= 0)
    known = [name for name in ("kind", "name", "pid", "tid") if name in rank.events.columns]
    worker = main_thread(rank.events.select(known).filter(drawn))[1]
    yield from _per_thread(rank, drawn & rank.of_kinds("cycle", "phase", "op", "mark"), WORKER, "thread", worker)
    yield from _per_thread(rank, drawn & rank.of_kinds("launch"), LAUNCHES, "launches, thread", worker)
    for (gpu, stream), rows in _groups(rank, drawn & rank.of_kinds(*DEVICE_KINDS), "device", "stream"):
        yield from _stacked(rank, STREAM, f"GPU {gpu} stream {stream}", rows, always_apart=True)
    yield from _stacked(rank, COLLECTIVES, "collectives", np.flatnonzero(drawn & rank.of_kinds("collective")))
    if rank.partition.height:
        parts = rank.partition
        piece = partial(_partition, parts)
        yield Track(PARTITION, "partition: what each instant is given to", parts.height, piece)
    requests = np.flatnonzero(drawn & rank.of_kinds("request"))
    yield from _stacked(rank, REQUESTS, "requests", requests, always_apart=True)


def _groups(rank: ExportedRank, which: NDArray[np.bool_], *columns: str) -> Iterator[tuple[tuple[Any, ...], Ints]]:
    """(values, rows) of events alike in some columns, in the order in which they first occur."""
    rows = np.flatnonzero(which)
    missing = [pl.lit(None, dtype=pl.Int64).alias(c) for c in columns if c not in rank.events.columns]
    places = rank.events.with_columns(missing).select(columns)[rows].with_row_index("place")
    found = places.group_by(columns, maintain_order=True).agg("place")
    for number, values in enumerate(found.select(columns).iter_rows()):  # one turn a thread or stream
        yield values, rows[found.get_column("place")[number].to_numpy()]


def _per_thread(
    rank: ExportedRank, which: NDArray[np.bool_], track: str, name: str, worker: int | None
) -> Iterator[Track]:
    threads = {values[0]: rows for values, rows in _groups(rank, which, "tid")}
    for tid in sorted(threads, key=lambda t: (t != worker, t is None, t)):
        label = f"{name} {'unknown' if tid is None else tid}" + (" (worker)" if tid == worker else "")
        yield from _stacked(rank, track, label, threads[tid])


def _stacked(rank: ExportedRank, kind: str, name: str, rows: Ints, always_apart: bool = False) -> Iterator[Track]:
    """One row, or several where intervals cross (or may not be nested, as on a stream)."""
    if not len(rows):
        return
    start = integers(rank.events, "start_ns", 0)[rows]
    end = start + integers(rank.events, "dur_ns", -1)[rows]
    order = np.lexsort((-end, start))  # of equal starts the longest first
    rows, start, end = rows[order], start[order], end[order]
    if not always_apart and nests(start, end):
        yield Track(kind, name, len(rows), partial(_piece, rank, rows))
        return
    lane = lanes(start, end)
    del start, end, order
    for number in range(int(lane.max()) + 1):
        label = name if number == 0 else f"{name}, overlapping {number}"
        mine = rows[lane == number]
        yield Track(kind, label, len(mine), partial(_piece, rank, mine))


def _piece(rank: ExportedRank, rows: Ints, low: int, high: int) -> pl.DataFrame:
    return _slices(rank.rows(rows[low:high]))


def _slices(rows: pl.DataFrame) -> pl.DataFrame:
    launches = pl.col("kind").cast(pl.String) == "launch"
    return rows.select(
        "start_ns",
        "dur_ns",
        pl.col("name").cast(pl.String).fill_null(""),
        pl.col("kind").cast(pl.String),
        detail().alias("detail"),
        "bucket",
        "phase",
        "event",
        pl.when(launches).then("correlation").alias("flow_out"),
        pl.when(pl.col("first").fill_null(False)).then("correlation").alias("flow_in"),
    ).cast(SLICES)  # type: ignore[arg-type]


def detail() -> pl.Expr:
    """Facts of an event in words: ``cycle 12 batch 4 draft 3 accept 3,1``, ``verify moe``; empty where there are none."""

    def fact(word: str, column: str) -> pl.Expr:
        return pl.format(word + " {}", pl.col(column).cast(pl.String))

    def each(column: str) -> pl.Expr:
        joined = pl.col(column).cast(pl.List(pl.String)).list.eval(pl.element().fill_null("?")).list.join(",")
        return pl.when(pl.col(column).list.len() > 0).then(joined)

    device, (bucket, subclass, phase) = (
        pl.col("bucket").is_not_null(),
        (pl.col(c).cast(pl.String) for c in ("bucket", "subclass", "phase")),
    )
    return pl.concat_str(
        fact("cycle", "cycle"),
        pl.col("mode").cast(pl.String),
        fact("batch", "batch_size"),
        fact("draft", "draft_tokens"),
        pl.format("accept {}", each("accept_lengths")),
        fact("graph batch", "graph_batch_size"),
        fact("context", "context_tokens"),
        pl.when(device).then(phase),
        pl.when(device).then(bucket),
        pl.when(device & (subclass != bucket)).then(subclass),
        pl.when(device).then(fact("graph", "graph_id")),
        pl.when(device).then(fact("node", "node")),
        pl.col("module").cast(pl.String),
        fact("prompt", "prompt_tokens"),
        fact("completion", "completion_tokens"),
        fact("ns to first token", "first_token_ns"),
        fact("group", "group"),
        fact("seq", "seq"),
        separator=" ",
        ignore_nulls=True,
    )


def _partition(parts: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    return (
        parts[low:high]
        .select(
            "start_ns",
            "dur_ns",
            pl.format("{}: {}", pl.col("phase").cast(pl.String), pl.col("bucket").cast(pl.String)).alias("name"),
            pl.lit(PARTITION).alias("kind"),
            pl.lit("").alias("detail"),
            "bucket",
            "phase",
            *(pl.lit(None, dtype=pl.Int64).alias(c) for c in ("event", "flow_out", "flow_in")),
        )
        .cast(SLICES)  # type: ignore[arg-type]
    )
