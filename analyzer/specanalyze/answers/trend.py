"""Steady trends of figures over the cycles: what moves with the context is no noise, and resampling must not take it for some."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]

FEWEST: Final = 40
"""Fewer cycles show no trend."""
STRETCHES: Final = 8
"""Stretches of neighbours whose medians are compared."""
PAIRS: Final = 26
"""Of the 28 pairs of stretches, by how many more must rise than fall, or fall than rise (one pair may be out of order): by chance once in
2500 recordings (Kendall's test)."""


def trends(values: _Floats) -> _Floats:
    """The trend of each figure.

    Args:
        values: cycles x figures, in order of time.

    Returns:
        cycles x figures: the line of each figure around 0 (the median of the slopes between stretches, Theil and Sen); zeros where it does
        not rise or fall steadily. One that moves and comes back, or steps once, is noise.
    """
    count, figures = values.shape
    if count < FEWEST:
        return np.zeros((count, figures))
    place = (np.arange(count) - (count - 1) / 2)[:, None]
    steady, slope = _slopes(values)
    slope = np.where(steady, slope, 0.0)
    # Within a steep stretch the median hangs on few cycles: what is left around the first line tells the rest of the slope.
    return np.asarray(place * np.where(steady, slope + _slopes(values - place * slope)[1], 0.0))


def _slopes(values: _Floats) -> tuple[NDArray[np.bool_], _Floats]:
    """Which figures rise or fall steadily, and the slope of each."""
    parts = np.array_split(np.arange(len(values)), STRETCHES)
    at = np.array([p.mean() for p in parts])
    middle = np.stack([np.median(values[p[0] : p[-1] + 1], axis=0) for p in parts])
    one, other = np.triu_indices(STRETCHES, 1)
    apart = middle[other] - middle[one]
    steady = np.abs(np.sign(apart).sum(axis=0)) >= PAIRS
    return steady, np.median(apart / (at[other] - at[one])[:, None], axis=0)
