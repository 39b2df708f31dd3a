"""Cycles outside the windows that were observed all the same: the profiler warming up, the collector reading a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

WARMUP: Final = "warm-up"
READING: Final = "reading"


def disturbed(table: pl.DataFrame, rank: int, metadata: Mapping[str, Any]) -> pl.DataFrame:
    """Add ``disturbed`` to the cycles of one rank.

    Args:
        table: cycle, window, start_ns and dur_ns.
        rank: global rank.
        metadata: sections of the recording. ``recording.warmups`` holds the first cycle and the one after the last of each
            warm-up, ``recording.windows`` the end of each window and when its events had been read, both by rank.

    Returns:
        The table with ``disturbed``: ``warm-up`` (the profiler was attached and threw its events away), ``reading`` (the events of
            a window were being read and written beside the cycle), null elsewhere, and in windows.
    """
    recording = metadata.get("recording")
    recording = recording if isinstance(recording, Mapping) else {}
    warm, reading = pl.lit(value=False), pl.lit(value=False)
    end = pl.col("start_ns") + pl.col("dur_ns")
    for entry in _entries(recording, rank):
        cycles, closed, read = entry.get("warmup"), entry.get("end_ns"), entry.get("read_ns")
        if isinstance(cycles, list) and len(cycles) == 2:
            warm |= (pl.col("cycle") >= cycles[0]) & (pl.col("cycle") < cycles[1])
        elif isinstance(closed, int) and isinstance(read, list) and len(read) == 2:
            reading |= (pl.col("start_ns") < read[1]) & (end > closed)
    state = pl.when(pl.col("window").is_null() & warm).then(pl.lit(WARMUP))
    return table.with_columns(disturbed=state.when(pl.col("window").is_null() & reading).then(pl.lit(READING)))


def _entries(recording: Mapping[str, Any], rank: int) -> Iterator[Mapping[str, Any]]:
    """Windows and warm-ups of the rank; an entry that names no rank is of the only one."""
    for section in ("windows", "warmups"):
        for entry in recording.get(section) or ():
            if isinstance(entry, Mapping) and entry.get("rank", rank) == rank:
                yield entry
