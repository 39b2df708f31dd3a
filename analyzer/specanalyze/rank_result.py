"""What one rank comes to, small enough to send between processes: its breakdown, its cycles, its collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import polars as pl

from specanalyze.analysis import analyse_rank
from specanalyze.cycles import rank_cycles
from specanalyze.load import open_trace
from specanalyze.rank_breakdown import RankBreakdown, rank_breakdown
from specanalyze.trace import RankSource, Trace
from specanalyze.waits import Communication, rank_communication


@dataclass(frozen=True)
class RankTask:
    """One rank of a recording on disk, as another process can take it up.

    Attributes:
        paths, cycles, node_map, salvage, device: as ``load.open_trace`` takes them.
        key: the rank's key (``RankSource.key``).
        phase_map: regular expression -> phase, for range names that are not built in.
        talks: keep its collectives, to be matched with the other ranks'.
    """

    paths: tuple[Path, ...]
    key: str
    cycles: Path | None = None
    node_map: Path | None = None
    salvage: bool = False
    device: str | None = None
    phase_map: tuple[tuple[str, str], ...] = ()
    talks: bool = True


@dataclass
class RankResult:
    """One rank, reduced.

    Attributes:
        breakdown: its partition, summed.
        cycles: of ``cycles.rank_cycles``.
        communication: its communication kernels; None where they were not asked for.
        warnings: lines that reading it brought up.
    """

    breakdown: RankBreakdown
    cycles: pl.DataFrame
    communication: Communication | None
    warnings: list[str] = field(default_factory=list)


def rank_result(
    source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None = None, *, talks: bool = True
) -> RankResult:
    """Read and reduce one rank of an opened recording; nothing of the rank's events is kept.

    Raises:
        TraceError: it can't be read.
    """
    before = len(trace.warnings)
    analysis = analyse_rank(source.read(), phase_map)
    breakdown = rank_breakdown(analysis)
    cycles = rank_cycles(analysis.trace, phase_map, trace.metadata)
    talk = rank_communication(analysis) if talks else None
    return RankResult(breakdown, cycles, talk, trace.warnings[before:])


def work(task: RankTask, progress: Callable[[int, int], None] | None = None) -> RankResult:
    """Open the recording and reduce one of its ranks. Task and result can be pickled.

    The recording is opened once in a process that works on several of its ranks, unless ``progress`` (see ``load.open_trace``) is given.

    Raises:
        TraceError, UsageError: as ``load.open_trace``.
    """
    asked = (task.paths, task.cycles, task.node_map, task.salvage, task.device)
    trace = _opened(*asked) if progress is None else _open(*asked, progress)
    source = next(source for source in trace.sources if source.key == task.key)
    return rank_result(source, trace, dict(task.phase_map), talks=task.talks)


def _open(
    paths: tuple[Path, ...],
    cycles: Path | None,
    node_map: Path | None,
    salvage: bool,
    device: str | None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    return open_trace(list(paths), cycles=cycles, node_map=node_map, salvage=salvage, device=device, progress=progress)


@lru_cache(maxsize=1)
def _opened(
    paths: tuple[Path, ...], cycles: Path | None, node_map: Path | None, salvage: bool, device: str | None
) -> Trace:
    return _open(paths, cycles, node_map, salvage, device)
