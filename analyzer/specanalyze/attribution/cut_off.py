"""Which instances of phases an edge of their profiler window cuts off, so that only a part of their device work is recorded (rule D9).

A profiler that stops keeps the activities that have ended. Of the replay that runs then the first ones are recorded, and of what was
launched after it nothing is; one that starts late lacks the first ones. Nothing in the file marks such a replay, so it takes two
signs together. It lies at the edge: on each of its streams nothing is recorded behind it (or before it). And it lacks something: it
has fewer activities than its captured graph has nodes that show any, where its nodes are known; else a longer replay of its phase in the
same window begins (or ends) with the same kernels, and no other replay of the phase is as short and the same.

Records that are lost inside a window are another matter: see ``lost_replays`` of ``instances.instance_table``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.captured_nodes import DEVICE_NODE_TYPES
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.columns import Ints, distinct, factorize, integers
from specanalyze.native.timeline import Array
from specschema.phases import LEAF_PHASES

_SLICE: Final = 1 << 17
"""Rows looked at at once where numpy would otherwise make an array as long as the window."""
_TRIES: Final = 4
"""Replays of one length that are compared with a short one, the nearest in time."""
_MOST_LENGTHS: Final = 16
"""Lengths of longer replays that are looked at."""
_LEAF: Final = np.array([PHASE_CODE[phase] for phase in LEAF_PHASES])


@dataclass(frozen=True)
class WindowRows:
    """Device rows and launch calls of one window, as both ways of reading have them.

    Attributes:
        start: ns, in order.
        stream: number of each row's device and stream.
        name: code of each row's name, into ``same``.
        same: of each code, one that equal names share.
        call: index of each row's launch call, -1 where none was recorded.
        node: row of the node that each one is, -1 where none is known; empty of a rank without captured graphs.
        graph_nodes: of ``graph_nodes``.
        call_start: of each call, ns.
        call_range: innermost range of each call, -1 where none.
        call_graph: graph launches.
        call_rows: rows of each call.
        replay_range: innermost range of each graph launch call, those without rows included, -1 where none.
    """

    start: Ints
    stream: Array
    name: Array
    same: Ints
    call: Array
    node: Array
    graph_nodes: Ints
    call_start: Ints
    call_range: Array
    call_graph: NDArray[np.bool_]
    call_rows: Array
    replay_range: Array


def graph_nodes(nodes: pl.DataFrame) -> Ints:
    """How many nodes that show activities the captured graph of each node row has; 0 for a row that shows none."""
    code, kinds = factorize(nodes, "node_type")
    shows = np.isin(code, [k for k, kind in enumerate(kinds) if kind in DEVICE_NODE_TYPES])
    _, graph = distinct(integers(nodes, "graph_id", -1))
    counts = np.bincount(graph[shows], minlength=int(graph.max(initial=-1)) + 1)
    return np.where(shows, counts[graph], 0) if len(graph) else np.empty(0, dtype=np.int64)


def cut_off(ranges: Ranges, rows: WindowRows) -> NDArray[np.bool_]:
    """Ranges of which an edge of the window cuts a replay, or which begin when nothing is recorded any more.

    The latter are leaf phases without any device work and without a lost replay, behind the last launch call that has any, where other
    instances of the same phase have some.
    """
    found = np.zeros(len(ranges), dtype=bool)
    if not len(ranges) or not len(rows.start) or not len(rows.call_start):
        return found
    edges = _at_edges(rows)
    calls = {call for call, _, _ in edges}
    for call, mine, is_last in edges:  # at most two turns a stream
        if not found[rows.call_range[call]] and _lacks(rows, ranges, calls, call, mine, is_last=is_last):
            found[rows.call_range[call]] = True
    return found | _behind(ranges, rows)


def _behind(ranges: Ranges, rows: WindowRows) -> NDArray[np.bool_]:
    """Leaf ranges that begin behind the last launch call with device work and have none themselves."""
    called = rows.call_rows > 0
    if not called.any():
        return np.zeros(len(ranges), dtype=bool)
    inside = rows.call_range >= 0
    has, replays = np.zeros(len(ranges), dtype=bool), np.zeros(len(ranges), dtype=bool)
    has[rows.call_range[inside & called]] = True
    replays[rows.replay_range[rows.replay_range >= 0]] = True
    works = np.isin(ranges.phase, np.intersect1d(ranges.phase[has], _LEAF))
    last = int(rows.call_start.max(where=called, initial=np.iinfo(np.int64).min))
    untold = np.flatnonzero(rows.call < 0)  # work of whoever launched it
    if len(untold):
        last = max(last, int(rows.start[untold[-1]]))
    behind: NDArray[np.bool_] = works & ~has & ~replays & (ranges.start > last)
    return behind


def _at_edges(rows: WindowRows) -> list[tuple[int, Ints, bool]]:
    """Replays that have the first or the last row of each of their streams: call, its rows, whether the last ones."""
    slices = range(0, len(rows.stream), _SLICE)
    found = []
    first = _outermost(rows.stream, slices, step=-1)
    last = _outermost(rows.stream, slices[::-1], step=1)
    for edge in (first, last):
        holder = np.where(edge >= 0, rows.call[edge], -1)
        for call in np.unique(holder[holder >= 0]).tolist():
            if not rows.call_graph[call] or rows.call_range[call] < 0:
                continue
            mine = np.flatnonzero(rows.call == call)
            if (holder[rows.stream[mine]] == call).all():
                found.append((call, mine, edge is last))
    return found


def _outermost(stream: Array, slices: range, *, step: int) -> Ints:
    """The first row of each stream (step -1, slices from the front) or its last one (1, from the back); -1 of a stream without rows."""
    found = np.full(int(stream.max()) + 1, -1, dtype=np.int64)
    for low in slices:
        part = stream[low : low + _SLICE]
        here = np.full(len(found), -1, dtype=np.int64)
        here[part[::step]] = np.arange(low, low + len(part))[
            ::step
        ]  # of rows of one stream the last to be written stays
        found = np.where(found < 0, here, found)
        if found.min() >= 0:
            break
    return found


def _lacks(rows: WindowRows, ranges: Ranges, edges: set[int], call: int, mine: Ints, *, is_last: bool) -> bool:
    """Whether a replay at an edge has fewer activities than its graph."""
    if len(rows.node):
        node = rows.node[mine]
        nodes = rows.graph_nodes[node[node >= 0]]
        if nodes.any():
            return len(mine) < int(nodes.max())
    phase = np.append(ranges.phase, -1)  # the last is that of no range
    alike = np.flatnonzero(rows.call_graph & (rows.call_rows >= len(mine)))
    alike = alike[(phase[rows.call_range[alike]] == phase[rows.call_range[call]]) & (alike != call)]
    if not len(alike) or int(rows.call_rows[alike].max()) == len(mine):
        return False
    near = alike[np.argsort(np.abs(rows.call_start[alike] - rows.call_start[call]), kind="stable")]
    length = rows.call_rows[near]
    shape = _streams(rows, mine)
    for other in near[length == len(mine)][:_TRIES].tolist():
        if other not in edges and sorted(shape[1:]) == sorted(_streams(rows, np.flatnonzero(rows.call == other))[1:]):
            return False  # the graph is as short elsewhere
    longer = [near[length == one][:_TRIES] for one in np.unique(length[length > len(mine)])[:_MOST_LENGTHS]]
    return any(
        _part_of(shape, _streams(rows, np.flatnonzero(rows.call == other)), is_last=is_last)
        for other in np.concatenate(longer).tolist()
    )


def _streams(rows: WindowRows, mine: Ints) -> list[bytes]:
    """Names of a replay's activities: all in order of start, then stream by stream."""
    names, stream = rows.same[rows.name[mine]], rows.stream[mine]
    return [names.tobytes(), *(names[stream == one].tobytes() for one in np.unique(stream))]


def _part_of(short: list[bytes], long: list[bytes], *, is_last: bool) -> bool:
    """Whether a replay may be the beginning of another (its end, at the other edge), in order of start or stream by stream."""

    def part(one: Any, other: Any) -> bool:
        return bool(other.startswith(one) if is_last else other.endswith(one))

    return part(short[0], long[0]) or all(any(part(one, other) for other in long[1:]) for one in short[1:])
