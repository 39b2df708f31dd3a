"""Kernels of two recordings: which appeared, which vanished, whose time a cycle changed."""

from __future__ import annotations

from typing import Final

import polars as pl

from specanalyze.answers.measured import Measured

KERNEL_CHANGE: Final = 0.10
"""A kernel whose time a cycle moves by less than this share of itself is not listed."""
KERNEL_SHARE: Final = 0.002
"""Nor one whose change is less than this share of the cycle."""

KERNEL_SCHEMA: Final = {
    "phase": pl.String,
    "name": pl.String,
    "bucket": pl.String,
    "status": pl.String,
    "calls_before": pl.Float64,
    "calls_after": pl.Float64,
    "before_ns": pl.Float64,
    "after_ns": pl.Float64,
    "change_ns": pl.Float64,
}
"""Columns of ``Comparison.kernels``: status is appeared, vanished or changed; calls and ns are a cycle and rank."""


def kernel_changes(a: Measured, b: Measured) -> pl.DataFrame:
    """Kernels that appeared, vanished, or whose time a cycle changed, by phase and name; columns of KERNEL_SCHEMA."""
    keys = ["phase", "name", "bucket"]

    def of(m: Measured, side: str) -> pl.DataFrame:
        ranks = len(m.breakdown.ranks)
        cycles = {r.key: max(r.whole.get(m.main_phase, 0), 1) for r in m.breakdown.ranks}
        share = pl.col("rank").replace_strict(cycles, return_dtype=pl.Float64)
        return m.kernels.group_by(keys).agg(
            ((pl.col("whole_count") / share).sum() / ranks).alias(f"calls_{side}"),
            ((pl.col("whole_sum_ns") / share).sum() / ranks).alias(f"{side}_ns"),
        )

    both = of(a, "before").join(of(b, "after"), on=keys, how="full", coalesce=True)
    status = (
        pl.when(pl.col("before_ns").is_null())
        .then(pl.lit("appeared"))
        .when(pl.col("after_ns").is_null())
        .then(pl.lit("vanished"))
        .otherwise(pl.lit("changed"))
    )
    numbers = ["calls_before", "calls_after", "before_ns", "after_ns"]
    table = both.with_columns(status.alias("status"), *(pl.col(n).fill_null(0.0) for n in numbers))
    change = (pl.col("after_ns") - pl.col("before_ns")).alias("change_ns")
    large = pl.col("change_ns").abs() >= KERNEL_SHARE * a.step_ns
    moved = (pl.col("status") != "changed") | (pl.col("change_ns").abs() >= KERNEL_CHANGE * pl.col("before_ns"))
    return (
        table.with_columns(change)
        .filter(large & moved)
        .sort(pl.col("change_ns").abs(), "name", descending=[True, False])
        .select(*KERNEL_SCHEMA)
    )
