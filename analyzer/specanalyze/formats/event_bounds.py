"""What every importer's events must keep to, so that the arithmetic behind them can't overflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Final

import polars as pl

from specanalyze.formats.plain_text import plain_columns
from specanalyze.trace import RankTrace
from specschema.errors import TraceError
from specschema.events import DEVICE_KINDS, KINDS
from specschema.figures import counted

EARLIEST_NS: Final = -(2**60)
LATEST_NS: Final = 2**62 - 1
"""Starts outside (1933 to 2116) come from no clock: their differences would not fit in 64 bits either."""
LONGEST_NS: Final = 2**50
"""13 days: a longer event has an impossible duration, and the sum of a few thousand would not fit in 64 bits."""


_NAMED: Final = 4
"""Kinds that a message names."""


def bounded(trace: RankTrace, *, salvage: bool = False) -> tuple[RankTrace, list[str]]:
    """A rank's events with sound times and texts, and a line for each thing that was left out.

    Negative and impossible durations become null, which makes device work *invalid* (RULES R1: dropped and counted).

    Raises:
        TraceError: events without a time, or with one that no clock gives; ``salvage`` leaves them out.
    """
    events, file = trace.events, PurePath(trace.source).name
    lines: list[str] = []
    start, length = pl.col("start_ns"), pl.col("dur_ns")
    timeless = events.select(
        ((start < EARLIEST_NS) | (start > LATEST_NS) | start.is_null() | pl.col("kind").is_null()).fill_null(True)
    ).to_series()
    if timeless.any():
        what = f"{file}: {int(timeless.sum())} of {events.height} events have no kind or a start that no clock gives"
        if not salvage:
            raise TraceError(f"{what}; --salvage leaves them out")
        lines.append(f"lost: {what}")
        events = events.filter(~timeless)
    events, placed = _in_windows(events, file, salvage=salvage)
    lines += placed
    kinds = events["kind"].unique().cast(pl.String).drop_nulls().sort().to_list()
    if strange := [kind for kind in kinds if kind not in KINDS]:
        rows = int(events["kind"].cast(pl.String).is_in(strange).sum())
        lines.append(
            f"{file}: {counted(rows, 'event')} of kinds that this reader does not know ({', '.join(strange[:_NAMED])}): left out"
        )
    impossible = events.select(((length < 0) | (length > LONGEST_NS)).fill_null(False)).to_series()
    if impossible.any():
        device = int((impossible & events["kind"].cast(pl.String).is_in(DEVICE_KINDS)).sum())
        lines.append(
            f"{file}: {counted(int(impossible.sum()), 'event')} with a negative duration or one above {LONGEST_NS // 10**9 // 86400} days: "
            f"taken as unknown ({device} of device work, which counts as invalid)"
        )
        events = events.with_columns(pl.when(~impossible).then(length).alias("dur_ns"))
    if nameless := events["name"].null_count():
        lines.append(
            f"{file}: {counted(nameless, 'event')} without a name: of no phase, no replay and no class of kernel"
        )
        events = events.with_columns(pl.col("name").cast(pl.String).fill_null("").cast(events.schema["name"]))
    events = plain_columns(events)
    return (trace if events is trace.events else replace(trace, events=events)), lines


def _in_windows(events: pl.DataFrame, file: str, *, salvage: bool) -> tuple[pl.DataFrame, list[str]]:
    """Device work lies in the window whose profiler saw it; a recording without windows is one.

    Raises:
        TraceError: device work in no window of a recording that has some; ``salvage`` leaves it out.
    """
    outside = events["window"].null_count()
    if not outside or outside == events.height:
        return events, []
    nowhere, device = pl.col("window").is_null(), pl.col("kind").cast(pl.String).is_in(DEVICE_KINDS)
    lost = events.lazy().filter(nowhere).select(device.sum()).collect().item()
    if not lost:
        return events, []
    what = f"{file}: {counted(lost, 'device activity')} in no window, although the recording has some"
    if not salvage:
        raise TraceError(f"{what}: damaged, or not written by this tool; --salvage leaves them out")
    return events.filter(~(nowhere & device)), [f"lost: {what}"]
