"""Cycle logs and node maps beside a trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.cycle_log import CycleLog, add_cycles
from specanalyze.formats.event_frame import DTYPES, main_thread, table
from specanalyze.formats.load import open_trace
from specanalyze.formats.node_map import CapturedGraph, node_rows, read_node_map
from specschema.errors import TraceError, UsageError
from specschema.node_types import node_type


def events_of(*rows: tuple[Any, ...]) -> pl.DataFrame:
    """(kind, name, start, end) each, on thread (7, 8), in window 0."""
    frame = pl.DataFrame(
        [(kind, name, start, end - start) for kind, name, start, end in rows],
        schema={"kind": pl.String, "name": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64},
        orient="row",
    )
    host = pl.col("kind") != "kernel"
    columns = {"pid": pl.lit(7), "tid": pl.when(host).then(8), "window": pl.lit(0), "rank": pl.lit(2)}
    return table(frame.with_columns(**columns))


RECORDING = (
    ("mark", "Iteration Start", 1000, 1000),
    ("launch", "cudaGraphLaunch", 1300, 1310),
    ("kernel", "k", 1320, 1900),
    ("mark", "Record Window End", 2000, 2000),
)
SHOWN = ("kind", "name", "start_ns", "dur_ns", "window", "cycle", "accept_lengths", "accepted_draft_tokens")


def shown(events: pl.DataFrame, kinds: tuple[str, ...] = ("cycle", "phase")) -> list[tuple[Any, ...]]:
    missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in SHOWN if c not in events.columns]
    return events.with_columns(missing).filter(pl.col("kind").is_in(kinds)).select(SHOWN).rows()


def results(*rows: tuple[int, int, list[int] | None], first: int = 500) -> list[Any]:
    """(cycles launched, start, accepted) each; processing takes 10 ns."""
    return [(first + i, launched, start, start + 10, accepted) for i, (launched, start, accepted) in enumerate(rows)]


# Overlapped scheduling: a result is processed after the next cycle was launched, so the row of cycle k is labelled k + 1.
OVERLAPPED = results((1, 350, None), (2, 700, [1]), (3, 1400, [2]), (4, 1800, [0]), (5, 2500, [2]), (5, 2900, [1]))


def test_stamps_become_ranges_of_the_launching_thread_where_the_trace_has_none() -> None:
    stamps = [
        ("spec.cycle", 1, 300, 600),
        ("spec.verify", 1, 350, 500),
        ("spec.cycle", 2, 1100, 1700),
        ("spec.verify", 2, 1200, 1400),
        ("sched.next_batch", 2, 1950, 2050),  # over the edge of the recording
        ("spec.cycle", 3, 2100, 2400),
    ]
    log = CycleLog(results=OVERLAPPED, stamps_ns=stamps)
    events, warnings = add_cycles(events_of(*RECORDING), log, "a.cycles.json")
    assert shown(events) == [
        ("cycle", "spec.cycle", 300, 300, None, 1, [2], [1]),
        ("phase", "spec.verify", 350, 150, None, 1, None, None),
        ("cycle", "spec.cycle", 1100, 600, 0, 2, [3], [2]),
        ("phase", "spec.verify", 1200, 200, 0, 2, None, None),
        ("cycle", "spec.cycle", 2100, 300, None, 3, [1], [0]),
    ]
    assert warnings == ["a.cycles.json: 1 range across the edge of the recording left out"]
    added = events.filter(pl.col("kind").is_in(["cycle", "phase"]))
    assert added.select("pid", "tid", "rank").unique().rows() == [(7, 8, 2)]
    assert added["mode"].drop_nulls().unique().to_list() == ["speculative"]
    assert events.head(4).drop("cycle", "mode", "batch_size", "accept_lengths", "accepted_draft_tokens").rows() == (
        events_of(*RECORDING).rows()
    )


def test_own_ranges_get_numbers_and_accepts_and_the_rest_is_control() -> None:
    own = (
        ("cycle", "spec.cycle", 1050, 1250),
        ("phase", "spec.verify", 1100, 1200),
        ("cycle", "spec.cycle", 1500, 1700),
    )
    events, warnings = add_cycles(events_of(*RECORDING, *own), CycleLog(results=OVERLAPPED), "a.cycles.json")
    assert shown(events) == [
        ("cycle", "spec.cycle", 1050, 200, 0, 3, [1], [0]),
        ("phase", "spec.verify", 1100, 100, 0, None, None, None),
        ("cycle", "spec.cycle", 1500, 200, 0, 4, [3], [2]),
        # from one result to the next; those that touch the recording (1000 to 2000) are neither traced nor control
        ("cycle", "spec.cycle", 350, 350, None, 1, [2], [1]),
        ("cycle", "spec.cycle", 2500, 400, None, 5, [2], [1]),
    ]
    assert warnings == []


def test_without_overlap_a_result_belongs_to_the_cycle_before_it() -> None:
    log = results((0, 350, None), (1, 700, [1]), (2, 1400, [2]), (3, 1800, [0]))
    own = (("cycle", "spec.cycle", 1050, 1250), ("cycle", "spec.cycle", 1500, 1700))
    events, _ = add_cycles(events_of(*RECORDING, *own), CycleLog(results=log), "a.cycles.json")
    assert shown(events)[:2] == [
        ("cycle", "spec.cycle", 1050, 200, 0, 2, [3], [2]),
        ("cycle", "spec.cycle", 1500, 200, 0, 3, [1], [0]),
    ]


def test_cycles_of_another_run_are_control_only() -> None:
    own = (("cycle", "spec.cycle", 1050, 1250),)
    later = results((1, 90350, None), (2, 90700, [1, 0]), (3, 91400, [2, 1]))
    events, _ = add_cycles(events_of(*RECORDING, *own), CycleLog(results=later), "other.cycles.json")
    assert shown(events) == [
        ("cycle", "spec.cycle", 1050, 200, 0, None, None, None),
        ("cycle", "spec.cycle", 90350, 350, None, 1, [2, 1], [1, 0]),
        ("cycle", "spec.cycle", 90700, 700, None, 2, [3, 2], [2, 1]),
    ]
    assert events["batch_size"].to_list()[-2:] == [2, 2]


def test_plain_decoding_has_no_accepts() -> None:
    plain = results((1, 90350, None), (2, 90700, None), (3, 91400, None))
    events, _ = add_cycles(events_of(*RECORDING), CycleLog(results=plain), "base.cycles.json")
    assert events.filter(pl.col("kind") == "cycle").select("mode", "dur_ns", "window").rows() == [
        ("decode", 350, None),
        ("decode", 700, None),
    ]
    assert "accept_lengths" not in events.columns


def test_node_rows_have_the_innermost_module() -> None:
    graph = CapturedGraph(
        nodes=5,
        kinds=[0, 1, 7, 2, 99],
        scopes=[
            ("Model.layers.0.mlp.gate", "Gate", 1, 2, 2),
            ("Model.layers.0.mlp", "MoE", 1, 3, 1),
            ("Model", "Model", 0, 4, 0),
        ],
    )
    rows = node_rows([CapturedGraph(nodes=0, kinds=[]), graph], rank=1, pid=9)
    assert rows.select("kind", "rank", "pid", "graph_id", "node", "node_type", "module", "module_class").rows() == [
        ("node", 1, 9, 1, 0, "kernel", "Model", "Model"),
        ("node", 1, 9, 1, 1, "memcpy", "Model.layers.0.mlp.gate", "Gate"),
        ("node", 1, 9, 1, 2, "event_record", "Model.layers.0.mlp", "MoE"),
        ("node", 1, 9, 1, 3, "memset", "Model", "Model"),
        ("node", 1, 9, 1, 4, "type_99", None, None),
    ]
    assert rows.select("start_ns", "dur_ns").unique().rows() == [(0, 0)]
    assert node_type(6) == "event_wait"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "rank0.cycles.json",
            '{"results": [[1, 2]]}',
            r"^rank0\.cycles\.json is no cycle log .*length 5.*results\[0\]",
        ),
        ("rank0.cycles.json", "{", r"^rank0\.cycles\.json is no cycle log .*truncated"),
        (
            "rank0.cycles.json",
            '{"results": [[1, 1, 5, 5, null], [2, 2, 9, 8, null]]}',
            r"results\[1\] ends before it starts",
        ),
        (
            "rank0.cycles.json",
            '{"results": [], "stamps_ns": [["spec.verify", 1, 7, 6]]}',
            r"^rank0\.cycles\.json: stamps_ns\[0\] ends before it starts",
        ),
        (
            "rank0.nodemap.json",
            '[{"nodes": 2, "kinds": [0]}]',
            r"^rank0\.nodemap\.json: graph 0 has 2 nodes but 1 kinds",
        ),
        ("rank0.nodemap.json", '{"nodes": 2}', r"^rank0\.nodemap\.json is no node map"),
    ],
)
def test_bad_sidecar_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    shutil.copy(Path(__file__).parents[1] / "cases/13-no-distributed-info/trace.json", tmp_path / "rank0.json")
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=message):
        list(open_trace([tmp_path]).ranks())


def test_named_file_of_a_rank_goes_with_that_rank(tmp_path: Path) -> None:
    case = Path(__file__).parents[1] / "cases/07-cross-rank-wait-custom-allreduce"
    for rank in range(2):
        log = {"results": results((1, 10 + rank, None), (2, 20 + rank, [1])), "stamps_ns": []}
        (tmp_path / f"other_rank{rank}.cycles.json").write_text(json.dumps(log))
    trace = open_trace([case], cycles=tmp_path / "other_rank0.cycles.json")
    control = [rank.events.filter(pl.col("window").is_null())["start_ns"].to_list() for rank in trace.ranks()]
    assert control == [[10], [11]]
    with pytest.raises(UsageError, match=r"none\.cycles\.json: no such file"):
        open_trace([case], cycles=tmp_path / "none.cycles.json")


def test_server_without_ranges_gets_them_from_its_stamps(reference: Path) -> None:
    (rank,) = open_trace([reference / "traces/sglang_h200/tp1/e2_m14_rank0.json.gz"]).ranks()
    cycles = rank.events.filter(pl.col("kind") == "cycle")
    traced = cycles.filter(pl.col("window") == 0)
    assert traced["cycle"].to_list() == list(range(60, 100))
    assert cycles.filter(pl.col("window").is_null()).height == 161
    assert traced["accepted_draft_tokens"].null_count() == 0
    verify = rank.events.filter((pl.col("name") == "spec.verify") & (pl.col("window") == 0))
    assert verify.select("pid", "tid").unique().rows() == [main_thread(rank.events)]
    graphs = rank.events.filter((pl.col("kind") == "launch") & (pl.col("name") == "cudaGraphLaunch"))["start_ns"]
    inside = [
        ((verify["start_ns"] <= start) & (start < verify["start_ns"] + verify["dur_ns"])).sum()
        for start in graphs.to_list()
    ]
    assert sum(inside) == 40  # one of the three replays a cycle


def test_server_with_ranges_gets_numbers_and_another_run_as_control(reference: Path) -> None:
    folder = reference / "traces/sglang_h200/tp2"
    (rank,) = open_trace([folder / "e2_m17_rank1.json.gz"], cycles=folder / "e2_m15_rank0.cycles.json").ranks()
    cycles = rank.events.filter(pl.col("kind") == "cycle")
    assert cycles.filter(pl.col("window") == 0).sort("start_ns")["cycle"].to_list() == list(range(60, 100))
    control = cycles.filter(pl.col("window").is_null())
    assert control["cycle"].to_list() == list(range(1, 502))
    assert 4.0e6 < control["start_ns"].diff().drop_nulls().median() < 5.0e6  # type: ignore[operator]


def test_nodes_match_the_activities_of_every_replay(reference: Path) -> None:
    path = reference / "traces/sglang_h200/tp1/e2_nodemap_m17_rank0.json.gz"
    (rank,) = open_trace([path]).ranks()
    nodes = rank.events.filter(pl.col("kind") == "node").group_by("graph_id").len().sort("graph_id")["len"].to_list()
    graphs = rank.events.filter((pl.col("kind") == "launch") & (pl.col("name") == "cudaGraphLaunch")).select(
        "correlation"
    )
    work = rank.events.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"])).join(graphs, on="correlation")
    replays = work.group_by("correlation").len()["len"].value_counts().sort("len").rows()
    assert replays == [(23, 40), (30, 40), (465, 40)]
    assert {23, 30, 465} <= set(nodes)
    assert sum(nodes) == sum(
        graph.nodes for graph in read_node_map(path.with_name("e2_nodemap_m17_rank0.nodemap.json"))
    )


def test_a_map_is_not_joined_by_the_profilers_own_graph_numbers(tmp_path: Path) -> None:
    """Kineto (torch >= 2.12) numbers executable graphs, the map captures: 1 and 1 are two graphs."""
    kernels = ["nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT", "_fwd_kernel", "fused_moe_kernel"]
    rows: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": 7, "tid": 7, "ts": 1, "dur": 99},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaGraphLaunch",
            "pid": 7,
            "tid": 7,
            "ts": 2,
            "dur": 2,
            "args": {"correlation": 9},
        },
    ]
    for i, name in enumerate(kernels):
        ids = {"graph id": 1, "graph node id": (1 << 32) + i}
        args = {"device": 0, "stream": 7, "correlation": 9, **ids}
        rows.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": 7,
                "ts": 10 * i + 10,
                "dur": i + 1,
                "args": args,
            }
        )
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps({"traceEvents": rows}))
    modules = [("M.layers.0.mlp.gate", "Linear"), ("M.layers.0.self_attn.attn", "RadixAttention")]
    experts = ("M.layers.0.mlp.experts", "FusedMoE")
    orders = ([*modules, experts], [experts, *modules])
    maps = [
        {"nodes": 3, "kinds": [0, 0, 0], "scopes": [[*scope, i, i + 1, 1] for i, scope in enumerate(order)]}
        for order in orders
    ]
    (tmp_path / "rank0.nodemap.json").write_text(json.dumps(maps))
    (rank,) = break_down(open_trace([trace])).ranks
    assert rank.node_map["placed"] == 1
    found = rank.buckets_ns["verify"]
    assert (found["moe"], found["attention"]) == (4000, 2000)
