"""Which node of its captured CUDA graph each activity of a replay is (design 5.3), and the class this gives it (D5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.captured_nodes import DEVICE_NODE_TYPES, NodeMap
from specanalyze.attribution.replay_fit import Fits, Look, agrees, looks_like_copy, name_signs
from specanalyze.attribution.replay_lanes import lanes
from specanalyze.columns import Ints, distinct, factorize, how_many, integers, places, texts
from specschema.module_classes import ModuleClass

COUNTS: Final = ("placed", "by_id", "by_stream", "unsure", "other_count", "other_names")
"""What is counted of placing, by its names in ``Placement``."""

_COPIES: Final = ("memcpy", "memset")
_SLICE: Final = 1 << 17
"""Activities handled at once, so that what is made of them stays in the processor's cache."""


@dataclass
class Placement:
    """Node of each device activity.

    Attributes:
        node_row: row of ``nodes`` for each activity, -1 where no node is known.
        nodes: the node rows.
        modules: class of each row of ``nodes``.
        placed: replays whose activities all found their node.
        by_id: the part of ``placed`` found by node ids, not by order.
        by_stream: the part of ``placed`` that ran on several streams and was found by the order within each.
        unsure: activities of these that may as well be the node of an equal one on another stream.
        other_count: replays whose number of activities fits no captured graph.
        other_names: replays whose kernels contradict the map: names decide there.
        one_of_several: True for activities of replays that fit several captured graphs whose collectives differ in size at that
            node (batch sizes of one model): its module is known, the size of its message is not.
    """

    node_row: Ints
    nodes: pl.DataFrame
    modules: list[ModuleClass]
    placed: int = 0
    by_id: int = 0
    by_stream: int = 0
    unsure: int = 0
    other_count: int = 0
    other_names: int = 0
    reasons: list[str] = field(default_factory=list)
    one_of_several: NDArray[np.bool_] = field(kw_only=True)


def place(
    events: pl.DataFrame, rows: pl.DataFrame, start: Ints, launch: Ints, is_graph: NDArray[np.bool_]
) -> Placement:
    """Find the node of each activity.

    Node ids that the recording carries are used as they are. Otherwise, among the captured graphs (only the one whose id the
    recording carries, where it does), the n-th activity of a replay by start time is the n-th node, where a graph has as
    many nodes that show activities as the replay has activities, and the types and names agree with it; of several such
    graphs the first one counts (captures of one model for several batch sizes have the same modules).

    Args:
        events: the rank's events, for its node rows.
        rows: the valid device rows.
        start: start of each, ns.
        launch: index of each row's launch call, -1 where none.
        is_graph: per launch call: a graph launch.
    """
    nodes = NodeMap.of(events)
    result = Placement(
        np.full(len(start), -1, dtype=np.int64),
        nodes.rows,
        nodes.modules,
        one_of_several=np.zeros(len(start), dtype=bool),
    )
    if not nodes.rows.height:
        return result
    look, looks = _looks(rows)
    graph_id = integers(rows, "graph_id", -1)
    in_graph = (launch >= 0) & np.append(is_graph, False)[launch]
    found = by_id(
        nodes, looks, look, graph_id, integers(rows, "node", -1), integers(rows, "correlation", -1), start=start
    )
    if found is not None:
        result.node_row[:] = found.row
        result.placed = result.by_id = found.placed
        result.other_names = found.other_names
        in_graph &= ~found.settled
    in_replay = np.flatnonzero(in_graph)
    order = in_replay[np.lexsort((in_replay, start[in_replay], launch[in_replay]))]
    bounds = np.flatnonzero(np.diff(launch[order], prepend=-1, append=-1))
    fits = Fits(nodes, looks)
    stream = _streams(rows)
    found_replays = place_replays(fits, order, bounds, graph_id[order[bounds[:-1]]], look, stream)
    result.by_stream, result.unsure = found_replays.by_stream, found_replays.unsure
    for low, high, number in zip(
        bounds[:-1], bounds[1:], found_replays.numbers.tolist(), strict=True
    ):  # one turn a replay
        members, fit = found_replays.order[low:high], fits.found[number]
        if fit.rows is not None:
            result.node_row[members] = fit.rows
            result.one_of_several[members] = fit.one_of_several
            result.placed += 1
        elif fit.fits_count:
            result.other_names += 1
        else:
            result.other_count += 1
    return result


def _streams(rows: pl.DataFrame) -> Ints:
    """Number of each row's stream; one id on two devices is two streams."""
    streams, stream = distinct(integers(rows, "stream", -1))
    return distinct(integers(rows, "device", 0))[1] * max(1, len(streams)) + stream


@dataclass(frozen=True)
class PlacedReplays:
    """Replays compared with the captured graphs.

    Attributes:
        order: their activities, replay by replay, in the order in which ``numbers`` counts them.
        numbers: number of each replay in ``Fits.found``.
        by_stream, unsure: as in ``Placement``.
    """

    order: NDArray[Any]
    numbers: Ints
    by_stream: int
    unsure: int


def place_replays(
    fits: Fits, order: NDArray[Any], bounds: Ints, graph_id: Ints, look: NDArray[Any], stream: NDArray[Any]
) -> PlacedReplays:
    """Compare replays with the captured graphs.

    Those on several streams are read stream by stream. Where the names at capture leave that open (a map without names), or it fails,
    the order of starts goes first.

    Args:
        fits: of the rank.
        order: activities of replays, replay by replay, each in order of start.
        bounds: where each replay begins there, and the end.
        graph_id: as in ``Fits.of``.
        look, stream: codes of every activity.
    """
    in_lanes = lanes(order, stream, bounds)
    numbers = fits.of(graph_id, look[in_lanes.order], bounds, lane=in_lanes.lane)
    if not in_lanes.mixed.any():
        return PlacedReplays(order, numbers, 0, 0)
    settled = np.array([fit.rows is not None and (fit.named or not fit.unsure) for fit in fits.found])[numbers]
    by_stream = in_lanes.mixed.copy()
    again = np.flatnonzero(in_lanes.mixed & ~settled)
    if len(again):
        lengths = np.diff(bounds)
        rows = np.flatnonzero(np.repeat(in_lanes.mixed & ~settled, lengths))
        second = fits.of(graph_id[again], look[order[rows]], np.append(0, np.cumsum(lengths[again])))
        known = np.array([fit.rows is not None for fit in fits.found])
        better = known[second] | ~known[numbers[again]]
        numbers[again[better]] = second[better]
        by_stream[again[better]] = False
        back = rows[np.repeat(better, lengths[again])]
        in_lanes.order[back] = order[back]
    unsure = np.array([fit.unsure for fit in fits.found])[numbers]
    return PlacedReplays(in_lanes.order, numbers, int(by_stream.sum()), int(unsure[by_stream].sum()))


def _looks(rows: pl.DataFrame) -> tuple[Ints, list[Look]]:
    """Code of each row's name and kind, and what the codes stand for."""
    (name, names), (kind, kinds) = factorize(rows, "name"), factorize(rows, "kind")
    used, look = distinct(name * len(kinds) + kind)
    return look, [(names[code // len(kinds)], kinds[code % len(kinds)]) for code in used.tolist()]


@dataclass(frozen=True)
class ById:
    """Nodes that the recording itself names.

    Attributes:
        row: row of each activity's node, -1 where none is known by its ids.
        settled: activities that need not be placed by order any more.
        placed: replays with such nodes.
        other_names: replays whose kernels have other names than their nodes had at capture: names decide there.
    """

    row: NDArray[np.int32]
    settled: NDArray[np.bool_]
    placed: int
    other_names: int


def by_id(
    nodes: NodeMap,
    looks: Sequence[Look],
    look: NDArray[Any],
    graph_id: NDArray[Any],
    ordinal: NDArray[Any],
    correlation: NDArray[Any],
    *,
    start: Ints | None = None,
) -> ById | None:
    """Use graph and node ids where activities carry those of captured graphs.

    Copies without ids in such a replay (Kineto of torch 2.12 and 2.13 gives them none) are the nodes that are left, in order of start,
    where there are as many.

    Args:
        nodes: of the rank.
        looks: what ``look`` stands for.
        look, graph_id, ordinal, correlation: of each activity; ids are -1 where unknown, those of graphs or nodes empty where all are.
        start: of each, ns; None where they are in order of start.

    Returns:
        None where no activity carries ids.
    """
    if int(graph_id.max(initial=-1)) < 0 or int(ordinal.max(initial=-1)) < 0:
        return None
    ids = _Ids(nodes, looks)
    row = np.full(len(look), -1, dtype=np.int32)
    renamed = []
    for low in range(0, len(look), _SLICE):
        part = slice(low, low + _SLICE)
        row[part] = found = ids.row(graph_id[part].astype(np.int64), ordinal[part].astype(np.int64))
        renamed.append(correlation[part][ids.contradicted(found, look[part])])
    settled = row >= 0
    copies = _copies_without_ids(looks, look, ordinal, correlation, settled)
    contradicted = np.concatenate(renamed)
    if not len(contradicted) and not len(copies):
        return ById(row, settled, how_many(correlation[settled]), 0)
    wrong = np.isin(correlation, contradicted)
    other_names = how_many(correlation[settled & wrong])
    row[wrong] = -1
    placed = how_many(correlation[row >= 0])
    _place_copies(row, copies, nodes, looks, look, correlation, start)
    settled[copies] = True
    return ById(row, settled | wrong, placed, other_names)


def _copies_without_ids(
    looks: Sequence[Look],
    look: NDArray[Any],
    ordinal: NDArray[Any],
    correlation: NDArray[Any],
    settled: NDArray[np.bool_],
) -> Ints:
    """Copies and fills without an ordinal in replays that have activities with one."""
    is_copy = np.array([kind in _COPIES for _, kind in looks])
    parts = []
    for low in range(0, len(look), _SLICE):
        part = slice(low, low + _SLICE)
        parts.append(np.flatnonzero(is_copy[look[part]] & (ordinal[part] < 0)) + low)
    copies = np.concatenate(parts)
    if not len(copies):
        return copies
    asked, beside = correlation[copies], np.zeros(len(copies), dtype=bool)
    for low in range(0, len(look), _SLICE):
        part = slice(low, low + _SLICE)
        beside |= np.isin(asked, correlation[part][settled[part]])
    return copies[beside]


def _place_copies(
    row: NDArray[np.int32],
    copies: Ints,
    nodes: NodeMap,
    looks: Sequence[Look],
    look: NDArray[Any],
    correlation: NDArray[Any],
    start: Ints | None,
) -> None:
    """Give copies without ids the nodes of their replays that no other activity has; ``row`` is changed."""
    if not len(copies):
        return
    order = np.lexsort((copies, copies if start is None else start[copies], correlation[copies]))
    copies = copies[order]
    asked = correlation[copies]
    bounds = np.flatnonzero(np.append(np.append(True, asked[1:] != asked[:-1]), True))
    with_node = np.flatnonzero((row >= 0) & np.isin(correlation, asked))
    with_node = with_node[np.argsort(correlation[with_node])]
    low, high = (np.searchsorted(correlation[with_node], asked[bounds[:-1]], side=side) for side in ("left", "right"))
    of_row = {place: graph for graph in nodes.graphs for place in graph.row.tolist()}
    for begin, end, first, last in zip(bounds[:-1], bounds[1:], low, high, strict=True):  # one turn a replay
        placed = row[with_node[first:last]]
        graph = of_row.get(int(placed[0])) if len(placed) else None
        if graph is None:
            continue
        left = np.flatnonzero(~np.isin(graph.row, placed))
        kinds = [looks[code][1] for code in look[copies[begin:end]].tolist()]
        if kinds == [graph.kind[place] for place in left.tolist()]:
            row[copies[begin:end]] = graph.row[left]


class _Ids:
    """Nodes by their ids.

    Args:
        nodes: of the rank; of two with the same ids the first counts.
        looks: what the codes of activities stand for.
    """

    def __init__(self, nodes: NodeMap, looks: Sequence[Look]) -> None:
        graph_id, ordinal = integers(nodes.rows, "graph_id", -1), integers(nodes.rows, "node", -1)
        known = np.flatnonzero((graph_id >= 0) & (ordinal >= 0))
        self._graphs, graph = distinct(graph_id[known])
        self._ordinals, place = distinct(ordinal[known])
        self._pairs, pair = distinct(graph * len(self._ordinals) + place)
        self._first = np.full(len(self._pairs) + 1, -1, dtype=np.int64)  # the last is that of ids of no node
        self._first[pair[::-1]] = known[::-1]
        number: dict[str | None, int] = {None: -1}
        types = texts(nodes.rows, "node_type")
        own = [n if kind == "kernel" != n else None for kind, n in zip(types, texts(nodes.rows, "name"), strict=True)]
        at_capture = [number.setdefault(name, len(number)) for name in own]
        ran = [number.get(name, 0) if kind == "kernel" else -1 for name, kind in looks]
        self._at_capture = np.array([*at_capture, -1], dtype=np.int64)
        self._ran = np.array(ran, dtype=np.int64)
        self._sort, self._fits = _by_sort(nodes, own, types, looks)
        self._judges = not self._fits.all()

    def row(self, graph_id: Ints, ordinal: Ints) -> Ints:
        """Row of the node with each pair of ids, -1 where there is none."""
        graph, place = places(self._graphs, graph_id), places(self._ordinals, ordinal)
        pair = places(self._pairs, np.where(place < 0, -1, graph * len(self._ordinals) + place))
        return self._first[pair]

    def contradicted(self, row: Ints, look: NDArray[Any]) -> NDArray[np.bool_]:
        """Activities that can't be their node: kernels whose name is not the one that the node had at capture, and what its type or
        its module speaks against where no name was recorded then. False where there is no node."""
        at_capture, ran = self._at_capture[row], self._ran[look]
        differs = (at_capture >= 0) & (ran >= 0) & (at_capture != ran)
        contradicted: NDArray[np.bool_] = differs | ~self._fits[row, self._sort[look]] if self._judges else differs
        return contradicted


def _by_sort(
    nodes: NodeMap, own: Sequence[str | None], types: Sequence[str | None], looks: Sequence[Look]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sort of each look: what ``replay_fit.agrees`` asks of it; and whether each node, the last being none, may be of each sort.

    Kernels whose node had a name at capture are judged by it alone, and nodes of types that show no activity are not judged.
    """
    signs = name_signs([name for name, _ in looks])
    sorts: dict[tuple[str | None, str, bool], int] = {}
    specimens: list[tuple[str | None, str, str]] = []
    sort = []
    for name, kind in looks:
        key = signs.get(name), kind, looks_like_copy(name)
        if key not in sorts:
            sorts[key] = len(sorts)
            specimens.append((key[0], kind, name))
        sort.append(sorts[key])
    known: dict[tuple[str, ModuleClass], list[bool]] = {}
    fits = np.ones((len(own) + 1, max(1, len(sorts))), dtype=bool)
    for place, (name_at_capture, node_type, module) in enumerate(zip(own, types, nodes.modules, strict=True)):
        if node_type not in DEVICE_NODE_TYPES or name_at_capture is not None:
            continue
        if (node_type, module) not in known:
            known[node_type, module] = [
                agrees(node_type, None, module, kind, sign, name) for sign, kind, name in specimens
            ]
        fits[place, : len(specimens)] = known[node_type, module]
    return np.array(sort, dtype=np.int64), fits
