"""``compare --fail-above``: what got slower by more than a share of the cycle, for use in CI."""

from __future__ import annotations

import re

import polars as pl

from specanalyze.answers.compare import SLOWER, Comparison
from specanalyze.answers.cycle_account import UNTRACED
from specschema.errors import UsageError
from specschema.figures import percent
from specschema.phases import IDLE_BUCKETS


def share_of(text: str) -> float:
    """``5%`` -> 0.05, ``0.05`` -> 0.05.

    Raises:
        UsageError: not a share between 0 and 100 %.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(found.group(1)) / (100 if found.group(2) else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"--fail-above {text}: give a share such as 5% or 0.05")
    return value


def regressions(result: Comparison, above: float) -> list[str]:
    """What got slower by more than ``above`` (share of the first recording's cycle) beyond noise, one line each.

    The cycle is judged, and busy time of phases; idle time of traced cycles is not (rule D6).
    """
    cycle = result.table.filter(pl.col("scope") == "cycle").row(0, named=True)
    slower = result.table.filter(
        pl.col("verdict") == SLOWER,
        pl.col("change_ns") > above * cycle["before_ns"],
        ~pl.col("scope").is_in(["phase", "part", "rest"]),
    )
    if result.clock != UNTRACED:
        slower = slower.filter(pl.col("bucket").is_not_null())
    lines = []
    for row in slower.filter(~pl.col("bucket").is_in(IDLE_BUCKETS).fill_null(value=False)).iter_rows(named=True):
        what = "the cycle" if row["scope"] == "cycle" else f"{row['phase']} {row['bucket']}"
        share = row["change_ns"] / cycle["before_ns"]
        lines.append(
            f"{what} is slower by {row['change_ns'] / 1e6:.3f} ms, {percent(share)} of a cycle (more than {percent(above)})"
        )
    return lines


def not_judged(result: Comparison) -> list[str]:
    """What ``regressions`` leaves out of this comparison though a reader would take it for judged, one line each."""
    if result.clock == UNTRACED:
        return []
    return [
        "--fail-above judges the busy time of phases alone here: the cycle and tok/s of observed cycles are no ground for it"
    ]
