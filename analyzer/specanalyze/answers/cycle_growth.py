"""Whether cycles grow (or shrink) steadily over a request, and by how much a token of context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED, Floats, Interval
from specanalyze.answers.cycle_place import CONTEXT, PLACE, place_in_words, placed
from specanalyze.answers.medians import bounded, resampled_medians
from specanalyze.attribution.cycles import decoding
from specschema.figures import signed

FEWEST: Final = 40
"""Fewer cycles than this show no growth over a request."""
STRETCHES: Final = (8, 16)
"""Fewest and most stretches whose medians a line is drawn through; ten cycles each where there are enough."""
MATTERS: Final = 0.05
"""Growth from the first stretch to the last below this share of the first is not told."""


@dataclass(frozen=True)
class Growth:
    """How a cycle time moves with its place; see ``growth_of``.

    Attributes:
        kind: what a place is, see ``cycle_place``.
        first, last: place and median ns of the first and of the last stretch.
        slope: ns a place, with bounds at 95 %.
        mean_place: of all the cycles; None where it is not known.
    """

    kind: str
    first: tuple[float, float]
    last: tuple[float, float]
    slope: Interval
    mean_place: float | None = None

    @property
    def share(self) -> float:
        """Last over first - 1."""
        return self.last[1] / self.first[1] - 1

    def sentence(self, what: str) -> str:
        """``the cycle grows with the context: 12.1 ms at 100 tokens, 23.3 ms at 1040 tokens (+11.6 us a token)``."""
        verb = "grows" if self.share > 0 else "shrinks"
        # more context is never less work: what gets faster does so for another reason, in time
        along = "with the context" if self.kind == CONTEXT and self.share > 0 else "over the recording"
        ends = ", ".join(f"{ns / 1e6:.2f} ms at {place_in_words(x, self.kind)}" for x, ns in (self.first, self.last))
        unit = "a token" if self.kind == CONTEXT else "a cycle"
        return f"{what} {verb} {along}: {ends} ({signed(self.slope.value / 1000, 2)} us {unit})"

    def to_json(self) -> dict[str, Any]:
        """Documented JSON layout."""
        return {
            "along": self.kind,
            "first": {"place": self.first[0], "cycle_ns": self.first[1]},
            "last": {"place": self.last[0], "cycle_ns": self.last[1]},
            "ns_per_place": self.slope.value,
            "low_ns_per_place": self.slope.low,
            "high_ns_per_place": self.slope.high,
        }


def growth_of_cycles(cycles: pl.DataFrame) -> Growth | None:
    """Growth of a recording's cycle: untraced and undisturbed cycles of the commonest mode and batch.

    Args:
        cycles: of one rank, columns of ``cycles.CYCLE_SCHEMA``.

    Returns:
        None where the cycles do not grow steadily, or are too few.
    """
    if not decoding(cycles).height:
        return None
    rows, kind = placed(alike_cycles(cycles)[0])
    rows = rows.filter(pl.col("control") & (pl.col("step_ns") > 0)).sort(PLACE, maintain_order=True)
    if kind is None:
        return None
    x, y = (rows.get_column(c).to_numpy().astype(np.float64) for c in (PLACE, "step_ns"))
    return growth_of(x, y, kind)


def growth_of(x: Floats, y: Floats, kind: str) -> Growth | None:
    """Steady growth of ``y`` over ``x``.

    The line is the median of the slopes between stretches of neighbours (Theil and Sen), of their medians, so that stalls do not bend
    it. It counts as growth where its slope and those of both halves have one sign beyond the noise of the cycles: a step, or a
    server that was slow for a while, is none.

    Args:
        x: places, ascending.
        y: ns of each cycle.
        kind: what a place is.

    Returns:
        None where it does not grow (or shrink) steadily by MATTERS, or there are fewer than FEWEST cycles.
    """
    if len(x) < FEWEST or x[0] == x[-1]:
        return None
    count = int(np.clip(len(x) // 10, *STRETCHES))
    parts = np.array_split(np.arange(len(x)), count)
    at = np.array([np.median(x[p]) for p in parts])
    middle = np.array([np.median(y[p]) for p in parts])
    drawn = np.stack([resampled_medians(y[p], SEED + i) for i, p in enumerate(parts)], axis=1)
    half = count // 2
    slopes = [
        _slope(at[part], middle[part], drawn[:, part])
        for part in (slice(None), slice(None, half), slice(count - half, None))
    ]
    if any(s is None or not s.excludes_zero for s in slopes):
        return None
    whole, one, other = (s for s in slopes if s is not None)
    growth = Growth(kind, (float(at[0]), float(middle[0])), (float(at[-1]), float(middle[-1])), whole, float(x.mean()))
    steady = np.sign(whole.value) == np.sign(one.value) == np.sign(other.value) == np.sign(growth.share)
    return growth if steady and abs(growth.share) >= MATTERS else None


def _slope(at: Floats, middle: Floats, drawn: Floats) -> Interval | None:
    """Median slope between all pairs, with bounds; None where all places are one."""
    one, other = np.triu_indices(len(at), 1)
    apart = at[other] - at[one]
    one, other, apart = one[apart > 0], other[apart > 0], apart[apart > 0]
    if not len(apart):
        return None
    value = float(np.median((middle[other] - middle[one]) / apart))
    spun = np.median((drawn[:, other] - drawn[:, one]) / apart, axis=1)
    return bounded(value, spun)
