"""``compare``: what differs in the environment of two recordings, and what moved beyond the noise of their cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.bootstrap import LEVEL, SEED, Floats, Interval, difference_intervals
from specanalyze.answers.cycle_account import (
    BETWEEN,
    CLOCKS,
    PARTS,
    UNTRACED,
    CycleAccount,
    account,
    common_clock,
)
from specanalyze.answers.environment import (
    Difference,
    differences,
    environment_of,
    recorder_difference,
    run_differences,
    unknown,
)
from specanalyze.answers.environment_check import check_baseline, listed
from specanalyze.answers.kernel_changes import kernel_changes
from specanalyze.answers.measured import Measured, measure_each
from specanalyze.answers.medians import FEWEST_AT_99, resampled_medians
from specanalyze.answers.recording_warnings import recording_warnings
from specanalyze.answers.unlike_recordings import refuse_other_devices, unlike_recordings
from specanalyze.answers.window_context import unlike_contexts
from specanalyze.trace import Trace
from specschema.phases import BUCKETS

TOKENS_APART: Final = 1.02
"""Tokens a cycle that differ by more than this factor make cycles unlike."""
SMALLEST_SHARE: Final = 0.01
"""A change of less than this share of the cycle is called small even where it is beyond noise: nobody should act on it."""
FASTER, SLOWER, SMALL, NOISE, UNKNOWN, ONLY = "faster", "slower", "small", "within noise", "unknown", "only in one"

TABLE_SCHEMA: Final = {
    "scope": pl.String,
    "phase": pl.String,
    "bucket": pl.String,
    "before_ns": pl.Float64,
    "after_ns": pl.Float64,
    "change_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "change_share": pl.Float64,
    "verdict": pl.String,
}
"""Columns of ``Comparison.table``: scope is cycle, phase, bucket, part (transfer and wait of the phase's communication across
ranks, hidden time included) or rest (see ``cycle_account.PARTS``, named in ``phase``); times are ns a cycle. Rows of scope phase and
rest sum to the row of the cycle, buckets to their phase's, before, after and change alike."""

PHASES_COVER: Final = "mean over whole traced cycles and ranks"
"""What phases, buckets and kernels are of."""


@dataclass(frozen=True)
class Comparison:
    """Two recordings side by side.

    Attributes:
        before, after: their names.
        differences: how they were recorded, where that differs, then facts of the environment that differ, what matters first.
        of_the_run: facts that differ only in what is made anew for each run (ports, names of shared memory).
        table: see TABLE_SCHEMA.
        kernels: see KERNEL_SCHEMA, largest change first.
        tokens_per_second: of each, by the clock of both; None where accepts are not recorded.
        accept_lengths: of each, None likewise.
        clock: what the cycle times are of in both, see CLOCKS.
        warnings: one line each.
    """

    before: str
    after: str
    differences: list[Difference]
    of_the_run: list[Difference]
    table: pl.DataFrame
    kernels: pl.DataFrame
    tokens_per_second: tuple[float | None, float | None]
    accept_lengths: tuple[float | None, float | None]
    clock: str
    warnings: list[str]

    @property
    def cycle_change(self) -> float | None:
        """Change of the cycle as a share of the first recording's; None unless it is beyond noise."""
        row = self.table.filter(pl.col("scope") == "cycle").row(0, named=True)
        return row["change_share"] if row["verdict"] in (FASTER, SLOWER, SMALL) else None


def compare(
    before: Trace,
    after: Trace,
    *,
    baseline: bool = False,
    accept_differences: bool = False,
    phase_map: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare two recordings.

    Args:
        before: the first.
        after: the second.
        baseline: the first one is what the second is judged by, so it must have run on the same environment. A plain
            recording beside a speculating one is always taken so, whichever comes first.
        accept_differences: let it pass where it did not.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        TraceError: a recording without phases or whole cycles, or a stale baseline.
    """
    return compare_measured(
        *measure_each([before, after], phase_map),
        baseline=baseline,
        accept_differences=accept_differences,
    )


def compare_measured(
    a: Measured, b: Measured, *, baseline: bool = False, accept_differences: bool = False
) -> Comparison:
    """``compare`` on recordings that are measured already.

    Raises:
        TraceError: a stale baseline.
    """
    before, after = a.trace, b.trace
    warnings = recording_warnings((before, after))
    refuse_other_devices(a, b, accept=accept_differences)
    one_plain = a.speculating != b.speculating
    if baseline or one_plain:
        base, judged = (a, b) if baseline or not a.speculating else (b, a)
        speed = base.tokens_per_second
        what = "" if speed is None else f"{speed:.1f} tok/s"
        warnings += check_baseline(base.trace, judged.trace, accept=accept_differences, what=what)
    elif missing := unknown(environment_of(before), environment_of(after)):
        warnings.append(f"not recorded in both, so it may differ as well: {listed(missing)}")
    a_forward, b_forward = (_as_verify(m) if one_plain and not m.speculating else m for m in (a, b))
    if one_plain:
        sides = ("first", "second") if b.speculating else ("second", "first")
        warnings.append(
            f"decode of the {sides[0]} is set beside verify of the {sides[1]}: both are the target's forward"
        )
    warnings += a.stalls() + b.stalls() + unlike_contexts(a, b) + unlike_recordings(a, b) + _other_tokens(a, b)
    clock = common_clock((a, b))
    if clock != UNTRACED:
        warnings.append(
            f"the cycle is the {CLOCKS[clock]}, in both: launch, gap and host times are no ground for a decision; record untraced "
            "control cycles beside the windows"
        )
    one, other = account(a, clock), account(b, clock)
    environments = environment_of(before), environment_of(after)
    return Comparison(
        before.name,
        after.name,
        [*recorder_difference(before, after), *differences(*environments)],
        run_differences(*environments),
        pl.DataFrame(
            [_cycle_row(one, other), *_phase_rows(a_forward, b_forward), *_rest_rows(one, other)], schema=TABLE_SCHEMA
        ),
        kernel_changes(a_forward, b_forward),
        (_speed(a, one), _speed(b, other)),
        (a.accept_length, b.accept_length),
        clock,
        list(dict.fromkeys(warnings)),
    )


def _other_tokens(a: Measured, b: Measured) -> list[str]:
    one, other = a.tokens_per_cycle, b.tokens_per_cycle
    if one is None or other is None or max(one, other) <= TOKENS_APART * min(one, other):
        return []
    return [
        f"a cycle commits {one:.2f} tokens in {a.trace.short} and {other:.2f} in {b.trace.short}: a longer one may still be worth it; judge by "
        "tok/s (see breakeven)"
    ]


def _speed(m: Measured, of: CycleAccount) -> float | None:
    """tok/s by the clock of both."""
    tokens = m.tokens_per_cycle
    return tokens / of.median_ns * 1e9 if tokens is not None and of.median_ns else None


def _as_verify(plain: Measured) -> Measured:
    """A plain recording whose decode steps stand as verify forwards of one token."""
    rename = pl.col("phase").replace("decode", "verify").alias("phase")
    ranks = [
        replace(
            r,
            instances={**r.instances, "verify": r.instances["decode"]},
            whole={**r.whole, "verify": r.whole.get("decode", 0)},
        )
        for r in plain.breakdown.ranks
    ]
    waits = plain.waits
    if waits is not None:
        waits = replace(waits, phases=tuple("verify" if phase == "decode" else phase for phase in waits.phases))
    return replace(
        plain,
        waits=waits,
        breakdown=replace(plain.breakdown, ranks=ranks),
        per_cycle=plain.per_cycle.with_columns(rename),
        kernels=plain.kernels.with_columns(rename),
    )


def _verdict(interval: Interval, cycle_ns: float, both: bool) -> str:
    if not both:
        return ONLY
    if interval.low is None:
        return UNKNOWN
    if not interval.excludes_zero:
        return NOISE
    if abs(interval.value) < SMALLEST_SHARE * cycle_ns:
        return SMALL
    return SLOWER if interval.value > 0 else FASTER


def _row(
    scope: str, phase: str | None, bucket: str | None, pair: tuple[float, float], change: Interval, **how: Any
) -> dict[str, Any]:
    before, after = pair
    return {
        "scope": scope,
        "phase": phase,
        "bucket": bucket,
        "before_ns": before,
        "after_ns": after,
        "change_ns": change.value,
        "low_ns": change.low,
        "high_ns": change.high,
        "change_share": change.value / before if before else None,
        "verdict": _verdict(change, how["cycle_ns"], how.get("both", True)),
    }


def difference_of_medians(before: Floats, after: Floats) -> Interval:
    """Median of ``after`` minus that of ``before``, with bounds; one figure a cycle."""
    value = float(np.median(after) - np.median(before))
    if min(len(before), len(after)) < FEWEST_AT_99:
        return Interval(value, None, None)
    drawn = resampled_medians(after, SEED + 1) - resampled_medians(before)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def _cycle_row(a: CycleAccount, b: CycleAccount) -> dict[str, Any]:
    change = difference_of_medians(a.cycles_ns, b.cycles_ns)
    return _row("cycle", None, None, (a.median_ns, b.median_ns), change, cycle_ns=a.median_ns)


def _rest_rows(a: CycleAccount, b: CycleAccount) -> list[dict[str, Any]]:
    """The parts that lead from the phases to the cycle; only the time between phases is known cycle by cycle, so that it has bounds."""
    rows = []
    for part in PARTS:
        if part not in a.parts and part not in b.parts:
            continue
        pair = (a.parts.get(part, 0.0), b.parts.get(part, 0.0))
        change = Interval(pair[1] - pair[0], None, None)
        if part == BETWEEN and len(a.between_ns) and len(b.between_ns):
            change = difference_intervals(a.between_ns[:, None], b.between_ns[:, None])[0]
        row = _row("rest", part, None, pair, change, cycle_ns=a.median_ns)
        # A share of what is itself a difference, or below zero, says nothing.
        rows.append(row if part == BETWEEN and pair[0] > 0 else row | {"change_share": None})
    return rows


def _phase_rows(a: Measured, b: Measured) -> list[dict[str, Any]]:
    """A row a phase and a row each of its buckets."""
    phases = list(dict.fromkeys((*a.phases, *b.phases, "cycle")))
    one, other = a.matrix(phases), b.matrix(phases)
    cycle_ns = a.step_ns
    wide = [np.concatenate([m.sum(axis=2, keepdims=True), m], axis=2).reshape(len(m), -1) for m in (one, other)]
    changes = difference_intervals(wide[0], wide[1])
    means = [w.mean(axis=0) for w in wide]
    rows = []
    for i, phase in enumerate(phases):
        both = phase == "cycle" or (phase in a.phases and phase in b.phases)
        for j, bucket in enumerate((None, *BUCKETS)):
            at = i * (len(BUCKETS) + 1) + j
            pair = (float(means[0][at]), float(means[1][at]))
            if pair == (0.0, 0.0):
                continue
            scope = "phase" if bucket is None else "bucket"
            rows.append(_row(scope, phase, bucket, pair, changes[at], cycle_ns=cycle_ns, both=both))
        rows += _part_rows(a, b, phase, cycle_ns)
    return rows


def _part_rows(a: Measured, b: Measured, phase: str, cycle_ns: float) -> list[dict[str, Any]]:
    """Transfer and waiting of a phase's communication, where both recordings have several ranks that match."""
    one, other = a.communication(phase), b.communication(phase)
    if one is None or other is None:
        return []
    parts = ["transfer_ns", "wait_ns"]
    x, y = (t.select(parts).to_numpy().astype(np.float64) for t in (one, other))
    changes = difference_intervals(x, y)
    return [
        _row("part", phase, part.removesuffix("_ns"), (float(p), float(q)), change, cycle_ns=cycle_ns)
        for part, p, q, change in zip(parts, x.mean(axis=0), y.mean(axis=0), changes, strict=True)
    ]


def comparison_json(result: Comparison) -> dict[str, Any]:
    """The comparison as a JSON document: times in ns a cycle."""

    def rows(differing: list[Difference]) -> list[dict[str, Any]]:
        return [{"name": d.name, "before": d.before, "after": d.after, "matters": d.matters} for d in differing]

    return {
        "before": result.before,
        "after": result.after,
        "level": LEVEL,
        "clock": result.clock,
        "covers": {
            "cycle": CLOCKS[result.clock],
            "tokens_per_second": "tokens of all requests over that cycle",
            "accept_length": "all verify steps on record, traced and untraced",
            "phase, bucket, part, kernels": PHASES_COVER,
            "rest": {part: PARTS[part] for part in PARTS if part in set(result.table["phase"])},
        },
        "environment": rows(result.differences),
        "environment_of_the_run": rows(result.of_the_run),
        "tokens_per_second": list(result.tokens_per_second),
        "accept_length": list(result.accept_lengths),
        "table": result.table.to_dicts(),
        "kernels": result.kernels.to_dicts(),
        "warnings": result.warnings,
    }
