"""What an export shows of a rank: its events with the class and phase of each activity, its partition, cut to some cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints, factorize
from specanalyze.exports.event_columns import EventColumns
from specanalyze.exports.rank_labels import WindowLabels, analysed_labels, compact_labels
from specanalyze.native.heap import give_back
from specanalyze.native.timeline import Array
from specanalyze.trace import RankSource, RankTrace, Trace
from specanalyze.whole_number import MOST, whole_number
from specschema.errors import TraceError, UsageError
from specschema.phases import BUCKETS, PHASE_KEYS

EVENT: Final = "event"
"""Column with the number of each row in the rank's own events; it survives every filter."""

_LABELS: Final = {"bucket": BUCKETS, "phase": PHASE_KEYS}
_NONE: Final = 255
"""Code of events that are no device work."""


@dataclass(frozen=True)
class ExportedRank:
    """One rank, ready to be written; texts are dictionaries, which whoever writes takes apart some rows at a time (``rows``).

    Attributes:
        number: place among the exported ranks, from 0.
        trace: whose it is, without its events.
        columns: columns of the event table that are not null throughout, in file order, and: event (row number), bucket, subclass and
            phase of device work, ``first`` (True for the first activity of its launch call). ``correlation`` names one launch call in
            the whole rank (see ``one_timeline``).
        partition: start_ns, dur_ns, phase, bucket: the stretches of the exact partition, equal neighbours joined.
    """

    number: int
    trace: RankTrace
    columns: EventColumns
    partition: pl.DataFrame

    @property
    def label(self) -> str:
        """``rank 3``, or ``pid4242`` where only the process is known."""
        return f"rank {self.trace.key}" if self.trace.key.isdecimal() else self.trace.key

    @property
    def events(self) -> pl.DataFrame:
        """Columns that many rows fill, and those that are looked at as a whole."""
        return self.columns.many

    @cached_property
    def pid(self) -> int:
        """Process id of the rank's host rows; its number where no row names one."""
        known = self.events.get_column("pid").drop_nulls()
        return int(known.mode().sort()[0]) if known.len() else self.number + 1

    @cached_property
    def start_ns(self) -> int | None:
        """Start of its first event; None without events."""
        known = self.events.get_column("start_ns").gather(self.timed()).drop_nulls()
        return int(known.min()) if known.len() else None  # type: ignore[arg-type]

    @cached_property
    def kinds(self) -> tuple[Array, list[str]]:
        """Code of each event's kind, int8, and the kinds."""
        codes, kinds = factorize(self.events, "kind")
        return codes.astype(np.int8), kinds

    def of_kinds(self, *kinds: str) -> NDArray[np.bool_]:
        """Which events are of these kinds."""
        codes, known = self.kinds
        return np.isin(codes, [code for code, kind in enumerate(known) if kind in kinds])

    def timed(self) -> Ints:
        """Rows of events that lie in time: all but nodes of graphs."""
        return np.flatnonzero(~self.of_kinds("node"))

    def rows(self, index: Ints) -> pl.DataFrame:
        """Some events with every column of the event table."""
        return self.columns.rows(index)


def parse_cycles(text: str | None) -> tuple[int, int] | None:
    """``10:20`` -> (10, 20): cycles 10 to 19; either side may be missing.

    Raises:
        UsageError: anything else.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    ends = [whole_number(part) for part in (first or "0", last or MOST)]
    if not colon or ends[0] is None or ends[1] is None:
        raise UsageError(f"--cycles {text[:40]}: write A:B for cycles A to B-1, such as 10:20")
    low, high = ends[0], ends[1] if last else np.iinfo(np.int64).max
    if low >= high:
        raise UsageError(f"--cycles {text}: holds no cycle")
    return low, int(high)


def exported_ranks(
    trace: Trace, phase_map: Mapping[str, str] | None = None, cycles: tuple[int, int] | None = None
) -> Iterator[ExportedRank]:
    """Read the ranks one after another.

    Nothing here holds a rank while the next one is read. A caller's own loop variable does; ``map`` does not.

    Raises:
        TraceError: there is none, or one that can't be read, or has none of the cycles.
    """
    trace.refuse_empty()
    for number, source in enumerate(trace.sources):
        yield _read(number, source, phase_map, cycles)
        give_back()


def _read(
    number: int, source: RankSource, phase_map: Mapping[str, str] | None, cycles: tuple[int, int] | None
) -> ExportedRank:
    """A rank, analysed before its events are read where narrow columns will do for that."""
    labels = compact_labels(source, phase_map)
    if labels is None:
        return exported_rank(number, source.read(), phase_map, cycles)
    rank = source.read()
    columns = EventColumns.of(rank.events.with_row_index(EVENT))
    rank = replace(rank, events=rank.events.clear())
    give_back()
    return _exported(number, rank, columns, labels, cycles)


def exported_rank(
    number: int,
    rank: RankTrace,
    phase_map: Mapping[str, str] | None = None,
    cycles: tuple[int, int] | None = None,
) -> ExportedRank:
    """Analyse a rank and cut it (see ``exported_ranks``)."""
    events = rank.events.with_row_index(EVENT)
    labels = analysed_labels(replace(rank, events=events), phase_map, EVENT)
    give_back()
    return _exported(number, replace(rank, events=events.clear()), EventColumns.of(events), labels, cycles)


def _exported(
    number: int,
    rank: RankTrace,
    columns: EventColumns,
    labels: list[WindowLabels],
    cycles: tuple[int, int] | None,
) -> ExportedRank:
    events = columns.many
    subclasses = list(dict.fromkeys(name for window in labels for name in window.subclasses))
    bucket, phase = (np.full(events.height, _NONE, dtype=np.uint8) for _ in _LABELS)
    subclass = np.full(events.height, len(subclasses), dtype=np.uint16)
    first = np.zeros(events.height, dtype=bool)
    called = np.full(events.height, -1, dtype=np.int64) if cycles is not None else None
    for window in labels:
        row = window.rows_in(events)
        bucket[row], phase[row], first[row] = window.bucket, window.phase, window.first
        place = np.array([subclasses.index(name) for name in window.subclasses], dtype=np.uint16)
        subclass[row] = place[window.subclass]
        if called is not None:
            called[row] = window.called
    labelled = one_timeline(events).with_columns(
        _texts("bucket", bucket, BUCKETS),
        _texts("subclass", subclass, subclasses),
        _texts("phase", phase, PHASE_KEYS),
        pl.Series("first", first),
    )
    columns = replace(columns, many=labelled)
    parts = pl.concat([_partition(window) for window in labels])
    if cycles is not None and called is not None:
        begin, end = _span(labels, rank, columns, cycles)
        columns = columns.only(_within(columns.many, called, begin, end))
        stop = pl.col("start_ns") + pl.col("dur_ns")
        parts = parts.filter(stop > begin, pl.col("start_ns") < end).select(
            pl.col("start_ns").clip(begin),
            (stop.clip(upper_bound=end) - pl.col("start_ns").clip(begin)).alias("dur_ns"),
            "phase",
            "bucket",
        )
    return ExportedRank(number, rank, columns, parts)


def one_timeline(events: pl.DataFrame) -> pl.DataFrame:
    """The events with correlation ids that hold without their windows, which no format that is written to has.

    A profiler counts from anew in each window, so an id of one window names another launch call in the next. Where any does, all are
    numbered from 1 by window and id: far below 2**31, above which some readers of Kineto's JSON cut ids off. Ids that do not repeat
    among windows stay what they are, as do negative ones, which name nothing.

    Args:
        events: columns window and correlation, and any others.
    """
    if "correlation" not in events.columns:
        return events
    named = events.select("window", "correlation").filter(pl.col("correlation") >= 0)
    if named.get_column("window").n_unique() < 2:
        return events
    named = named.unique()
    if named.get_column("correlation").n_unique() == named.height:
        return events
    numbered = named.sort("window", "correlation").with_row_index("number", offset=1)
    number = pl.coalesce("number", "correlation").cast(events.schema["correlation"])
    return (
        events.join(numbered, on=["window", "correlation"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(number.alias("correlation"))
        .drop("number")
    )


def _texts(name: str, codes: Array, texts: Sequence[str]) -> pl.Series:
    """Codes as texts, as narrow as they were; a code beyond the texts is null."""
    known = pl.Series(name, [*texts, None], dtype=pl.Enum(texts))
    return known.gather(pl.Series(np.minimum(codes, len(texts))))


def _partition(window: WindowLabels) -> pl.DataFrame:
    """Stretches of the partition; neighbours of one phase, bucket and range are one."""
    tiles = window.tiles
    nothing = np.empty(0, dtype=np.int64)
    return pl.DataFrame(
        {
            "start_ns": nothing if tiles is None else tiles.start,
            "dur_ns": nothing if tiles is None else tiles.length,
            "phase": _texts("phase", nothing if tiles is None else tiles.phase, PHASE_KEYS),
            "bucket": _texts("bucket", nothing if tiles is None else tiles.bucket, BUCKETS),
        }
    )


def _span(
    labels: list[WindowLabels], rank: RankTrace, columns: EventColumns, cycles: tuple[int, int]
) -> tuple[int, int]:
    """Host time of the wanted cycles that were traced; of untraced ones where none was."""
    numbers = [window.cycle for window in labels]
    starts = [window.cycle_start for window in labels]
    ends = [window.cycle_end for window in labels]
    traced = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    if not ((traced >= cycles[0]) & (traced < cycles[1])).any():
        rows = np.flatnonzero((columns.many.get_column("kind") == "cycle").to_numpy())
        own = columns.rows(rows).drop_nulls(["cycle", "dur_ns"])
        numbers.append(own.get_column("cycle").cast(pl.Int64).to_numpy())
        starts.append(own.get_column("start_ns").to_numpy())
        ends.append((own.get_column("start_ns") + own.get_column("dur_ns")).to_numpy())
    number, start, end = (
        np.concatenate(column) if column else np.empty(0, dtype=np.int64) for column in (numbers, starts, ends)
    )
    wanted = (number >= cycles[0]) & (number < cycles[1])
    if not wanted.any():
        known = number[number >= 0]
        has = f"it has cycles {known.min()} to {known.max()}" if len(known) else "no range of it belongs to a cycle"
        raise TraceError(f"{rank.source}: rank {rank.key} has none of the cycles asked for; {has}")
    return int(start[wanted].min()), int(end[wanted].max())


def _within(events: pl.DataFrame, called: Ints, begin: int, end: int) -> NDArray[np.bool_]:
    """Host rows that start in the span, the device work launched in it (work without a launch call by its own start), and nodes.

    Args:
        called: start of each event's launch call, ns; -1 where it has none.
    """
    cause = np.where(called >= 0, called, events.get_column("start_ns").to_numpy())
    within: NDArray[np.bool_] = (cause >= begin) & (cause < end)
    within |= (events.get_column("kind") == "node").to_numpy()
    return within
