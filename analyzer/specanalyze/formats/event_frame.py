"""The event table as a polars frame: its types, and questions every importer asks of it."""

from __future__ import annotations

from typing import Final

import polars as pl

from specschema.events import COLUMN_NAMES, COLUMNS, DEVICE_KINDS

_POLARS: Final[dict[str, pl.DataType]] = {
    "string": pl.Categorical(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "list of string": pl.List(pl.String()),
    "list of int32": pl.List(pl.Int32()),
}
DTYPES: Final = {column.name: _POLARS[column.type] for column in COLUMNS}
"""polars type of each column of the event table, in order; dictionary-encoded strings are Categorical."""
ALWAYS: Final = ("kind", "rank", "pid", "name", "start_ns", "dur_ns", "tid", "window")
"""Columns that every frame has; others may be missing where they are null throughout."""


def table(events: pl.DataFrame) -> pl.DataFrame:
    """Event columns in their order and types, without those that are null throughout (but always with ALWAYS).

    Columns that are not of the event table are dropped; missing ones of ALWAYS are added as null. A number that its column
    can't hold is unknown: null.
    """
    missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in ALWAYS if c not in events.columns]
    kept = [c for c in COLUMN_NAMES if c in ALWAYS or (c in events.columns and events[c].null_count() < events.height)]
    return events.with_columns(missing).select(pl.col(c).cast(DTYPES[c], strict=False) for c in kept)


def empty() -> pl.DataFrame:
    """No events."""
    return pl.DataFrame(schema={name: DTYPES[name] for name in ALWAYS})


def main_thread(events: pl.DataFrame) -> tuple[int | None, int | None]:
    """(pid, tid) that launches most graphs; else most launch calls; else that has most ranges, else most host rows."""
    name = pl.col("name").cast(pl.String)
    launch = pl.col("kind") == "launch"
    choices = (
        launch & name.str.contains("GraphLaunch"),
        launch,
        pl.col("kind").is_in(("phase", "cycle")),
        pl.lit(True),
    )
    for choice in choices:
        threads = events.lazy().filter(pl.col("pid").is_not_null() & pl.col("tid").is_not_null() & choice)
        counts = (
            threads.group_by("pid", "tid", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
        )
        first = counts.head(1).collect()
        if first.height:
            return first["pid"][0], first["tid"][0]
    return None, None


def count_kinds(events: pl.DataFrame) -> tuple[int, int]:
    """Launch calls and device activities."""
    kind = events["kind"].cast(pl.String)
    return int((kind == "launch").sum()), int(kind.is_in(DEVICE_KINDS).sum())
