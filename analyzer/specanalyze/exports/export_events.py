"""What an export shows of a rank: its events with the class and phase of each activity, its partition, cut to some cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from specanalyze.attribution.analysis import RankAnalysis, WindowAnalysis, analyse_rank
from specanalyze.attribution.instances import cycle_numbers
from specanalyze.columns import Ints
from specanalyze.formats.event_frame import DTYPES
from specanalyze.trace import RankTrace, Trace
from specanalyze.whole_number import MOST, whole_number
from specschema.errors import TraceError, UsageError
from specschema.events import COLUMN_NAMES
from specschema.phases import BUCKETS, PHASE_KEYS

EVENT: Final = "event"
"""Column with the number of each row in the rank's own events; it survives every filter."""


@dataclass(frozen=True)
class ExportedRank:
    """One rank, ready to be written.

    Attributes:
        number: place among the exported ranks, from 0.
        trace: whose it is.
        events: every column of the event table, in file order, and: event (row number), bucket, subclass and phase of device
            work, ``first`` (True for the first activity of its launch call), ``launch_start`` (ns, -1 without a launch call).
            ``correlation`` names one launch call in the whole rank (see ``one_timeline``).
        partition: start_ns, dur_ns, phase, bucket: the stretches of the exact partition, equal neighbours joined.
    """

    number: int
    trace: RankTrace
    events: pl.DataFrame
    partition: pl.DataFrame

    @property
    def label(self) -> str:
        """``rank 3``, or ``pid4242`` where only the process is known."""
        return f"rank {self.trace.key}" if self.trace.key.isdecimal() else self.trace.key

    @property
    def pid(self) -> int:
        """Process id of the rank's host rows; its number where no row names one."""
        known = self.events.get_column("pid").drop_nulls()
        return int(known.mode().sort()[0]) if known.len() else self.number + 1

    @property
    def start_ns(self) -> int | None:
        """Start of its first event; None without events."""
        known = self.timed().get_column("start_ns")
        return int(known.min()) if known.len() else None  # type: ignore[arg-type]

    def timed(self) -> pl.DataFrame:
        """Events that lie in time: all but nodes of graphs."""
        return self.events.filter(pl.col("kind").cast(pl.String) != "node")


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

    Raises:
        TraceError: a rank that can't be read, or has none of the cycles.
    """
    for number, rank in enumerate(trace.ranks()):
        yield exported_rank(number, rank, phase_map, cycles)


def exported_rank(
    number: int,
    rank: RankTrace,
    phase_map: Mapping[str, str] | None = None,
    cycles: tuple[int, int] | None = None,
) -> ExportedRank:
    """Analyse a rank and cut it (see ``exported_ranks``)."""
    missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in COLUMN_NAMES if c not in rank.events.columns]
    events = rank.events.with_row_index(EVENT).with_columns(pl.col(EVENT).cast(pl.Int64))
    analysis = analyse_rank(replace(rank, events=events), phase_map)
    work = pl.concat([_work(window) for window in analysis.windows])
    parts = pl.concat([_partition(window) for window in analysis.windows])
    events = one_timeline(events.with_columns(missing)).join(work, on=EVENT, how="left", maintain_order="left")
    if cycles is not None:
        begin, end = _span(analysis, rank, cycles)
        events = _cut(events, begin, end)
        stop = pl.col("start_ns") + pl.col("dur_ns")
        parts = parts.filter(stop > begin, pl.col("start_ns") < end).select(
            pl.col("start_ns").clip(begin),
            (stop.clip(upper_bound=end) - pl.col("start_ns").clip(begin)).alias("dur_ns"),
            "phase",
            "bucket",
        )
    return ExportedRank(number, rank, events, parts)


def one_timeline(events: pl.DataFrame) -> pl.DataFrame:
    """The events with correlation ids that hold without their windows, which no format that is written to has.

    A profiler counts from anew in each window, so an id of one window names another launch call in the next. Where any does, all are
    numbered from 1 by window and id: far below 2**31, above which some readers of Kineto's JSON cut ids off. Ids that do not repeat
    among windows stay what they are, as do negative ones, which name nothing.

    Args:
        events: columns window and correlation, and any others.
    """
    named = events.select("window", "correlation").filter(pl.col("correlation") >= 0).unique()
    if named.get_column("correlation").n_unique() == named.height:
        return events
    numbered = named.sort("window", "correlation").with_row_index("number", offset=1)
    number = pl.coalesce("number", "correlation").cast(events.schema["correlation"])
    return (
        events.join(numbered, on=["window", "correlation"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(number.alias("correlation"))
        .drop("number")
    )


def _names(codes: Ints, names: tuple[str, ...]) -> pl.Series:
    return pl.Series(np.array(names, dtype=object)[codes] if len(codes) else [], dtype=pl.String)


def _work(window: WindowAnalysis) -> pl.DataFrame:
    """Class, phase and launch call of each valid activity of a window."""
    acts = window.activities
    rows = acts.rows.get_column(EVENT).to_numpy()[acts.row] if len(acts) else np.empty(0, dtype=np.int64)
    order = np.lexsort((np.arange(len(acts)), acts.start, acts.launch))
    first = np.zeros(len(acts), dtype=bool)
    first[order] = np.diff(acts.launch[order], prepend=-2) != 0
    return pl.DataFrame(
        {
            EVENT: pl.Series(rows, dtype=pl.Int64),
            "bucket": _names(acts.bucket, BUCKETS),
            "subclass": _names(acts.subclass, acts.subclasses),
            "phase": _names(acts.phase, PHASE_KEYS),
            "first": first & (acts.launch >= 0),
            "launch_start": np.append(acts.launches.start, -1)[acts.launch],
        }
    )


def _partition(window: WindowAnalysis) -> pl.DataFrame:
    """Stretches of the partition; neighbours of one phase, bucket and range are one."""
    part = window.partition
    schema = {"start_ns": pl.Int64, "dur_ns": pl.Int64, "phase": pl.String, "bucket": pl.String}
    if part is None or not len(part.start):
        return pl.DataFrame(schema=schema)
    change = np.ones(len(part.start), dtype=bool)
    change[1:] = (np.diff(part.phase) != 0) | (np.diff(part.bucket) != 0) | (np.diff(part.range) != 0)
    first = np.flatnonzero(change)
    last = np.append(first[1:], len(part.start)) - 1
    return pl.DataFrame(
        {
            "start_ns": part.start[first],
            "dur_ns": part.end[last] - part.start[first],
            "phase": _names(part.phase[first], PHASE_KEYS),
            "bucket": _names(part.bucket[first], BUCKETS),
        },
        schema=schema,
    )


def _span(analysis: RankAnalysis, rank: RankTrace, cycles: tuple[int, int]) -> tuple[int, int]:
    """Host time of the wanted cycles that were traced; of untraced ones where none was."""
    numbers, starts, ends = [], [], []
    for window in analysis.windows:
        numbers.append(cycle_numbers(window.ranges))
        starts.append(window.ranges.start)
        ends.append(window.ranges.end)
    traced = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    if "cycle" in rank.events.columns and not ((traced >= cycles[0]) & (traced < cycles[1])).any():
        own = rank.events.filter(pl.col("kind").cast(pl.String) == "cycle").drop_nulls(["cycle", "dur_ns"])
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


def _cut(events: pl.DataFrame, begin: int, end: int) -> pl.DataFrame:
    """Host rows that start in the span, and the device work launched in it; work without a launch call by its own start."""
    cause = pl.when(pl.col("launch_start").fill_null(-1) >= 0).then("launch_start").otherwise("start_ns")
    node = pl.col("kind").cast(pl.String) == "node"
    return events.filter(node | ((cause >= begin) & (cause < end)))
