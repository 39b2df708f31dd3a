"""``whatif``: the cycle and tok/s that a change would give, from one recording, with every assumption said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.advice import ACCEPTS, advice
from specanalyze.answers.bootstrap import mean_intervals
from specanalyze.answers.calibrated_cycle import calibrated_cycle
from specanalyze.answers.draft_change import Cells, PredictedCycle, change_draft
from specanalyze.answers.draft_length import Lengths
from specanalyze.answers.environment import tensor_parallel
from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.medians import LEVEL, median_interval
from specanalyze.answers.prediction_check import (
    ELSEWHERE,
    PLACE,
    PredictionCheck,
    check_prediction,
    prediction_check_json,
)
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.figures import percent
from specschema.phases import BUCKETS, COMMUNICATION_BUCKETS, DEVICE_BUCKETS, IDLE_BUCKETS

DRAFT_PHASES: Final = ("draft", "draft_extend")
HOST_BOUND_SHARE: Final = 0.05
"""Above this share of launch and host time in the cycle, the host may be what the cycle waits for: less device work then
shortens nothing."""

TABLE_SCHEMA: Final = {
    "phase": pl.String,
    "bucket": pl.String,
    "now_ns": pl.Float64,
    "predicted_ns": pl.Float64,
    "change_ns": pl.Float64,
}
"""Columns of ``WhatIf.table``: ns a cycle; phase ``rest`` holds what lies outside the phases, phase ``elsewhere`` (bucket
``place``) what the typical cycle of the recording takes more than that of the windows, where cycles depend on their place."""


@dataclass(frozen=True)
class Changes:
    """What to change.

    Attributes:
        scale: (phase or None for all, bucket, factor).
        draft_tp: 1: the draft model on one GPU.
        steps: draft steps a cycle.
        tree: branches at each depth of the draft.
    """

    scale: tuple[tuple[str | None, str, float], ...] = ()
    draft_tp: int | None = None
    steps: int | None = None
    tree: int | None = None

    def __post_init__(self) -> None:
        if not self.scale and self.draft_tp is None and self.steps is None and self.tree is None:
            raise UsageError("nothing to change: give --scale, --remove, --draft-tp, --steps or --tree")
        if self.draft_tp not in (None, 1):
            raise UsageError(f"--draft-tp {self.draft_tp}: only 1 can be predicted from a recording")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps {self.steps}: at least 1")
        if self.tree is not None and self.tree < 2:
            raise UsageError(f"--tree {self.tree}: at least 2 branches")


@dataclass(frozen=True)
class WhatIf:
    """A prediction.

    Attributes:
        name: recording it starts from.
        table: see TABLE_SCHEMA.
        now_ns, predicted_ns: the cycle.
        low_ns, high_ns: bounds of the predicted cycle under the assumptions' other extremes, and the noise of the recording's own cycles.
        accept_length: now and predicted, None where unknown.
        accept_bounds: of the predicted one.
        tokens_per_second: now and predicted, None where accepts are unknown.
        speed_bounds: of the predicted one.
        assumptions: one line each, in the order they were used.
        warnings: one line each.
        against: the prediction beside a recording of the change, where one was given.
        untraced: whether the cycle is one of untraced cycles.
    """

    name: str
    table: pl.DataFrame
    now_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    accept_length: tuple[float | None, float | None]
    accept_bounds: tuple[float, float] | None
    tokens_per_second: tuple[float | None, float | None]
    speed_bounds: tuple[float, float] | None
    assumptions: list[str]
    warnings: list[str]
    against: PredictionCheck | None = None
    untraced: bool = True


def scale_of(text: str) -> tuple[str | None, str, float]:
    """``allreduce=0.7`` or ``verify.allreduce=0.7``.

    Raises:
        UsageError: no such bucket or phase, or no number.
    """
    target, _, number = text.partition("=")
    phase, bucket = target_of(target)
    try:
        factor = float(number)
    except ValueError:
        raise UsageError(f"--scale {text}: give BUCKET=FACTOR such as allreduce=0.7") from None
    if not 0 <= factor < 1000:
        raise UsageError(f"--scale {text}: the factor must be 0 or more")
    return phase, bucket, factor


def target_of(text: str) -> tuple[str | None, str]:
    """``allreduce`` -> (None, allreduce); ``draft.allreduce`` -> (draft, allreduce).

    Raises:
        UsageError: no such bucket or phase.
    """
    phase, _, bucket = text.strip().rpartition(".")
    if bucket not in BUCKETS:
        raise UsageError(f"no bucket {bucket!r}; use one of {', '.join(BUCKETS)}, or PHASE.BUCKET")
    if phase and phase not in ("draft", "verify", "draft_extend", "decode", "cycle"):
        raise UsageError(f"no phase {phase!r}; use draft, verify, draft_extend or decode")
    return phase or None, bucket


def what_if(
    trace: Trace,
    changes: Changes,
    *,
    other: Trace | None = None,
    against: Trace | None = None,
    draft_steps: int | None = None,
    other_steps: int | None = None,
    phase_map: Mapping[str, str] | None = None,
) -> WhatIf:
    """Predict the cycle and tok/s after some changes.

    Args:
        trace: the recording to start from.
        changes: what to change.
        other: a recording of the same server at another number of verified tokens (other draft steps, or plain decoding):
            gives the per-token cost of verify.
        against: a recording made with the change, to set beside the prediction.
        draft_steps: of ``trace``, where it does not say it.
        other_steps: of ``other``, where it does not say it.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        UsageError: nothing to change, or a change that is none.
        TraceError: the recording lacks what the change needs.
    """
    m = measure(trace, phase_map)
    if draft_steps is not None:
        m = replace(m, said_draft_steps=draft_steps)
    second = None if other is None else measure(other, phase_map)
    if second is not None and other_steps is not None:
        second = replace(second, said_draft_steps=other_steps)
    return predict(m, changes, second, None if against is None else measure(against, phase_map))


def predict(m: Measured, changes: Changes, other: Measured | None = None, truth: Measured | None = None) -> WhatIf:
    """``what_if`` on recordings that are measured already; ``truth`` was made with the change."""
    cycle = calibrated_cycle(m)
    now, rest, warnings = cycle.cells, cycle.rest_ns, cycle.warnings
    state = PredictedCycle({p: dict(row) for p, row in now.items()}, {p: dict(row) for p, row in now.items()}, None)
    if changes.steps is not None or changes.tree is not None:
        change_draft(m, state, changes.steps, changes.tree, other)
    if changes.draft_tp is not None:
        _draft_on_one(m, state)
    for phase, bucket, factor in changes.scale:
        _scale(m, state, phase, bucket, factor)
    before = m.step_ns
    after, other_end = (
        rest + cycle.elsewhere_ns + sum(sum(row.values()) for row in cells.values())
        for cells in (state.cells, state.extreme)
    )
    low, high = min(after, other_end), max(after, other_end)
    busy_change = sum(state.cells[p][b] - ns for p, row in now.items() for b, ns in row.items() if b in DEVICE_BUCKETS)
    waiting = sum(row.get(b, 0.0) for row in now.values() for b in ("launch", "host")) + max(rest, 0.0)
    if waiting > HOST_BOUND_SHARE * before and busy_change:
        state.assumptions.append(
            f"the device is what the cycle waits for; but {percent(waiting / before, 0)} of the cycle is launch and host time, and where the "
            "host is the slower one, device time saved or added changes nothing (one end of the bounds, which do not hold what "
            "another start of the server changes)"
        )
        low, high = min(low, after - busy_change), max(high, after - busy_change)
    less, more = _noise(m, now, state.cells)
    low, high = low - less, high + more
    rows = [
        {"phase": p, "bucket": b, "now_ns": ns, "predicted_ns": state.cells[p][b], "change_ns": state.cells[p][b] - ns}
        for p, row in now.items()
        for b, ns in row.items()
        if ns or state.cells[p][b]
    ]
    rows.append({"phase": "rest", "bucket": "host", "now_ns": rest, "predicted_ns": rest, "change_ns": 0.0})
    if cycle.elsewhere_ns:
        there = cycle.elsewhere_ns
        rows.append({"phase": ELSEWHERE, "bucket": PLACE, "now_ns": there, "predicted_ns": there, "change_ns": 0.0})
    table = pl.DataFrame(rows, schema=TABLE_SCHEMA)
    check = None if truth is None else check_prediction(m, table, truth, changes.steps)
    warnings += [] if check is None else [*truth.trace.warnings, *truth.stalls(), *check.warnings]  # type: ignore[union-attr]
    length, tokens = m.accept_length, m.tokens_per_second
    lengths = state.lengths or (Lengths(length, length, length) if length is not None else None)
    speed = bounds = None
    if tokens is not None and length and lengths is not None:
        per_length = tokens * before / length
        speed = per_length * lengths.value / after
        bounds = (per_length * lengths.low / high, per_length * lengths.high / low)
    elif tokens is not None and not m.speculating:
        speed, bounds = tokens * before / after, (tokens * before / high, tokens * before / low)
    if tokens is None:
        warnings.append(f"tok/s is unknown: the recording has no accepts; {advice(m.trace, ACCEPTS)}")
    return WhatIf(
        m.trace.name,
        table,
        before,
        after,
        low,
        high,
        (length, None if lengths is None else lengths.value),
        None if lengths is None else (lengths.low, lengths.high),
        (tokens, speed),
        bounds,
        state.assumptions,
        list(dict.fromkeys([*m.trace.warnings, *m.stalls(), *warnings])),
        check,
        m.controlled,
    )


def _noise(m: Measured, now: Cells, then: Cells) -> tuple[float, float]:
    """How far the predicted cycle may be off on either side for the noise of the recording's cycles alone: of the typical cycle, and of the mean
    parts that change; ns."""
    cycle = median_interval(m.clock_ns())
    phases = [p for p in (*m.phases, "cycle") if p in now]
    cells = m.matrix(phases)
    # What each traced cycle would win or lose.
    share = np.array([[then[p][b] / now[p][b] - 1 if now[p][b] else 0.0 for b in BUCKETS] for p in phases])
    idle = 1.0 if m.idle_factor is None else m.idle_factor
    scaled = np.array([idle if b in IDLE_BUCKETS else 1.0 for b in BUCKETS])
    (change,) = mean_intervals((cells * share * scaled).sum(axis=(1, 2))[:, None], level=LEVEL)
    less, more = 0.0, 0.0
    for part in (cycle, change):
        if part.low is not None and part.high is not None:
            less, more = math.hypot(less, part.value - part.low), math.hypot(more, part.high - part.value)
    return less, more


def _scale(m: Measured, state: PredictedCycle, phase: str | None, bucket: str, factor: float) -> None:
    phases = [p for p in state.cells if phase in (None, p)]
    if not any(state.cells[p].get(bucket) for p in phases):
        raise TraceError(f"{m.trace.name} has no {bucket} time in {phase or 'any phase'}: nothing to change")
    for p in phases:
        share = m.transfer_share(p, bucket) if bucket in COMMUNICATION_BUCKETS else 1.0
        moving = 1.0 if share is None else share
        state.change(p, bucket, lambda ns, moving=moving: ns * (1 - moving + moving * factor))  # type: ignore[misc]
    said = f"{bucket} takes {factor:g} of its time" + (f" in {phase}" if phase else "")
    if bucket in COMMUNICATION_BUCKETS:
        known = [s for p in phases if (s := m.transfer_share(p, bucket)) is not None]
        said += (
            ": its transfer; waiting for late ranks stays as it is"
            if known
            else ": waiting for late ranks included, because this recording cannot tell it apart (the gain is an upper bound)"
        )
    state.assumptions.append(said + "; what runs beside it does not become visible")


def _draft_on_one(m: Measured, state: PredictedCycle) -> None:
    """The draft model on one GPU: no collectives, and the compute of all its shards on one."""
    size = tensor_parallel(m.trace)
    if size is None or size < 2:
        raise TraceError(
            f"{m.trace.name}: the draft model runs on one GPU already (tensor parallel {size or 'unknown'})"
        )
    if not any(state.cells.get(p, {}).get(b) for p in DRAFT_PHASES for b in COMMUNICATION_BUCKETS):
        raise TraceError(f"{m.trace.name}: the draft model has no collective: it runs unsharded already")
    for phase in DRAFT_PHASES:
        for bucket in COMMUNICATION_BUCKETS:
            state.change(phase, bucket, lambda _: 0.0)
        for bucket in ("attention", "moe", "gemm"):
            state.change(phase, bucket, lambda ns: ns * size)
    state.assumptions.append(
        f"the draft's collectives go; its attention, MoE and GEMM read {size} times the weights and cache on one GPU and take "
        f"{size} times as long (small kernels grow less, so this is pessimistic); everything else of it stays"
    )


def what_if_json(result: WhatIf) -> dict[str, Any]:
    """The prediction as a JSON document: times in ns a cycle."""
    return {
        "trace": result.name,
        "clock": "untraced" if result.untraced else "traced",
        "covers": {
            "cycle_ns.now": "median of cycles of the clock, start to start",
            "tokens_per_second": "tokens of all cycles, traced and untraced, over the cycle",
            "accept_length": "all verify steps on record, traced and untraced",
            "table": "means over whole traced cycles and ranks; idle time scaled to the untraced cycle where the clock is untraced",
            "low, high, bounds": "the assumptions' other extremes, and the noise of the recording's cycles (95 %)",
        },
        "cycle_ns": {
            "now": result.now_ns,
            "predicted": result.predicted_ns,
            "low": result.low_ns,
            "high": result.high_ns,
        },
        "accept_length": {
            "now": result.accept_length[0],
            "predicted": result.accept_length[1],
            "bounds": result.accept_bounds,
        },
        "tokens_per_second": {
            "now": result.tokens_per_second[0],
            "predicted": result.tokens_per_second[1],
            "bounds": result.speed_bounds,
        },
        "table": result.table.to_dicts(),
        "against": None if result.against is None else prediction_check_json(result.against),
        "assumptions": result.assumptions,
        "warnings": result.warnings,
    }
