"""A comparison as a person reads it: environment first, then what moved, then kernels."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from rich.text import Text

from specanalyze.answers.bootstrap import LEVEL
from specanalyze.answers.compare import FASTER, PHASES_COVER, SLOWER, UNKNOWN, Comparison
from specanalyze.answers.cycle_account import BETWEEN, CLOCKS, ELSEWHERE, OBSERVING, PARTS, REST, TYPICAL
from specanalyze.answers.environment import Difference
from specanalyze.render.env import cut
from specanalyze.render.kernel_name import readable
from specanalyze.render.recording_name import distinct_names
from specanalyze.render.terminal import console, milliseconds, notes, signed_ms, table
from specschema.figures import change, counted, percent

MOST_KERNELS = 20
_STYLE = {FASTER: "green", SLOWER: "red"}
_SMALLEST_NS = 500
"""What is shown as 0.000 ms changes by no share that says anything."""
_REST = {
    BETWEEN: "between phases",
    TYPICAL: "median, not mean",
    OBSERVING: "less observing",
    ELSEWHERE: "whole recording",
    REST: "rest of the cycle",
}


def draw(result: Comparison, *, everything: bool = False) -> None:
    """Print the comparison.

    Args:
        result: of ``compare``.
        everything: list what is made anew for each run, too, and every kernel.
    """
    out = console()
    out.print(Text("environment", style="bold"))
    for d in result.differences:
        out.print(Text(f"  {'!' if d.matters else ' '} {_said(d, everything)}", style="" if d.matters else "dim"))
    if not result.differences:
        out.print(
            Text("    no fact that both recorded differs" + (" but those of the run" if result.of_the_run else ""))
        )
    if everything:
        for d in result.of_the_run:
            out.print(Text(f"  ~ {_said(d, everything)}", style="dim"))
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
    shown = result.kernels if everything else result.kernels.head(MOST_KERNELS)
    if shown.height:
        _draw_kernels(shown)
    notes(out, [*_facts(result), *_left_out(result, shown, everything)])


def _said(difference: Difference, everything: bool) -> str:
    """A difference in a line or two; ``everything``: its whole values."""
    if everything:
        return str(difference)
    one, other = (None if value is None else cut(value) for value in (difference.before, difference.after))
    return str(replace(difference, before=one, after=other))


def _rows(frame: pl.DataFrame) -> list[list[str | Text]]:
    indent = {"cycle": "", "phase": "", "rest": "", "bucket": "  ", "part": "    comm. "}
    rows: list[list[str | Text]] = []
    for r in frame.iter_rows(named=True):
        label = {"cycle": "cycle", "phase": r["phase"]}.get(r["scope"], r["bucket"])
        if r["scope"] == "phase" and r["phase"] == "cycle":
            label = "in no phase"
        if r["scope"] == "rest":
            label = _REST[r["phase"]]
        bounds = "–" if r["low_ns"] is None else f"{signed_ms(r['low_ns'])}..{signed_ms(r['high_ns'])}"
        rows.append(
            [
                indent[r["scope"]] + label,
                milliseconds(r["before_ns"]),
                milliseconds(r["after_ns"]),
                signed_ms(r["change_ns"]),
                bounds,
                change(r["change_share"] if abs(r["before_ns"]) >= _SMALLEST_NS else None),
                Text("no bounds" if r["verdict"] == UNKNOWN else r["verdict"], style=_STYLE.get(r["verdict"], "dim")),
            ]
        )
    return rows


def _draw_kernels(kernels: pl.DataFrame) -> None:
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
            readable(r["name"]),
            milliseconds(r["before_ns"]),
            milliseconds(r["after_ns"]),
            signed_ms(r["change_ns"]),
            f"{r['calls_before']:.1f} -> {r['calls_after']:.1f}",
            r["status"],
        ]
        for r in kernels.iter_rows(named=True)
    ]
    console().print(table("kernels, a cycle and rank", columns, rows, spare=("before ms", "after ms")))
    console().print()


def _facts(result: Comparison) -> list[str]:
    said = [
        f"cycle: {CLOCKS[result.clock]}; phases, buckets and kernels: {PHASES_COVER}",
        "the phases and the rows below them add up to the cycle, and their changes to its change",
        *(f"{_REST[part]}: {PARTS[part]}" for part in _rest(result)),
        "bounds cover the noise of cycles within a recording, not that of starting the server again: where a decision hangs "
        "on a few percent, record each side twice",
    ]
    one, other = result.tokens_per_second
    if one is not None and other is not None:
        said.insert(0, f"{one:.1f} -> {other:.1f} tok/s ({change(other / one - 1 if one else None)}), by that cycle")
    else:
        said.insert(0, "tok/s is unknown: accepts are not recorded in both")
    before, after = result.accept_lengths
    if before is not None and after is not None:
        said.insert(1, f"accept length {before:.2f} -> {after:.2f}")
    return said


def _rest(result: Comparison) -> list[str]:
    return result.table.filter(pl.col("scope") == "rest").get_column("phase").to_list()


def _left_out(result: Comparison, shown: pl.DataFrame, everything: bool) -> list[str]:
    said = []
    if result.of_the_run and not everything:
        said.append(
            f"not listed: {counted(len(result.of_the_run), 'fact')} made anew for each run (ports, names of shared memory, ...); "
            "--all and --json have them"
        )
    if shown.height < result.kernels.height:
        said.append(f"{shown.height} of {result.kernels.height} kernels that moved; --all and --json have all")
    return said
