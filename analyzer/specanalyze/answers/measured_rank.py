"""What ``measured`` needs of one rank, reduced while the rank is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from specanalyze.answers.draft_parts import DraftParts
from specanalyze.answers.kernels import KernelTimes, rank_kernels
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import ReadRank, read_rank
from specanalyze.attribution.waits import Talk
from specanalyze.attribution.window_work import WindowWork
from specanalyze.trace import RankSource, Trace


@dataclass(frozen=True)
class MeasuredRank:
    """One rank, reduced: its breakdown, cycles, kernels and draft phase, and its communication kernels by window."""

    breakdown: RankBreakdown
    cycles: pl.DataFrame
    kernels: pl.DataFrame
    draft: list[DraftParts]
    talks: Mapping[int, Talk]


WindowParts: TypeAlias = tuple[KernelTimes, DraftParts]
"""What is made of the activities of one window."""


def window_parts(work: WindowWork) -> WindowParts:
    """For ``read_rank``."""
    return KernelTimes.of(work), DraftParts.of(work)


def measured_rank(read: ReadRank[Any], windows: Sequence[WindowParts]) -> MeasuredRank:
    """What is needed of a rank that was read with its communication kernels."""
    kernels = rank_kernels(read.rank.key, [times for times, _ in windows])
    return MeasuredRank(read.breakdown, read.cycles, kernels, [draft for _, draft in windows], read.talks)


def read_measured(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> MeasuredRank:
    """Read and reduce one rank.

    Raises:
        TraceError: it can't be read.
    """
    read = read_rank(source, trace, phase_map, talks=True, look=window_parts)
    return measured_rank(read, read.looked)
