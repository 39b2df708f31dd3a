"""Placing the activities of a replay on the nodes of its captured graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.layers import by_layer, by_module, layers
from specanalyze.attribution import replay_nodes
from specanalyze.attribution.analysis import analyse, analyse_rank
from specanalyze.attribution.captured_nodes import NodeMap, captured_graphs
from specanalyze.attribution.carry_nodes import with_nodes
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.replay_fit import Fits
from specanalyze.attribution.replay_nodes import Placement
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specschema.errors import TraceError

MOE = "fused_moe_kernel"
GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
ATTENTION = "_fwd_kernel"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def node(graph: int, ordinal: int, module: str, module_class: str, node_type: str = "kernel") -> dict[str, Any]:
    row = {"kind": "node", "name": node_type, "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": node_type}
    return {**row, "graph_id": graph, "node": ordinal, "module": module, "module_class": module_class}


LAYER = [
    ("model.layers.0.input_layernorm", "RMSNorm", ADD),
    ("model.layers.0.self_attn.qkv_proj", "QKVParallelLinear", GEMM),
    ("model.layers.0.self_attn.attn", "RadixAttention", ATTENTION),
    ("model.layers.0.self_attn.attn", "RadixAttention", ADD),
    ("model.layers.0.self_attn.o_proj", "RowParallelLinear", GEMM),
    ("model.layers.0", "DecoderLayer", ALLREDUCE),
    ("model.layers.0.mlp.gate", "ReplicatedLinear", GEMM),
    ("model.layers.0.mlp.experts", "FusedMoE", MOE),
    ("model.layers.0.mlp", "SparseMoeBlock", ADD),
]
WANT = ["other_compute", "gemm", "attention", "attention", "gemm", "allreduce", "moe", "moe", "moe"]


def replay(kernels: list[str], nodes: list[dict[str, Any]], streams: list[int] | None = None) -> list[dict[str, Any]]:
    rows = [traces.phase("spec.verify", 0, 1000, window=0), traces.launch("cudaGraphLaunch", 1, 9, window=0)]
    for i, name in enumerate(kernels):
        stream = streams[i] if streams else 7
        rows.append(traces.kernel(name, 100 + 10 * i, 110 + 10 * i, 9, stream=stream, window=0))
    return rows + nodes


def buckets(rows: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int]]:
    (rank,) = break_down(traces.trace(traces.rank_trace(rows))).ranks
    return rank.buckets_ns["verify"], rank.node_map


def test_modules_decide_what_a_kernel_in_a_replay_is() -> None:
    nodes = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    got, placed = buckets(replay([k for *_, k in LAYER], nodes))
    assert got == {
        **{b: 10 * WANT.count(b) for b in ("other_compute", "gemm", "attention", "allreduce", "moe")},
        "launch": 99,
        "host": 811,
    }
    assert placed == {"placed": 1, "by_id": 0, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 0}


def test_event_nodes_show_no_activity() -> None:
    nodes = [node(0, 0, "", "", "event_record")]
    nodes += [node(0, i + 1, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    assert buckets(replay([k for *_, k in LAYER], nodes))[1]["placed"] == 1


def test_order_is_by_start_time_over_all_streams() -> None:
    nodes = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    got, placed = buckets(replay([k for *_, k in LAYER], nodes, [7, 13, 7, 13, 7, 13, 7, 13, 7]))
    assert placed["placed"] == 1
    assert got["moe"] == 30


def test_branches_that_start_in_any_order_are_read_stream_by_stream() -> None:
    named = [{**node(0, i, module, cls), "name": kernel} for i, (module, cls, kernel) in enumerate(LAYER)]
    kernels, streams = [k for *_, k in LAYER], [7, 7, 7, 7, 13, 13, 7, 7, 7]
    rows = replay(kernels, named, streams)
    device = [row for row in rows if row["kind"] == "kernel"]
    started = [0, 1, 4, 5, 2, 3, 6, 7, 8]  # the second branch starts before the first goes on
    for row, place in zip(device, started, strict=True):
        row |= {"start_ns": 100 + 10 * place, "dur_ns": 10}
    got, placed = buckets(rows)
    assert placed == {"placed": 1, "by_id": 0, "by_stream": 1, "unsure": 0, "other_count": 0, "other_names": 0}
    assert {name: got[name] for name in ("attention", "gemm", "moe", "allreduce", "other_compute")} == {
        name: 10 * WANT.count(name) for name in ("attention", "gemm", "moe", "allreduce", "other_compute")
    }
    wrong = [dict(row) for row in rows]
    wrong[-1]["name"] = "some_other_kernel"  # a map that another model left
    assert buckets(wrong)[1]["other_names"] == 1


@pytest.mark.parametrize("shift", [1, -1, 2])
def test_a_wrong_map_is_noticed_and_names_decide(shift: int) -> None:
    wrong = LAYER[shift:] + LAYER[:shift]
    nodes = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(wrong)]
    got, placed = buckets(replay([k for *_, k in LAYER], nodes))
    assert placed == {"placed": 0, "by_id": 0, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 1}
    assert got["moe"] == 10
    assert got["attention"] == 10


def test_a_lost_record_is_noticed_by_its_count() -> None:
    nodes = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    assert buckets(replay([k for *_, k in LAYER][:-1], nodes))[1]["other_count"] == 1


def test_ids_of_the_recording_win_over_order() -> None:
    nodes = [node(5, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    rows = replay([k for *_, k in LAYER], nodes)
    kernels = [r for r in rows if r["kind"] == "kernel"]
    for i, row in enumerate(kernels):  # run in reverse order: only the ids tell
        row |= {"graph_id": 5, "node": i, "start_ns": 500 - 10 * i}
    got, placed = buckets(rows)
    assert placed == {"placed": 1, "by_id": 1, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 0}
    assert got["moe"] == 30


def test_the_right_graph_is_found_among_several() -> None:
    other = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(LAYER[::-1])]
    right = [node(1, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    got, placed = buckets(replay([k for *_, k in LAYER], other + right))
    assert placed["placed"] == 1
    assert got["attention"] == 20


def test_a_known_graph_is_the_only_candidate() -> None:
    first = [node(0, i, module, cls) for i, (module, cls, _) in enumerate(LAYER)]
    second = [node(1, i, module.replace("layers.0", "layers.7"), cls) for i, (module, cls, _) in enumerate(LAYER)]
    rows = replay([k for *_, k in LAYER], first + second)
    for row in rows:
        if row["kind"] == "kernel":
            row["graph_id"] = 1
    result = layers(traces.trace(traces.rank_trace(rows)))
    assert by_layer(result).get_column("layer").to_list() == [7]


def test_a_module_that_layers_share_counts_for_the_layer_around_it() -> None:
    path = "model.layers.{}.self_attn".format
    nodes: list[dict[str, Any]] = []
    for layer in range(3):
        for name, cls in (("qkv_proj", "QKVParallelLinear"), ("rotary", "RotaryEmbedding"), ("attn", "RadixAttention")):
            owner = 0 if name == "rotary" else layer  # one rotary module, found first under layer 0
            nodes.append(node(0, len(nodes), f"{path(owner)}.{name}", cls))
    table = by_layer(layers(traces.trace(traces.rank_trace(replay([GEMM, ADD, ATTENTION] * 3, nodes)))))
    assert table.select("layer", "total_ns").rows() == [(0, 30.0), (1, 30.0), (2, 30.0)]


def test_names_recorded_at_capture_are_compared_exactly() -> None:
    nodes = [node(0, i, module, cls) | {"name": kernel} for i, (module, cls, kernel) in enumerate(LAYER)]
    assert buckets(replay([k for *_, k in LAYER], nodes))[1]["placed"] == 1
    nodes[1]["name"] = "nvjet_tst_another"
    assert buckets(replay([k for *_, k in LAYER], nodes))[1]["other_names"] == 1


REAL = ("tp1/e2_nodemap_m17_rank0", "tp2/e2_nccl_nodemap_m17_rank0", "tp2/e2_nccl_nodemap_m17_rank1")


@pytest.mark.parametrize("name", REAL)
def test_every_activity_of_every_real_replay_is_placed(name: str, reference: Path) -> None:
    (rank,) = break_down(open_trace([reference / f"traces/sglang_h200/{name}.json.gz"])).ranks
    assert rank.node_map == {"placed": 120, "by_id": 0, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 0}


def test_a_shifted_map_of_a_real_server_is_noticed(reference: Path, tmp_path: Path) -> None:
    folder = reference / "traces/sglang_h200/tp1"
    graphs = json.loads((folder / "e2_nodemap_m17_rank0.nodemap.json").read_text())
    for graph in graphs:
        for scope in graph["scopes"]:
            scope[2], scope[3] = scope[2] + 1, scope[3] + 1
    wrong = tmp_path / "wrong.nodemap.json"
    wrong.write_text(json.dumps(graphs))
    (rank,) = break_down(open_trace([folder / "e2_nodemap_m17_rank0.json.gz"], node_map=wrong)).ranks
    assert rank.node_map["other_names"] >= 80, "verify and draft extend replays contradict the shifted map"


def test_layers_of_a_real_server(reference: Path) -> None:
    result = layers(open_trace([reference / "traces/sglang_h200/tp2/e2_nccl_nodemap_m17_rank0.json.gz"]))
    assert (result.placed, result.replays) == (40, 40)
    assert by_layer(result).get_column("layer").to_list() == list(range(24))
    modules = by_module(result)
    collectives = modules.filter(modules["bucket"] == "allreduce")
    # One after embed_tokens, one after each attention, one after each MoE block: 49 a replay, 40 replays.
    assert collectives.get_column("activities").sum() == 49 * 40
    assert set(modules.filter(modules["subclass"] == "experts")["module"]) == {"Qwen3MoeModel.layers.N.mlp.experts"}


@pytest.mark.parametrize("phase", ["verify", "draft", "draft_extend"])
@pytest.mark.parametrize("name", REAL)
def test_the_vocabulary_projection_of_a_real_server_is_lm_head_by_its_module(
    name: str, phase: str, reference: Path
) -> None:
    """SGLang multiplies by lm_head's weight in its LogitsProcessor; these maps have no kernel names."""
    result = layers(open_trace([reference / f"traces/sglang_h200/{name}.json.gz"]), phase)
    logits = result.table.filter(pl.col("module") == "LogitsProcessor")
    (product,) = logits.filter(pl.col("subclass") == "lm_head").iter_rows(named=True)
    assert (product["bucket"], product["activities"]) == ("gemm", 40)
    rest = set(logits.filter(pl.col("subclass") != "lm_head")["subclass"])
    assert rest <= {"logits", "copy", "allgather"}
    assert "lm_head" not in result.table.filter(pl.col("module") != "LogitsProcessor")["subclass"].to_list()


def test_in_a_logits_module_only_the_product_and_what_computes_beside_it_are_decided() -> None:
    pairs = [(GEMM, "gemm"), (ADD, "other_compute"), (ALLREDUCE, "allreduce"), (MOE, "moe")]
    nodes = [node(0, i, "LogitsProcessor", "LogitsProcessor") for i in range(len(pairs))]
    trace = traces.trace(traces.rank_trace(replay([name for name, _ in pairs], nodes)))
    table = layers(trace).table.sort("bucket")
    got = dict(zip(table["bucket"], table["subclass"], strict=True))
    assert got == {"allreduce": "allreduce", "gemm": "lm_head", "moe": "experts", "other_compute": "logits"}
    (rank,) = break_down(trace).ranks
    assert rank.decided_ns["name"] == 10  # what no logits module holds is what its name says


def test_without_a_node_map_the_command_says_what_would_have_one(reference: Path) -> None:
    with pytest.raises(TraceError, match=r"has no node map.*record with the collector"):
        layers(open_trace([reference / "traces/sglang_h200/tp2/e2_m17_rank0.json.gz"]))


def test_an_imported_trace_says_as_before_how_its_replays_were_placed(reference: Path, tmp_path: Path) -> None:
    source = open_trace([reference / "traces/sglang_h200/tp1/e2_nodemap_m17_rank0.json.gz"])
    write_trace(with_nodes(source), tmp_path / "trace.parquet")
    again = open_trace([tmp_path / "trace.parquet"])
    (before,), (after,) = break_down(source).ranks, break_down(again).ranks
    assert after.buckets_ns == before.buckets_ns
    assert after.node_map == before.node_map
    assert (after.node_map["placed"], after.node_map["by_id"]) == (120, 0)
    (rank,) = again.ranks()
    device = rank.events.filter(pl.col("kind").cast(pl.String).is_in(["kernel", "memcpy", "memset"]))
    assert device.get_column("node").is_not_null().sum() == 0  # none that the recording itself does not name


def test_ids_whose_kernel_has_another_name_than_at_capture_are_not_believed() -> None:
    nodes = [node(5, i, module, cls) | {"name": kernel} for i, (module, cls, kernel) in enumerate(LAYER)]
    rows = replay([k for *_, k in LAYER], nodes)
    kernels = [r for r in rows if r["kind"] == "kernel"]
    for i, row in enumerate(kernels):
        row |= {"graph_id": 5, "node": i}
    assert buckets(rows)[1] == {
        "placed": 1,
        "by_id": 1,
        "by_stream": 0,
        "unsure": 0,
        "other_count": 0,
        "other_names": 0,
    }
    kernels[0]["node"], kernels[1]["node"] = 1, 0
    got, placed = buckets(rows)
    assert placed == {"placed": 0, "by_id": 0, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 1}
    assert got["moe"] == 10


def verify_kernels(path: Path) -> list[list[tuple[str, bool]]]:
    """(name, whether a node of a graph) of the activities of each verify, in order of start. A graph's copy may run as a kernel."""
    (rank,) = analyse(open_trace([path]))
    found = []
    for window in rank.windows:
        acts = window.activities
        mine = acts.phase == PHASE_CODE["verify"]
        node = acts.placement.node_row if acts.placement is not None else np.full(len(acts), -1)
        for instance in np.unique(acts.range[mine]):
            rows = np.flatnonzero(mine & (acts.range == instance))
            rows = rows[np.argsort(acts.start[rows], kind="stable")]
            names = [SAME.get(acts.names[n], acts.names[n]) for n in acts.name[rows].tolist()]
            found.append(list(zip(names, (node[rows] >= 0).tolist(), strict=True)))
    return found


SAME = {"memcpy32_post": "Memcpy DtoD (Device -> Device)", "Memset (Unknown)": "Memset (Device)"}
"""How copies and memsets are called in a replay -> eagerly."""


def test_a_replay_runs_the_kernels_of_the_eager_forward_in_their_order(reference: Path) -> None:
    """SGLang, EAGLE-3, one H200: the same forward captured and eager. Every node's activity is the eager forward's, one by one."""
    folder = reference / "traces/sglang_h200/tp1"
    captured = verify_kernels(folder / "e2_nodemap_m17_rank0.json.gz")
    eager = verify_kernels(folder / "e2_eager_rank0.json.gz")
    assert len(captured) == 40
    (plain,) = {tuple(name for name, _ in verify) for verify in eager}
    for verify in captured:
        nodes = tuple(name for name, of_graph in verify if of_graph)
        assert len(nodes) == 465
        first = plain.index(nodes[0])
        assert plain[first : first + 465] == nodes


def test_copies_without_ids_are_the_nodes_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kineto of torch 2.12 gives kernels ids, and copies none."""
    monkeypatch.setattr(replay_nodes, "_SLICE", 2)
    kinds = ("memcpy", "kernel", "event_record", "memset", "kernel", "memcpy")
    nodes = NodeMap.of(traces.events([node(4, i, "", "", kind) for i, kind in enumerate(kinds)]))
    looks = [(ADD, "kernel"), ("Memcpy", "memcpy"), ("Memset", "memset")]
    kernel, copy, fill = range(3)
    rows = [
        (copy, -1, -1, 50, 5),  # launched beside any graph
        (copy, -1, -1, 60, 40),  # the later copy of a replay stands first
        (kernel, 4, 1, 60, 20),
        (copy, -1, -1, 60, 10),
        (fill, -1, -1, 60, 30),
        (kernel, 4, 4, 60, 35),
        (kernel, 4, 1, 70, 50),  # a replay that lost a copy
        (copy, -1, -1, 70, 51),
        (fill, -1, -1, 70, 52),
        (copy, 4, 0, 80, 60),  # one whose first copy has an id
        (kernel, 4, 1, 80, 61),
        (fill, -1, -1, 80, 62),
        (copy, -1, -1, 80, 63),
        (kernel, 4, 4, 80, 64),
        (copy, -1, -1, 90, 70),  # one that copies where it should fill
        (kernel, 4, 1, 90, 71),
        (copy, -1, -1, 90, 72),
        (fill, -1, -1, 90, 73),
        (kernel, -1, -1, 90, 74),
    ]
    look, graph, ordinal, correlation, start = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    found = replay_nodes.by_id(nodes, looks, look, graph, ordinal, correlation, start=start)
    assert found is not None
    assert found.row.tolist() == [-1, 5, 1, 0, 3, 4, 1, -1, -1, 0, 1, 3, 5, 4, -1, 1, -1, -1, -1]
    assert found.settled.tolist() == [False, *[True] * 17, False]
    assert (found.placed, found.other_names) == (4, 0)


@pytest.mark.parametrize("rows", [[(1, -1, -1), (0, 4, 1)], [(0, 4, 1), (1, -1, -1)]])
def test_a_copy_and_its_kernel_may_be_of_two_slices(
    rows: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_nodes, "_SLICE", 1)
    nodes = NodeMap.of(traces.events([node(4, 0, "", "", "memcpy"), node(4, 1, "", "")]))
    look, graph, ordinal = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    looks = [(ADD, "kernel"), ("Memcpy", "memcpy")]
    found = replay_nodes.by_id(nodes, looks, look, graph, ordinal, np.array([50, 50]))
    assert found is not None
    assert found.row.tolist() == [1 - code for code in look.tolist()]


def placement(rows: list[dict[str, Any]]) -> Placement:
    """Of the only window of the rows."""
    (window,) = analyse_rank(traces.rank_trace(rows)).windows
    found = window.activities.placement
    assert found is not None
    return found


def counts(found: Placement) -> tuple[int, int, int, int]:
    return found.placed, found.by_id, found.other_count, found.other_names


def calls(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    """A verify that makes these launch calls."""
    made = [traces.launch(name, 1 + i, number) for i, (name, number) in enumerate(pairs)]
    return [traces.phase("spec.verify", 0, 1000), *made]


def test_captured_graphs_hold_their_nodes_that_show_activities_by_ordinal() -> None:
    rows = [
        node(3, 2, "a", "A") | {"name": "second"},
        node(1, 0, "b", "B", "memcpy"),
        node(3, 1, "a", "A", "event_record"),
        node(3, 0, "a", "A") | {"name": None},
        node(3, 3, "a", "A", "empty"),
        node(3, 4, "a", "A", "memset"),
    ]
    one, other = captured_graphs(traces.events(rows))
    assert (one.graph_id, one.node.tolist(), one.kind, one.name, one.row.tolist()) == (
        1,
        [0],
        ("memcpy",),
        (None,),
        [1],
    )
    assert (other.graph_id, other.node.tolist()) == (3, [0, 2, 4])
    assert (other.kind, other.name) == (("kernel", "kernel", "memset"), (None, "second", None))
    assert other.row.tolist() == [3, 0, 5]


def test_nodes_without_graph_and_ordinal_are_one_graph_in_the_order_of_the_file() -> None:
    """Every third node has no ordinal: these stand first."""
    rows = [node(0, n, "a", "A") | {"graph_id": None} | ({} if n % 3 else {"node": None}) for n in range(60)]
    (graph,) = captured_graphs(traces.events(rows))
    without, with_one = list(range(0, 60, 3)), [n for n in range(60) if n % 3]
    assert graph.graph_id == -1
    assert graph.node.tolist() == [-1] * 20 + with_one
    assert graph.row.tolist() == without + with_one


def test_only_the_activities_of_replays_are_placed() -> None:
    """A replay of one node; an eager launch, a kernel without a launch, and one more replay lie around it."""
    rows = [
        *calls(("cudaLaunchKernel", 1), ("cudaGraphLaunch", 2), ("cudaGraphLaunch", 3)),
        traces.kernel(ADD, 100, 110, 1),
        traces.kernel(ADD, 120, 130, 2),
        traces.kernel(ADD, 140, 150, None),
        traces.kernel(ADD, 160, 170, 3),
        node(4, 0, "", ""),
    ]
    found = placement(rows)
    assert found.node_row.tolist() == [-1, 0, -1, 0]
    assert not found.one_of_several.any()
    assert len(found.one_of_several) == 4
    assert counts(found) == (2, 0, 0, 0)


def test_a_message_of_one_of_several_graphs_has_a_known_module_and_an_unknown_size() -> None:
    """Three captures of one model: two of the four nodes have collectives whose size is not the same in all."""

    def captured(graph: int, *elements: int | None) -> list[dict[str, Any]]:
        return [node(graph, i, "model.norm", "RMSNorm") | {"elements": size} for i, size in enumerate(elements)]

    maps = captured(0, None, 8, 5, 7) + captured(1, None, 16, 5, 9) + captured(2, None, 16, 5, 7)
    kernels = [traces.kernel(ADD, 10 * i, 10 * i + 5, 9) for i in range(4)]
    found = placement([*calls(("cudaGraphLaunch", 9)), *kernels, *maps])
    assert found.node_row.tolist() == [0, 1, 2, 3]
    assert found.one_of_several.tolist() == [False, True, False, True]
    told = [kernel | {"graph_id": 1} for kernel in kernels]
    found = placement([*calls(("cudaGraphLaunch", 9)), *told, *maps])
    assert found.node_row.tolist() == [4, 5, 6, 7]
    assert not found.one_of_several.any()


def test_a_fit_says_its_nodes_or_why_there_are_none() -> None:
    nodes = NodeMap.of(traces.events([node(4, 0, "model.norm", "RMSNorm"), node(4, 1, "model.norm", "RMSNorm")]))
    fits = Fits(nodes, [(ADD, "kernel"), (GEMM, "kernel")])
    replays = [(-1, [0, 0]), (-1, [0, 1]), (5, [0, 0]), (-1, [0]), (-1, [0, 0]), (4, [0, 0])]
    graphs, looks = np.array([graph for graph, _ in replays]), [codes for _, codes in replays]
    bounds = np.cumsum([0, *map(len, looks)])
    numbers = fits.of(graphs, np.concatenate(looks).astype(np.uint16), bounds)
    assert numbers.tolist() == [0, 1, 2, 3, 0, 4]  # each distinct one is looked at once
    rows = [None if fit.rows is None else fit.rows.tolist() for fit in fits.found]
    assert rows == [[0, 1], None, None, None, [0, 1]]
    assert [fit.fits_count for fit in fits.found] == [True, True, False, False, True]
    assert fits.of(graphs[1:2], np.array([0, 1], dtype=np.uint16), np.array([0, 2])).tolist() == [1]


def test_replays_have_the_number_of_the_first_that_is_like_them() -> None:
    """By graph and all their activities: of one length or several, one after another or with others between."""
    nodes = NodeMap.of(traces.events([node(4, 0, "", ""), node(4, 1, "", ""), node(5, 0, "", ""), node(5, 1, "", "")]))
    fits = Fits(nodes, [(ADD, "kernel"), (GEMM, "kernel"), (MOE, "kernel")])
    replays = [
        (4, [0, 0], 0),
        (4, [0, 0], 0),
        (5, [0, 0], 1),
        (4, [0, 1], 2),
        (4, [0, 0], 0),
        (4, [0], 3),
        (4, [0, 1], 2),
        (4, [0, 1, 2], 4),
        (4, [0, 1, 1], 5),
        (5, [0, 0], 1),
        (4, [0], 3),
    ]
    bounds = np.cumsum([0, *(len(look) for _, look, _ in replays)])
    look = np.array([code for _, codes, _ in replays for code in codes], dtype=np.uint16)
    graph = np.array([graph for graph, _, _ in replays])
    assert fits.of(graph, look, bounds).tolist() == [number for _, _, number in replays]
    rows = [None if fit.rows is None else fit.rows.tolist() for fit in fits.found]
    assert rows == [[0, 1], [2, 3], [0, 1], None, None, None]
    # what has been compared is known from then on
    assert fits.of(np.array([5, 5]), np.array([0, 0, 0], dtype=np.uint16), np.array([0, 2, 3])).tolist() == [1, 6]
    # a replay that begins as a shorter one does
    fits = Fits(nodes, [(ADD, "kernel"), (GEMM, "kernel")])
    look = np.array([0, 1, 1, 0, 0], dtype=np.uint16)
    assert fits.of(np.array([4, 4, 4]), look, np.array([0, 1, 2, 5])).tolist() == [0, 1, 2]


def test_replays_whose_codes_are_of_other_widths_are_not_like_each_other() -> None:
    """Streams make codes wider: one of 32 bits has the bytes of two of 16."""
    nodes = NodeMap.of(traces.events([node(4, 0, "", ""), node(4, 1, "", "")]))
    fits = Fits(nodes, [(ADD, "kernel")])
    look, lane = np.zeros(3, dtype=np.uint16), np.array([0, 0, 1], dtype=np.uint8)
    assert fits.of(np.array([-1, -1]), look, np.array([0, 1, 3]), lane=lane).tolist() == [0, 1]
    assert fits.of(np.array([-1]), look[1:], np.array([0, 2])).tolist() == [2]
    assert [fit.rows is None for fit in fits.found] == [True, False, False]


def test_ids_are_believed_replay_by_replay() -> None:
    """Of four replays with ids, one ran a kernel of another name than its node had: none of its rows is placed by id or order."""
    maps = [node(0, i, "", "") | {"name": name} for i, name in enumerate((ADD, GEMM))]
    ran = {1: (ADD, GEMM), 2: (ATTENTION, GEMM), 3: (ADD, GEMM), 4: (ADD,)}
    rows = [
        *calls(*(("cudaGraphLaunch", number) for number in ran)),
        *(
            traces.kernel(name, 100 * number + i, 100 * number + i + 1, number, graph_id=0, node=i)
            for number, names in ran.items()
            for i, name in enumerate(names)
        ),
        *maps,
        node(0, 0, "", ""),  # of two with the same ids the first counts
    ]
    found = placement(rows)
    assert found.node_row.tolist() == [0, 1, -1, -1, 0, 1, 0]
    assert counts(found) == (3, 3, 0, 1)


def test_an_ordinal_that_only_another_graph_has_is_no_node() -> None:
    maps = [node(3, 0, "", ""), node(3, 7, "", ""), node(5, 0, "", "")]
    ids = [(5, 7), (3, 7), (5, 0), (4, 0), (3, 8)]
    kernels = [traces.kernel(ADD, 10 * i, 10 * i + 5, i, graph_id=g, node=n) for i, (g, n) in enumerate(ids, 1)]
    found = placement([*calls(*(("cudaLaunchKernel", i) for i in range(1, 6))), *kernels, *maps])
    assert found.node_row.tolist() == [-1, 1, 2, -1, -1]
    assert counts(found) == (2, 2, 0, 0)


def test_ids_place_what_carries_them_and_order_places_the_rest() -> None:
    maps = [node(0, i, "", "") for i in range(3)]
    rows = [
        *calls(("cudaGraphLaunch", 1), ("cudaGraphLaunch", 2), ("cudaLaunchKernel", 3)),
        # ids of graph 0, in another order than their starts
        *(traces.kernel(ADD, 100 + i, 101 + i, 1, graph_id=0, node=2 - i) for i in range(3)),
        *(traces.kernel(ADD, 200 + i, 201 + i, 2) for i in range(3)),
        traces.kernel(ADD, 300, 301, 3),
        *maps,
    ]
    found = placement(rows)
    assert found.node_row.tolist() == [2, 1, 0, 0, 1, 2, -1]
    assert counts(found) == (2, 1, 0, 0)


def test_a_graph_id_without_a_node_id_only_names_the_graph() -> None:
    maps = [node(5, i, f"m{i}", "M") | {"node": None} for i in range(3)]
    kernels = [traces.kernel(ADD, 100 + i, 101 + i, 1, graph_id=5) for i in range(3)]
    found = placement([*calls(("cudaGraphLaunch", 1)), *kernels, *maps])
    assert found.node_row.tolist() == [0, 1, 2]
    assert counts(found) == (1, 0, 0, 0)


def test_ids_of_the_only_node_of_a_graph_are_ids() -> None:
    kernel = traces.kernel(ADD, 10, 20, 1, graph_id=0, node=0)
    found = placement([*calls(("cudaGraphLaunch", 1)), kernel, node(0, 0, "", "")])
    assert (found.node_row.tolist(), counts(found)) == ([0], (1, 1, 0, 0))


def test_a_node_without_an_ordinal_is_no_activity_without_one() -> None:
    """The replay of graph 5 is placed by order; only the eager kernel has both ids."""
    rows = [
        *calls(("cudaGraphLaunch", 1), ("cudaLaunchKernel", 2)),
        traces.kernel(ADD, 10, 20, 1, graph_id=5),
        traces.kernel(ADD, 30, 40, 2, graph_id=6, node=0),
        node(5, 0, "", "") | {"node": None},
        node(6, 0, "", ""),
    ]
    found = placement(rows)
    assert (found.node_row.tolist(), counts(found)) == ([0, 1], (2, 1, 0, 0))


def test_ids_of_a_graph_that_was_not_captured_place_nothing() -> None:
    rows = [
        *calls(("cudaGraphLaunch", 1), ("cudaLaunchKernel", 2)),
        traces.kernel(ADD, 100, 110, 1, graph_id=9, node=0),
        traces.kernel(ADD, 120, 130, 2),
        node(5, 0, "", ""),
    ]
    found = placement(rows)
    assert found.node_row.tolist() == [-1, -1]
    assert counts(found) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("node_type", "kind", "name", "fits"),
    [
        ("kernel", "kernel", ADD, True),
        ("memcpy", "memcpy", "Memcpy DtoD", True),
        ("memcpy", "kernel", "memcpy32_post", True),
        ("memset", "kernel", "copy_kernel", True),
        ("memcpy", "kernel", ADD, False),
        ("kernel", "memcpy", "memcpy", False),
        ("memset", "memcpy", "Memcpy DtoD", False),
        ("memcpy", "memset", "memset", False),
        ("memset", "memcpy", "memcpy", False),
    ],
)
def test_an_activity_has_the_type_of_its_node(node_type: str, kind: str, name: str, fits: bool) -> None:
    """A copy of a graph may run as a kernel that says so, a kernel never as a copy."""
    rows = [*calls(("cudaGraphLaunch", 1)), traces.kernel(name, 10, 20, 1, kind=kind), node(0, 0, "", "", node_type)]
    found = placement(rows)
    assert counts(found) == ((1, 0, 0, 0) if fits else (0, 0, 0, 1))
    assert found.node_row.tolist() == ([0] if fits else [-1])


def test_names_and_kinds_of_a_replay_are_told_apart() -> None:
    """A copy, a product and an addition: each on a node that only it fits."""
    rows = [
        *calls(("cudaGraphLaunch", 1)),
        traces.kernel("Memcpy DtoD", 10, 20, 1, kind="memcpy"),
        traces.kernel(GEMM, 20, 30, 1),
        traces.kernel(ADD, 30, 40, 1),
        traces.kernel("Memset", 40, 50, 1, kind="memset"),
        node(0, 0, "", "", "memcpy"),
        node(0, 1, "model.layers.0.self_attn.qkv_proj", "QKVParallelLinear"),
        node(0, 2, "model.norm", "RMSNorm"),
        node(0, 3, "", "", "memset"),
    ]
    assert placement(rows).node_row.tolist() == [0, 1, 2, 3]


def test_a_name_that_no_rule_knows_does_not_hide_those_behind_it() -> None:
    """A product in a norm contradicts the map, whatever stands before it."""
    nodes = [node(0, 0, "model", "Model"), node(0, 1, "model.norm", "RMSNorm")]
    assert buckets(replay(["no_rule_knows_this", GEMM], nodes))[1]["other_names"] == 1
    assert buckets(replay(["no_rule_knows_this", ADD], nodes))[1]["placed"] == 1


def test_a_rank_whose_replays_fit_no_graph_is_carried_as_it_is() -> None:
    without = traces.trace(traces.rank_trace(replay([ADD], [])))
    other = traces.trace(traces.rank_trace(replay([ADD, ADD], [node(0, 0, "", "")])))
    for trace in (without, other):
        (before,), (after,) = trace.sources, with_nodes(trace).sources
        assert after.read().events is before.read().events


def test_nodes_are_carried_on_the_rows_of_replays_that_name_some() -> None:
    rows = [
        traces.kernel(ADD, 0, None, 9),  # no usable time
        *calls(("cudaGraphLaunch", 9), ("cudaLaunchKernel", 8), ("cudaGraphLaunch", 7)),
        traces.kernel(ADD, 20, 30, 9, graph_id=0, node=0),
        traces.kernel("copy", 10, 20, 9, kind="memcpy"),  # the node that is left
        traces.kernel(ADD, 40, 50, 8),
        traces.kernel(ADD, 60, 70, 8, graph_id=3, node=4),  # ids that were there stay
        traces.kernel(ADD, 80, 90, 7),  # placed by order
        traces.kernel("copy", 90, 95, 7, kind="memcpy"),
        node(0, 0, "", ""),
        node(0, 1, "", "") | {"node_type": "memcpy"},
    ]
    trace = traces.trace(traces.rank_trace(rows))
    (rank,) = (source.read() for source in with_nodes(trace).sources)
    assert rank.events.select("graph_id", "node").rows() == [
        (None, None),
        *[(None, None)] * 4,
        (0, 0),
        (0, 1),
        (None, None),
        (3, 4),
        *[(None, None)] * 2,
        (0, 0),
        (0, 1),
    ]
    assert break_down(trace).ranks[0].node_map == break_down(with_nodes(trace)).ranks[0].node_map


def test_a_range_that_is_overlooked_is_said_once() -> None:
    rows = [*replay([ADD], [node(0, 0, "", "")]), traces.phase("my_verify_step", 0, 5, window=0)]
    carried = with_nodes(traces.trace(traces.rank_trace(rows)))
    assert carried.warnings == []
    for _ in range(2):
        carried.sources[0].read()
    (line,) = carried.warnings
    assert "my_verify_step" in line


def test_a_copy_is_one_whatever_its_name_says() -> None:
    """Placed as the node that is left, it keeps it when its row carries the node's ids."""
    maps = [node(0, 0, "m.qkv_proj", "QKVParallelLinear") | {"node_type": "memset"}, node(0, 1, "m.norm", "RMSNorm")]
    rows = [
        traces.phase("spec.verify", 0, 5),
        traces.launch("cudaGraphLaunch", 1, 9),
        traces.kernel("fused_moe_kernel", 10, 11, 9, kind="memset"),
        traces.kernel(ADD, 12, 13, 9, graph_id=0, node=1),
    ]
    trace = traces.trace(traces.rank_trace([*rows, *maps]))
    carried = with_nodes(trace)
    assert next(carried.ranks()).events.get_column("node").to_list()[2:4] == [0, 1]
    found = [break_down(one).ranks[0].node_map for one in (trace, carried)]
    assert found[0] == found[1]
    assert (found[0]["by_id"], found[0]["other_names"]) == (1, 0)


def test_one_stream_id_on_two_devices_is_two_streams() -> None:
    kernels = [traces.kernel(ADD, 10, 11, 9), {**traces.kernel(GEMM, 12, 13, 9), "device": 1}]
    maps = [node(0, place, "", "") | {"name": name} for place, name in enumerate((ADD, GEMM))]
    rows = [traces.phase("spec.verify", 0, 5), traces.launch("cudaGraphLaunch", 1, 9), *kernels, *maps]
    (rank,) = break_down(traces.trace(traces.rank_trace(rows))).ranks
    assert (rank.node_map["placed"], rank.node_map["by_stream"]) == (1, 1)
