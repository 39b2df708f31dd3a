"""``diagnose``: what to change first: findings ranked by the time each token would win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from specanalyze.answers.cycle_account import common_clock
from specanalyze.answers.environment_check import check_baseline
from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.recording_warnings import recording_warnings
from specanalyze.diagnosis.diagnosis_claims import beyond, bounded
from specanalyze.diagnosis.diagnosis_rule import HIGH, LOW, MEDIUM, Found, NotChecked, Rule, Subject
from specanalyze.diagnosis.diagnosis_rules import RULES
from specanalyze.trace import Trace
from specschema.errors import TraceError

FINDING_SCHEMA: Final[dict[str, Any]] = {
    "rule": pl.String,
    "title": pl.String,
    "win_ms_per_token": pl.Float64,
    "win_ns_per_cycle": pl.Float64,
    "beyond_ns_per_cycle": pl.Float64,
    "confidence": pl.String,
    "evidence": pl.List(pl.String),
    "knob": pl.String,
    "disproof": pl.String,
    "withheld": pl.String,
}
"""Columns of ``Diagnosis.findings``. Wins are upper bounds and overlap; ``beyond`` is what of a win no finding above it claims, and
adds up to the cycle at most. Null where a recording cannot tell."""

_CONFIDENCE: Final = {HIGH: 0, MEDIUM: 1, LOW: 2}


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a recording.

    Attributes:
        name: the recording.
        findings: see FINDING_SCHEMA; what each token would win most first, then those without a figure by confidence.
        clean: names of rules that looked and found nothing.
        not_checked: rule -> why it could not look, and what to record.
        cycle_ns: median cycle.
        window_cycle_ns: the typical cycle at the place of the windows, which wins are parts of; cycle_ns where cycles do not depend on
            their place.
        tokens_per_second: by cycle_ns; None where accepts are not recorded.
        warnings: one line each.
        clock: what cycle_ns is of: untraced cycles, traced ones, or their phases (see ``cycle_account.CLOCKS``).
        covers: figure -> what it is of, in words.
    """

    name: str
    findings: pl.DataFrame
    clean: list[str]
    not_checked: dict[str, str]
    cycle_ns: float
    window_cycle_ns: float
    tokens_per_second: float | None
    warnings: list[str]
    clock: str
    covers: dict[str, str]


def diagnose(
    trace: Trace,
    *,
    baseline: Trace | None = None,
    accept_differences: bool = False,
    phase_map: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Look for every fault that the rules know.

    Args:
        trace: the recording.
        baseline: plain decoding of the same server; opens the rules that need it.
        accept_differences: use it even if it ran on another environment.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        TraceError: no phases, no whole decode cycle, or a baseline that is stale or speculates.
    """
    m = measure(trace, phase_map)
    warnings = list(trace.warnings) if baseline is None else recording_warnings((trace, baseline))
    plain = None
    if baseline is not None:
        plain = measure(baseline, phase_map)
        if plain.speculating:
            raise TraceError(
                f"the baseline {baseline.name} speculates itself; record plain decoding on the same server"
            )
        speed = plain.tokens_per_second
        warnings += check_baseline(
            baseline, trace, accept=accept_differences, what="" if speed is None else f"{speed:.1f} tok/s"
        )
    return examine(m, plain, warnings)


def examine(m: Measured, baseline: Measured | None = None, warnings: list[str] | None = None) -> Diagnosis:
    """``diagnose`` on recordings that are measured already."""
    subject = Subject(m, baseline)
    tokens = m.tokens_per_cycle
    found: list[tuple[Rule, Found, float | None]] = []
    clean, not_checked = [], {}
    for rule in RULES:
        answer = rule.check(subject)
        if isinstance(answer, NotChecked):
            not_checked[rule.name] = answer.reason
        elif isinstance(answer, Found):
            found.append((rule, answer, bounded(subject, answer)))
        else:
            clean.append(rule.name)
    found.sort(key=lambda f: (-(f[2] or 0.0), _CONFIDENCE[f[1].confidence]))
    own = beyond(subject, [(answer, win) for _, answer, win in found])
    rows = [
        {
            "rule": rule.name,
            "title": answer.title,
            "win_ms_per_token": None if win is None or not tokens else win / tokens / 1e6,
            "win_ns_per_cycle": win,
            "beyond_ns_per_cycle": more,
            "confidence": answer.confidence,
            "evidence": list(answer.evidence),
            "knob": answer.knob or rule.knob(subject.server),
            "disproof": rule.disproof,
            "withheld": answer.withheld,
        }
        for (rule, answer, win), more in zip(found, own, strict=True)
    ]
    said = list(dict.fromkeys([*(warnings if warnings is not None else m.trace.warnings), *m.stalls()]))
    return Diagnosis(
        m.trace.name,
        pl.DataFrame(rows, schema=FINDING_SCHEMA),
        clean,
        not_checked,
        m.step_ns,
        m.window_step_ns,
        m.tokens_per_second,
        said,
        common_clock((m,)),
        {
            "cycle_ns": f"{subject.cycle_is_of}, over the whole recording",
            "window_cycle_ns": "the untraced cycle at the place of the windows"
            if m.controlled
            else subject.cycle_is_of,
            "tokens_per_second": "tokens of all requests over cycle_ns",
            "phases, buckets and wins": subject.parts_are_of,
        },
    )


def diagnosis_json(result: Diagnosis) -> dict[str, Any]:
    """The diagnosis as a JSON document."""
    return {
        "trace": result.name,
        "clock": result.clock,
        "covers": result.covers,
        "cycle_ns": result.cycle_ns,
        "window_cycle_ns": result.window_cycle_ns,
        "tokens_per_second": result.tokens_per_second,
        "findings": result.findings.to_dicts(),
        "clean": result.clean,
        "not_checked": result.not_checked,
        "warnings": result.warnings,
    }
