"""Which node of its captured CUDA graph each activity of a replay is (design 5.3), and the class this gives it (D5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.captured_nodes import NodeMap
from specanalyze.attribution.replay_fit import Fits, Look
from specanalyze.columns import Ints, distinct, factorize, how_many, integers, places, texts
from specschema.module_classes import ModuleClass

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
    found = by_id(nodes, looks, look, graph_id, integers(rows, "node", -1), integers(rows, "correlation", -1))
    if found is not None:
        result.node_row[:] = found.row
        result.placed = result.by_id = found.placed
        result.other_names = found.other_names
        in_graph &= ~found.settled
    in_replay = np.flatnonzero(in_graph)
    order = in_replay[np.lexsort((in_replay, start[in_replay], launch[in_replay]))]
    bounds = np.flatnonzero(np.diff(launch[order], prepend=-1, append=-1))
    fits = Fits(nodes, looks)
    numbers = fits.of(graph_id[order[bounds[:-1]]], look[order], bounds)
    for low, high, number in zip(bounds[:-1], bounds[1:], numbers.tolist(), strict=True):  # one turn a replay
        members, fit = order[low:high], fits.found[number]
        if fit.rows is not None:
            result.node_row[members] = fit.rows
            result.one_of_several[members] = fit.one_of_several
            result.placed += 1
        elif fit.fits_count:
            result.other_names += 1
        else:
            result.other_count += 1
    return result


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
) -> ById | None:
    """Use graph and node ids where activities carry those of captured graphs.

    Args:
        nodes: of the rank.
        looks: what ``look`` stands for.
        look, graph_id, ordinal, correlation: of each activity; ids are -1 where unknown, those of graphs or nodes empty where all are.

    Returns:
        None where no activity carries ids.
    """
    if int(graph_id.max(initial=-1)) < 0 or int(ordinal.max(initial=-1)) < 0:
        return None
    ids = _Ids(nodes.rows, looks)
    row = np.full(len(look), -1, dtype=np.int32)
    renamed = []
    for low in range(0, len(look), _SLICE):
        part = slice(low, low + _SLICE)
        row[part] = found = ids.row(graph_id[part].astype(np.int64), ordinal[part].astype(np.int64))
        renamed.append(correlation[part][ids.renamed(found, look[part])])
    settled = row >= 0
    contradicted = np.concatenate(renamed)
    if not len(contradicted):
        return ById(row, settled, how_many(correlation[settled]), 0)
    wrong = np.isin(correlation, contradicted)
    other_names = how_many(correlation[settled & wrong])
    row[wrong] = -1
    return ById(row, settled | wrong, how_many(correlation[row >= 0]), other_names)


class _Ids:
    """Nodes by their ids.

    Args:
        nodes: the node rows; of two with the same ids the first counts.
        looks: what the codes of activities stand for.
    """

    def __init__(self, nodes: pl.DataFrame, looks: Sequence[Look]) -> None:
        graph_id, ordinal = integers(nodes, "graph_id", -1), integers(nodes, "node", -1)
        known = np.flatnonzero((graph_id >= 0) & (ordinal >= 0))
        self._graphs, graph = distinct(graph_id[known])
        self._ordinals, place = distinct(ordinal[known])
        self._pairs, pair = distinct(graph * len(self._ordinals) + place)
        self._first = np.full(len(self._pairs) + 1, -1, dtype=np.int64)  # the last is that of ids of no node
        self._first[pair[::-1]] = known[::-1]
        number: dict[str | None, int] = {None: -1}
        types = texts(nodes, "node_type")
        own = [n if kind == "kernel" != n else None for kind, n in zip(types, texts(nodes, "name"), strict=True)]
        at_capture = [number.setdefault(name, len(number)) for name in own]
        ran = [number.get(name, 0) if kind == "kernel" else -1 for name, kind in looks]
        self._at_capture = np.array([*at_capture, -1], dtype=np.int64)
        self._ran = np.array(ran, dtype=np.int64)

    def row(self, graph_id: Ints, ordinal: Ints) -> Ints:
        """Row of the node with each pair of ids, -1 where there is none."""
        graph, place = places(self._graphs, graph_id), places(self._ordinals, ordinal)
        pair = places(self._pairs, np.where(place < 0, -1, graph * len(self._ordinals) + place))
        return self._first[pair]

    def renamed(self, row: Ints, look: NDArray[Any]) -> NDArray[np.bool_]:
        """Kernels whose name is not the one that their node had at capture; False where either is no kernel or has no name."""
        at_capture, ran = self._at_capture[row], self._ran[look]
        differs: NDArray[np.bool_] = (at_capture >= 0) & (ran >= 0) & (at_capture != ran)
        return differs
