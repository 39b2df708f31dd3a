"""Findings of ``diagnose`` as cards, each linked to the plot that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specanalyze.answers.environment_check import check_baseline
from specanalyze.diagnosis.diagnose import examine
from specanalyze.report.recorded import Recorded
from specschema.errors import TraceError

PLOTS: Final[Mapping[str, str]] = {
    "idle_gaps": "timeline",
    "straggler": "waits",
    "uneven_kernels": "waits",
    "profiler_distortion": "cycle-times",
    "wiring": "acceptance",
    "simulated_acceptance": "acceptance",
    "draft_steps": "acceptance",
    "below_breakeven": "overview",
    "nccl_variables": "environment",
    "clocks_throttled": "environment",
}
"""Rule -> section that shows it; every other rule is about where the time goes."""

OTHERWISE: Final = "breakdown"


@dataclass(frozen=True)
class Finding:
    """One finding as shown; see ``diagnose.FINDING_SCHEMA``."""

    rule: str
    title: str
    win: str
    confidence: str
    evidence: tuple[str, ...]
    knob: str
    disproof: str
    withheld: str | None
    plot: str


@dataclass(frozen=True)
class Findings:
    """What ``diagnose`` says of one recording.

    Attributes:
        label: of the recording.
        found: ranked.
        clean: rules that found nothing.
        not_checked: rule -> what to record so that it can look.
        missing: why there is no diagnosis at all.
    """

    label: str
    found: tuple[Finding, ...]
    clean: tuple[str, ...]
    not_checked: Mapping[str, str]
    missing: str | None = None


def findings(recordings: Sequence[Recorded], *, accept_differences: bool = False) -> list[Findings]:
    """Findings of every recording but the baseline."""
    base = next((r for r in recordings if r.baseline), None)
    return [_of(r, base, accept_differences) for r in recordings if not r.baseline]


def _of(recorded: Recorded, base: Recorded | None, accept_differences: bool) -> Findings:
    if recorded.measured is None:
        return Findings(recorded.label, (), (), {}, recorded.why["measured"])
    plain = None
    stale: dict[str, str] = {}
    if base is not None and base.measured is not None:
        try:
            check_baseline(base.trace, recorded.trace, accept=accept_differences)
            plain = base.measured
        except TraceError as error:
            stale = {"baseline": str(error)}
    result = examine(recorded.measured, plain)
    found = tuple(_finding(row) for row in result.findings.iter_rows(named=True))
    return Findings(recorded.label, found, tuple(result.clean), {**stale, **result.not_checked})


def _finding(row: Mapping[str, Any]) -> Finding:
    per_token, per_cycle = row["win_ms_per_token"], row["win_ns_per_cycle"]
    win = "win unknown"
    if per_token is not None:
        win = f"up to {per_token:.2f} ms a token"
    elif per_cycle is not None:
        win = f"up to {per_cycle / 1e6:.2f} ms a cycle"
    return Finding(
        row["rule"],
        row["title"],
        win,
        row["confidence"],
        tuple(row["evidence"]),
        row["knob"],
        row["disproof"],
        row["withheld"],
        PLOTS.get(row["rule"], OTHERWISE),
    )
