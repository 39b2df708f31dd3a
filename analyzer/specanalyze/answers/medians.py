"""Medians of cycle times with bounds, by resampling blocks of neighbouring cycles with a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specanalyze.answers.bootstrap import SEED, Floats, Interval, block_length, spread_factors
from specanalyze.answers.trend import trends

RESAMPLES: Final = 2000
LEVEL: Final = 0.95
FEWEST: Final = 5
"""Fewer values bound no median: all of them may well lie on one side of it (of five independent ones, one time in sixteen)."""
FEWEST_AT_99: Final = 8
"""The same for bounds at 99 %."""
_CHUNK: Final = 2_000_000
"""Resampled values held in memory at once."""
_SHORT: Final = 1 << 16
"""As many values have ranks of two bytes."""


def resampled_medians(values: Floats, seed: int = SEED, resamples: int = RESAMPLES) -> Floats:
    """Medians of resampled cycles, in circular blocks, with the spread that so many blocks tell; see ``bootstrap.resampled_means``.

    What lies around a steady trend is drawn, see ``trend``; none lies outside the values.

    Args:
        values: one figure a cycle, in order of time; at least one.
        seed: of the random numbers.
        resamples: how many.
    """
    n = len(values)
    generator = np.random.default_rng(seed)
    trend = trends(values[:, None])[:, 0]
    median = float(np.median(values))
    drawn = (
        _around(trend, values - trend, generator, resamples) if trend.any() else _plain(values, generator, resamples)
    )
    spread = (drawn - median) * spread_factors(n, resamples, generator)
    return np.asarray(np.clip(median + spread, values.min(), values.max()))


def _plain(values: Floats, generator: np.random.Generator, resamples: int) -> Floats:
    """Medians of resampled values."""
    n = len(values)
    # Ranks stand for values: a quarter of the bytes to gather and partition, and the same medians in the end.
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(n, np.uint16 if n <= _SHORT else np.uint32)
    ranks[order] = np.arange(n)
    low, high = (n - 1) // 2, n // 2
    found: list[NDArray[np.float64]] = []
    for drawn in _drawn(ranks, generator, resamples):
        middle = np.partition(drawn, sorted({low, high}), axis=1)
        found.append((ordered[middle[:, low]] + ordered[middle[:, high]]) / 2)
    return np.concatenate(found)


def _around(trend: Floats, rest: Floats, generator: np.random.Generator, resamples: int) -> Floats:
    """Medians of a trend and the resampled rest around it, around the median as it is: the rest may be another one at other places."""
    found = np.concatenate([np.median(drawn + trend, axis=1) for drawn in _drawn(rest, generator, resamples)])
    return np.asarray(found - np.median(found) + np.median(rest + trend))


def _drawn(values: NDArray[Any], generator: np.random.Generator, resamples: int) -> Iterator[NDArray[Any]]:
    """Resamples x values in circular blocks, some resamples at a time."""
    n = len(values)
    block = block_length(n)
    draws = -(-n // block)
    blocks = np.ascontiguousarray(sliding_window_view(np.concatenate([values, values]), block)[:n])
    done = 0
    while done < resamples:
        rows = min(resamples - done, max(1, _CHUNK // n))
        starts = generator.integers(0, n, size=rows * draws)
        yield blocks[starts].reshape(rows, -1)[:, :n]
        done += rows


def median_interval(values: Floats) -> Interval:
    """Median with its bounds at LEVEL; the bounds are None with fewer than FEWEST values."""
    if len(values) < FEWEST:
        return Interval(float(np.median(values)), None, None)
    return bounded(float(np.median(values)), resampled_medians(values))


def ratio_interval(over: Floats, under: Floats) -> Interval:
    """Ratio of two medians, over / under, with its bounds at LEVEL; None with fewer than FEWEST of either."""
    value = float(np.median(over) / np.median(under))
    if min(len(over), len(under)) < FEWEST:
        return Interval(value, None, None)
    return bounded(value, resampled_medians(over, SEED + 1) / resampled_medians(under))


def bounded(value: float, drawn: Floats) -> Interval:
    """A figure with its bounds at LEVEL, from its resamples."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))
