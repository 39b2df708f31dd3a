"""How break-even moves over a request, where the speculative cycle and the plain step grow differently with the context."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED, Floats
from specanalyze.answers.cycle_growth import growth_of
from specanalyze.answers.cycle_place import CONTEXT, PLACE, placed
from specanalyze.answers.medians import bounded
from specanalyze.answers.neighbours import neighbours, points

QUARTERS: Final = (0.25, 0.5, 0.75)
"""Shares of the contexts that both recordings have."""

ALONG_SCHEMA: Final[dict[str, Any]] = {
    "context_tokens": pl.Float64,
    "cycle_ns": pl.Float64,
    "step_ns": pl.Float64,
    "pays_at": pl.Float64,
    "pays_at_low": pl.Float64,
    "pays_at_high": pl.Float64,
}
"""Columns of ``break_even_along``."""


def break_even_along(cycles: pl.DataFrame, plain: pl.DataFrame) -> pl.DataFrame:
    """Break-even at several contexts.

    Args:
        cycles: speculative cycles of the counted ranks, columns of ``cycles.CYCLE_SCHEMA``.
        plain: plain decode steps of the baseline.

    Returns:
        Columns of ALONG_SCHEMA, one row each of QUARTERS: the typical untraced cycle and step beside that context, and their ratio
        with bounds at 95 %. No rows where neither grows, or one does not tell its contexts.
    """
    empty = pl.DataFrame(schema=ALONG_SCHEMA)
    sides = [_untraced(each) for each in (cycles, plain)]
    if sides[0] is None or sides[1] is None or not any(growth_of(x, y, CONTEXT) for x, y in (sides[0], sides[1])):
        return empty
    low, high = max(sides[0][0][0], sides[1][0][0]), min(sides[0][0][-1], sides[1][0][-1])
    rows = []
    for share in QUARTERS:
        place = float(low + share * (high - low))
        ours, theirs = neighbours(*sides[0], place, SEED + 1), neighbours(*sides[1], place, SEED + 6)
        if high <= low or ours is None or theirs is None or not (ours.between and theirs.between):
            return empty
        cycle, step = ours.typical(place), theirs.typical(place)
        ratio = bounded(cycle / step, ours.drawn_at(place) / theirs.drawn_at(place))
        rows.append((place, cycle, step, ratio.value, ratio.low, ratio.high))
    return pl.DataFrame(rows, schema=ALONG_SCHEMA, orient="row")


def _untraced(cycles: pl.DataFrame) -> tuple[Floats, Floats] | None:
    """Contexts, ascending, and steps of the untraced cycles; None where these do not tell their contexts."""
    rows, kind = placed(alike_cycles(cycles)[0])
    rows = rows.filter(pl.col("control") & (pl.col("step_ns") > 0))
    return points(rows.select(PLACE, "step_ns")) if kind == CONTEXT and rows.height else None
