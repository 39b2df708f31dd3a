"""Confidence of means over cycles, by resampling blocks of neighbouring cycles: seeded and vectorised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.answers.trend import trends

Floats = NDArray[np.float64]

SEED: Final = 20260101
"""Fixed, so that the same recordings always give the same bounds."""
RESAMPLES: Final = 4000
LEVEL: Final = 0.99
"""A comparison looks at twenty and more figures at once; at 95 % one of them would move by chance alone."""
STRETCHES: Final = 8
"""A block is the longer of n^(1/3) cycles and this part of all. Cycles of real servers resemble those ten and more before them (their clock, the
host's state, other load), which shorter blocks take for noise that averages out; longer ones leave too few to tell the spread."""
_LEAST_BLOCKS: Final = 4
_CHUNK: Final = 4_000_000
"""Weights held in memory at once."""
_MOST_ROWS: Final = 2000
"""More cycles than this are first averaged over as many stretches of neighbours: the bounds of their mean are the same."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its bounds, in the unit of the values; bounds are None where there are too few values."""

    value: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def block_length(n: int) -> int:
    """Neighbouring cycles that are drawn together, of ``n``."""
    return max(1, round(min(max(math.pow(n, 1 / 3), n / STRETCHES), n / _LEAST_BLOCKS)))


def spread_factors(n: int, resamples: int, generator: np.random.Generator) -> Floats:
    """By how much each resample's distance from the figure grows, because few blocks tell the spread badly.

    Resamples of k blocks spread by sqrt(1 - 1/k) too little, and as if that spread were known; the factors make them spread as
    Student's t with k - 1 degrees of freedom does, at any level.
    """
    blocks = max(n / block_length(n), 1.5)
    freedom = blocks - 1
    return np.asarray(np.sqrt(blocks / generator.chisquare(freedom, resamples)))


def resampled_means(values: Floats, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Means of resampled cycles.

    Neighbouring cycles resemble each other, so circular blocks of ``block_length`` neighbours are drawn rather than single cycles; their
    distances from the mean grow by ``spread_factors``. A steady trend is no noise: what lies around it is drawn.

    Args:
        values: cycles x figures, in order of time.
        resamples: how many.
        seed: of the random numbers.

    Returns:
        resamples x figures.
    """
    if len(values) > _MOST_ROWS:
        bounds = np.linspace(0, len(values), _MOST_ROWS + 1).astype(np.int64)
        sizes = np.diff(bounds)[:, None]
        values = np.add.reduceat(values, bounds[:-1], axis=0) / sizes
    mean = values.mean(axis=0)
    values = values - trends(values)
    n = len(values)
    block = block_length(n)
    draws = -(-n // block)
    generator = np.random.default_rng(seed)
    means = []
    done = 0
    while done < resamples:
        rows = min(resamples - done, max(1, _CHUNK // max(n, 1)))
        starts = generator.integers(0, n, size=(rows, draws))
        counts = np.zeros((rows, n))
        np.add.at(counts, (np.arange(rows)[:, None], starts), 1.0)
        # A block that starts at i weighs i .. i+block-1, around the end: a moving sum over the counts of starts.
        padded = np.concatenate([np.zeros((rows, 1)), counts[:, n - block + 1 :], counts], axis=1).cumsum(axis=1)
        weights = padded[:, block:] - padded[:, :-block]
        means.append(weights @ values / weights.sum(axis=1, keepdims=True))
        done += rows
    return np.asarray(mean + (np.concatenate(means) - mean) * spread_factors(n, resamples, generator)[:, None])


def mean_intervals(values: Floats, level: float = LEVEL) -> list[Interval]:
    """Mean of each figure over the cycles, with bounds.

    Args:
        values: cycles x figures.
    """
    if len(values) < 2:
        return [Interval(float(v), None, None) for v in values.mean(axis=0)]
    return _intervals(values.mean(axis=0), resampled_means(values), level)


def difference_intervals(before: Floats, after: Floats, level: float = LEVEL) -> list[Interval]:
    """Difference of the means of each figure, after minus before, with bounds.

    Args:
        before, after: cycles x figures; the figures correspond, the cycles do not.
    """
    difference = after.mean(axis=0) - before.mean(axis=0)
    if len(before) < 2 or len(after) < 2:
        return [Interval(float(v), None, None) for v in difference]
    drawn = resampled_means(after, seed=SEED + 1) - resampled_means(before)
    return _intervals(difference, drawn, level)


def _intervals(values: Floats, drawn: Floats, level: float) -> list[Interval]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(v), float(a), float(b)) for v, a, b in zip(values, low, high, strict=True)]
