"""``breakeven``: the accept length that pays for speculation, against plain decoding on the same server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.accept import Accepts, accepts_of_cycles
from specanalyze.answers.advice import ACCEPTS, advice
from specanalyze.answers.bootstrap import Floats, Interval
from specanalyze.answers.breakeven_along import ALONG_SCHEMA, break_even_along
from specanalyze.answers.environment_check import check_baseline
from specanalyze.answers.medians import median_interval, ratio_interval
from specanalyze.answers.positions import accept_length_by_steps, acceptance_by_position
from specanalyze.answers.recording_warnings import recording_warnings
from specanalyze.attribution.cycles import control_is_another_run, cycle_table, replicas
from specanalyze.trace import Trace
from specschema.errors import TraceError
from specschema.figures import counted

STEPS_SCHEMA: Final[dict[str, Any]] = {
    "steps": pl.Int64,
    "accept_length": pl.Float64,
    "budget_ns": pl.Float64,
    "tok_s_at_least": pl.Float64,
    "pays": pl.Boolean,
}
"""Columns of ``BreakEven.by_steps``."""


@dataclass(frozen=True)
class Clock:
    """Time of a cycle, from its start to the next one's.

    Attributes:
        median_ns: with its bounds.
        cycles: how many it is the median of.
        traced: True: measured inside profiler windows, dearer than the truth.
        batch_size: the commonest; None where not recorded.
    """

    median_ns: Interval
    cycles: int
    traced: bool
    batch_size: int | None


@dataclass(frozen=True)
class BreakEven:
    """Whether speculation pays.

    Attributes:
        name, baseline: the recordings.
        cycle, step: time of the speculative cycle, and of the baseline's plain decode step.
        pays_at: accept length above which speculation is faster: cycle / step, with bounds.
        accept_length: what the recording reached; None where it does not tell.
        by_steps: STEPS_SCHEMA, one row a number of draft steps that acceptance by position knows: the accept length it would
            have had on the same tokens, the cycle time up to which that pays, and, as fewer drafts never make a cycle dearer,
            a lower bound of tok/s a request and whether that pays already (null: not known to).
        along: of ``breakeven_along.break_even_along``: break-even at several contexts, where the cycle or the step grows with it.
        warnings: one line each.
    """

    name: str
    baseline: str
    cycle: Clock
    step: Clock
    pays_at: Interval
    accept_length: float | None
    by_steps: pl.DataFrame
    along: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ALONG_SCHEMA))
    warnings: list[str] = field(default_factory=list)

    @property
    def baseline_tok_s(self) -> float:
        """Plain decoding's tokens a second of one request."""
        return 1e9 / self.step.median_ns.value

    @property
    def tok_s(self) -> float | None:
        """Speculation's tokens a second of one request: accept length / cycle."""
        return None if self.accept_length is None else self.accept_length * 1e9 / self.cycle.median_ns.value

    @property
    def won_tok_s(self) -> float | None:
        """tok/s a request that speculation wins (negative: loses)."""
        return None if self.tok_s is None else self.tok_s - self.baseline_tok_s

    @property
    def missing_tokens(self) -> float | None:
        """Accept length missing to break even (negative: there is that much to spare)."""
        return None if self.accept_length is None else self.pays_at.value - self.accept_length


def break_even(
    trace: Trace,
    baseline: Trace,
    phase_map: Mapping[str, str] | None = None,
    *,
    accept_differences: bool = False,
) -> BreakEven:
    """Weigh a speculating recording against plain decoding.

    Cycle times are medians of untraced cycles where both recordings have them, else of traced ones, with a warning.

    Args:
        trace: recording with speculation.
        baseline: recording of plain decoding on the same server.
        phase_map: see ``ranges.recognised_ranges``.
        accept_differences: weigh against a baseline that ran on another environment.

    Raises:
        TraceError: the trace does not speculate, the baseline does, one has no two neighbouring cycles, or the baseline is stale.
    """
    return weigh(
        trace,
        cycle_table(trace, phase_map),
        baseline,
        cycle_table(baseline, phase_map),
        accept_differences=accept_differences,
    )


def weigh(
    trace: Trace, cycles: pl.DataFrame, baseline: Trace, plain: pl.DataFrame, *, accept_differences: bool = False
) -> BreakEven:
    """``break_even`` on cycles that are at hand already.

    Args:
        trace: the recording.
        cycles: its cycles, columns of ``cycles.CYCLE_SCHEMA`` at least.
        baseline: plain decoding on the same server.
        plain: its cycles.
        accept_differences: as ``break_even``.

    Raises:
        TraceError: as ``break_even``.
    """
    cycles = cycles.filter(pl.col("rank").is_in(replicas(trace, cycles)))
    plain = plain.filter(pl.col("rank").is_in(replicas(baseline, plain)))
    if plain.filter(pl.col("mode").is_in(("speculative", "mixed"))).height:
        raise TraceError(f"the baseline {baseline.name} speculates itself; record plain decoding on the same server")
    if not cycles.filter(pl.col("mode") == "speculative").height:
        raise TraceError(f"{trace.name} has no speculative cycle: there is nothing to break even")
    ours, theirs = cycles.filter(pl.col("mode") == "speculative"), plain.filter(pl.col("mode") == "decode")
    traced = not (_untraced(ours) and _untraced(theirs)) and _traced(ours) and _traced(theirs)
    over, cycle = _clock(trace.name, ours, traced)
    under, step = _clock(baseline.name, theirs, traced)
    warnings = check_baseline(
        baseline, trace, accept=accept_differences, what=f"{1e9 / step.median_ns.value:.1f} tok/s"
    )
    accepts = accepts_of_cycles(trace, cycles)
    result = BreakEven(
        name=trace.name,
        baseline=baseline.name,
        cycle=cycle,
        step=step,
        pays_at=ratio_interval(over, under),
        accept_length=None if accepts is None else accepts.accept_length,
        by_steps=_by_steps(accepts, cycle, step),
        along=break_even_along(ours, theirs),
        warnings=[*recording_warnings((trace, baseline)), *warnings],
    )
    result.warnings.extend(_said(result, trace, cycles, plain))
    if accepts is not None:
        result.warnings.extend(accepts.warnings)
    return result


def clock_of(name: str, cycles: pl.DataFrame) -> Clock:
    """Time of one recording's own cycle: of speculative ones where it has any, else of plain steps; untraced ones where it has any.

    Args:
        name: the recording, for the error.
        cycles: of the counted ranks, one a replica.

    Raises:
        TraceError: no two neighbouring cycles.
    """
    speculative = cycles.filter(pl.col("mode") == "speculative")
    mine = speculative if speculative.height else cycles.filter(pl.col("mode") == "decode")
    return _clock(name, mine, traced=False)[1]


def _untraced(cycles: pl.DataFrame) -> bool:
    return bool(cycles.filter(pl.col("control") & (pl.col("step_ns") > 0)).height)


def _traced(cycles: pl.DataFrame) -> bool:
    return bool(cycles.filter(pl.col("window").is_not_null() & (pl.col("step_ns") > 0)).height)


def _clock(name: str, cycles: pl.DataFrame, traced: bool) -> tuple[Floats, Clock]:
    """Steps and their median; traced ones only where asked or where there are no others."""
    traced = traced or not _untraced(cycles)
    timed = cycles.filter(pl.col("step_ns") > 0, pl.col("window").is_not_null() if traced else pl.col("control"))
    if not timed.height:
        raise TraceError(
            f"{name} has no two neighbouring decode cycles, so no cycle time: record a longer stretch of one request"
        )
    steps = timed.get_column("step_ns").to_numpy().astype(np.float64)
    size = timed.get_column("batch_size").drop_nulls().mode()
    return steps, Clock(median_interval(steps), len(steps), traced, int(size.max()) if len(size) else None)  # type: ignore[arg-type]


def _by_steps(accepts: Accepts | None, cycle: Clock, step: Clock) -> pl.DataFrame:
    if accepts is None:
        return pl.DataFrame(schema=STEPS_SCHEMA)
    lengths = accept_length_by_steps(acceptance_by_position(accepts.steps)).filter(pl.col("steps") > 0)
    at_least = pl.col("accept_length") * 1e9 / cycle.median_ns.value
    return lengths.with_columns(
        budget_ns=pl.col("accept_length") * step.median_ns.value,
        tok_s_at_least=at_least,
        pays=pl.when(at_least > 1e9 / step.median_ns.value).then(pl.lit(True)),
    ).select(pl.col(c).cast(t) for c, t in STEPS_SCHEMA.items())


def _said(result: BreakEven, trace: Trace, cycles: pl.DataFrame, plain: pl.DataFrame) -> list[str]:
    said = []
    if result.cycle.traced and result.step.traced:
        said.append(
            "both times are of traced cycles, which observing makes dearer, not always by the same factor: the ratio is only as "
            "good as that; record untraced cycles of both"
        )
    elif result.cycle.traced or result.step.traced:
        traced, other = ("the trace", "the baseline") if result.cycle.traced else ("the baseline", "the trace")
        said.append(
            f"{traced} has traced cycles only and {other} untraced ones only: the ratio compares unlike with unlike and errs "
            f"{'against' if result.cycle.traced else 'in favour of'} speculation; record untraced cycles of both"
        )
    sizes = result.cycle.batch_size, result.step.batch_size
    if None not in sizes and sizes[0] != sizes[1]:
        said.append(f"batch sizes differ: {counted(sizes[0], 'request')} in the trace, {sizes[1]} in the baseline")
    if result.accept_length is None:
        said.append(f"the trace does not say what was accepted: where it stands is unknown; {advice(trace, ACCEPTS)}")
    for table, name in ((cycles, result.name), (plain, result.baseline)):
        if control_is_another_run(table):
            said.append(f"{name}: the untraced cycles are those of another run, given beside the trace")
    return said


def break_even_json(result: BreakEven) -> dict[str, Any]:
    """The documented JSON layout of ``breakeven``."""

    def clock(of: Clock) -> dict[str, Any]:
        median = of.median_ns
        return {
            "median_ns": median.value,
            "low_ns": median.low,
            "high_ns": median.high,
            "cycles": of.cycles,
            "traced": of.traced,
            "batch_size": of.batch_size,
        }

    return {
        "trace": result.name,
        "baseline": result.baseline,
        "cycle": clock(result.cycle),
        "baseline_step": clock(result.step),
        "pays_at": result.pays_at.value,
        "pays_at_low": result.pays_at.low,
        "pays_at_high": result.pays_at.high,
        "covers": {
            "cycle, baseline_step": "median, start to start; `traced`: of cycles inside windows, which observing makes longer",
            "pays_at": "cycle / baseline_step",
            "tok_s, baseline_tok_s, won_tok_s": "one request, by these medians",
            "accept_length": "all verify steps on record, traced and untraced",
            "by_steps": "accept length on the same tokens with fewer drafts, over today's cycle",
            "along": "the typical untraced cycle and step beside each context",
        },
        "accept_length": result.accept_length,
        "missing_tokens": result.missing_tokens,
        "tok_s": result.tok_s,
        "baseline_tok_s": result.baseline_tok_s,
        "won_tok_s": result.won_tok_s,
        "by_steps": result.by_steps.to_dicts(),
        "along": result.along.to_dicts(),
        "warnings": list(dict.fromkeys(result.warnings)),
    }
