"""A prediction as a person reads it: the answer, what moves, and what was assumed."""

from __future__ import annotations

import polars as pl
from rich.text import Text

from specanalyze.render.terminal import console, milliseconds, table
from specanalyze.whatif import WhatIf

_MOVED_NS = 500.0


def draw(result: WhatIf) -> None:
    """Print the prediction."""
    out = console()
    rows = [
        [
            "cycle, ms",
            milliseconds(result.now_ns),
            milliseconds(result.predicted_ns),
            _range(result.low_ns / 1e6, result.high_ns / 1e6, 3),
        ]
    ]
    now, then = result.accept_length
    if now is not None and then is not None and result.accept_bounds is not None:
        rows.append(["accept length", f"{now:.2f}", f"{then:.2f}", _range(*result.accept_bounds, 2)])
    speed, predicted = result.tokens_per_second
    if speed is not None and predicted is not None and result.speed_bounds is not None:
        rows.append(["tok/s", f"{speed:.1f}", f"{predicted:.1f}", _range(*result.speed_bounds, 1)])
    columns = [("", "left"), ("now", "right"), ("predicted", "right"), ("bounds", "right")]
    out.print(table(result.name, columns, rows))
    out.print()
    moved = result.table.filter(pl.col("change_ns").abs() >= _MOVED_NS)
    columns = [("phase", "left"), ("", "left"), ("now ms", "right"), ("predicted ms", "right"), ("change ms", "right")]
    cells = [
        [
            r["phase"],
            r["bucket"],
            milliseconds(r["now_ns"]),
            milliseconds(r["predicted_ns"]),
            f"{r['change_ns'] / 1e6:+.3f}",
        ]
        for r in moved.iter_rows(named=True)
    ]
    if cells:
        out.print(table("what moves", columns, cells))
        out.print()
    out.print(Text("assumptions", style="bold"))
    for line in result.assumptions:
        out.print(Text(f"  · {line}"))


def _range(low: float, high: float, decimals: int) -> str:
    return f"{low:.{decimals}f} .. {high:.{decimals}f}" if high - low > 10**-decimals / 2 else "–"
