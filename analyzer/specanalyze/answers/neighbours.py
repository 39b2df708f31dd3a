"""The typical cycle at a place, from its neighbours on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.bootstrap import SEED, Floats, Interval
from specanalyze.answers.cycle_place import PLACE
from specanalyze.answers.medians import bounded, resampled_medians

FEW: Final = 5
"""Fewer untraced cycles than this are no control."""
NEIGHBOURS: Final = 30
"""Cycles taken from each side of a place."""
FURTHEST: Final = 2.0
"""A place outside the neighbours is told up to this many times the distance of their two halves away."""


@dataclass(frozen=True)
class Neighbours:
    """The line through two groups of neighbours, each at its median place and median time.

    Attributes:
        x: places of the two groups, ascending.
        y: their medians, ns.
        drawn: medians of each group, resampled.
        cycles: which of the cycles they are, first and one past the last.
        between: whether the place lies between the groups; else they are both on one side of it.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    drawn: tuple[Floats, Floats]
    cycles: tuple[int, int]
    between: bool

    def at(self, places: Floats) -> Floats:
        """ns of the typical cycle at each of some places."""
        return np.asarray(self.y[0] + (self.y[1] - self.y[0]) * self._share(places))

    def drawn_at(self, place: float) -> Floats:
        """The same at one place, resampled."""
        return np.asarray(self.drawn[0] + (self.drawn[1] - self.drawn[0]) * self._share(np.array([place])))

    def interval_at(self, place: float) -> Interval:
        """The same with bounds at 95 %."""
        return bounded(self.typical(place), self.drawn_at(place))

    def typical(self, place: float) -> float:
        """``at`` of one place."""
        return float(self.at(np.array([place]))[0])

    def _share(self, places: Floats) -> Floats:
        return np.asarray((places - self.x[0]) / (self.x[1] - self.x[0]))


def neighbours(x: Floats, y: Floats, place: float, seed: int = SEED) -> Neighbours | None:
    """Neighbours of a place among untraced cycles.

    Args:
        x: places of the cycles, ascending.
        y: ns of each.
        place: the place.
        seed: of the random numbers.

    Returns:
        The nearest NEIGHBOURS cycles of each side, or of one side twice as many in two halves; None with fewer than FEW in a
        group, or where the place is too far from them.
    """
    cut = int(np.searchsorted(x, place, side="right"))
    low, high = slice(max(cut - NEIGHBOURS, 0), cut), slice(cut, cut + NEIGHBOURS)
    between = cut >= FEW and len(x) - cut >= FEW
    if not between:
        begin, end = (max(cut - 2 * NEIGHBOURS, 0), cut) if cut >= FEW else (cut, min(cut + 2 * NEIGHBOURS, len(x)))
        middle = (begin + end) // 2
        low, high = slice(begin, middle), slice(middle, end)
    if min(len(x[low]), len(x[high])) < FEW:
        return None
    at = float(np.median(x[low])), float(np.median(x[high]))
    apart = at[1] - at[0]
    if apart <= 0 or place > at[1] + FURTHEST * apart or place < at[0] - FURTHEST * apart:
        return None
    # Two seeds: neighbours of one side vary by themselves. The same two for each place, which errs on the wide side of a sum.
    drawn = resampled_medians(y[low], seed), resampled_medians(y[high], seed + 2)
    middles = float(np.median(y[low])), float(np.median(y[high]))
    return Neighbours(at, middles, drawn, (low.start, min(high.stop, len(x))), between)


def points(rows: pl.DataFrame) -> tuple[Floats, Floats]:
    """Places of some cycles, ascending, and their steps, ns.

    Args:
        rows: of ``cycle_place.placed``, with known steps.
    """
    ordered = rows.sort(PLACE, maintain_order=True)
    places, steps = (ordered.get_column(c).to_numpy().astype(np.float64) for c in (PLACE, "step_ns"))
    return places, steps
