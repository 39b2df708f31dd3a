"""What one rank comes to: its breakdown, its cycles, its collectives, and what a caller made of its windows; nothing of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import polars as pl

from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_talk import CompactTalk, joined_parts, window_talk
from specanalyze.attribution.compact_window import Looks, WindowSums, for_talk, joined_window, window_sums
from specanalyze.attribution.cut_off import cut_off
from specanalyze.attribution.cycles import rank_cycles
from specanalyze.attribution.eager_modules import has_module_ranges
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.attribution.rank_breakdown import RankBreakdown, rank_breakdown, summed_breakdown
from specanalyze.attribution.waits import Communication, communication_of, joined_windows
from specanalyze.attribution.window_marks import WindowMarks, analysed_marks
from specanalyze.attribution.window_rows import joined_rows
from specanalyze.attribution.window_work import WindowWork, analysed_work, joined_work
from specanalyze.columns import Ints
from specanalyze.native import timeline
from specanalyze.native.heap import give_back
from specanalyze.trace import RankSource, RankTrace, Trace

T = TypeVar("T")


@dataclass
class RankResult:
    """One rank, reduced, small enough to send between processes.

    Attributes:
        breakdown: its partition, summed.
        cycles: of ``cycles.rank_cycles``.
        communication: its communication kernels; None where they were not asked for.
        warnings: lines that reading it brought up.
        rank, world: its number, and how many ranks the recording had as its file tells; None where it does not.
    """

    breakdown: RankBreakdown
    cycles: pl.DataFrame
    communication: Communication | CompactTalk | None
    warnings: list[str] = field(default_factory=list)
    rank: int | None = None
    world: int | None = None


@dataclass
class ReadRank(Generic[T]):
    """One rank, read once.

    Attributes:
        rank: without its device rows and launch calls where it was read in narrow columns.
        breakdown: its partition, summed.
        cycles: of ``cycles.rank_cycles``.
        marks: of each window in which a range is recognised.
        talks: by window: its communication kernels; empty where they were not asked for.
        looked: by window: what the caller made of its activities.
    """

    rank: RankTrace
    breakdown: RankBreakdown
    cycles: pl.DataFrame
    marks: list[WindowMarks]
    talks: dict[int, Communication] | dict[int, CompactTalk]
    looked: list[T]

    @property
    def communication(self) -> Communication | CompactTalk | None:
        """Its communication kernels over all windows; None where they were not asked for."""
        parts = list(self.talks.values())
        if not parts:
            return None
        compact = [part for part in parts if isinstance(part, CompactTalk)]
        return joined_parts(compact) if compact else joined_windows([p for p in parts if isinstance(p, Communication)])


def rank_result(
    source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None = None, *, talks: bool = True
) -> RankResult:
    """Read and reduce one rank of an opened recording.

    Raises:
        TraceError: it can't be read.
    """
    before = len(trace.warnings)
    read: ReadRank[None] = read_rank(source, trace, phase_map, talks=talks)
    rank, said = read.rank, trace.warnings[before:]
    return RankResult(read.breakdown, read.cycles, read.communication, said, rank.rank, rank.world_size)


def read_rank(
    source: RankSource,
    trace: Trace,
    phase_map: Mapping[str, str] | None = None,
    *,
    talks: bool = False,
    look: Callable[[WindowWork], T] | None = None,
) -> ReadRank[T]:
    """Read one rank and reduce it window by window, in narrow columns and compiled passes where it can be, else through whole tables.

    Args:
        source, trace: the rank, and its opened recording.
        phase_map: regular expression -> phase for range names that are not built in.
        talks: keep its communication kernels.
        look: makes of each window's activities what is to be kept of them.

    Raises:
        TraceError: it can't be read.
    """
    summed = _summed(source, trace, phase_map, talks=talks, look=look)
    if summed is not None:
        give_back()
        return summed
    analysis = analyse_rank(source.read(), phase_map)
    rank = analysis.trace
    cycles = rank_cycles(rank, phase_map, trace.metadata)
    spoken = {}
    if talks:
        for w in analysis.windows:
            spoken[w.window] = communication_of(rank.key, rank.rank, rank.host, w.ranges, w.activities, w.window)
    breakdown = rank_breakdown(analysis)
    return ReadRank(
        rank,
        breakdown,
        cycles,
        [analysed_marks(w, part, _instants(cycles, w.window)) for w in analysis.windows if (part := w.partition)],
        spoken,
        [] if look is None else [look(analysed_work(w, breakdown.whole_ranges(w.window))) for w in analysis.windows],
    )


def _summed(
    source: RankSource,
    trace: Trace,
    phase_map: Mapping[str, str] | None,
    *,
    talks: bool,
    look: Callable[[WindowWork], T] | None,
) -> ReadRank[T] | None:
    """The same from a compact rank by the compiled passes; None where the one or the other is not to be had."""
    rank = None if source.compact is None else source.compact()
    compiled = None if rank is None else timeline.compiled()
    if compiled is None or rank is None or has_module_ranges(rank.events):
        return None
    looks, nodes = Looks(rank.looks), RankNodes.of(rank.events, rank.looks)
    events = RankTrace(rank.key, rank.rank, rank.source, rank.events, rank.host, world_size=rank.world_size)
    cycles = rank_cycles(events, phase_map, trace.metadata)
    names, told = [name for name, _, _ in rank.looks], pl.DataFrame() if nodes is None else nodes.told
    windows: list[WindowSums] = []
    marks: list[WindowMarks] = []
    spoken: dict[int, CompactTalk] = {}
    looked: list[T] = []
    known = rank.events.get_column("window").null_count() < rank.events.height
    for number in sorted(rank.windows):
        rows = rank.events.filter(pl.col("window") == number) if known else rank.events
        window = joined_window(compiled, rank, number, recognised_ranges(rows, phase_map), looks, nodes)
        instants = _instants(cycles, number)
        off = cut_off(window.ranges, joined_rows(window, looks, nodes))
        sums = window_sums(window, rank.streams, len(rank.looks), instants, stretches=look is not None, off=off)
        if sums.partition is not None:
            marks.append(WindowMarks(number, window.ranges, window.range_end, instants, sums.partition.before))
        if look is not None:
            looked.append(look(joined_work(window, sums, looks, nodes)))
        windows.append(sums.without_stretches())
        del sums
        if talks:
            part, sizes = window_talk(for_talk(window), looks)
            spoken[number] = CompactTalk(rank.key, rank.rank, rank.host, names, [part], [sizes], told)
        del window
    return ReadRank(events, summed_breakdown(rank, windows, looks), cycles, marks, spoken, looked)


def _instants(cycles: pl.DataFrame, window: int) -> Ints:
    """Where the cycles of a window start and their steps end, in order."""
    mine = cycles.filter(pl.col("window") == window)
    ends = mine.select(pl.col("start_ns") + pl.col("step_ns")).to_series().drop_nulls()
    return np.unique(np.concatenate([mine.get_column("start_ns").to_numpy(), ends.to_numpy()]).astype(np.int64))
