"""Layers and modules in the terminal: a heat strip of the layers, a table of the modules."""

from __future__ import annotations

import polars as pl
from rich.text import Text

from specanalyze.answers.layers import Layers, by_layer, by_module
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, milliseconds, notes, share_bar, table
from specschema.figures import counted, percent

SHADES = " ░▒▓█"
"""Strip without colour: five steps from the fastest layer to the slowest."""
COLOURS = ("blue", "cyan", "green", "yellow", "red")


def _strip(values: list[float]) -> Text:
    """One character a layer, from the fastest (blank, blue) to the slowest (full, red)."""
    low, high = min(values), max(values)
    strip = Text()
    for value in values:
        step = 0 if high == low else min(int((value - low) / (high - low) * len(SHADES)), len(SHADES) - 1)
        strip.append(SHADES[step] if step else "·", style=COLOURS[step])
    return strip


def draw(result: Layers, top: int) -> None:
    """Print the strip of each rank, the outlier layers and the largest modules."""
    out = console()
    layer_table = by_layer(result)
    for (rank,), part in layer_table.group_by("rank", maintain_order=True):
        values = part.get_column("total_ns").to_list()
        head = f"{result.phase}, rank {rank}: {counted(len(values), 'layer')}, median us a layer {sorted(values)[len(values) // 2] / 1e3:.1f}"
        out.print(Text(head, style="bold"))
        line = (out.width - 6) // 10 * 10  # so that a layer's number can be counted out
        for at in range(0, len(values), line):
            out.print(Text(f"  {at:>3} "), _strip(values[at : at + line]), end="\n")
        out.print(Text(f"      {min(values) / 1e3:.1f} us (·) to {max(values) / 1e3:.1f} us (█)", style="dim"))
        odd = part.filter(pl.col("outlier"))
        for row in odd.iter_rows(named=True):
            out.print(Text(f"  layer {row['layer']} stands out: {row['total_ns'] / 1e3:.1f} us", style="yellow"))
    module_table = by_module(result)
    columns = [
        ("rank", "left"),
        ("module", "path"),
        ("class", "left"),
        ("finer", "left"),
        ("n", "right"),
        ("us an\ninstance", "right"),
        ("gap\nbefore", "right"),
        ("share", "right"),
        ("", BAR),
    ]
    rows = [
        [
            r["rank"],
            r["module"] or "(no module)",
            r["bucket"],
            r["subclass"],
            str(r["activities"]),
            f"{r['exposed_ns'] / r['instances'] / 1e3:.1f}",
            f"{r['gap_before_ns'] / r['instances'] / 1e3:.1f}",
            percent(r["share"]),
            share_bar(r["share"], 10),
        ]
        for _, part in module_table.group_by("rank", maintain_order=True)
        for r in part.head(top).iter_rows(named=True)
    ]
    out.print()
    out.print(
        table(f"{result.phase} by module, layers together (mean over instances)", columns, rows, spare=("n", "class"))
    )
    placed = f"{result.placed} of {result.replays} replays placed node by node"
    if not result.replays:
        placed = f"{result.phase} replays no graph: its work is placed by the module that launched it"
    said = [placed, f"{milliseconds(result.unplaced_ns)} ms of {result.phase}'s device time has no module (eager work)"]
    if result.left_out_ns:
        said.append(
            f"left out: {milliseconds(result.left_out_ns)} ms of instances of {result.phase} that were recorded in part"
        )
    notes(out, said)
