"""Rows of a compact window on the nodes of their captured graphs, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import traces

from specanalyze.attribution.activities import BUCKET_CODE
from specanalyze.attribution.compact_nodes import PlacedRows, RankNodes, ids_of, placed_rows
from specanalyze.formats.compact_rank import DeviceRows
from specschema.phases import BUCKETS

PLAIN, MOE, GEMM, NCCL = (
    "plain_kernel",
    "fused_moe_kernel",
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT",
    "ncclDevKernel_AllReduce_x",
)
LOOKS: list[tuple[str, str, str | None]] = [(name, "kernel", None) for name in (PLAIN, MOE, GEMM, NCCL)]
SLICE = 1 << 17
"""Rows that are looked at together."""


def node(graph: int, ordinal: int, module: str = "", module_class: str = "", **more: Any) -> dict[str, Any]:
    row = {"kind": "node", "name": "kernel", "start_ns": 0, "dur_ns": 0, "node_type": "kernel"}
    return {**row, "graph_id": graph, "node": ordinal, "module": module, "module_class": module_class, **more}


def rank_nodes(*maps: dict[str, Any]) -> RankNodes:
    found = RankNodes.of(traces.events(maps), LOOKS)
    assert found is not None
    return found


def device(look: Sequence[int], ran: Sequence[int] = (), at: Sequence[int] = (), ids: Sequence[int] = ()) -> DeviceRows:
    rows = len(look)
    return DeviceRows(
        np.arange(rows, dtype=np.int64),
        np.ones(rows, dtype=np.uint32),
        np.zeros(rows, dtype=np.uint16),
        np.array(look, dtype=np.uint16),
        np.array(ids, dtype=np.int32),
        pl.DataFrame(schema={"row": pl.Int64}),
        0,
        np.array(ran, dtype=np.int32),
        np.array(at, dtype=np.int32),
    )


def placed(nodes: RankNodes, rows: DeviceRows, call: Sequence[int], graph: Sequence[bool]) -> PlacedRows:
    return placed_rows(nodes, rows, np.array(call, dtype=np.int32), np.array(graph, dtype=bool), ids_of(nodes, rows))


def counted(found: PlacedRows) -> tuple[int, ...]:
    """placed, by_id, other_count, other_names."""
    return tuple(found.counts[name] for name in ("placed", "by_id", "other_count", "other_names"))


TWO = (node(4, 0), node(4, 1))


def test_a_rank_without_captured_graphs_has_none() -> None:
    assert RankNodes.of(traces.events([traces.kernel(PLAIN, 0, 1, 1)]), LOOKS) is None
    found = rank_nodes(*TWO)
    assert found.looks == [(name, kind) for name, kind, _ in LOOKS]
    assert found.told.height == 2


def test_the_nth_row_of_a_replay_is_the_nth_node() -> None:
    """Calls 0 and 2 are of graphs; call 1 is not; a row has no call."""
    rows = device([0, 0, 0, 0, 0, 0])
    found = placed(rank_nodes(*TWO), rows, [0, 1, 0, -1, 2, 2], [True, False, True])
    assert found.node.tolist() == [0, -1, 1, -1, 0, 1]
    assert counted(found) == (2, 0, 0, 0)
    assert not found.several
    assert found.node.dtype == np.dtype(np.int32)


def test_rows_of_replays_may_lie_between_each_other() -> None:
    found = placed(rank_nodes(*TWO), device([0, 0, 0, 0, 0, 0]), [1, 0, 2, 0, 2, 1], [True, True, True])
    assert found.node.tolist() == [0, 0, 0, 1, 1, 1]
    assert counted(found) == (3, 0, 0, 0)


def test_rows_of_a_long_replay_keep_their_order_among_those_of_another() -> None:
    nodes = rank_nodes(*(node(4, i) for i in range(40)))
    found = placed(nodes, device([0] * 80), [0, 1] * 40, [True, True])
    assert found.node.tolist() == [i // 2 for i in range(80)]


def test_replays_that_fit_none_are_counted_by_the_reason() -> None:
    """Two replays of three rows, one of one; two with a product where the module has none; one that fits."""
    nodes = rank_nodes(node(4, 0, "model.norm", "RMSNorm"), node(4, 1))
    look = [0, 0, 0, *[0, 0, 0], *[0], *[2, 0], *[2, 0], *[0, 2]]
    call = [0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 5, 5]
    found = placed(nodes, device(look), call, [True] * 6)
    assert found.node.tolist() == [-1] * 11 + [0, 1]
    assert found.counts == {"placed": 1, "by_id": 0, "by_stream": 0, "unsure": 0, "other_count": 3, "other_names": 2}


def test_the_first_row_names_the_graph() -> None:
    nodes = rank_nodes(*TWO, node(7, 0), node(7, 1))
    found = placed(nodes, device([0, 0, 0, 0, 0, 0], ran=[7, -1, -1, 7, 9, 4]), [0, 0, 1, 1, 2, 2], [True] * 3)
    assert found.node.tolist() == [2, 3, 0, 1, -1, -1]
    assert counted(found) == (2, 0, 1, 0)


def test_rows_that_name_their_nodes_are_believed_and_the_rest_is_placed_by_order() -> None:
    nodes = rank_nodes(*TWO)
    rows = device([0] * 5, ran=[4, 4, -1, -1, 4], at=[1, 0, -1, -1, 0], ids=[50, 50, 51, 51, 52])
    found = placed(nodes, rows, [0, 0, 1, 1, 2], [True, True, False])
    assert found.node.tolist() == [1, 0, 0, 1, 0]
    assert counted(found) == (3, 2, 0, 0)
    named = rank_nodes(node(4, 0, name=PLAIN), node(4, 1, name=MOE))
    rows = device([0, 1, 0, 0], ran=[4] * 4, at=[0, 1, 0, 1], ids=[50, 50, 51, 51])
    found = placed(named, rows, [0, 0, 1, 1], [True, True])
    assert found.node.tolist() == [0, 1, -1, -1]
    assert counted(found) == (1, 1, 0, 1)


def test_without_graphs_or_without_ordinals_there_are_no_ids() -> None:
    nodes = rank_nodes(*TWO)
    assert ids_of(nodes, device([0], ran=[4], ids=[1])) is None
    assert ids_of(nodes, device([0], at=[0], ids=[1])) is None
    found = ids_of(nodes, device([0], ran=[4], at=[0], ids=[1]))
    assert found is not None
    assert found.row.tolist() == [0]


def test_the_size_of_a_message_is_unknown_where_captures_differ() -> None:
    """Two captures whose second nodes differ in size. Only rows that are placed by order can be of either."""
    sizes = ((4, (8, 8)), (5, (8, 16)))
    nodes = rank_nodes(*(node(graph, i, elements=size) for graph, of in sizes for i, size in enumerate(of)))
    rows = device([3] * 6, ran=[-1, -1, 5, 5, -1, -1])
    found = placed(nodes, rows, [0, 0, 1, 1, 2, 2], [True] * 3)
    assert found.node.tolist() == [0, 1, 2, 3, 0, 1]
    assert found.collective_nodes(np.arange(6)).tolist() == [0, -1, 2, 3, 0, -1]
    assert found.collective_nodes(np.array([3, 1])).tolist() == [3, -1]
    alone = placed(rank_nodes(*TWO), device([3, 3]), [0, 0], [True])
    assert alone.collective_nodes(np.array([1, 0])).tolist() == [1, 0]


def test_modules_decide_the_buckets_of_the_rows_on_their_nodes() -> None:
    nodes = rank_nodes(
        node(4, 0, "model.layers.0.self_attn.attn", "RadixAttention"),
        node(4, 1, "model", "Model"),
        node(4, 2, "model.layers.0.mlp.experts", "FusedMoE"),
    )
    names = ["other_compute", "other_compute", "gemm", "allreduce", "memcpy", "other_compute", "gemm"]
    bucket = np.array([BUCKET_CODE[name] for name in names], dtype=np.uint8)
    by_map = nodes.decide(bucket, np.array([0, 1, 2, 2, 0, -1, -1], dtype=np.int32))
    assert [BUCKETS[code] for code in bucket] == [
        "attention",
        "other_compute",
        "moe",
        "allreduce",
        "memcpy",
        "other_compute",
        "gemm",
    ]
    assert by_map.tolist() == [True, False, True, True, True, False, False]


def test_millions_of_rows_are_placed_in_slices() -> None:
    """An eager row first, so that a replay lies across the end of a slice; its call is settled by ids there."""
    nodes = rank_nodes(node(4, 0, "model.norm", "RMSNorm"), node(4, 1, "a.self_attn.attn", "RadixAttention"))
    replays = SLICE // 2 + 10
    call = np.concatenate([[0], np.repeat(np.arange(replays), 2) + 1])
    graph = np.ones(replays + 1, dtype=bool)
    graph[0] = False
    rows = len(call)
    found = placed(nodes, device([0] * rows), call.tolist(), graph.tolist())
    assert found.node.tolist() == [-1] + [0, 1] * replays
    assert found.placed == replays
    bucket = np.full(rows, BUCKET_CODE["other_compute"], dtype=np.uint8)
    assert nodes.decide(bucket, found.node).tolist() == [False] + [True] * 2 * replays
    assert (
        bucket.tolist()
        == [BUCKET_CODE["other_compute"]] + [BUCKET_CODE[b] for b in ("other_compute", "attention")] * replays
    )
    ran, at = np.full(rows, -1), np.full(rows, -1)
    ran[-2:], at[-2:] = 4, [1, 0]
    known = placed(nodes, device([0] * rows, ran.tolist(), at.tolist(), call.tolist()), call.tolist(), graph.tolist())
    assert known.node.tolist() == [-1] + [0, 1] * (replays - 1) + [1, 0]
    assert counted(known) == (replays, 1, 0, 0)


def test_a_window_without_rows_places_nothing() -> None:
    found = placed(rank_nodes(*TWO), device([]), [], [True])
    assert (len(found.node), counted(found)) == (0, (0, 0, 0, 0))
    assert rank_nodes(*TWO).decide(np.empty(0, dtype=np.uint8), found.node).tolist() == []
