"""What ``measured`` needs of one rank, reduced while the rank is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from specanalyze.answers.draft_parts import DraftParts
from specanalyze.answers.instance_kernels import InstanceKernels, rank_instances
from specanalyze.answers.kernels import KernelTimes, rank_kernels
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import ReadRank, read_rank
from specanalyze.attribution.waits import Talk
from specanalyze.attribution.window_work import WindowWork
from specanalyze.trace import RankSource, Trace


@dataclass(frozen=True)
class MeasuredRank:
    """One rank, reduced: its breakdown, cycles, kernels (in all, and instance by instance) and draft phase, and its communication
    kernels by window."""

    breakdown: RankBreakdown
    cycles: pl.DataFrame
    kernels: pl.DataFrame
    instances: InstanceKernels
    draft: list[DraftParts]
    talks: Mapping[int, Talk]


WindowParts: TypeAlias = tuple[KernelTimes, InstanceKernels, DraftParts]
"""What is made of the activities of one window."""


def window_parts(work: WindowWork) -> WindowParts:
    """For ``read_rank``."""
    return KernelTimes.of(work), InstanceKernels.of(work), DraftParts.of(work)


def measured_rank(read: ReadRank[Any], windows: Sequence[WindowParts]) -> MeasuredRank:
    """What is needed of a rank that was read with its communication kernels."""
    kernels = rank_kernels(read.rank.key, [times for times, _, _ in windows])
    instances = rank_instances([instances for _, instances, _ in windows])
    drafts = [draft for _, _, draft in windows]
    return MeasuredRank(read.breakdown, read.cycles, kernels, instances, drafts, read.talks)


def read_measured(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> MeasuredRank:
    """Read and reduce one rank.

    Raises:
        TraceError: it can't be read.
    """
    read = read_rank(source, trace, phase_map, talks=True, look=window_parts)
    return measured_rank(read, read.looked)
