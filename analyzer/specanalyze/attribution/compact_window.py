"""One window of a compact rank: joined, partitioned and summed in a few compiled passes.

The same rules and answers as ``activities.join_activities`` and ``partition.partition``, without the arrays between: nothing of
the partition is kept but its sums.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import (
    BUCKET_CODE,
    class_of_look,
    communication_code,
    compute_code,
    cut_impossible,
)
from specanalyze.attribution.compact_nodes import PlacedRows, RankNodes, ids_of, placed_rows
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.columns import Ints, again, distinct
from specanalyze.formats.compact_rank import Calls, CompactRank, DeviceRows
from specanalyze.intervals import by_priority, start_order
from specanalyze.native.collect import NO_ID
from specanalyze.native.timeline import Array, PartitionSums, Passes, RowSums, Window, cover
from specschema.phases import BETWEEN, BUCKETS, OUTSIDE, PHASE_KEYS, REMAINDERS, UNATTRIBUTED

_SLICE: Final = 1 << 17
"""Rows handled at once where numpy would otherwise make an array as long as the rank."""
_TABLE_LIMIT: Final = 1 << 16
_TABLE_ROOM: Final = 8


@dataclass(frozen=True)
class Looks:
    """Class of each look (name, kind, operation) of a rank's device rows.

    Attributes:
        bucket: code of BUCKET_CODE, uint8.
        subclass: finer class.
        classified: a rule knew it.
        same: a number that looks of one name share.
    """

    looks: list[tuple[str, str, str | None]]

    @cached_property
    def _classes(self) -> list[tuple[str, str, bool]]:
        return [class_of_look(*look) for look in self.looks]

    @cached_property
    def bucket(self) -> NDArray[np.uint8]:
        return np.array([BUCKET_CODE[bucket] for bucket, _, _ in self._classes], dtype=np.uint8)

    @cached_property
    def same(self) -> Ints:
        """Of each look, a number that looks of one name share."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(name, len(numbers)) for name, _, _ in self.looks], dtype=np.int64)

    @cached_property
    def subclass(self) -> list[str]:
        return [subclass for _, subclass, _ in self._classes]

    @cached_property
    def classified(self) -> NDArray[np.bool_]:
        return np.array([known for _, _, known in self._classes], dtype=bool)


@dataclass(frozen=True)
class JoinedWindow:
    """Device rows and launch calls of one window, joined.

    Attributes:
        number: of the window.
        ranges: recognised ranges.
        device: rows in order of start; impossible durations cut.
        call: index into ``calls`` of each row, -1 where no call was recorded, int32.
        bucket: code of each row's class, uint8.
        calls: all launch calls.
        call_range: innermost range of each call, -1 where none, int32.
        first, count: first start and number of each call's rows.
        wait: calls that have rows, by start.
        replay, replay_end: the graph launches among them, and the last end of each one's rows.
        range_end: last end of the rows launched in each range, -1 where none was, ns.
        begin, end: the window W, ns; equal where no range is recognised.
        cut: durations cut.
        by_map: rows whose bucket the node map decided; None of a rank without captured graphs, as ``placed`` is.
        placed: node of each row.
    """

    number: int
    ranges: Ranges
    device: DeviceRows
    call: Array
    bucket: Array
    calls: Calls
    call_range: Array
    first: Ints
    count: Array
    wait: NDArray[np.int32]
    replay: NDArray[np.int32]
    replay_end: Ints
    range_end: Ints
    begin: int
    end: int
    cut: int
    passes: Passes
    by_map: NDArray[np.bool_] | None = None
    placed: PlacedRows | None = None


@dataclass(frozen=True)
class WindowSums:
    """What a window comes to.

    Attributes:
        number, ranges: of the window.
        window_ns: length of W, 0 where no range is recognised.
        partition: sums of the partition; None where no range is recognised.
        rows: sums over device rows.
        replays, lost: graph launch calls of each range, and how many of them have no device row.
        invalid, cut: rows dropped, durations cut.
        node_map: replays by how they were placed; empty of a rank without captured graphs.
        off: ranges that an edge of the window cuts, see ``cut_off``.
    """

    number: int
    ranges: Ranges
    window_ns: int
    partition: PartitionSums | None
    rows: RowSums
    replays: Ints
    lost: Ints
    invalid: int
    cut: int
    node_map: dict[str, int] = field(default_factory=dict)
    off: NDArray[np.bool_] = field(kw_only=True)

    def without_stretches(self) -> WindowSums:
        """The sums alone."""
        return self if self.partition is None else replace(self, partition=replace(self.partition, stretches=None))


def joined_window(
    compiled: ctypes.CDLL,
    rank: CompactRank,
    number: int,
    ranges: Ranges,
    looks: Looks,
    nodes: RankNodes | None = None,
) -> JoinedWindow:
    """Join a window's device rows with its launch calls; the window is taken out of ``rank``, whose arrays are changed."""
    device, calls = rank.windows.pop(number)
    device, passes = _settled(compiled, device)
    cut, all_cut = passes.cut(device.stream, len(rank.streams))
    if not all_cut:
        stream = device.stream.astype(np.int64)
        end, more = cut_impossible(device.start, device.start + device.length.astype(np.int64), stream)
        cut += more
        device = replace(device, length=end - device.start)
        passes = Passes(compiled, device.start, device.length)
    known = None if nodes is None else ids_of(nodes, device)
    call = _called(device.id, calls.id)
    nothing = np.empty(0, dtype=np.int32)
    device = replace(device, id=nothing, node=nothing)
    call_range = _innermost(compiled, ranges, calls, rank.threads)
    graph = np.flatnonzero(calls.graph)
    calls.graph[graph[again(calls.id[graph], NO_ID)]] = False  # a call written twice is one replay
    calls = replace(calls, id=calls.id[:0].copy(), thread=calls.thread[:0].copy())
    first, last, count, latest = passes.extents(call, call_range, len(calls))
    wait = _by_start(count, calls.start)
    replay = wait[calls.graph[wait]]
    replay_end = last[replay]
    inside = wait[call_range[wait] >= 0]
    range_end = np.full(len(ranges), -1, dtype=np.int64)
    np.maximum.at(range_end, call_range[inside], last[inside])
    del last  # of millions of launch calls few are of graphs
    begin = end_of = 0
    if len(ranges):
        begin, end_of = int(ranges.start.min()), int(ranges.end.max())
        end_of = end_of if latest is None else max(end_of, latest)
    bucket = looks.bucket[device.look] if len(looks.looks) else np.empty(0, dtype=np.uint8)
    by_map = placed = None
    if nodes is not None:
        placed = placed_rows(nodes, device, call, calls.graph, known)
        by_map = nodes.decide(bucket, placed.node)
        device = replace(device, ran=nothing)
    return JoinedWindow(
        number,
        ranges,
        device,
        call,
        bucket,
        calls,
        call_range,
        first,
        count,
        wait,
        replay,
        replay_end,
        range_end,
        begin,
        end_of,
        cut,
        passes,
        by_map,
        placed,
    )


_NO_INSTANTS: Final = np.empty(0, dtype=np.int64)
_REMAINS: Final = np.array([phase in REMAINDERS for phase in PHASE_KEYS])


def bound_window(window: JoinedWindow, streams: list[int]) -> Window:
    """The compiled passes over a window's rows, calls and ranges.

    Args:
        window: of ``joined_window``.
        streams: stream id of each number in ``window.device.stream``.
    """
    ranges, device, calls = window.ranges, window.device, window.calls
    wait, replay = window.wait, window.replay
    spans = by_priority(window.first[replay], window.replay_end, np.arange(len(replay)))
    codes = np.arange(len(BUCKETS))
    tier = np.where(compute_code(codes), 0, np.where(communication_code(codes), 1, 2)).astype(np.uint8)
    return window.passes.window(
        arrays={
            "call": window.call,
            "bucket": window.bucket,
            "order": _order(device, streams),
            "call_start": calls.start,
            "call_first": window.first,
            "call_range": window.call_range,
            "call_graph": calls.graph,
            "wait": wait,
            "span_start": spans.start,
            "span_end": spans.end,
            "span_call": replay[spans.owner],
            "range_phase": ranges.phase.astype(np.uint8),
            "tier": tier,
        },
        levels=[tuple(np.ascontiguousarray(a) for a in level) for level in ranges.cover()] if len(ranges) else [],  # type: ignore[misc]
        numbers={
            "waits": len(wait),
            "spans": len(spans.start),
            "begin": window.begin,
            "end": window.end,
            "buckets": len(BUCKETS),
            "between": PHASE_CODE[BETWEEN],
            "outside": PHASE_CODE[OUTSIDE],
            "unattributed": PHASE_CODE[UNATTRIBUTED],
            "gap": BUCKET_CODE["graph_gap"],
            "launch": BUCKET_CODE["launch"],
            "host": BUCKET_CODE["host"],
        },
    )


def window_sums(
    window: JoinedWindow,
    streams: list[int],
    looks: int,
    instants: Ints = _NO_INSTANTS,
    *,
    stretches: bool = False,
    off: NDArray[np.bool_] | None = None,
) -> WindowSums:
    """Partition a window and sum it up.

    Args:
        window: of ``joined_window``.
        streams: stream id of each number in ``window.device.stream``.
        looks: how many looks there are.
        instants: ns, in order; before each, the time that no leaf phase got is summed.
        stretches: keep what each row got.
        off: of ``cut_off.cut_off``; None where none is cut.
    """
    ranges, device, calls = window.ranges, window.device, window.calls
    bound = bound_window(window, streams)
    partition = None
    if len(ranges):
        partition = bound.partition(len(PHASE_KEYS), len(ranges), instants, _REMAINS, stretches=stretches)
    rows = bound.rows(device.look, window.by_map, max(1, looks), len(PHASE_KEYS))
    graph = np.flatnonzero(calls.graph)
    called = window.call_range[graph]
    recorded = called[window.count[graph] > 0]
    replays, kept = (np.bincount(of[of >= 0], minlength=len(ranges)).astype(np.int64) for of in (called, recorded))
    return WindowSums(
        window.number,
        ranges,
        window.end - window.begin,
        partition,
        rows,
        replays,
        replays - kept,
        device.invalid,
        window.cut,
        {} if window.placed is None else window.placed.counts,
        off=np.zeros(len(ranges), dtype=bool) if off is None else off,
    )


def for_talk(window: JoinedWindow) -> JoinedWindow:
    """What ``compact_talk.window_talk`` needs of a window that is summed: without the columns of rows and calls that it does not."""
    return replace(
        window,
        device=replace(window.device, stream=window.device.stream[:0].copy()),
        bucket=window.bucket[:0].copy(),
        by_map=None,
        first=window.first[:0].copy(),
        count=window.count[:0].copy(),
        wait=window.wait[:0].copy(),
    )


def _settled(compiled: ctypes.CDLL, device: DeviceRows) -> tuple[DeviceRows, Passes]:
    """The rows in order of start, equal starts in file order."""
    passes = Passes(compiled, device.start, device.length)
    placed = [column for column in (device.ran, device.node) if len(column)]
    if not device.told.height and passes.settle([device.stream, device.look, device.id, *placed]):
        return device, passes
    # What settling leaves half done still has equal starts in file order.
    order = np.argsort(device.start, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    told = device.told.with_columns(pl.Series("row", place[device.told.get_column("row").to_numpy()]))
    device = DeviceRows(
        device.start[order],
        device.length[order],
        device.stream[order],
        device.look[order],
        device.id[order],
        told,
        device.invalid,
        *(column[order] if len(column) else column for column in (device.ran, device.node)),
    )
    return device, Passes(compiled, device.start, device.length)


def _innermost(
    compiled: ctypes.CDLL, ranges: Ranges, calls: Calls, threads: list[tuple[int, int]]
) -> NDArray[np.int32]:
    """Innermost range of each call on its own thread, -1 where none; see ``Ranges.innermost``."""
    found = np.full(len(calls), -1, dtype=np.int32)
    for number, pair in enumerate(ranges.threads):  # one turn a thread
        asked = np.array([thread == pair for thread in threads], dtype=bool)
        if asked.any():
            for level in reversed(ranges.cover(np.flatnonzero(ranges.thread == number))):
                cover(compiled, calls.start, calls.thread, asked, level, found)
    return found


def _order(device: DeviceRows, streams: list[int]) -> Array | None:
    """Rows by start, equal starts by stream id; None where they lie so."""
    start = device.start
    tied = False
    of_stream = np.array(streams or [0], dtype=np.int64)
    for low in range(0, len(start) - 1, _SLICE):
        part = start[low : low + _SLICE + 1]
        equal = np.flatnonzero(part[1:] == part[:-1]) + low
        if len(equal) and bool((of_stream[device.stream[equal]] > of_stream[device.stream[equal + 1]]).any()):
            tied = True
            break
    return start_order(start, of_stream[device.stream]).astype(np.uint32) if tied else None


def _called(asked_ids: Array, call_ids: Array) -> NDArray[np.int32]:
    """Index of each row's launch call, -1 where none; of two calls with one id the earlier one.

    It is written over ``asked_ids``, and nothing else as long as the rank is made, where ids lie close together.
    """
    if not len(call_ids) or not (call_ids != NO_ID).any():
        asked_ids[:] = -1
        return asked_ids
    least = call_ids.min(where=call_ids != NO_ID, initial=np.iinfo(np.int32).max)
    low, high = int(least), int(call_ids.max())
    span = high - low + 1
    if span <= _TABLE_LIMIT + _TABLE_ROOM * len(call_ids):
        table = np.full(span + 1, -1, dtype=np.int32)  # the last place is that of ids outside
        for begin in reversed(range(0, len(call_ids), _SLICE)):
            ids = call_ids[begin : begin + _SLICE].astype(np.int64)[::-1]
            place = np.where(ids != NO_ID, ids - low, span)
            table[place] = np.arange(begin + len(ids) - 1, begin - 1, -1)
        table[span] = -1
        for begin in range(0, len(asked_ids), _SLICE):
            asked = asked_ids[begin : begin + _SLICE].astype(np.int64)
            inside = (asked >= low) & (asked <= high)
            asked_ids[begin : begin + _SLICE] = table[np.where(inside, asked - low, span)]
        return asked_ids
    known = np.flatnonzero(call_ids != NO_ID)
    used, place = distinct(call_ids[known].astype(np.int64))
    row = np.empty(len(used), dtype=np.int64)
    row[place[::-1]] = known[::-1]
    for begin in range(0, len(asked_ids), _SLICE):
        asked = asked_ids[begin : begin + _SLICE].astype(np.int64)
        at = np.minimum(np.searchsorted(used, asked), len(used) - 1)
        asked_ids[begin : begin + _SLICE] = np.where(used[at] == asked, row[at], -1)
    return asked_ids


def _by_start(count: Array, start: Ints) -> NDArray[np.int32]:
    """Calls that have rows, by start; equal ones in file order."""
    parts = [
        (np.flatnonzero(count[low : low + _SLICE] > 0) + low).astype(np.int32)
        for low in range(0, max(1, len(count)), _SLICE)
    ]
    calls = np.concatenate(parts)
    latest = np.iinfo(np.int64).min
    for low in range(0, len(calls), _SLICE):
        starts = start[calls[low : low + _SLICE]]
        if starts[0] < latest or bool((starts[1:] < starts[:-1]).any()):
            return calls[np.argsort(start[calls], kind="stable")]
        latest = starts[-1]
    return calls
