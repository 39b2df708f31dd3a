"""Straight lines by least squares, with bounds from the noise of cycles and from how well the points lie on the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from specanalyze.answers.bootstrap import LEVEL, SEED, Floats, Interval, resampled_means

_STUDENT: Final = (
    63.657,
    9.925,
    5.841,
    4.604,
    4.032,
    3.707,
    3.499,
    3.355,
    3.250,
    3.169,
    3.106,
    3.055,
    3.012,
    2.977,
    2.947,
)
"""Two-sided 99 % quantile of Student's t with 1, 2, ... degrees of freedom."""
_NORMAL: Final = 2.576


@dataclass(frozen=True)
class Line:
    """``fixed + slope * x`` with bounds."""

    fixed: Interval
    slope: Interval


def fit_lines(x: Floats, cells: Sequence[Floats]) -> list[Line]:
    """One line a figure through the means of the points.

    The bounds are the wider of two: resampling the cycles of each point (noise within recordings), and, with three or
    more points, Student's t of the residuals (points that do not lie on a line, recordings that differ otherwise).

    Args:
        x: position of each point.
        cells: for each point its cycles x figures.
    """
    design = np.stack([np.ones_like(x), x], axis=1)
    solve = np.linalg.pinv(design)
    means = np.stack([c.mean(axis=0) for c in cells])
    found = solve @ means
    drawn = None
    if all(len(c) > 1 for c in cells):
        drawn = np.einsum(
            "cp,rpk->rck", solve, np.stack([resampled_means(c, seed=SEED + i) for i, c in enumerate(cells)], axis=1)
        )
    half = None
    freedom = len(x) - 2
    if freedom > 0:
        residual = means - design @ found
        variance = (residual**2).sum(axis=0) / freedom
        spread = np.sqrt(np.diag(np.linalg.inv(design.T @ design))[:, None] * variance[None, :])
        half = spread * (_STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL)

    def interval(c: int, k: int) -> Interval:
        spun = None if drawn is None else drawn[:, c, k]
        return _bounds(found[c, k], spun, None if half is None else half[c, k])

    return [Line(interval(0, k), interval(1, k)) for k in range(means.shape[1])]


def _bounds(value: float, drawn: Floats | None, half: float | None) -> Interval:
    lows, highs = [], []
    if drawn is not None:
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        lows.append(float(low))
        highs.append(float(high))
    if half is not None:
        lows.append(float(value - half))
        highs.append(float(value + half))
    if not lows:
        return Interval(float(value), None, None)
    return Interval(float(value), min(lows), max(highs))
