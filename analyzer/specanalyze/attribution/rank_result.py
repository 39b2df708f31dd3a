"""What one rank comes to, small enough to send between processes: its breakdown, its cycles, its collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_talk import CompactTalk, window_talk
from specanalyze.attribution.compact_window import Looks, for_talk, joined_window, window_sums
from specanalyze.attribution.cycles import rank_cycles
from specanalyze.attribution.eager_modules import has_module_ranges
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.attribution.rank_breakdown import RankBreakdown, rank_breakdown, summed_breakdown
from specanalyze.attribution.waits import Communication, rank_communication
from specanalyze.native import timeline
from specanalyze.native.heap import give_back
from specanalyze.trace import RankSource, RankTrace, Trace


@dataclass
class RankResult:
    """One rank, reduced.

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


def rank_result(
    source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None = None, *, talks: bool = True
) -> RankResult:
    """Read and reduce one rank of an opened recording; nothing of the rank's events is kept.

    Raises:
        TraceError: it can't be read.
    """
    before = len(trace.warnings)
    summed = _summed(source, trace, phase_map, talks=talks)
    if summed is not None:
        give_back()
        summed.warnings += trace.warnings[before:]
        return summed
    analysis = analyse_rank(source.read(), phase_map)
    breakdown = rank_breakdown(analysis)
    cycles = rank_cycles(analysis.trace, phase_map, trace.metadata)
    talk = rank_communication(analysis) if talks else None
    rank = analysis.trace
    return RankResult(breakdown, cycles, talk, trace.warnings[before:], rank.rank, rank.world_size)


def _summed(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None, *, talks: bool) -> RankResult | None:
    """The same from a compact rank by the compiled passes; None where the one or the other is not to be had."""
    rank = None if source.compact is None else source.compact()
    compiled = None if rank is None else timeline.compiled()
    if compiled is None or rank is None or has_module_ranges(rank.events):
        return None
    looks, nodes = Looks(rank.looks), RankNodes.of(rank.events, rank.looks)
    windows, parts, replays = [], [], []
    known = rank.events.get_column("window").null_count() < rank.events.height
    for number in sorted(rank.windows):
        rows = rank.events.filter(pl.col("window") == number) if known else rank.events
        window = joined_window(compiled, rank, number, recognised_ranges(rows, phase_map), looks, nodes)
        windows.append(window_sums(window, rank.streams, len(rank.looks)))
        if talks:
            window = for_talk(window)
            part, sizes = window_talk(window, looks)
            parts.append(part)
            replays.append(sizes)
        del window
    events = RankTrace(rank.key, rank.rank, rank.source, rank.events, rank.host, world_size=rank.world_size)
    names = [name for name, _, _ in rank.looks]
    told = pl.DataFrame() if nodes is None else nodes.told
    return RankResult(
        summed_breakdown(rank, windows, looks),
        rank_cycles(events, phase_map, trace.metadata),
        CompactTalk(rank.key, rank.rank, rank.host, names, parts, replays, told) if talks else None,
        rank=rank.rank,
        world=rank.world_size,
    )
