"""Per-table rank files: one Parquet file for each table and rank (``kernels.rank0.parquet``) instead of one event table."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from specschema.errors import TraceError

COLUMNS: Final = {
    "ts_ns": "start_ns",
    "collective": "op",
    "graph_node_id": "node",
}
"""Column of such a file -> column of the event table; all others have the event table's names."""
_KINDS: Final = {
    "kernels": "kernel",
    "memcpys": "memcpy",
    "copies": "memcpy",
    "memsets": "memset",
    "launches": "launch",
    "phases": "phase",
    "cycles": "cycle",
    "requests": "request",
    "nodes": "node",
    "collectives": "collective",
    "ops": "op",
    "marks": "mark",
}
_TABLE: Final = re.compile(r"([a-z]+)[._-]rank[_-]?\d+")


def kind_in_name(name: str) -> str | None:
    """``kernels.rank0.parquet`` -> kernel; None when the name is no table's."""
    found = _TABLE.match(name)
    return _KINDS.get(found.group(1)) if found else None


def events(frame: pl.DataFrame, name: str, rank: int) -> pl.DataFrame:
    """Rows of one table as events.

    Args:
        frame: columns of the event table, or of COLUMNS.
        name: the file's name, which says the table.
        rank: for files without a rank column.

    Returns:
        The rows with the event table's column names, ``kind``, and null where a column is missing.

    Raises:
        TraceError: the name says no table, or there is no time column.
    """
    kind = kind_in_name(name)
    if kind is None:
        raise TraceError(f"{name} has no column kind, and its name says no table (such as kernels.rank0.parquet)")
    own = frame.columns
    frame = frame.rename(
        {old: new for old, new in COLUMNS.items() if old in frame.columns and new not in frame.columns}
    )
    missing = {"name", "start_ns", "dur_ns"} - set(frame.columns)
    if missing:
        raise TraceError(f"{name} has no column {' and no '.join(sorted(missing))}; it has {', '.join(own)}")
    added = [] if "rank" in frame.columns else [pl.lit(rank).alias("rank")]
    if "window" not in frame.columns:
        added.append(pl.lit(0).alias("window"))
    return frame.with_columns(pl.lit(kind).alias("kind"), *added)
