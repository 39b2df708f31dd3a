"""The kernel table in the terminal."""

from __future__ import annotations

import polars as pl

from specanalyze.render.kernel_name import readable
from specanalyze.render.terminal import console, milliseconds, notes, table
from specschema.figures import percent


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
            readable(r["name"]),
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
