"""What the analysis gives each activity of a rank: class, phase, launch call; and the exact partition; all in narrow columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.analysis import WindowAnalysis, analyse_rank
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_window import Looks, bound_window, joined_window, window_sums
from specanalyze.attribution.eager_modules import has_module_ranges
from specanalyze.attribution.instances import cycle_numbers
from specanalyze.attribution.ranges import Ranges, recognised_ranges
from specanalyze.attribution.window_work import joined_work
from specanalyze.columns import Ints, factorize, integers
from specanalyze.native import timeline
from specanalyze.native.heap import give_back
from specanalyze.native.timeline import Array, Tiles
from specanalyze.trace import RankSource, RankTrace
from specschema.events import DEVICE_KINDS
from specschema.phases import PHASE_KEYS


@dataclass(frozen=True)
class WindowLabels:
    """One window.

    Attributes:
        number: of the window; None: it holds all activities of the rank, whatever window their rows name.
        row: row of each activity in the rank's events; None: they are the window's device rows with a usable time in order of start,
            equal starts in file order.
        start: of each activity, ns.
        bucket, phase: codes of BUCKETS and PHASE_KEYS, uint8.
        subclass: code into ``subclasses``, uint16.
        first: the first one of its launch call.
        called: start of its launch call, ns; -1 where none was recorded.
        tiles: the partition; None where no range is recognised.
        cycle, cycle_start, cycle_end: number (-1: none) and time of each recognised range.
    """

    number: int | None
    row: Ints | None
    start: Ints
    bucket: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    subclass: NDArray[np.uint16]
    subclasses: Sequence[str]
    first: NDArray[np.bool_]
    called: Ints
    tiles: Tiles | None
    cycle: Ints
    cycle_start: Ints
    cycle_end: Ints

    def rows_in(self, events: pl.DataFrame) -> Ints:
        """Row of each activity in the rank's events."""
        if self.row is not None:
            return self.row
        kind, kinds = factorize(events, "kind")
        ours = np.isin(kind, [code for code, text in enumerate(kinds) if text in DEVICE_KINDS])
        del kind
        ours &= integers(events, "dur_ns", -1) >= 0
        if self.number is not None:
            ours &= (events.get_column("window") == self.number).fill_null(False).to_numpy()
        row = np.flatnonzero(ours)
        start = events.get_column("start_ns").to_numpy()[row]
        if (start[1:] < start[:-1]).any():
            row = row[np.argsort(start, kind="stable")]
        if not np.array_equal(events.get_column("start_ns").to_numpy()[row], self.start):
            raise AssertionError("the narrow columns of a rank are not those of its events")
        return row


def compact_labels(source: RankSource, phase_map: Mapping[str, str] | None) -> list[WindowLabels] | None:
    """Labels of a rank from narrow columns and compiled passes; None where only its whole tables will do.

    Raises:
        TraceError: it can't be read.
    """
    rank = None if source.compact is None else source.compact()
    compiled = None if rank is None else timeline.compiled()
    if compiled is None or rank is None or has_module_ranges(rank.events):
        return None
    looks, nodes = Looks(rank.looks), RankNodes.of(rank.events, rank.looks)
    window_of = rank.events.get_column("window")
    known = window_of.null_count() < rank.events.height
    found = []
    for number in sorted(rank.windows):
        rows = rank.events.filter(window_of == number) if known else rank.events
        window = joined_window(compiled, rank, number, recognised_ranges(rows, phase_map), looks, nodes)
        work = joined_work(window, window_sums(window, rank.streams, len(rank.looks)), looks, nodes)
        tiles = None
        if len(window.ranges):
            tiles = bound_window(window, rank.streams).tiles(len(PHASE_KEYS), len(window.ranges))
        found.append(
            WindowLabels(
                number if known else None,
                None,
                window.device.start,
                work.bucket,
                work.phase.astype(np.uint8),
                work.subclass.astype(np.uint16),
                work.subclasses,
                _first(window.call, len(window.calls)),
                np.append(window.calls.start, -1)[window.call],
                tiles,
                *_cycles(window.ranges),
            )
        )
        del window, work
    give_back()
    return found


def analysed_labels(rank: RankTrace, phase_map: Mapping[str, str] | None, event: str) -> list[WindowLabels]:
    """Labels of a rank from its whole tables.

    Args:
        rank: its events, and a column with the number of each.
        phase_map: regular expression -> phase for range names that are not built in.
        event: name of that column.
    """
    return [_analysed(window, event) for window in analyse_rank(rank, phase_map).windows]


def _analysed(window: WindowAnalysis, event: str) -> WindowLabels:
    acts = window.activities
    rows = acts.rows.get_column(event).to_numpy()[acts.row] if len(acts) else np.empty(0, dtype=np.int64)
    order = np.argsort(acts.start, kind="stable")
    first = np.zeros(len(acts), dtype=bool)
    first[order] = _first(acts.launch[order], len(acts.launches))
    return WindowLabels(
        window.window,
        rows,
        acts.start,
        acts.bucket.astype(np.uint8),
        acts.phase.astype(np.uint8),
        acts.subclass.astype(np.uint16),
        acts.subclasses,
        first,
        np.append(acts.launches.start, -1)[acts.launch],
        _tiles(window),
        *_cycles(window.ranges),
    )


def _first(call: Array, calls: int) -> NDArray[np.bool_]:
    """The first of each call's activities, which come in order of start."""
    called = np.flatnonzero(call >= 0)[::-1]
    of_call = np.full(calls, -1, dtype=np.int64)
    of_call[call[called]] = called
    first = np.zeros(len(call), dtype=bool)
    first[of_call[of_call >= 0]] = True
    return first


def _tiles(window: WindowAnalysis) -> Tiles | None:
    """Stretches of the partition; neighbours of one phase, bucket and range are one."""
    part = window.partition
    if part is None or not len(part.start):
        return None
    change = np.ones(len(part.start), dtype=bool)
    change[1:] = (np.diff(part.phase) != 0) | (np.diff(part.bucket) != 0) | (np.diff(part.range) != 0)
    first = np.flatnonzero(change)
    last = np.append(first[1:], len(part.start)) - 1
    return Tiles(
        part.start[first],
        part.end[last] - part.start[first],
        part.phase[first].astype(np.uint8),
        part.bucket[first].astype(np.uint8),
    )


def _cycles(ranges: Ranges) -> tuple[Ints, Ints, Ints]:
    return cycle_numbers(ranges), ranges.start, ranges.end
