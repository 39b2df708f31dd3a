"""``sweep``: recordings over a setting; what verifying costs fixed and per token, and which setting is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.advice import ACCEPTS, SETTINGS, advice
from specanalyze.answers.best_setting import Tried, best_setting, in_order, no_best
from specanalyze.answers.bootstrap import SEED, Floats, resampled_means
from specanalyze.answers.cycle_account import CLOCKS, UNTRACED, clocked_ns, common_clock
from specanalyze.answers.environment import PARALLEL_SIZES, argument
from specanalyze.answers.environment_check import check_environment
from specanalyze.answers.line_fit import fit_lines
from specanalyze.answers.measured import Measured, measure_each
from specanalyze.answers.medians import FEWEST_AT_99, resampled_medians
from specanalyze.answers.medians import RESAMPLES as MEDIAN_RESAMPLES
from specanalyze.answers.neighbours import FEW
from specanalyze.answers.recording_warnings import recording_warnings
from specanalyze.answers.sweep_predictions import no_predictions, predictions_of
from specanalyze.answers.unlike_recordings import refuse_other_devices, unlike_recordings
from specanalyze.answers.window_context import unlike_contexts
from specanalyze.trace import Trace
from specanalyze.whole_number import whole_number
from specschema.errors import TraceError, UsageError
from specschema.figures import about, counted
from specschema.phases import BUCKETS

DRAFT_STEPS: Final = "draft_steps"
BATCH_SIZE: Final = "batch_size"
_REFUSAL: Final = "no sweep of one server: "
ENOUGH_CYCLES: Final = 5
"""A batch size seen in fewer whole cycles of a recording makes no point."""

POINT_SCHEMA: Final = {
    "recording": pl.String,
    "x": pl.String,
    "draft_steps": pl.Int64,
    "batch_size": pl.Float64,
    "tokens": pl.Float64,
    "cycles": pl.Int64,
    "draft_ns": pl.Float64,
    "verify_ns": pl.Float64,
    "draft_extend_ns": pl.Float64,
    "step_ns": pl.Float64,
    "accept_length": pl.Float64,
    "tokens_per_second": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}
"""Columns of ``Sweep.points``: a recording (or one of its batch sizes) a row; tokens are those that verify scores a cycle,
draft_ns, verify_ns and draft_extend_ns means over whole traced cycles and ranks, step_ns the median cycle by the clock of the sweep,
tokens_per_second by it (of all requests), low and high its bounds at 99 %."""

FIT_SCHEMA: Final = {
    "bucket": pl.String,
    "fixed_ns": pl.Float64,
    "fixed_low_ns": pl.Float64,
    "fixed_high_ns": pl.Float64,
    "slope_ns": pl.Float64,
    "slope_low_ns": pl.Float64,
    "slope_high_ns": pl.Float64,
    "fixed_share": pl.Float64,
}
"""Columns of ``Sweep.fit``: ``total`` and one row a bucket of verify; buckets sum to the total."""


@dataclass(frozen=True)
class Sweep:
    """Recordings over one setting.

    Attributes:
        over: the setting on the x axis.
        clock: what step_ns and tok/s of all points are of, see ``cycle_account.CLOCKS``.
        points: see POINT_SCHEMA, in order of x.
        fit: see FIT_SCHEMA; empty where all points verify equally many tokens.
        fit_points: points the line goes through.
        predictions: see ``sweep_predictions.PREDICTION_SCHEMA``; empty where accepts are unknown or only one step count was recorded.
        best: x of the highest measured tok/s; None where fewer than two settings have a known one.
        next_best: x of the second, another one; None where best is.
        margin: share by which the best beats the next; None where best is.
        clear: whether the margin is beyond noise.
        warnings: one line each.
    """

    over: str
    clock: str
    points: pl.DataFrame
    fit: pl.DataFrame
    fit_points: int
    predictions: pl.DataFrame
    best: str | None
    next_best: str | None
    margin: float | None
    clear: bool
    warnings: list[str]


@dataclass(frozen=True)
class _Point:
    """One point of a sweep: verify's buckets of each cycle (cycles x buckets), and the row to show."""

    row: dict[str, Any]
    verify: Floats
    speeds: Floats | None


def sweep(
    traces: Sequence[Trace],
    over: str = DRAFT_STEPS,
    values: Sequence[str] | None = None,
    phase_map: Mapping[str, str] | None = None,
    *,
    accept_differences: bool = False,
) -> Sweep:
    """Look at recordings of one server at several settings.

    Args:
        traces: the recordings.
        over: ``draft_steps``, ``batch_size`` (told apart within recordings) or the name of a server argument.
        values: the setting of each recording, for recordings that do not say it.
        phase_map: regular expression -> phase for range names that are not built in.
        accept_differences: let recordings pass that differ in more than the setting.

    Raises:
        UsageError: another number of values than recordings.
        TraceError: a recording does not say the setting, does not speculate, or ran on another server, model or machine.
    """
    if values is not None and len(values) != len(traces):
        raise UsageError(
            f"--values: {counted(len(values), 'value')} for {counted(len(traces), 'recording')}; give one each, in their order"
        )
    _alike(traces, over, accept_differences)  # known before the events are read
    return sweep_measured(measure_each(traces, phase_map), over, values, accept_differences=accept_differences)


def sweep_measured(
    measured: Iterable[Measured],
    over: str = DRAFT_STEPS,
    values: Sequence[str] | None = None,
    *,
    accept_differences: bool = False,
) -> Sweep:
    """``sweep`` on recordings that are measured already, one value each where values are given.

    Raises:
        UsageError, TraceError: as ``sweep``.
    """
    over = DRAFT_STEPS if over in ("steps", "draft-steps") else BATCH_SIZE if over in ("batch", "batch-size") else over
    warnings: list[str] = []
    recordings: list[Measured] = []
    parts: list[tuple[Measured, str]] = []
    for number, m in enumerate(measured):
        if not m.speculating:
            raise TraceError(f"{m.trace.name} has no verify phase: a sweep compares recordings that speculate")
        said = values[number] if values is not None else None
        if over == DRAFT_STEPS and said is not None:
            steps = whole_number(said)
            if steps is None:
                raise UsageError(f"--values {said[:40]}: draft steps are a number")
            m = replace(m, said_draft_steps=steps)
        recordings.append(m)
        parts += _batches(m) if over == BATCH_SIZE else [(m, _setting(m, over, said))]
        warnings += recording_warnings([m.trace]) + m.stalls()
    # tok/s of untraced cycles beside tok/s of traced ones would crown the recording that was not observed.
    clock = common_clock([m for m, _ in parts])
    points = sorted((_point(m, x, clock) for m, x in parts), key=lambda p: in_order(p.row["x"]))
    fit, used, said_of_fit = _fit(points)
    warnings += _alike([m.trace for m in recordings], over, accept_differences) + said_of_fit
    for m in recordings[1:]:
        refuse_other_devices(recordings[0], m, accept=accept_differences)
        warnings += unlike_contexts(recordings[0], m)
        warnings += unlike_recordings(
            recordings[0], m, batches=over != BATCH_SIZE, ranks=over not in sum(PARALLEL_SIZES, ())
        )
    if clock != UNTRACED:
        lacking = [m.trace.short for m in recordings if not m.controlled]
        warnings.append(
            f"fewer than {FEW} untraced control cycles in {' and '.join(lacking) or 'one of the batch sizes'}: cycle times and tok/s of all "
            "are those of observed cycles, too slow"
        )
    if fit.height and any(m.transfer_share("verify") is not None for m in recordings):
        warnings.append(
            "verify's all-reduce holds waiting for late ranks, which is no cost of tokens: see `compare` for transfer and wait"
        )
    table = pl.DataFrame([p.row for p in points], schema=POINT_SCHEMA)
    predictions, said_of_steps = predictions_of(recordings, table) if over == DRAFT_STEPS else (no_predictions(), [])
    tried = [Tried(p.row["x"], p.row["tokens_per_second"], p.speeds) for p in points]
    best = best_setting(tried)
    if best is None and any(t.speed for t in tried):
        warnings.append(no_best(tried, over))
    return Sweep(
        over=over,
        clock=clock,
        points=table,
        fit=fit,
        fit_points=used,
        predictions=predictions,
        best=None if best is None else best.x,
        next_best=None if best is None else best.next_x,
        margin=None if best is None else best.margin,
        clear=best is not None and best.clear,
        warnings=list(dict.fromkeys(warnings + said_of_steps)),
    )


def _setting(m: Measured, over: str, said: str | None) -> str:
    if over == DRAFT_STEPS:
        steps = m.draft_steps
        if steps is None:
            raise TraceError(
                f"{m.trace.name} does not say its draft steps: "
                + advice(m.trace, SETTINGS, "give --values 1,2,... in the order of the recordings")
            )
        return str(steps)
    found = said if said is not None else argument(m.environment, over)
    if found is None:
        args = sorted((m.environment.get("server") or {}).get("args") or {})
        has = f"; it has {', '.join(args[:12])}" if args else "; it has no server arguments at all"
        raise TraceError(f"{m.trace.name} has no server argument {over!r}{has}; or give --values")
    return str(found)


def _point(m: Measured, x: str, clock: str) -> _Point:
    cycles = clocked_ns(m, clock)
    step_ns, tokens = float(np.median(cycles)), m.tokens_per_cycle
    mean = {p: m.phase_ns(p) for p in ("draft", "verify", "draft_extend")}
    speeds = _speeds(m, cycles)
    low, high = np.quantile(speeds, [0.005, 0.995]) if speeds is not None else (None, None)
    row = {
        "recording": m.trace.name,
        "x": x,
        "draft_steps": m.draft_steps,
        "batch_size": m.batch_size,
        "tokens": m.verify_tokens,
        "cycles": m.cycle_count,
        **{f"{p}_ns": ns for p, ns in mean.items()},
        "step_ns": step_ns,
        "accept_length": m.accept_length,
        "tokens_per_second": tokens / step_ns * 1e9 if tokens is not None and step_ns else None,
        "low": None if low is None else float(low),
        "high": None if high is None else float(high),
    }
    return _Point(row, m.matrix(("verify",))[:, 0, :], speeds)


def _speeds(m: Measured, steps: Floats) -> Floats | None:
    """Resampled tok/s: mean tokens over the median of the cycles."""
    tokens = m.tokens_per_cycle
    known = m.decoding().filter(pl.col("rank") == m.counted[0]).get_column("tokens").drop_nulls()
    if not tokens or not known.sum() or known.len() < 2 or len(steps) < FEWEST_AT_99:
        return None
    drawn = resampled_means(known.to_numpy().astype(np.float64)[:, None], MEDIAN_RESAMPLES)[:, 0]
    speeds = drawn * (tokens / float(known.cast(pl.Float64).mean())) / resampled_medians(steps, SEED + 1) * 1e9  # type: ignore[arg-type]
    return np.asarray(speeds, dtype=np.float64)


def _batches(m: Measured) -> list[tuple[Measured, str]]:
    """Each batch size of a recording, as a recording of its own."""
    facts = m.cycles.filter(pl.col("rank") == m.counted[0], pl.col("window").is_not_null())
    sizes = m.decoding().filter(pl.col("window").is_not_null()).get_column("batch_size").drop_nulls().unique().sort()
    if not sizes.len():
        raise TraceError(f"{m.trace.name} does not say the batch size of its cycles: {advice(m.trace, ACCEPTS)}")
    parts = []
    for size in sizes.to_list():
        chosen = facts.filter(pl.col("batch_size") == size).select("window", "cycle")
        per_cycle = m.per_cycle.join(chosen, on=["window", "cycle"], how="semi")
        if per_cycle.select("window", "cycle").unique().height < ENOUGH_CYCLES:
            continue
        part = replace(m, per_cycle=per_cycle, cycles=m.cycles.filter(pl.col("batch_size") == size))
        parts.append((part, str(size)))
    return parts


def _fit(points: Sequence[_Point]) -> tuple[pl.DataFrame, int, list[str]]:
    """verify = fixed + slope x tokens, whole and bucket by bucket."""
    known = [p for p in points if p.row["tokens"] is not None]
    tokens = np.array([p.row["tokens"] for p in known])
    empty = pl.DataFrame(schema=FIT_SCHEMA)
    if len(known) < len(points):
        return empty, 0, ["some recordings do not say how many tokens they verify: no line is drawn through them"]
    if len(np.unique(tokens)) < 2:
        return (
            empty,
            0,
            [
                f"all recordings verify {about(tokens[0])} tokens: fixed and per-token cost cannot be told apart; record another step count"
                if len(tokens)
                else "no point has enough whole cycles"
            ],
        )
    cells = [np.concatenate([p.verify.sum(axis=1, keepdims=True), p.verify], axis=1) for p in known]
    lines = fit_lines(tokens, cells)
    total = lines[0].fixed.value
    rows = [
        {
            "bucket": name,
            "fixed_ns": line.fixed.value,
            "fixed_low_ns": line.fixed.low,
            "fixed_high_ns": line.fixed.high,
            "slope_ns": line.slope.value,
            "slope_low_ns": line.slope.low,
            "slope_high_ns": line.slope.high,
            "fixed_share": line.fixed.value / total if total > 0 else None,
        }
        for name, line in zip(("total", *BUCKETS), lines, strict=True)
        if line.fixed.value or line.slope.value
    ]
    said = []
    if len(np.unique(tokens)) == 2:
        said.append(
            "two token counts make two points: the line goes through them exactly and nothing tests that it is straight; "
            "its bounds hold the noise of cycles only"
        )
    return pl.DataFrame(rows, schema=FIT_SCHEMA), len(known), said


def _alike(traces: Sequence[Trace], over: str, accept: bool) -> list[str]:
    """Refuse recordings that do not differ in the setting on the x axis alone.

    Raises:
        TraceError: another server, model, machine, library or setting of NCCL than the first recording's.
    """
    # As many GPUs as ranks are seen: what a sweep over a parallel size changes.
    moved = ("gpu.count", "gpu.links", "CUDA_VISIBLE_DEVICES")
    spellings = next((names for names in PARALLEL_SIZES if over in names), ())
    own = {f"server.args.{name}" for name in (over, *spellings)} | (set(moved) if spellings else set())
    # Each with each: two that differ may both be unknown to a first one that keeps no environment.
    lines = [
        check_environment(one, other, accept=accept, refusal=_REFUSAL, varied=own.__contains__)
        for one, other in combinations(traces, 2)
    ]
    return list(dict.fromkeys(line for said in lines for line in said))


def sweep_json(result: Sweep) -> dict[str, Any]:
    """The sweep as a JSON document."""
    return {
        "over": result.over,
        "clock": result.clock,
        "covers": {
            "step_ns": CLOCKS[result.clock],
            "tokens_per_second, low, high": "tokens of all requests over step_ns, with bounds at 99 %",
            "draft_ns, verify_ns, draft_extend_ns, verify_fit": "mean over whole traced cycles and ranks",
            "accept_length": "all verify steps on record, traced and untraced",
            "predictions": "step_ns on a line over the draft steps, accept length from acceptance by position of all recordings",
        },
        "points": result.points.to_dicts(),
        "fit_points": result.fit_points,
        "verify_fit": result.fit.to_dicts(),
        "predictions": result.predictions.to_dicts(),
        "best": {"x": result.best, "next": result.next_best, "margin": result.margin, "beyond_noise": result.clear},
        "warnings": result.warnings,
    }
