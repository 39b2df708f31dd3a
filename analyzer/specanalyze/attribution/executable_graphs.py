"""Which captured graph of a node map each executable graph is that a profiler numbers in its own way.

Kineto (torch >= 2.12) writes two ids beside a replay's kernel: the executable graph, in CUPTI's count, and the node, whose low half is
its place in order of creation. A map beside the trace counts captures from 0. What both know is the places: the nodes that ran in a
whole replay, their types, and what their names say, are those of one captured graph, or of several that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.attribution.captured_nodes import Graph, NodeMap
from specanalyze.attribution.replay_fit import Look, agrees, name_signs
from specanalyze.columns import Ints, distinct, factorize, places

_SLICE: Final = 1 << 17
"""Activities handled at once, so that what is made of them stays in the processor's cache."""
_COPIES: Final = ("memcpy", "memset")


@dataclass(frozen=True)
class CapturedNumbers:
    """Number in the map of each executable graph.

    Attributes:
        of: executable graph -> captured graph. Of several that are alike in all their modules it is the first, where order does not
            tell; which of them ran is not known then, and what its kernels belong to is. What may be captured graphs of different
            modules has a number of its own behind the map's, so that nothing is guessed of it.
        undecided: how many these are.
    """

    of: Mapping[int, int]
    undecided: int = 0

    def apply(self, graph_id: NDArray[Any]) -> NDArray[Any]:
        """Executable graphs as the map numbers them, -1 where they are none of its graphs."""
        known = np.array(sorted(self.of), dtype=np.int64)
        number = np.array([*(self.of[one] for one in known.tolist()), -1], dtype=graph_id.dtype)
        graph = np.empty_like(graph_id)
        for low in range(0, len(graph_id), _SLICE):
            part = slice(low, low + _SLICE)
            graph[part] = number[places(known, graph_id[part].astype(np.int64))]
        return graph


@dataclass(frozen=True)
class _Executable:
    """What replays of one executable graph show.

    Attributes:
        seen: (ordinal, code of the look) of each, distinct.
        counts: distinct (activities with ids, activities without any) of its replays.
    """

    seen: tuple[tuple[int, int], ...]
    counts: frozenset[tuple[int, int]]


def captured_numbers(
    nodes: NodeMap,
    looks: Sequence[Look],
    look: NDArray[Any],
    graph_id: NDArray[Any],
    ordinal: NDArray[Any],
    correlation: NDArray[Any],
) -> CapturedNumbers:
    """Find the captured graph of each executable graph of one profiler session.

    A captured graph fits where a replay has run all its nodes that show activities, those without ids being copies (Kineto of torch
    2.12 and 2.13 gives them none), and no type or name contradicts it. Of as many executable graphs as captured graphs that fit the
    same ones, the n-th is the n-th: both count in the order in which graphs were made.

    Args:
        nodes: of the rank.
        looks: what ``look`` stands for.
        look, graph_id, ordinal, correlation: of each activity; ids are -1 where unknown, arrays of ids empty where all are.
    """
    executables = _executables(look, graph_id, ordinal, correlation, len(looks))
    if not executables or not nodes.graphs:
        return CapturedNumbers({})
    fitting = _Fitting(nodes, looks)
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, executable in sorted(executables.items()):
        groups.setdefault(fitting.graphs(executable), []).append(number)
    of: dict[int, int] = {}
    undecided: list[int] = []
    behind = max(graph.graph_id for graph in nodes.graphs) + 1
    for candidates, numbers in groups.items():
        if not candidates:
            continue
        if len(candidates) == len(numbers):
            of |= {one: nodes.graphs[place].graph_id for one, place in zip(numbers, candidates, strict=True)}
        elif fitting.alike(candidates):
            of |= dict.fromkeys(numbers, nodes.graphs[candidates[0]].graph_id)
        else:
            undecided += numbers
    of |= {one: behind + place for place, one in enumerate(undecided)}
    return CapturedNumbers(of, len(undecided))


def _executables(
    look: NDArray[Any], graph_id: NDArray[Any], ordinal: NDArray[Any], correlation: NDArray[Any], looks: int
) -> dict[int, _Executable]:
    if int(graph_id.max(initial=-1)) < 0 or int(ordinal.max(initial=-1)) < 0:
        return {}
    seen, replays = [], []
    for low in range(0, len(look), _SLICE):
        part = slice(low, low + _SLICE)
        told = np.flatnonzero((graph_id[part] >= 0) & (ordinal[part] >= 0))
        graph, node, code, call = (a[part][told].astype(np.int64) for a in (graph_id, ordinal, look, correlation))
        seen.append(_distinct(graph, node, code)[:-1])
        replays.append(_distinct(graph, call))
    graph, node, code, _ = _distinct(*np.concatenate(seen, axis=1))
    of_graph, call, times = _distinct(*np.concatenate([rows[:-1] for rows in replays], axis=1), weights=replays)
    without = _without_ids(np.unique(call), graph_id, ordinal, correlation)
    beside = np.array([without.get(one, 0) for one in call.tolist()], dtype=np.int64)
    found = {}
    for one in np.unique(graph).tolist():  # one turn an executable graph; rows are in order of it
        mine, its = (slice(*np.searchsorted(column, [one, one + 1])) for column in (graph, of_graph))
        found[one] = _Executable(
            tuple(zip(node[mine].tolist(), code[mine].tolist(), strict=True)),
            frozenset(zip(times[its].tolist(), beside[its].tolist(), strict=True)),
        )
    return found


def _distinct(*columns: Ints, weights: Sequence[Ints] = ()) -> Ints:
    """The distinct rows of some columns, ascending, a row of the result a column; the last one is how often each occurs.

    Args:
        columns: of one length.
        weights: earlier results whose last rows say how often each row counts; once, where there are none.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        used, place = distinct(column)
        key = distinct(key * max(1, len(used)) + place)[1]
    count = int(key.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    times = np.ones(len(key), dtype=np.int64) if not weights else np.concatenate([rows[-1] for rows in weights])
    summed = np.zeros(count, dtype=np.int64)
    np.add.at(summed, key, times)
    return np.stack([*(column[first] for column in columns), summed])


def _without_ids(
    calls: Ints, graph_id: NDArray[Any], ordinal: NDArray[Any], correlation: NDArray[Any]
) -> dict[int, int]:
    """Activities without ids of some calls, where there are any."""
    found: dict[int, int] = {}
    for low in range(0, len(correlation), _SLICE):
        part = slice(low, low + _SLICE)
        asked = correlation[part][(graph_id[part] < 0) | (ordinal[part] < 0)].astype(np.int64)
        used, times = np.unique(asked[np.isin(asked, calls)], return_counts=True)
        for one, count in zip(used.tolist(), times.tolist(), strict=True):
            found[one] = found.get(one, 0) + count
    return found


class _Fitting:
    """Compares executable graphs with the captured ones, each shape once."""

    def __init__(self, nodes: NodeMap, looks: Sequence[Look]) -> None:
        self._nodes = nodes
        self._looks = looks
        self._signs = name_signs([name for name, _ in looks])
        self._shapes: dict[int, dict[tuple[bytes, tuple[str, ...]], list[int]]] = {}
        """Number of nodes -> what graphs of so many look like -> their places."""
        for place, graph in enumerate(nodes.graphs):
            of_length = self._shapes.setdefault(len(graph.kind), {})
            of_length.setdefault((graph.node.tobytes(), graph.kind), []).append(place)
        self._known: dict[_Executable, tuple[int, ...]] = {}
        self._told = np.stack([factorize(nodes.rows, name)[0] for name in ("module", "module_class")])

    def graphs(self, executable: _Executable) -> tuple[int, ...]:
        """Places in ``NodeMap.graphs`` of those that it may be, in order of capture."""
        if executable not in self._known:
            ordinals = {ordinal for ordinal, _ in executable.seen}
            found = []
            shapes = [self._shapes.get(length, {}) for length in {told + beside for told, beside in executable.counts}]
            for alike in (alike for of_length in shapes for alike in of_length.values()):
                if _whole(self._nodes.graphs[alike[0]], ordinals, executable.counts):
                    found += [place for place in alike if self._agrees(self._nodes.graphs[place], executable.seen)]
            self._known[executable] = tuple(sorted(found))
        return self._known[executable]

    def _agrees(self, graph: Graph, seen: Sequence[tuple[int, int]]) -> bool:
        place = {ordinal: i for i, ordinal in enumerate(graph.node.tolist())}
        return all(
            agrees(graph.kind[i], graph.name[i], self._nodes.modules[graph.row[i]], kind, self._signs.get(name), name)
            for i, (name, kind) in ((place[ordinal], self._looks[code]) for ordinal, code in seen)
        )

    def alike(self, these: Sequence[int]) -> bool:
        """Whether some graphs of one number of nodes have the same module at each node."""
        one, *others = (self._told[:, self._nodes.graphs[place].row] for place in these)
        return all(np.array_equal(one, other) for other in others)


def _whole(graph: Graph, ordinals: set[int], counts: frozenset[tuple[int, int]]) -> bool:
    """Whether the nodes seen are all that the graph has, but for copies without ids, and a replay ran them all."""
    own = graph.node.tolist()
    if not ordinals.issubset(own):
        return False
    missing = [kind for ordinal, kind in zip(own, graph.kind, strict=True) if ordinal not in ordinals]
    return all(kind in _COPIES for kind in missing) and (len(ordinals), len(missing)) in counts
