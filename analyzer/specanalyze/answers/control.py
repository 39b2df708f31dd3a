"""The untraced control of traced cycles (rule D6): untraced cycles at the place of the windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED, Floats, Interval
from specanalyze.answers.cycle_growth import growth_of
from specanalyze.answers.cycle_place import CONTEXT, PLACE, placed
from specanalyze.answers.medians import FEWEST, bounded, resampled_medians
from specanalyze.answers.neighbours import Neighbours, neighbours, points
from specanalyze.attribution.cycles import decoding

MATTERS: Final = 0.02
"""Cycles beside the windows that differ from those of the whole recording by less than this are no other control."""
MIXED: Final = 0.1
"""Windows with more than this share of cycles of another mode or batch have no place of their own."""

WHOLE: Final = "all untraced cycles"
"""The control where cycles do not depend on their place."""


@dataclass(frozen=True)
class Control:
    """What a cycle of the windows would have taken untraced.

    Attributes:
        untraced_ns: the typical untraced cycle with its bounds. Where cycles do not depend on their place: the median of all
            untraced ones; else that of those beside each window, on both sides, at the windows' places.
        traced_ns: the typical traced cycle at these places, by the same account; None without traced cycles.
        effect: traced / untraced - 1; None without traced cycles.
        cycles: untraced cycles it comes from.
        place: what a place is where the control stands beside the windows (see ``cycle_place``); None: all untraced cycles.
        span: least and greatest place of the traced cycles; None where ``place`` is.
        beside: (rank, window) -> neighbours, where ``place`` is told.
    """

    untraced_ns: Interval
    traced_ns: float | None
    effect: Interval | None
    cycles: int
    place: str | None = None
    span: tuple[float, float] | None = None
    beside: dict[tuple[str, int], Neighbours] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What the control is, in a clause."""
        if self.place is None:
            return WHOLE
        at = "at the same context" if self.place == CONTEXT else "before and after each"
        return f"untraced cycles beside the windows, {at}"

    def to_json(self) -> dict[str, Any]:
        """Documented JSON layout."""
        return {
            "of": WHOLE if self.place is None else "untraced cycles beside the windows",
            "along": self.place,
            "cycles": self.cycles,
            "windows_from": None if self.span is None else self.span[0],
            "windows_to": None if self.span is None else self.span[1],
            "untraced_ns": self.untraced_ns.value,
            "untraced_low_ns": self.untraced_ns.low,
            "untraced_high_ns": self.untraced_ns.high,
            "traced_ns": self.traced_ns,
        }


def control_of(cycles: pl.DataFrame) -> Control | None:
    """The control of the traced cycles among the rows.

    Cycles may grow with the context (attention reads more), and windows lie where they lie: the median of a whole request is
    then the cycle of another context. So the untraced cycles beside each window are its control where cycles grow or shrink
    steadily and these differ from the whole by MATTERS and beyond the noise. Where a host is now faster, now slower, the cycles next to
    a window say no more about it than the others: its pause at the end disturbs them more.

    Args:
        cycles: of one rank, or one a replica, columns of ``cycles.CYCLE_SCHEMA``; the modes that are to be compared.

    Returns:
        None without an untraced cycle whose step is known.
    """
    timed = cycles.filter(pl.col("step_ns") > 0)
    over, under = _steps(timed.filter(pl.col("window").is_not_null())), _steps(timed.filter("control"))
    if not len(under):
        return None
    drawn = resampled_medians(under) if len(under) >= FEWEST else None
    untraced = float(np.median(under))
    found = None if drawn is None else _beside(cycles, untraced, len(over))
    if found is not None:
        return found
    traced = float(np.median(over)) if len(over) else None
    effect = None
    if traced is not None:
        effect = Interval(traced / untraced - 1, None, None)
        if drawn is not None and len(over) >= FEWEST:
            effect = bounded(effect.value, resampled_medians(over, SEED + 1) / drawn - 1)
    interval = Interval(untraced, None, None) if drawn is None else bounded(untraced, drawn)
    return Control(interval, traced, effect, len(under))


def _beside(cycles: pl.DataFrame, whole_ns: float, count: int) -> Control | None:
    """The control beside the windows; None where it is the whole's, or cannot be told.

    Args:
        cycles: all.
        whole_ns: median of all untraced cycles.
        count: traced cycles with a known step.
    """
    if not count or not decoding(cycles).height:
        return None
    rows, kind = placed(alike_cycles(cycles)[0])
    rows = rows.filter(pl.col("step_ns") > 0)
    traced = rows.filter(pl.col("window").is_not_null())
    if kind is None or traced.height < (1 - MIXED) * count:
        return None
    beside: dict[tuple[str, int], Neighbours] = {}
    used: dict[str, NDArray[np.bool_]] = {}
    value, drawn, differs = 0.0, np.zeros(1), False
    apart: list[Floats] = []
    for (rank, window), mine in traced.group_by("rank", "window", maintain_order=True):  # one turn a window
        x, y = points(rows.filter(pl.col("rank") == rank, pl.col("control")))
        at = mine.get_column(PLACE).to_numpy()
        place = float(at.mean())
        near = neighbours(x, y, place)
        if near is None or growth_of(x, y, kind) is None:
            return None
        share = mine.height / traced.height
        typical, resampled = near.typical(place), near.drawn_at(place)
        value += share * typical
        drawn = drawn + share * resampled
        apart.append(_steps(mine) - near.at(at))
        beside[str(rank), int(window)] = near
        used.setdefault(str(rank), np.zeros(len(x), dtype=bool))[slice(*near.cycles)] = True
        off = bounded(typical / whole_ns - 1, resampled / whole_ns - 1)
        differs |= abs(off.value) >= MATTERS and off.excludes_zero
    if not differs or value <= 0:
        return None
    off_ns = np.concatenate(apart)
    traced_ns = value + float(np.median(off_ns))
    effect = Interval(traced_ns / value - 1, None, None)
    if len(off_ns) >= FEWEST:
        effect = bounded(effect.value, (value + resampled_medians(off_ns, SEED + 1)) / drawn - 1)
    places = traced.get_column(PLACE)
    span = float(places.min()), float(places.max())  # type: ignore[arg-type]
    count = int(sum(mask.sum() for mask in used.values()))
    return Control(bounded(value, drawn), traced_ns, effect, count, kind, span, beside)


def _steps(cycles: pl.DataFrame) -> Floats:
    return cycles.get_column("step_ns").to_numpy().astype(np.float64)
