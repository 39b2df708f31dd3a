"""Which captured graph of a map each executable graph of a profiler is, by the places and looks of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import traces

from specanalyze.attribution import executable_graphs
from specanalyze.attribution.captured_nodes import NodeMap
from specanalyze.attribution.executable_graphs import CapturedNumbers, captured_numbers

GEMM, MOE, ADD, COPY = (
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT",
    "fused_moe_kernel",
    "some_kernel",
    "Memcpy DtoD (Device -> Device)",
)
LOOKS = [(GEMM, "kernel"), (MOE, "kernel"), (ADD, "kernel"), (COPY, "memcpy"), ("memcpy32_post", "kernel")]
PRODUCT, EXPERTS, PLAIN, COPIED, COPY_KERNEL = range(5)

Node = tuple[str, str, str]
"""Type, module, class."""
GATE: Node = ("kernel", "M.layers.0.mlp.gate", "Linear")
EXPERT: Node = ("kernel", "M.layers.0.mlp.experts", "FusedMoE")
NORM: Node = ("kernel", "M.layers.0.norm", "RMSNorm")
COPYING: Node = ("memcpy", "M.layers.0.attn", "RadixAttention")
EVENT: Node = ("event_record", "", "")


def node_map(*graphs: Sequence[Node]) -> NodeMap:
    rows = [
        {"kind": "node", "name": kind, "node_type": kind, "graph_id": number, "node": i, "start_ns": 0, "dur_ns": 0}
        | {"module": module, "module_class": module_class}
        for number, graph in enumerate(graphs)
        for i, (kind, module, module_class) in enumerate(graph)
    ]
    return NodeMap.of(traces.events(rows))


Activity = tuple[int, int, int, int]
"""Look, executable graph, ordinal, correlation."""


def replay(
    executable: int, looks: Sequence[int], correlation: int, places: Sequence[int] | None = None
) -> list[Activity]:
    return [
        (look, executable, place, correlation) for look, place in zip(looks, places or range(len(looks)), strict=True)
    ]


def numbers(nodes: NodeMap, *activities: Sequence[Activity]) -> CapturedNumbers:
    rows = np.array([one for some in activities for one in some], dtype=np.int64).reshape(-1, 4)
    return captured_numbers(nodes, LOOKS, *(rows[:, i] for i in range(4)))


def test_a_graph_is_known_by_the_places_of_its_nodes_not_by_its_number() -> None:
    nodes = node_map([GATE, EXPERT, NORM], [GATE, EVENT, EXPERT])
    found = numbers(nodes, replay(1, [PRODUCT, EXPERTS], 5, [0, 2]), replay(0, [PRODUCT, EXPERTS, PLAIN], 6))
    assert found == CapturedNumbers({1: 1, 0: 0})
    assert found.apply(np.array([1, 0, -1, 7], dtype=np.int32)).tolist() == [1, 0, -1, -1]


@pytest.mark.parametrize("ids", [[7, 9, 4], [9, 4, 9, 7], [4, 4], [-1, 9], []])
def test_every_row_is_numbered_as_the_map_does(ids: list[int]) -> None:
    found = CapturedNumbers({9: 0, 4: 1})
    # Over memory of another answer, which rows that are not written would show.
    np.full(len(ids), 12, dtype=np.int32).tolist()
    assert found.apply(np.array(ids, dtype=np.int32)).tolist() == [{9: 0, 4: 1}.get(one, -1) for one in ids]


def test_a_graph_that_the_map_lacks_hides_no_other() -> None:
    nodes = node_map([GATE])
    assert numbers(nodes, replay(0, [PRODUCT], 5)).of == {0: 0}
    assert numbers(nodes, replay(1, [EXPERTS, EXPERTS], 5), replay(2, [PRODUCT], 6)).of == {2: 0}


def test_names_tell_graphs_of_one_shape_apart() -> None:
    nodes = node_map([GATE, NORM], [NORM, GATE])
    assert numbers(nodes, replay(9, [PRODUCT, PLAIN], 5)).of == {9: 0}
    assert numbers(nodes, replay(9, [PLAIN, PRODUCT], 5)).of == {9: 1}
    assert numbers(nodes, replay(9, [PRODUCT, PRODUCT], 5)).of == {}, "a product in a norm"
    assert numbers(nodes, replay(9, [PLAIN, PLAIN], 5)) == CapturedNumbers({9: 2}, undecided=1)


def test_no_graph_is_known_by_a_part_of_its_nodes() -> None:
    nodes = node_map([GATE, EXPERT, NORM])
    assert numbers(nodes, replay(9, [PRODUCT, EXPERTS], 5)).of == {}
    # nor where each replay has lost another one
    first, second = replay(9, [PRODUCT, EXPERTS], 5), replay(9, [EXPERTS, PLAIN], 6, [1, 2])
    assert numbers(nodes, first, second).of == {}
    assert numbers(nodes, first, second, replay(9, [PRODUCT, EXPERTS, PLAIN], 7)).of == {9: 0}


def test_no_graph_is_known_by_more_than_its_nodes() -> None:
    assert numbers(node_map([GATE, EXPERT]), replay(9, [PRODUCT, EXPERTS, PLAIN], 5)).of == {}
    without = [(PLAIN, -1, -1, 5)]
    assert numbers(node_map([GATE, EXPERT]), replay(9, [PRODUCT, EXPERTS], 5), without).of == {}


@pytest.mark.parametrize("beside", [[], [(PLAIN, -1, -1, -1), (COPIED, -1, -1, 6)]])
def test_copies_may_lack_ids_and_nothing_else_may(beside: list[Activity]) -> None:
    nodes = node_map([GATE, COPYING, EXPERT])
    kernels = replay(9, [PRODUCT, EXPERTS], 5, [0, 2])
    assert numbers(nodes, kernels, [(COPIED, -1, -1, 5)], beside).of == {9: 0}
    assert numbers(nodes, kernels, beside).of == {}
    assert numbers(nodes, replay(9, [PRODUCT, COPIED], 5), [(EXPERTS, -1, -1, 5)], beside).of == {}
    assert numbers(nodes, replay(9, [PRODUCT, COPY_KERNEL, EXPERTS], 5), beside).of == {9: 0}


def test_half_of_the_ids_is_none() -> None:
    nodes = node_map([GATE, COPYING, EXPERT])
    kernels = replay(9, [PRODUCT, EXPERTS], 5, [0, 2])
    assert numbers(nodes, [(COPIED, 9, -1, 5)], kernels).of == {9: 0}
    assert numbers(nodes, kernels, [(COPIED, -1, 1, 5)]).of == {9: 0}


def test_types_must_agree() -> None:
    assert numbers(node_map([GATE, COPYING]), replay(9, [PRODUCT, PLAIN], 5)).of == {}
    assert numbers(node_map([GATE, NORM]), replay(9, [PRODUCT, COPIED], 5)).of == {}


def test_as_many_graphs_as_fit_are_those_in_the_order_of_their_capture() -> None:
    """Pieces of a model, alike but for their layers."""
    other = ("kernel", "M.layers.1.norm", "RMSNorm")
    nodes = node_map([NORM], [GATE, EXPERT], [other])
    ran = replay(12, [PLAIN], 5), replay(8, [PLAIN], 6), replay(10, [PRODUCT, EXPERTS], 7)
    assert numbers(nodes, *ran) == CapturedNumbers({8: 0, 12: 2, 10: 1})


def test_of_graphs_of_one_model_for_several_sizes_the_first_stands_for_the_one_that_ran() -> None:
    nodes = node_map([NORM], [GATE, EXPERT], [GATE, EXPERT], [GATE, EXPERT])
    ran = replay(8, [PRODUCT, EXPERTS], 5), replay(10, [PRODUCT, EXPERTS], 6)
    assert numbers(nodes, *ran) == CapturedNumbers({8: 1, 10: 1})


def test_what_may_be_of_another_module_is_a_graph_of_its_own() -> None:
    other = ("kernel", "M.layers.1.norm", "RMSNorm")
    found = numbers(node_map([NORM], [other], [GATE, EXPERT]), replay(8, [PLAIN], 5))
    assert found == CapturedNumbers({8: 3}, undecided=1)
    found = numbers(node_map([NORM], [NORM], [other]), replay(8, [PLAIN], 5), replay(6, [PLAIN], 6))
    assert found == CapturedNumbers({6: 3, 8: 4}, undecided=2)


def test_nothing_is_known_without_ids_or_without_graphs() -> None:
    nodes = node_map([GATE])
    assert numbers(nodes) == CapturedNumbers({})
    assert numbers(nodes, [(PRODUCT, 9, -1, 5)]) == CapturedNumbers({})
    assert numbers(nodes, [(PRODUCT, -1, 0, 5)]) == CapturedNumbers({})
    assert numbers(node_map(), replay(9, [PRODUCT], 5)) == CapturedNumbers({})
    empty = np.empty(0, dtype=np.int32)
    look = np.zeros(3, dtype=np.uint16)
    assert captured_numbers(nodes, LOOKS, look, empty, empty, np.zeros(3, dtype=np.int32)) == CapturedNumbers({})


def test_replays_over_the_edges_of_slices_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_graphs, "_SLICE", 2)
    nodes = node_map([GATE, COPYING, EXPERT, NORM, NORM])
    rows: list[Any] = []
    for correlation in (5, 6, 7):
        rows += [(COPIED, -1, -1, correlation)]
        rows += replay(9, [PRODUCT, EXPERTS, PLAIN, PLAIN], correlation, [0, 2, 3, 4])
    assert numbers(nodes, rows).of == {9: 0}
    assert numbers(nodes, rows[:4], rows[5:9]).of == {}
