"""``breakdown``: where each phase's time goes, over all ranks of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from specanalyze.answers.advice import CYCLES, advice
from specanalyze.attribution.breakdown_warnings import breakdown_warnings
from specanalyze.attribution.collective_match import match
from specanalyze.attribution.compact_talk import CompactTalk, ReplaySums, replay_sums
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import RankResult, rank_result
from specanalyze.attribution.wait_table import SHARES_SCHEMA, by_replay
from specanalyze.attribution.wait_warnings import absent_ranks, wait_warnings
from specanalyze.attribution.waits import Communication, Waits
from specanalyze.engines.engine import each_rank
from specanalyze.trace import Trace
from specschema.errors import TraceError
from specschema.phases import PHASE_KEYS, REMAINDERS


@dataclass
class Breakdown:
    """All ranks of a recording.

    Attributes:
        name: the recording.
        phase: phase that reports show by default: verify, else the phase the recording has.
        ranks: in order.
        warnings: one line each.
        cycles: of ``cycles.cycle_table``, for the calibration.
        talk: the ranks' communication kernels; empty with one rank.
        absent: ranks that the recording had and that are not there.
    """

    name: str
    phase: str
    ranks: list[RankBreakdown]
    warnings: list[str]
    cycles: pl.DataFrame = field(default_factory=pl.DataFrame)
    talk: list[Communication | CompactTalk] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)

    @cached_property
    def waits(self) -> Waits | None:
        """The ranks' matched collectives, waiting and transfer apart; None with one rank, where waiting is unknown."""
        return match(self.talk, self.absent)

    @cached_property
    def _sums(self) -> ReplaySums | None:
        compact = [talk for talk in self.talk if isinstance(talk, CompactTalk)]
        return replay_sums(compact) if len(compact) == len(self.talk) else None

    def waiting(self, rank: str, phase: str) -> pl.DataFrame:
        """Waiting and transfer of one rank in each replay of a phase: see ``wait_table.by_replay``."""
        if self._sums is None:
            return by_replay(self.waits, rank, phase)
        return self._sums.tables.get((rank, phase), pl.DataFrame(schema=SHARES_SCHEMA))

    def add_wait_warnings(self) -> None:
        """Say what keeps the figures of waiting from being whole; with one rank nothing, as there are none."""
        matched = self.waits if self._sums is None else self._sums
        if matched is not None:
            self.warnings += wait_warnings(matched, self.absent)

    @property
    def has_matches(self) -> bool:
        """Whether any collective could be matched across ranks, void ones included."""
        if self._sums is not None:
            return self._sums.matched > 0
        return self.waits is not None and self.waits.matched

    @property
    def unclassified_share(self) -> float:
        """Share (0..1) of all ranks' device time whose kernel names no rule knows."""
        device = sum(r.device_ns for r in self.ranks)
        return sum(r.unclassified_ns for r in self.ranks) / device if device else 0.0


def break_down(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Breakdown:
    """Attribute every rank's timeline to phases and buckets.

    Args:
        trace: the recording.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        TraceError: no rank has a recognised range, or the recording has no rank.
    """
    talks = len(trace.sources) > 1
    return combined(trace, each_rank(trace, rank_result, phase_map, talks=talks))


def combined(trace: Trace, results: Iterable[RankResult]) -> Breakdown:
    """Put reduced ranks together, whoever reduced them, and match their collectives.

    Args:
        trace: the recording.
        results: one a rank, in the order of ``trace.sources``; their warnings are added to the trace's where it lacks them.

    Raises:
        TraceError: as ``break_down``.
    """
    ranks, cycles, talk, known = [], [], [], []
    for result in results:
        if result.rank is not None:
            known.append((result.rank, result.world))
        ranks.append(result.breakdown)
        cycles.append(result.cycles)
        if result.communication is not None:
            talk.append(result.communication)
        trace.warnings.extend(line for line in result.warnings if line not in trace.warnings)
    whole = assemble(trace, ranks)
    whole.cycles = pl.concat(cycles)
    whole.talk = talk
    whole.absent = absent_ranks([rank for rank, _ in known], max((world or 0 for _, world in known), default=0))
    whole.add_wait_warnings()
    return whole


def assemble(trace: Trace, ranks: list[RankBreakdown]) -> Breakdown:
    """Put the ranks' own breakdowns together, with the recording's warnings.

    Raises:
        TraceError: as ``break_down``.
    """
    if not ranks:
        trace.refuse_empty()
    if not any(r.windows for r in ranks):
        found = sorted({name for r in ranks for name in r.unrecognised})
        listed = ", ".join(found[:12]) + (", ..." if len(found) > 12 else "") if found else "none"
        raise TraceError(
            f"no phase ranges (spec.* or a server's own) in {', '.join(r.source for r in ranks)}; "
            f"annotations found: {listed}; {advice(trace, CYCLES, 'give a --phase-map')}"
        )
    present = [p for p in PHASE_KEYS if p not in REMAINDERS and any(r.instances.get(p) for r in ranks)]
    phase = "verify" if "verify" in present else (present[0] if present else "cycle")
    warnings = list(trace.warnings)
    for r in ranks:
        warnings += breakdown_warnings(r, phase)
    return Breakdown(trace.name, phase, ranks, warnings)
