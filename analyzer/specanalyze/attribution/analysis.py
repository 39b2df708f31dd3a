"""From a recording to its partitions: the pipeline, in order, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from specanalyze.attribution.activities import Activities, join_activities
from specanalyze.attribution.cpu_operators import join_cpu_operators
from specanalyze.attribution.partition import Partition, partition
from specanalyze.attribution.ranges import Ranges, recognised_ranges
from specanalyze.trace import RankTrace, Trace


@dataclass(frozen=True)
class WindowAnalysis:
    """One stretch of one rank in which device activity was recorded.

    Attributes:
        window: number of the profiler window.
        ranges: recognised host ranges.
        activities: device activities, joined with their launch calls.
        partition: the exact partition; None where no range is recognised.
    """

    window: int
    ranges: Ranges
    activities: Activities
    partition: Partition | None


@dataclass(frozen=True)
class RankAnalysis:
    """One rank: its windows, and its rows outside any window (untraced cycles, requests, nodes)."""

    trace: RankTrace
    windows: tuple[WindowAnalysis, ...]


def analyse_rank(rank: RankTrace, phase_map: Mapping[str, str] | None = None) -> RankAnalysis:
    """Recognise ranges, join device work with launches and phases, and partition each window.

    Args:
        rank: one rank's events.
        phase_map: regular expression -> phase for range names that are not built in.
    """
    numbers = [0]
    frames = [rank.events]
    if "window" in rank.events.columns:
        window = rank.events.get_column("window")
        known = window.drop_nulls().unique().sort().to_list()
        if len(known) == 1 and not window.null_count():
            numbers = known
        elif known:
            # A node of a captured graph lies in no window and belongs to all of them.
            node = pl.col("kind").cast(pl.String) == "node"
            numbers = known
            frames = [rank.events.filter((pl.col("window") == n) | node) for n in numbers]
    join = join_cpu_operators if rank.device == "cpu" else join_activities
    windows = []
    for number, events in zip(numbers, frames, strict=True):
        ranges = recognised_ranges(events, phase_map)
        activities = join(events, ranges)
        windows.append(WindowAnalysis(number, ranges, activities, partition(ranges, activities)))
    return RankAnalysis(rank, tuple(windows))


def analyse(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Iterator[RankAnalysis]:
    """Analyse the ranks one after another; a caller that keeps only its own reduction keeps memory flat.

    Nothing here holds a rank while the next one is read. A caller's own loop variable does; ``map`` does not.
    """
    for source in trace.sources:
        yield analyse_rank(source.read(), phase_map)
