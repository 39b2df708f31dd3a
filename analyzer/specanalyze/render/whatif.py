"""A prediction as a person reads it: the answer, what moves, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from specanalyze.answers.prediction_check import PredictionCheck
from specanalyze.answers.whatif import WhatIf
from specanalyze.render.recording_name import distinct_names
from specanalyze.render.terminal import Prose, console, milliseconds, signed_ms, table
from specschema.figures import change, percent, rounded, signed

_MOVED_NS = 500.0
_SHOWN_SHARE = 0.005
_SPLIT = ("transfer", "waiting", "transfer and waiting")
_KINDS = {
    "device": "compute and copies",
    "transfer": "communication, transfer",
    "transfer and waiting": "communication, waiting included",
    "waiting": "waiting for other ranks",
    "idle": "device idle",
    "place": "cycles of other places",
}


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
    clock = "untraced" if result.untraced else "traced"
    said = f"cycle now: median of {clock} cycles; phases and buckets: means of traced ones" + (
        ", idle time scaled" if result.untraced else ""
    )
    said += "; bounds of the cycle hold its own noise, too, which the change below does not have"
    out.print(table(_names(result)[0], columns, rows, caption=said))
    out.print()
    moved = result.table.filter(pl.col("change_ns").abs() >= _MOVED_NS)
    columns = [
        ("phase", "left"),
        ("bucket", "left"),
        ("now ms", "right"),
        ("predicted ms", "right"),
        ("change ms", "right"),
    ]
    cells = [
        [
            r["phase"],
            r["bucket"],
            milliseconds(r["now_ns"]),
            milliseconds(r["predicted_ns"]),
            signed_ms(r["change_ns"]),
        ]
        for r in moved.iter_rows(named=True)
    ]
    if cells:
        out.print(table("what moves", columns, cells))
        out.print()
    if result.against is not None:
        _draw_check(out, result, result.against)
    out.print(Text("assumptions", style="bold"))
    for line in result.assumptions:
        out.print(Padding(Prose(f"· {line}"), (0, 0, 0, 2), expand=False))


def _names(result: WhatIf) -> list[str]:
    return distinct_names([result.name, *([result.against.name] if result.against is not None else [])])


def _draw_check(out: Console, result: WhatIf, check: PredictionCheck) -> None:
    """The prediction beside the recording of the change: kinds first, then the cells that are off."""
    columns = [
        ("", "left"),
        ("now ms", "right"),
        ("predicted ms", "right"),
        ("measured ms", "right"),
        ("error ms", "right"),
    ]
    columns.append(("error", "right"))
    rows = [[_KINDS[r["kind"]], *_figures(r)] for r in check.by_kind().iter_rows(named=True)]
    cycle = {"now_ns": result.now_ns, "predicted_ns": result.predicted_ns, "measured_ns": check.measured_ns}
    rows.append(["cycle", *_figures({**cycle, "error_ns": result.predicted_ns - check.measured_ns})])
    speed, predicted = result.tokens_per_second
    if speed is not None and predicted is not None and check.tokens_per_second:
        true = check.tokens_per_second
        off = change(predicted / true - 1, 1)
        rows.append(["tok/s", f"{speed:.1f}", f"{predicted:.1f}", f"{true:.1f}", signed(predicted - true, 1), off])
    out.print(table(f"against {_names(result)[1]}", columns, rows, spare=("now ms",)))
    for line in check.differences:
        out.print(Padding(Prose(f"differs: {line}", "dim"), (0, 0, 0, 2), expand=False))
    out.print()
    share = _SHOWN_SHARE * check.measured_ns
    off_rows = check.table.filter(pl.col("error_ns").abs() >= share).sort(pl.col("error_ns").abs(), descending=True)
    cells: list[list[str | Text]] = [
        [r["phase"], f"{r['bucket']} {r['kind']}" if r["kind"] in _SPLIT else r["bucket"], *_figures(r)[:-1]]
        for r in off_rows.iter_rows(named=True)
    ]
    if cells:
        title = f"where they differ by {percent(_SHOWN_SHARE)} of the cycle or more"
        out.print(table(title, [("phase", "left"), ("bucket", "left"), *columns[1:-1]], cells, spare=("now ms",)))
        out.print()


def _figures(row: Mapping[str, float]) -> list[str]:
    off = row["error_ns"]
    true = row["measured_ns"]
    figures = [milliseconds(row[name]) for name in ("now_ns", "predicted_ns", "measured_ns")]
    return [*figures, signed_ms(off), change(off / true if true else None, 1)]


def _range(low: float, high: float, decimals: int) -> str:
    return f"{rounded(low, decimals)} .. {rounded(high, decimals)}" if high - low > 10**-decimals / 2 else "–"
