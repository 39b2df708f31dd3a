"""Collectives across ranks: sizes from the node map, matching by group, bandwidth against the link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import traces

from specanalyze.answers.collective_speed import collective_speeds, limit_of, size
from specanalyze.answers.ranks_report import RanksReport, compare_ranks, ranks_frame, ranks_json
from specanalyze.render.ranks import draw
from specschema.link_limits import link_limit

RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)"
H200 = {"gpu": "NVIDIA H200", "links": [{"gpus": [0, 1], "nvlink": True}]}

Node = tuple[str, str, int | None, str | None, list[int] | None]
"""kernel name, operation, elements, group, group ranks"""


def node(graph: int, ordinal: int, what: Node) -> dict[str, Any]:
    name, op, elements, group, ranks = what
    row = {"kind": "node", "name": name, "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel"}
    row |= {"graph_id": graph, "node": ordinal, "module": "Model.layers.0", "module_class": "DecoderLayer"}
    return row | {"op": op, "dtype": "bfloat16", "elements": elements, "group": group, "group_ranks": ranks}


def rank(number: int, durations: list[int], *graphs: list[Node]) -> Any:
    """One replay whose n-th kernel ends at 1000 (n + 1) ns after ``durations[n]`` ns."""
    rows = [traces.phase("spec.verify", 0, 9_000, window=0), traces.launch("cudaGraphLaunch", 1, 9, window=0)]
    for i, duration in enumerate(durations):
        end = 1_000 * (i + 1)
        rows.append(traces.kernel(graphs[0][i][0], end - duration, end, 9, window=0))
    rows += [node(g, i, what) for g, nodes in enumerate(graphs) for i, what in enumerate(nodes)]
    return traces.rank_trace(rows, number)


def report(*ranks: Any, environment: dict[str, Any] | None = None) -> RanksReport:
    return compare_ranks(replace(traces.trace(*ranks), metadata={"environment": environment or {}}))


def reduce(elements: int | None, group: str | None = "tp:0", ranks: list[int] | None = None) -> Node:
    return RING, "allreduce", elements, group, ranks if ranks is not None or group is None else [0, 1]


def test_the_nodes_size_gives_the_bandwidth_of_each_collective() -> None:
    graph = [reduce(6144), reduce(6144), (GATHER, "allgather", 1_000_000, "tp:0", [0, 1])]
    made = report(rank(0, [500, 400, 900], graph), rank(1, [300, 100, 800], graph), environment=H200)
    columns = ["phase", "op", "dtype", "elements", "group_size", "algorithm", "protocol", "bytes", "collectives"]
    assert made.speeds.select(columns).rows() == [
        ("verify", "allgather", "bfloat16", 1_000_000, 2, "ring", "SIMPLE", 2_000_000, 1),
        ("verify", "allreduce", "bfloat16", 6144, 2, "ring", "LL", 12_288, 2),
    ]
    # transfers: the shortest of both ranks; an allreduce of two ranks moves 2 (n - 1) / n = 1 times its bytes
    assert made.speeds.select("transfer_ns", "total_ns", "bus_gb_s", "link_share", "bound", "words").rows() == [
        (800, 800, 2_500.0, pytest.approx(2_500 / 450), "bandwidth", "bandwidth-bound, 1.9 MB, SIMPLE ring"),
        (200, 400, 61.44, pytest.approx(61.44 / 450), "between", "between latency and bandwidth, 12 KB, LL ring"),
    ]
    (verify, _) = ranks_frame(made).filter(pl.col("phase") == "verify").to_dicts()
    assert {k: verify[k] for k in ("wait_ns", "transfer_ns", "collectives", "message_bytes", "bus_gb_s", "bound")} == {
        "wait_ns": 200 + 300 + 100,
        "transfer_ns": 300 + 100 + 800,
        "collectives": 3,
        "message_bytes": 2_000_000,
        "bus_gb_s": 2_500.0,
        "bound": "bandwidth",
    }
    assert ranks_json(made)["collectives_by_size"] == made.speeds.to_dicts()


def test_kernels_of_several_groups_are_matched_within_their_group() -> None:
    """Ranks 0 and 1 reduce; ranks 0 and 2 in a group of their own, in another order of nodes on rank 0 than elsewhere."""
    a, b = reduce(64, "tp:0", [0, 1]), reduce(64, "ep:0", [0, 2])
    made = report(rank(0, [500, 400], [a, b]), rank(1, [300], [a]), rank(2, [300, 150], [reduce(64, "x", [2]), b]))
    assert made.waits is not None
    table = made.waits.collectives
    assert table.select("group", "rank", "position", "group_size", "wait_ns", "transfer_ns", "complete").rows() == [
        ("tp:0", "0", 0, 2, 200, 300, True),
        ("tp:0", "1", 0, 2, 0, 300, True),
        ("ep:0", "0", 0, 2, 250, 150, True),
        ("ep:0", "2", 0, 2, 0, 150, True),
    ]
    assert made.waits.unmatched == {"0": 0, "1": 0, "2": 1}


def test_a_group_with_a_rank_that_was_not_recorded_is_a_lower_bound() -> None:
    graph = [reduce(64, "tp:0", [0, 1, 2])]
    made = report(rank(0, [500], graph), rank(1, [300], graph))
    assert made.waits is not None
    assert made.waits.collectives.select("rank", "wait_ns", "group_size", "complete").rows() == [
        ("0", 200, 3, False),
        ("1", 0, 3, False),
    ]


def test_without_groups_all_ranks_are_taken_together() -> None:
    graph = [reduce(64, None), reduce(64, "tp:0")]
    made = report(rank(0, [500, 400], graph), rank(1, [300, 100], graph))
    assert made.waits is not None
    assert made.waits.collectives.get_column("position").to_list() == [0, 0, 1, 1]


def test_a_replay_that_fits_graphs_of_several_sizes_has_no_size() -> None:
    small, large = (
        [reduce(64), (GATHER, "allgather", 8, "tp:0", [0, 1])],
        [reduce(128), (GATHER, "allgather", 8, "tp:0", [0, 1])],
    )
    made = report(rank(0, [500, 400], small, large), rank(1, [300, 100], small, large), environment=H200)
    assert made.speeds.select("op", "elements", "bytes", "bus_gb_s", "words").rows() == [
        ("allreduce", None, None, None, "size unknown, LL ring"),
        ("allgather", 8, 16, 0.16, "latency-bound, 16 B, SIMPLE ring"),
    ]
    assert any(w.startswith("size of 1 collective unknown") for w in made.warnings)


def test_one_rank_has_sizes_but_no_speed() -> None:
    made = report(rank(0, [500], [reduce(6144)]), environment=H200)
    assert made.speeds.select("op", "bytes", "group_size", "transfer_ns", "bus_gb_s", "bound", "words").rows() == [
        ("allreduce", 12_288, 2, None, None, None, "12 KB, LL ring")
    ]


@pytest.mark.parametrize(
    ("op", "ranks", "expected"),
    [
        ("allreduce", 8, 1.75),
        ("allgather", 8, 7.0),
        ("reducescatter", 8, 0.875),
        ("alltoall", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("barrier", 8, None),
    ],
)
def test_bus_bandwidth_counts_what_the_busiest_link_carries(op: str, ranks: int, expected: float | None) -> None:
    row = {"collective": 0, "phase": "verify", "op": op, "dtype": "float32", "elements": 250, "group_size": ranks}
    row |= {"algorithm": None, "protocol": None, "library": "nccl", "transfer_ns": 1_000}
    (got,) = collective_speeds(pl.DataFrame([row]), link_limit("NVIDIA H200", True)).to_dicts()
    assert got["bytes"] == 1_000
    assert got["bus_gb_s"] == expected


def test_the_limit_needs_one_host_and_a_known_link() -> None:
    limit = limit_of(H200, 1)
    assert limit is not None
    assert limit.gb_per_s == 450.0
    assert limit_of(H200, 2) is None
    assert limit_of({"gpu": "NVIDIA H200", "links": []}, 1) is None
    mixed = {"gpu": "NVIDIA H200", "links": [{"nvlink": True}, {"nvlink": False}]}
    assert limit_of(mixed, 1) is None


def test_sizes_are_said_in_words() -> None:
    assert [size(n) for n in (8, 12_288, 1_536, 2_000_000, None)] == [
        "8 B",
        "12 KB",
        "1.5 KB",
        "1.9 MB",
        "size unknown",
    ]


def test_last_is_said_to_count_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    draw(report(rank(0, [10, 10], [reduce(64), reduce(64)]), rank(1, [30, 30], [reduce(64), reduce(64)])))
    out = " ".join(capsys.readouterr().out.split())
    assert "last in N % of collectives: how often the rank came last, however long the others waited for it" in out
