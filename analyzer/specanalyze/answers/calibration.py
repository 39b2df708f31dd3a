"""The calibrated breakdown (rule D6): busy time as measured, idle time scaled to the untraced cycle, with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.control import Control, control_of
from specanalyze.answers.neighbours import FEW
from specanalyze.attribution.cycles import decoding
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specschema.figures import counted
from specschema.phases import BUCKETS, IDLE_BUCKETS, PHASE_KEYS

ODD_SHARE: Final = 0.1
"""Windows in which more than this share of the cycles is of another mode or batch are not calibrated."""

CELL_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "phase": pl.String,
    "bucket": pl.String,
    "measured_ns": pl.Float64,
    "calibrated_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
}
"""Columns of ``Calibration.cells``."""


@dataclass(frozen=True)
class Calibration:
    """One rank's calibration. All times are ns a cycle.

    Attributes:
        rank: its key.
        reason: why there is none; None where there is one.
        cells: CELL_SCHEMA, one row a phase and bucket of the partition. Busy buckets are as measured. The idle ones share what the
            untraced cycle leaves beside the busy time in the proportion measured (calibrated_ns); how it is really
            shared is not known, so low_ns and high_ns are the least and the most that each can be when none is longer than
            measured (none shorter, where the untraced cycle is the longer one), at either end of ``bounds_ns``.
        measured_ns: traced cycle: window / cycles, without those that were recorded in part.
        traced_ns: the typical traced cycle, start to start, as ``overhead`` takes it; None without.
        untraced_ns: the untraced cycle at the place of the windows with its bounds, as ``control`` takes it; None without.
        scale: factor on idle time; None where there is no calibration.
        control: what the untraced cycle comes from, in a clause.
        bounds_ns: the untraced cycle with the noise of the traced cycles' busy time in its bounds, too, as that is taken from it; None: as
            ``untraced_ns``.
    """

    rank: str
    reason: str | None
    cells: pl.DataFrame
    measured_ns: float | None = None
    untraced_ns: Interval | None = None
    scale: float | None = None
    traced_ns: float | None = None
    control: str | None = None
    bounds_ns: Interval | None = None

    def idle_estimate(self, measured_ns: float) -> tuple[float, float, float] | None:
        """Estimate and bounds, ns a cycle, of an idle part of the cycle (a bucket, a part of one, or several).

        Args:
            measured_ns: the part as traced, ns a cycle.
        """
        if self.scale is None or self.untraced_ns is None:
            return None
        idle = pl.col("bucket").is_in(IDLE_BUCKETS)
        busy_ns = float(self.cells.filter(~idle).get_column("measured_ns").sum())
        idle_ns = float(self.cells.filter(idle).get_column("measured_ns").sum())
        bounds = self.bounds_ns or self.untraced_ns
        least = max((bounds.low or 0.0) - busy_ns, 0.0)
        most = max((bounds.high or bounds.value) - busy_ns, 0.0)
        low = min(max(least - (idle_ns - measured_ns), 0.0), measured_ns)
        return measured_ns * self.scale, low, min(measured_ns, most) + max(most - idle_ns, 0.0)


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """``calibrated`` of a rank in ``breakdown --json``: the reason why there is none, or ns a cycle by phase and bucket."""
    if calibration.reason is not None or calibration.untraced_ns is None:
        return {"reason": calibration.reason}
    phases: dict[str, dict[str, dict[str, float]]] = {}
    for row in calibration.cells.iter_rows(named=True):
        cell = {key: row[key] for key in ("measured_ns", "calibrated_ns", "low_ns", "high_ns")}
        phases.setdefault(row["phase"], {})[row["bucket"]] = cell
    return {
        "reason": None,
        "estimate": True,
        "traced_cycle_ns": calibration.measured_ns,
        "traced_median_ns": calibration.traced_ns,
        "untraced_cycle_ns": calibration.untraced_ns.value,
        "untraced_low_ns": calibration.untraced_ns.low,
        "untraced_high_ns": calibration.untraced_ns.high,
        "idle_scale": calibration.scale,
        "control": calibration.control,
        "per_cycle": phases,
    }


def calibrate(rank: RankBreakdown, cycles: pl.DataFrame) -> Calibration:
    """Calibrate one rank's partition by its untraced cycles.

    Args:
        rank: its breakdown.
        cycles: of ``cycles.cycle_table`` or ``cycles.rank_cycles``; rows of other ranks are ignored.

    Returns:
        The calibration, or the reason why there is none: no untraced control, windows of mixed work, no device work.
    """
    mine = cycles.filter(pl.col("rank") == rank.key)
    empty = pl.DataFrame(schema=CELL_SCHEMA)

    def withheld(reason: str) -> Calibration:
        return Calibration(rank.key, f"rank {rank.key}: no calibrated times: {reason}", empty)

    profiled = mine.filter(pl.col("window").is_not_null())
    inside = profiled.height
    if not rank.window_ns or not inside:
        return withheld("no cycle was traced")
    if not decoding(profiled).height:
        return withheld("the windows hold no decode cycle")
    alike, mode = alike_cycles(mine)
    within = alike.filter(pl.col("window").is_not_null())
    traced = within.height
    untraced = alike.filter(pl.col("control") & (pl.col("step_ns") > 0)).get_column("step_ns")
    if len(untraced) < FEW:
        return withheld(
            f"{beside(len(untraced), mode)} beside the traced ones; record a longer answer of the same "
            "request, so that cycles stay outside the windows, or give those of another run with --cycles FILE"
        )
    if traced < (1 - ODD_SHARE) * inside:
        return withheld(f"only {traced} of the {inside} traced cycles are {mode} cycles of one batch size")
    coverage = rank.coverage("verify")
    if coverage["with_gpu_records"] < coverage["graph_launches"]:
        return withheld("graph replays without device records make busy time look idle")
    control = control_of(alike)
    if control is None:  # FEW are there
        return withheld("no untraced cycle has a known length")
    sums, left_out = _without_broken(rank, within)
    if left_out == traced:
        return withheld("no traced cycle was recorded whole")
    steps = within.filter(pl.col("step_ns") > 0).get_column("step_ns").to_numpy().astype(np.float64)
    bounds = _with_noise_of_traced(control, steps)
    found = _calibrated(rank, sums, traced - left_out, bounds)
    return replace(
        found, traced_ns=control.traced_ns, untraced_ns=control.untraced_ns, control=control.words, bounds_ns=bounds
    )


def _with_noise_of_traced(control: Control, steps: NDArray[np.float64]) -> Interval:
    """The untraced cycle, its bounds no closer than those of how much longer the traced one is.

    Busy time is a mean and the untraced cycle a median: what a few long traced cycles make of the mean may be busy time or idle.

    Args:
        control: of the cycles.
        steps: ns of the traced ones.
    """
    untraced, effect = control.untraced_ns, control.effect
    if effect is None or effect.low is None or effect.high is None or untraced.low is None or untraced.high is None:
        return untraced
    low, high = (untraced.value * (1 + effect.value - end) for end in (effect.high, effect.low))
    skew = float(steps.mean() - np.median(steps))
    return Interval(untraced.value, min(low, untraced.low) + min(skew, 0.0), max(high, untraced.high) + max(skew, 0.0))


def _without_broken(rank: RankBreakdown, cycles: pl.DataFrame) -> tuple[Mapping[str, Mapping[str, int]], int]:
    """The partition's sums without the instances of cycles that were recorded in part, and how many of the cycles these are."""
    table = rank.phase_instances
    of_cycle = ["window", "cycle"]
    broken = table.filter(~pl.col("complete"), pl.col("cycle") >= 0).select(of_cycle).unique()
    broken = cycles.select(of_cycle).join(broken, on=of_cycle, how="semi")
    if not broken.height:
        return rank.buckets_ns, 0
    parts = table.join(broken, on=of_cycle, how="semi").group_by("phase").agg(pl.col(*BUCKETS).sum())
    less = {row.pop("phase"): row for row in parts.iter_rows(named=True)}
    sums = {p: {b: ns - less.get(p, {}).get(b, 0) for b, ns in row.items()} for p, row in rank.buckets_ns.items()}
    return sums, broken.height


def _calibrated(
    rank: RankBreakdown, sums: Mapping[str, Mapping[str, int]], count: int, untraced: Interval
) -> Calibration:
    rows = [(rank.key, p, b, ns / count) for p in PHASE_KEYS for b, ns in sums.get(p, {}).items()]
    cells = pl.DataFrame(rows, schema=dict(list(CELL_SCHEMA.items())[:4]), orient="row")
    idle = pl.col("bucket").is_in(IDLE_BUCKETS)
    busy_ns = float(cells.filter(~idle).get_column("measured_ns").sum())
    idle_ns = float(cells.filter(idle).get_column("measured_ns").sum())
    # What the untraced cycle leaves for idle time; busy work alone may already be longer (work of neighbours overlaps).
    left, least, most = (
        max(v - busy_ns, 0.0) for v in (untraced.value, untraced.low or 0.0, untraced.high or untraced.value)
    )
    scale = left / idle_ns if idle_ns else 1.0
    measured = pl.col("measured_ns")
    calibrated = pl.when(idle).then(measured * scale).otherwise(measured)
    # None longer than measured while the untraced cycle is the shorter one; else any of them may have all of the surplus.
    surplus = max(most - idle_ns, 0.0)
    low = (least - (idle_ns - measured)).clip(0.0, measured)
    high = pl.min_horizontal(measured, pl.lit(most)) + surplus
    cells = cells.with_columns(
        calibrated_ns=calibrated,
        low_ns=pl.when(idle).then(low).otherwise(measured),
        high_ns=pl.when(idle).then(high).otherwise(measured),
    )
    cells = cells.select(pl.col(c).cast(t) for c, t in CELL_SCHEMA.items())
    whole_ns = sum(ns for row in sums.values() for ns in row.values())
    return Calibration(rank.key, None, cells, whole_ns / count, untraced, scale)


def calibrated_columns(frame: pl.DataFrame, calibrations: Mapping[str, Calibration]) -> pl.DataFrame:
    """Add calibrated columns to the breakdown table.

    Args:
        frame: of ``breakdown_table.breakdown_frame(..., by="rank")``.
        calibrations: rank key -> of ``calibrate``.

    Returns:
        The frame with calibrated_ns, calibrated_low_ns and calibrated_high_ns: total_ns as it would have been untraced, an
        estimate; null where a rank's calibration is withheld.
    """
    cells = pl.concat([pl.DataFrame(schema=CELL_SCHEMA), *(c.cells for c in calibrations.values())])
    factors = cells.filter(pl.col("measured_ns") > 0).select(
        "rank",
        "phase",
        "bucket",
        *((pl.col(f"{name}_ns") / pl.col("measured_ns")).alias(f"_{name}") for name in ("calibrated", "low", "high")),
    )
    joined = frame.join(factors, on=["rank", "phase", "bucket"], how="left", maintain_order="left")
    total = pl.col("total_ns")
    return joined.with_columns(
        calibrated_ns=(total * pl.col("_calibrated")).round().cast(pl.Int64),
        calibrated_low_ns=(total * pl.col("_low")).round().cast(pl.Int64),
        calibrated_high_ns=(total * pl.col("_high")).round().cast(pl.Int64),
    ).drop("_calibrated", "_low", "_high")


def withheld_reasons(calibrations: Mapping[str, Calibration]) -> list[str]:
    """Why ranks have no calibrated times, one line each."""
    return [c.reason for c in calibrations.values() if c.reason is not None]


def beside(n: int, mode: str) -> str:
    """``no untraced speculative cycle stands``, ``only 3 untraced speculative cycles stand``."""
    noun = f"untraced {mode} cycle"
    return f"only {counted(n, noun)} stand" if n > 1 else f"{'only 1' if n else 'no'} {noun} stands"
