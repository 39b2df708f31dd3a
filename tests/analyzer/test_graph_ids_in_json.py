"""Graph and node ids in profiler JSON, with a node map beside it: joined by id, else by order."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from both_ways import assert_same

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.layers import by_layer, layers
from specanalyze.attribution.carry_nodes import with_nodes
from specanalyze.attribution.compact_talk import CompactTalk
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import rank_result
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace

GEMM, MOE, ADD, ATTENTION = (
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT",
    "fused_moe_kernel",
    "some_kernel",
    "_fwd_kernel",
)
COPY = "Memcpy DtoD (Device -> Device)"

Node = tuple[int, str, str, str]
"""cudaGraphNodeType, the name it runs under, module, class."""


def layer(number: int) -> list[Node]:
    at = f"M.layers.{number}"
    return [
        (0, ADD, f"{at}.input_layernorm", "RMSNorm"),
        (0, ATTENTION, f"{at}.self_attn.attn", "RadixAttention"),
        (1, COPY, f"{at}.self_attn.attn", "RadixAttention"),
        (7, "", f"{at}.self_attn.attn", "RadixAttention"),  # an event: it shows no activity
        (0, GEMM, f"{at}.mlp.gate", "ReplicatedLinear"),
        (0, MOE, f"{at}.mlp.experts", "FusedMoE"),
    ]


def captured(*nodes: Node) -> dict[str, Any]:
    scopes = [[module, kind, i, i + 1, 1] for i, (_, _, module, kind) in enumerate(nodes)]
    return {"nodes": len(nodes), "kinds": [kind for kind, *_ in nodes], "scopes": scopes}


class Profile:
    """A profiler file of verifies that replay graphs."""

    def __init__(self, *, copies: bool = True) -> None:
        self._copies = copies
        self.rows: list[dict[str, Any]] = []
        self._time = 0
        self._calls = 0

    def replay(
        self, executable: int | None, nodes: list[Node], order: list[int] | None = None, lost: int | None = None
    ) -> Profile:
        """A verify; its activities start in another order than their nodes were captured in where ``order`` says so."""
        self._calls += 1
        row = {"ph": "X", "pid": 9, "tid": 9}
        self.rows.append(row | {"cat": "user_annotation", "name": "spec.verify", "ts": self._time, "dur": 1000})
        call = {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": self._time + 5, "dur": 1}
        self.rows.append(row | call | {"args": {"correlation": self._calls}})
        shown = [i for i, (kind, *_) in enumerate(nodes) if kind in (0, 1) and i != lost]
        for place, i in enumerate(order or range(len(shown))):
            kind, name, *_ = nodes[shown[i]]
            args: dict[str, Any] = {"correlation": self._calls, "stream": 7 + place % 2, "device": 0}
            if executable is not None and (kind == 0 or self._copies):
                args |= {"graph id": executable, "graph node id": (executable - 1 << 32) + shown[i]}
            work = {"cat": "kernel" if kind == 0 else "gpu_memcpy", "name": name}
            times = {"ts": self._time + 100 + 10 * place, "dur": 7}
            self.rows.append({"ph": "X", "pid": 0, "tid": 7 + place % 2} | work | times | {"args": args})
        self._time += 2000
        return self

    def written(self, path: Path, *graphs: dict[str, Any]) -> Path:
        path.write_text(json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": self.rows}))
        path.with_name(path.stem + ".nodemap.json").write_text(json.dumps(graphs))
        return path


def ways(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Replays by how they were placed, and the buckets of verify: the same from whole tables and summed while read."""
    trace = open_trace([path])
    (source,) = trace.sources
    got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
    assert isinstance(got.communication, CompactTalk), "it was not read compactly"
    assert_same(got, want)
    assert got.breakdown.node_map == want.breakdown.node_map
    (rank,) = break_down(open_trace([path])).ranks
    assert rank.buckets_ns == want.breakdown.buckets_ns
    return ways_of(rank), rank.buckets_ns["verify"]


def ways_of(rank: RankBreakdown) -> dict[str, int]:
    return {name: rank.node_map[name] for name in counts(0)}


def counts(placed: int, by_id: int = 0, other_count: int = 0, other_names: int = 0) -> dict[str, int]:
    return {"placed": placed, "by_id": by_id, "other_count": other_count, "other_names": other_names}


MODEL = layer(0) + layer(1)
CLASSES = {"moe": 28_000, "attention": 14_000, "memcpy": 14_000, "other_compute": 14_000}


def classes(buckets: dict[str, int]) -> dict[str, int]:
    return {name: buckets.get(name, 0) for name in CLASSES}


@pytest.mark.parametrize("copies", [True, False], ids=["torch 2.14", "torch 2.12"])
def test_ids_place_replays_whose_streams_ran_in_another_order(copies: bool, tmp_path: Path) -> None:
    """Their starts alone would contradict the map; copies without ids are the nodes that are left."""
    profile = Profile(copies=copies).replay(12, MODEL, [1, 0, 2, 4, 3, 9, 5, 6, 8, 7]).replay(12, MODEL)
    node_map, buckets = ways(profile.written(tmp_path / "rank0.json", captured(*MODEL)))
    assert node_map == counts(2, by_id=2)
    assert classes(buckets) == {name: 2 * ns for name, ns in CLASSES.items()}
    (rank,) = break_down(open_trace([tmp_path / "rank0.json"])).ranks
    assert rank.decided_ns == {"map": 2 * 70_000, "name": 0, "unclassified": 0}


def test_without_ids_the_order_of_starts_decides(tmp_path: Path) -> None:
    profile = Profile().replay(None, MODEL).replay(None, MODEL, [1, 0, 2, 4, 3, 9, 5, 6, 8, 7])
    node_map, _ = ways(profile.written(tmp_path / "rank0.json", captured(*MODEL)))
    assert node_map == counts(1, other_names=1)


def test_graphs_of_several_sizes_and_models_are_told_apart(tmp_path: Path) -> None:
    """Two captures of one model, then a draft's: the profiler numbers them 4, 6 and 8."""
    draft = [(0, GEMM, "Draft.fc", "Linear"), *layer(0)]
    profile = Profile().replay(8, draft).replay(4, MODEL).replay(6, MODEL).replay(4, MODEL)
    path = profile.written(tmp_path / "rank0.json", captured(*MODEL), captured(*MODEL), captured(*draft))
    assert ways(path)[0] == counts(4, by_id=4)
    write_trace(with_nodes(open_trace([path])), tmp_path / "imported.parquet")
    (rank,) = open_trace([tmp_path / "imported.parquet"]).ranks()
    work = rank.events.filter(pl.col("kind").is_in(["kernel", "memcpy"])).sort("start_ns")
    assert work.select("correlation", "graph_id").unique(maintain_order=True).rows() == [(1, 2), (2, 0), (3, 1), (4, 0)]
    assert work.get_column("node").to_list()[:6] == [0, 1, 2, 3, 5, 6]


def test_pieces_of_a_model_are_its_layers_in_the_order_of_capture(tmp_path: Path) -> None:
    pieces = [layer(number) for number in range(3)]
    profile = Profile()
    for executable, piece in zip((6, 10, 14), pieces, strict=True):
        profile.replay(executable, piece)
    path = profile.written(tmp_path / "rank0.json", *(captured(*piece) for piece in pieces))
    assert ways(path)[0] == counts(3, by_id=3)
    assert by_layer(layers(open_trace([path]))).get_column("layer").to_list() == [0, 1, 2]


def test_a_piece_that_may_be_any_layer_is_said_to_be_none(tmp_path: Path) -> None:
    path = Profile().replay(6, layer(1)).written(tmp_path / "rank0.json", captured(*layer(0)), captured(*layer(1)))
    assert ways(path)[0] == counts(0, other_count=1)
    trace = open_trace([path])
    break_down(trace)
    assert trace.warnings[-1:] == [
        "rank0.nodemap.json: 1 graph that ran may be several of its graphs, of different modules: classes there are by name"
    ]


def test_a_replay_that_lost_records_keeps_the_modules_of_what_is_left(tmp_path: Path) -> None:
    profile = Profile().replay(4, MODEL).replay(4, MODEL, lost=1)
    node_map, buckets = ways(profile.written(tmp_path / "rank0.json", captured(*MODEL)))
    assert node_map == counts(2, by_id=2)
    assert classes(buckets)["attention"] == 3 * 7_000
    # without a whole replay nothing proves which graph it is
    profile = Profile().replay(4, MODEL, lost=1)
    assert ways(profile.written(tmp_path / "rank0.json", captured(*MODEL)))[0] == counts(0, other_count=1)


def test_a_wrong_map_is_noticed_by_ids_too(tmp_path: Path) -> None:
    wrong = captured(*MODEL)
    for scope in wrong["scopes"]:
        scope[2], scope[3] = scope[2] + 1, scope[3] + 1
    node_map, buckets = ways(Profile().replay(4, MODEL).written(tmp_path / "rank0.json", wrong))
    assert node_map == counts(0, other_names=1)
    assert buckets["moe"] == 14_000  # by name


def test_two_sessions_may_number_graphs_in_two_ways(tmp_path: Path) -> None:
    """A profiler that was detached between them counts anew: each file is joined by what it shows."""
    draft = [(0, GEMM, "Draft.fc", "Linear"), *layer(0)]
    maps = captured(*MODEL), captured(*draft)
    first = Profile().replay(4, MODEL).replay(6, draft).written(tmp_path / "first_rank0.json", *maps)
    second = Profile().replay(4, draft).replay(2, MODEL).written(tmp_path / "second_rank0.json", *maps)
    assert [ways(path)[0] for path in (first, second)] == [counts(2, by_id=2)] * 2
    found = [layers(open_trace([path])).table.get_column("module").to_list() for path in (first, second)]
    assert sorted(set(found[0])) == sorted(set(found[1]))


def test_a_trace_imported_without_its_map_takes_one_later(tmp_path: Path) -> None:
    path = (
        Profile().replay(12, MODEL, [1, 0, 2, 4, 3, 9, 5, 6, 8, 7]).written(tmp_path / "rank0.json", captured(*MODEL))
    )
    named = path.with_name("rank0.nodemap.json").rename(tmp_path / "other.nodemap.json")
    write_trace(open_trace([path]), tmp_path / "imported.parquet")
    trace = open_trace([tmp_path / "imported.parquet"], node_map=named)
    (source,) = trace.sources
    got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
    assert isinstance(got.communication, CompactTalk), "it was not read compactly"
    assert_same(got, want)
    assert ways_of(got.breakdown) == counts(1, by_id=1)


NAME: Final = "e2_nodemap_m17_rank0"


def real(reference: Path, folder: Path, ids: Callable[[dict[str, Any], int], bool]) -> Path:
    """A recording of a real server (torch 2.11, which writes no ids) with the ids that newer ones would write: the n-th activity of
    a replay by start is the n-th node there, which kinds and names confirm for all 120 replays."""
    source = reference / f"traces/sglang_h200/tp1/{NAME}.json.gz"
    document = json.loads(gzip.decompress(source.read_bytes()))
    graphs = json.loads(source.with_name(f"{NAME}.nodemap.json").read_text())
    number_of = {graph["nodes"]: number for number, graph in reversed([*enumerate(graphs)])}
    rows = document["traceEvents"]
    launched = {
        row["args"]["correlation"] for row in rows if row.get("name") == "cudaGraphLaunch" and row.get("ph") == "X"
    }
    replays: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and row["args"].get("correlation") in launched:
            replays.setdefault(row["args"]["correlation"], []).append(row)
    for members in replays.values():
        executable = 2 * number_of[len(members)] + 3
        for place, row in enumerate(sorted(members, key=lambda row: float(row["ts"]))):
            if ids(row, place):
                row["args"] |= {"graph id": executable, "graph node id": (executable - 1 << 32) + place}
    path = folder / "real_rank0.json"
    path.write_text(json.dumps(document))
    path.with_name("real_rank0.nodemap.json").write_text(json.dumps(graphs))
    return path


@pytest.mark.parametrize("copies", [True, False], ids=["torch 2.14", "torch 2.12"])
def test_every_replay_of_a_real_server_is_placed_by_its_ids(copies: bool, reference: Path, tmp_path: Path) -> None:
    path = real(reference, tmp_path, lambda row, _: copies or row["cat"] == "kernel")
    node_map, buckets = ways(path)
    assert node_map == counts(120, by_id=120)
    (by_order,) = break_down(open_trace([reference / f"traces/sglang_h200/tp1/{NAME}.json.gz"])).ranks
    assert ways_of(by_order) == counts(120)
    assert buckets == by_order.buckets_ns["verify"]
    result = layers(open_trace([path]))
    assert (result.placed, result.replays) == (40, 40)


def test_ids_that_contradict_a_real_servers_names_place_nothing(reference: Path, tmp_path: Path) -> None:
    path = real(reference, tmp_path, lambda row, place: True)
    document = json.loads(path.read_text())
    for row in document["traceEvents"]:
        args = row.get("args", {})
        if args.get("graph node id"):  # each node one place on; the last one first
            high, place = args["graph node id"] >> 32, args["graph node id"] & 0xFFFFFFFF
            args["graph node id"] = (high << 32) + place + 1
    path.write_text(json.dumps(document))
    node_map, _ = ways(path)
    assert node_map["by_id"] == 0
