"""Whether the activities of a replay can be the nodes of a captured graph: by their number, types and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specanalyze.attribution.captured_nodes import Graph, NodeMap
from specanalyze.attribution.replay_lanes import read_lanes
from specanalyze.columns import Ints
from specschema.kernel_classes import classify
from specschema.module_classes import ModuleClass
from specschema.phases import COMMUNICATION_BUCKETS

Look: TypeAlias = tuple[str, str]
"""Name and kind of a device activity."""


NO_PRODUCT_IN: Final = frozenset({"norm", "qk_norm", "rotary", "embedding", "topk", "activation", "sampling"})
"""Finer classes of modules that hold no matrix product, so a GEMM there contradicts the map."""
NO_COLLECTIVE_IN: Final = frozenset({"rotary", "qk_norm", "router", "topk", "attention_core", "activation", "qkv_proj"})
"""Finer classes of modules that hold no collective. Norms may: fused allreduce + norm kernels run in them."""
NORM_IN: Final = frozenset({"norm", "qk_norm", "attention_core", "moe_block", "container", "outside modules"})
"""Finer classes of modules that may hold a norm kernel."""


@dataclass(frozen=True)
class Fit:
    """The nodes of a replay's activities, in the order in which they were given.

    Attributes:
        rows: row of each one's node; None where the names decide.
        one_of_several: as in ``Placement``.
        fits_count: whether a captured graph has as many nodes that show activities.
        unsure: activities that may as well be the node of an equal one on another stream.
        named: whether the kernels had names at capture, so that only equal kernels can be unsure.
    """

    rows: Ints | None
    one_of_several: NDArray[np.bool_]
    fits_count: bool
    unsure: int = 0
    named: bool = True


class Fits:
    """Compares replays with the captured graphs, each distinct one once.

    Args:
        nodes: of the rank.
        looks: what the codes of activities stand for.
    """

    def __init__(self, nodes: NodeMap, looks: Sequence[Look]) -> None:
        self._nodes = nodes
        self._looks = looks
        self._signs = name_signs([name for name, _ in looks])
        self._known: dict[tuple[int, int, bytes], int] = {}
        self.found: list[Fit] = []
        """The distinct replays that were compared."""

    def of(self, graph_id: Ints, look: NDArray[Any], bounds: Ints, *, lane: NDArray[np.uint8] | None = None) -> Ints:
        """Number in ``found`` of each of some replays.

        Args:
            graph_id: the captured graph that the first activity of each names, -1 where it names none.
            look: code of each of their activities, replay by replay, in order of start.
            bounds: where each replay begins there, and the end.
            lane: of each activity, which then are in order of ``replay_lanes.lanes``.
        """
        if lane is not None and lane.any():
            look = look.astype(np.int32) + lane * np.int32(len(self._looks))
        codes, width = look.tobytes(), look.itemsize
        numbers = []
        last: dict[
            tuple[int, int], tuple[bytes, int]
        ] = {}  # comparing with the last one of this length is faster than a hash
        places = zip(graph_id.tolist(), (width * bounds[:-1]).tolist(), (width * bounds[1:]).tolist(), strict=True)
        for graph, low, high in places:  # one turn a replay
            before = last.get((graph, high - low))
            if before is not None and codes.startswith(before[0], low):
                numbers.append(before[1])
                continue
            key = graph, width, codes[low:high]
            number = self._known.get(key)
            if number is None:
                self._known[key] = number = len(self.found)
                lanes, of_look = np.divmod(look[low // width : high // width], len(self._looks))
                looks = [self._looks[code] for code in of_look.tolist()]
                self.found.append(self._compared(graph, looks, np.bincount(lanes).tolist()))
            last[graph, high - low] = key[-1], number
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def _compared(self, graph_id: int, looks: list[Look], counts: list[int]) -> Fit:
        candidates = [graph for graph in self._nodes.graphs if graph_id in (-1, graph.graph_id)]
        if len(counts) > 1:
            return self._compared_lanes(candidates, looks, counts)
        fitting = _fitting(candidates, self._nodes.modules, looks, self._signs)
        several = np.zeros(len(looks), dtype=bool)
        if not isinstance(fitting, list):
            return Fit(None, several, fitting == "names")
        elements = self._nodes.elements
        for other in fitting[1:]:
            several |= elements[other.row] != elements[fitting[0].row]
        return Fit(fitting[0].row, several, True)

    def _compared_lanes(self, candidates: list[Graph], looks: list[Look], counts: list[int]) -> Fit:
        """The nodes of activities that lie in lanes of ``counts`` activities each, lane by lane."""
        begins = np.append(0, np.cumsum(counts)).tolist()
        several = np.zeros(len(looks), dtype=bool)
        found: list[Ints] = []
        unsure, named = 0, True
        fits_count = False
        for graph in candidates:
            if len(graph.kind) != len(looks):
                continue
            fits_count = True
            rows = graph.row.tolist()

            def agree(node: int, lane: int, place: int, graph: Graph = graph, rows: list[int] = rows) -> bool:
                name, kind = looks[begins[lane] + place]
                module = self._nodes.modules[rows[node]]
                return agrees(graph.kind[node], graph.name[node], module, kind, self._signs.get(name), name)

            reading = read_lanes(counts, agree)
            if reading is not None:
                # nodes of one lane, in order, are its activities in order
                found.append(graph.row[np.argsort(reading.lane, kind="stable")])
                if len(found) == 1:
                    unsure = int(reading.unsure.sum())
                    named = all(n is not None for n, k in zip(graph.name, graph.kind, strict=True) if k == "kernel")
        if not found:
            return Fit(None, several, fits_count)
        elements = self._nodes.elements
        for other in found[1:]:
            several |= elements[other] != elements[found[0]]
        return Fit(found[0], several, True, unsure, named)


def name_signs(names: list[str]) -> dict[str, str]:
    """Names that by themselves prove what they are: name -> attention, moe, communication, gemm or norm."""
    signs = {}
    for name in names:
        found = classify(name)
        if found.rule is None:
            continue
        if found.bucket in COMMUNICATION_BUCKETS:
            signs[name] = "communication"
        elif found.bucket in ("attention", "moe", "gemm"):
            signs[name] = found.bucket
        elif found.subclass == "norm":
            signs[name] = "norm"
    return signs


def _fitting(
    graphs: list[Graph], modules: list[ModuleClass], looks: list[Look], signs: dict[str, str]
) -> list[Graph] | str | None:
    """The captured graphs that a replay of these activities may be one of; ``names`` where only the names speak against them."""
    fits_count = False
    found = []
    for graph in graphs:
        if len(graph.kind) != len(looks):
            continue
        fits_count = True
        if all(
            agrees(node_kind, node_name, modules[row], kind, signs.get(name), name)
            for node_kind, node_name, row, (name, kind) in zip(
                graph.kind, graph.name, graph.row.tolist(), looks, strict=True
            )
        ):
            found.append(graph)
    return found or ("names" if fits_count else None)


def looks_like_copy(name: str) -> bool:
    """Whether a kernel's name says that it copies or fills, as one does that a graph's copy runs as."""
    return name.startswith(("mem", "copy"))


def agrees(node_kind: str, node_name: str | None, module: ModuleClass, kind: str, sign: str | None, name: str) -> bool:
    """Whether an activity can be this node. Copies of a graph may run as kernels named memcpy*, never the other way.

    A kernel name recorded at capture proves it alone; without one the class that the name suggests must fit the module.
    """
    if node_kind != kind and not (node_kind in ("memcpy", "memset") and kind == "kernel" and looks_like_copy(name)):
        return False
    if node_name is not None and node_kind == kind == "kernel":
        return node_name == name
    if kind != "kernel" or sign is None or module.bucket is None:
        return True  # a copy is one whatever its name says
    if sign == "communication":
        return module.subclass not in NO_COLLECTIVE_IN
    if sign == "gemm":
        return module.subclass not in NO_PRODUCT_IN
    if sign == "norm":
        return module.subclass in NORM_IN
    return module.bucket == sign
