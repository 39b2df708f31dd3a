"""A comparison as a person reads it: environment first, then what moved, then kernels."""

from __future__ import annotations

import polars as pl
from rich.text import Text

from specanalyze.answers.bootstrap import LEVEL
from specanalyze.answers.compare import FASTER, SLOWER, Comparison
from specanalyze.render.recording_name import distinct_names
from specanalyze.render.terminal import console, milliseconds, notes, signed_ms, table
from specschema.figures import change, percent

MOST_KERNELS = 20
_STYLE = {FASTER: "green", SLOWER: "red"}


def draw(result: Comparison) -> None:
    """Print the comparison."""
    out = console()
    out.print(Text("environment", style="bold"))
    for d in result.differences:
        out.print(Text(f"  {'!' if d.matters else ' '} {d}", style="" if d.matters else "dim"))
    if not result.differences:
        out.print(Text("    no recorded fact differs"))
    out.print()
    columns = [
        ("", "left"),
        ("before ms", "right"),
        ("after ms", "right"),
        ("change ms", "right"),
        (f"{percent(LEVEL, 0)} bounds", "right"),
        ("change", "right"),
        ("verdict", "left"),
    ]
    out.print(
        table(
            " -> ".join(distinct_names((result.before, result.after))),
            columns,
            _rows(result.table),
            spare=("after ms", "before ms", f"{percent(LEVEL, 0)} bounds"),
        )
    )
    out.print()
    if result.kernels.height:
        _draw_kernels(result)
    notes(out, _facts(result))


def _rows(frame: pl.DataFrame) -> list[list[str | Text]]:
    indent = {"cycle": "", "phase": "", "bucket": "  ", "part": "    comm. "}
    rows: list[list[str | Text]] = []
    for r in frame.iter_rows(named=True):
        label = {"cycle": "cycle", "phase": r["phase"]}.get(r["scope"], r["bucket"])
        if r["scope"] == "phase" and r["phase"] == "cycle":
            label = "rest of the cycle"
        bounds = "–" if r["low_ns"] is None else f"{signed_ms(r['low_ns'])}..{signed_ms(r['high_ns'])}"
        rows.append(
            [
                indent[r["scope"]] + label,
                milliseconds(r["before_ns"]),
                milliseconds(r["after_ns"]),
                signed_ms(r["change_ns"]),
                bounds,
                change(r["change_share"]),
                Text(r["verdict"], style=_STYLE.get(r["verdict"], "dim")),
            ]
        )
    return rows


def _draw_kernels(result: Comparison) -> None:
    columns = [
        ("phase", "left"),
        ("kernel", "name"),
        ("before ms", "right"),
        ("after ms", "right"),
        ("change ms", "right"),
        ("calls", "right"),
        ("status", "left"),
    ]
    rows = [
        [
            r["phase"],
            r["name"] if len(r["name"]) <= 44 else r["name"][:41] + "...",
            milliseconds(r["before_ns"]),
            milliseconds(r["after_ns"]),
            signed_ms(r["change_ns"]),
            f"{r['calls_before']:.1f} -> {r['calls_after']:.1f}",
            r["status"],
        ]
        for r in result.kernels.head(MOST_KERNELS).iter_rows(named=True)
    ]
    console().print(table("kernels, a cycle and rank", columns, rows, spare=("before ms", "after ms")))
    console().print()


def _facts(result: Comparison) -> list[str]:
    parts = "phases and buckets: traced cycles, mean over cycles and ranks"
    if result.clock == "untraced":
        parts += "; observing makes these longer, so the parts do not add up to the untraced cycle and can exceed it"
    said = [
        f"cycle: {result.clock} cycles, median; {parts}",
        "bounds cover the noise of cycles within a recording, not that of starting the server again: where a decision hangs "
        "on a few percent, record each side twice",
    ]
    one, other = result.tokens_per_second
    if one is not None and other is not None:
        said.insert(0, f"{one:.1f} -> {other:.1f} tok/s ({change(other / one - 1 if one else None)})")
    else:
        said.insert(0, "tok/s is unknown: accepts are not recorded in both")
    before, after = result.accept_lengths
    if before is not None and after is not None:
        said.insert(1, f"accept length {before:.2f} -> {after:.2f}")
    return said
