"""Where in its request a cycle stands: by the context it reads, else by its position among the cycles."""

from __future__ import annotations

from typing import Final

import polars as pl

from specanalyze.attribution.cycles import control_is_another_run

CONTEXT: Final = "context"
"""Place in tokens of context (of the whole batch)."""
POSITION: Final = "position"
"""Place in cycles from the first one of the rank."""

PLACE: Final = "place"
"""The column."""


def placed(cycles: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Add ``place`` to cycles of one mode and batch size.

    Args:
        cycles: columns of ``cycles.CYCLE_SCHEMA``, by rank and start; rows outside and inside the windows.

    Returns:
        The rows that have a place, and what it is: CONTEXT where nearly all rows tell theirs, else POSITION; None, and no
        rows, where neither is known: untraced cycles of another run that tell no context.
    """
    known = cycles.filter(pl.col("context_tokens").is_not_null())
    missing = cycles.height - known.height
    if known.height and missing <= MISSING * cycles.height and known.get_column("context_tokens").n_unique() > 1:
        return known.with_columns(pl.col("context_tokens").cast(pl.Float64).alias(PLACE)), CONTEXT
    if not cycles.height or control_is_another_run(cycles):
        return cycles.clear().with_columns(pl.lit(None, pl.Float64).alias(PLACE)), None
    at = pl.int_range(pl.len()).over("rank").cast(pl.Float64)
    return cycles.sort("rank", "start_ns", maintain_order=True).with_columns(at.alias(PLACE)), POSITION


MISSING: Final = 0.02
"""Share of the cycles that may lack a context: the first or last one of a recording often does."""


def place_in_words(place: float, kind: str) -> str:
    """``213 tokens`` of context, ``cycle 40``."""
    return f"{place:.0f} tokens" if kind == CONTEXT else f"cycle {place:.0f}"
