"""Builds a rank's events from a few rows, so that a test shows its whole input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.events import COLUMNS

_TYPES: dict[str, Any] = {
    "kind": pl.String,
    "name": pl.String,
    "rank": pl.Int32,
    "request_ids": pl.List(pl.String),
    "accept_lengths": pl.List(pl.Int32),
    "accepted_draft_tokens": pl.List(pl.Int32),
    "group_ranks": pl.List(pl.Int32),
}
_STRINGS = {"mode", "node_type", "grid", "block", "module", "module_class", "op", "dtype", "group"}
for _column in COLUMNS:
    _TYPES.setdefault(_column.name, pl.String if _column.name in _STRINGS else pl.Int64)


def phase(name: str, start: int, end: int | None, *, tid: int = 1, pid: int = 1, **more: Any) -> dict[str, Any]:
    """A host range; ``name`` as written, so ``spec.verify`` and not ``verify``. ``end`` None: never closed."""
    kind = "cycle" if name == "spec.cycle" else "phase"
    dur = None if end is None else end - start
    return {"kind": kind, "name": name, "pid": pid, "tid": tid, "start_ns": start, "dur_ns": dur, **more}


def launch(name: str, start: int, correlation: int, *, tid: int = 1, pid: int = 1, **more: Any) -> dict[str, Any]:
    """A launch call of one nanosecond."""
    row = {"kind": "launch", "name": name, "pid": pid, "tid": tid, "start_ns": start, "dur_ns": 1}
    return {**row, "correlation": correlation, **more}


def kernel(
    name: str,
    start: int,
    end: int | None,
    correlation: int | None,
    *,
    stream: int = 7,
    kind: str = "kernel",
    **more: Any,
) -> dict[str, Any]:
    """A device activity. ``end`` None: no usable time."""
    dur = None if end is None else end - start
    row = {"kind": kind, "name": name, "pid": 1, "start_ns": start, "dur_ns": dur, "device": 0, "stream": stream}
    return {**row, "correlation": correlation, **more}


def events(rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """An event frame with every column of the format, in the order of the rows."""
    return pl.DataFrame(list(rows), schema=_TYPES)


def rank_trace(
    rows: Iterable[dict[str, Any]], rank: int = 0, host: str | None = None, device: str = "cuda"
) -> RankTrace:
    """One rank made of the rows."""
    return RankTrace(str(rank), rank, f"rank{rank}.json", events(rows), host=host, device=device)


def trace(*ranks: RankTrace) -> Trace:
    """A recording made of the ranks."""
    return Trace("built.parquet", tuple(RankSource(r.key, r.source, lambda r=r: r) for r in ranks))  # type: ignore[misc]
