"""At how much context the windows of a recording lie."""

from __future__ import annotations

from typing import Final

import polars as pl

from specanalyze.answers.cycle_place import CONTEXT
from specanalyze.answers.measured import Measured

APART: Final = 0.1
"""Contexts that differ by less than this share of the longer one are taken as the same."""


def window_context(m: Measured) -> float | None:
    """Mean context of the traced decode cycles, tokens of the whole batch; None where they do not tell it."""
    mean = m.decoding().filter(pl.col("window").is_not_null()).get_column("context_tokens").mean()
    return mean if isinstance(mean, float) else None


def unlike_contexts(a: Measured, b: Measured) -> list[str]:
    """A warning where the windows of two recordings lie at other contexts and cycles grow with it."""
    one, other = window_context(a), window_context(b)
    growing = [m for m in (a, b) if m.growth is not None and m.growth.kind == CONTEXT]
    if one is None or other is None or not growing or abs(one - other) < APART * max(one, other):
        return []
    parts = dict.fromkeys(f"{p} {b}" for m in growing for p, b in m.grown.select("phase", "bucket").iter_rows())
    what = (
        f": a part of what {', '.join(parts)} {'differs' if len(parts) == 1 else 'differ'} by is that" if parts else ""
    )
    return [
        f"the windows lie at {one:.0f} tokens of context in {a.trace.short} and at {other:.0f} in {b.trace.short}, and cycles grow with it{what}"
    ]
