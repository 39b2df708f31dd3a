"""What a recording's cycle is beside its phases: the time between them, what observing adds, and where one typical figure is not another.

Phases are known from traced cycles, as means; the cycle is best known from untraced ones, as a median. So phases neither add up to it
nor stay below it. The parts here fill the difference, each for one reason, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.bootstrap import Floats
from specanalyze.answers.measured import Measured
from specschema.phases import BUCKETS

UNTRACED, TRACED, PHASES = "untraced", "traced", "phases"
"""Clocks of a comparison: untraced cycles of both; traced ones of both; the phases of traced ones, where no cycle's successor is known."""

BETWEEN, TYPICAL, OBSERVING, ELSEWHERE, REST = "between", "typical", "observing", "elsewhere", "rest"
PARTS: Final = {
    BETWEEN: "time of traced cycles, start to start, in none of their phases; below zero where the device's phases lag beyond the windows' ends",
    TYPICAL: "the typical (median) traced cycle less the mean one",
    OBSERVING: "the untraced cycle less the traced one, at the place of the windows",
    ELSEWHERE: "the untraced cycle of the whole recording less that at the place of the windows: another context, another time",
    REST: "the untraced cycle less the phases of the traced one: no two traced cycles follow each other, so more is not known",
}
"""Parts of a cycle beside its phases, in the order in which they lead from the phases' sum to the cycle."""

CLOCKS: Final = {
    UNTRACED: "median of untraced cycles, start to start",
    TRACED: "median of traced cycles, start to start, which observing makes longer",
    PHASES: "median of what the phases of a traced cycle add up to: no two traced cycles follow each other",
}
"""What the cycle is by each clock."""


def common_clock(recordings: Sequence[Measured]) -> str:
    """The truest clock that all of the recordings have."""
    if all(m.controlled for m in recordings):
        return UNTRACED
    return TRACED if all(len(m.steps_ns(True)) for m in recordings) else PHASES


def clocked_ns(m: Measured, clock: str) -> Floats:
    """Cycle times by a clock that the recording has, in order of time."""
    if clock == PHASES:
        return np.asarray(m.matrix((*m.phases, "cycle")).sum(axis=(1, 2)), dtype=np.float64)
    return m.steps_ns(traced=clock == TRACED)


@dataclass(frozen=True)
class CycleAccount:
    """One recording's cycle by one clock.

    Attributes:
        cycles_ns: the cycles that it is the median of, in order of time.
        parts: part (see PARTS) -> ns; with the mean of the phases of whole traced cycles they sum to ``median_ns``.
        between_ns: of each whole traced cycle whose successor is known what its phases leave, in order of time.
    """

    cycles_ns: Floats
    parts: dict[str, float]
    between_ns: Floats

    @property
    def median_ns(self) -> float:
        return float(np.median(self.cycles_ns))


def account(m: Measured, clock: str) -> CycleAccount:
    """The parts that lead from the phases of a recording to its cycle.

    Args:
        m: the recording; controlled where the clock is ``untraced``, with neighbouring traced cycles where it is ``traced``.
        clock: of ``common_clock``.
    """
    between = _between(m)
    phases_ns = float(m.matrix((*m.phases, "cycle")).sum(axis=(1, 2)).mean())
    parts = {BETWEEN: float(between.mean())} if len(between) else {}
    mean_ns = phases_ns + sum(parts.values())
    cycles = clocked_ns(m, clock)
    if clock == PHASES:
        return CycleAccount(cycles, {TYPICAL: float(np.median(cycles)) - phases_ns}, np.zeros(0))
    if clock == TRACED:
        return CycleAccount(cycles, {**parts, TYPICAL: float(np.median(cycles)) - mean_ns}, between)
    control = m.control
    traced_ns = None if control is None else control.traced_ns
    if control is None or traced_ns is None:
        return CycleAccount(cycles, {REST: float(np.median(cycles)) - phases_ns}, np.zeros(0))
    parts |= {TYPICAL: traced_ns - mean_ns, OBSERVING: m.window_step_ns - traced_ns}
    elsewhere = float(np.median(cycles)) - m.window_step_ns
    return CycleAccount(cycles, parts | ({ELSEWHERE: elsewhere} if elsewhere else {}), between)


def _between(m: Measured) -> Floats:
    """What the phases of each whole traced cycle leave of it, start to start; mean over the ranks."""
    keys = ["window", "cycle"]
    inside = m.per_cycle.group_by(keys).agg(pl.sum_horizontal(*BUCKETS).sum().alias("phases_ns"))
    steps = m.cycles.filter(pl.col("window").is_not_null(), pl.col("step_ns") > 0)
    steps = steps.group_by(keys).agg(pl.col("step_ns").mean())
    both = inside.join(steps, on=keys).sort(keys)
    return both.select(pl.col("step_ns") - pl.col("phases_ns")).to_series().to_numpy().astype(np.float64)
