"""The kernel table in the terminal."""

from __future__ import annotations

import polars as pl

from specanalyze.render.terminal import console, milliseconds, notes, table
from specschema.figures import percent

NAME_WIDTH = 60
"""Template arguments make names of hundreds of characters; the whole name is in --json and --output."""


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def draw(kernels: pl.DataFrame, phase: str, top: int) -> None:
    """Print the ``top`` rows by summed duration."""
    out = console()
    whole = kernels.get_column("sum_ns").sum()
    columns = [
        ("rank", "left"),
        ("phase", "left"),
        ("class", "left"),
        ("count", "right"),
        ("sum ms", "right"),
        ("share", "right"),
        ("median us", "right"),
        ("p90 us", "right"),
        ("kernel", "name"),
    ]
    rows = [
        [
            r["rank"],
            r["phase"],
            r["bucket"] if r["classified"] else "unclassified",
            str(r["count"]),
            milliseconds(r["sum_ns"]),
            percent(r["sum_ns"] / whole if whole else None),
            f"{r['median_ns'] / 1e3:.1f}",
            f"{r['p90_ns'] / 1e3:.1f}",
            _short(r["name"]),
        ]
        for r in kernels.head(top).iter_rows(named=True)
    ]
    what = "all phases" if phase == "all" else phase
    out.print(
        table(
            f"{what}: {min(top, kernels.height)} of {kernels.height} kernels (a rank and phase each)",
            columns,
            rows,
            spare=("p90 us", "share"),
        )
    )
    notes(out, ["sums are plain sums of durations: work that overlaps counts twice; --json also gives exposed time"])
