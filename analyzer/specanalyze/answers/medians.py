"""Medians of cycle times with bounds, by resampling blocks of neighbouring cycles with a fixed seed."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specanalyze.answers.bootstrap import SEED, Floats, Interval

RESAMPLES: Final = 2000
LEVEL: Final = 0.95
_CHUNK: Final = 2_000_000
"""Resampled values held in memory at once."""
_SHORT: Final = 1 << 16
"""As many values have ranks of two bytes."""


def resampled_medians(values: Floats, seed: int = SEED, resamples: int = RESAMPLES) -> Floats:
    """Medians of resampled cycles, in circular blocks of n^(1/3): neighbours resemble each other.

    Args:
        values: one figure a cycle, in order of time; at least one.
        seed: of the random numbers.
        resamples: how many.
    """
    n = len(values)
    block = max(1, round(n ** (1 / 3)))
    draws = -(-n // block)
    generator = np.random.default_rng(seed)
    # Ranks stand for values: a quarter of the bytes to gather and partition, and the same medians in the end.
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(n, np.uint16 if n <= _SHORT else np.uint32)
    ranks[order] = np.arange(n)
    blocks = np.ascontiguousarray(sliding_window_view(np.concatenate([ranks, ranks]), block)[:n])
    low, high = (n - 1) // 2, n // 2
    found: list[NDArray[np.float64]] = []
    done = 0
    while done < resamples:
        rows = min(resamples - done, max(1, _CHUNK // n))
        starts = generator.integers(0, n, size=rows * draws)
        drawn = blocks[starts].reshape(rows, -1)[:, :n]
        middle = np.partition(drawn, sorted({low, high}), axis=1)
        found.append((ordered[middle[:, low]] + ordered[middle[:, high]]) / 2)
        done += rows
    return np.concatenate(found)


def median_interval(values: Floats) -> Interval:
    """Median with its bounds at LEVEL; the bounds are None with fewer than two values."""
    if len(values) < 2:
        return Interval(float(np.median(values)), None, None)
    return bounded(float(np.median(values)), resampled_medians(values))


def ratio_interval(over: Floats, under: Floats) -> Interval:
    """Ratio of two medians, over / under, with its bounds at LEVEL."""
    value = float(np.median(over) / np.median(under))
    if len(over) < 2 or len(under) < 2:
        return Interval(value, None, None)
    return bounded(value, resampled_medians(over, SEED + 1) / resampled_medians(under))


def bounded(value: float, drawn: Floats) -> Interval:
    """A figure with its bounds at LEVEL, from its resamples."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))
