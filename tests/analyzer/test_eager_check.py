"""A node map beside an eager recording of the same forward, kernel by kernel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces

from specanalyze.answers.eager_check import EagerCheck, check_against, differences, outer_parts, verdict
from specanalyze.cli import run
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specschema.errors import TraceError, UsageError

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
MOE = "fused_moe_kernel"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
COPY = "Memcpy DtoD (Device -> Device)"

Step = tuple[str, str, str | None, str | None]
"""kind, name, module, its class."""

LAYERS: list[Step] = [
    step
    for layer in range(2)
    for step in (
        ("kernel", ADD, f"Model.layers.{layer}.input_layernorm", "RMSNorm"),
        ("kernel", GEMM, f"Model.layers.{layer}.self_attn.qkv_proj", "QKVParallelLinear"),
        ("memcpy", COPY, f"Model.layers.{layer}.self_attn.attn", "RadixAttention"),
        ("kernel", GEMM, f"Model.layers.{layer}.mlp.gate", "ReplicatedLinear"),
        ("kernel", MOE, f"Model.layers.{layer}.mlp.experts", "FusedMoE"),
    )
]
FORWARD: list[Step] = [*LAYERS, ("kernel", ADD, None, None)]


def eager(steps: list[Step], *, ranges: bool = True, times: int = 1) -> list[dict[str, Any]]:
    """Verify launches the steps one by one, each within its module's range."""
    rows = []
    for time in range(times):
        begin = 10_000 * time
        rows.append(traces.phase("spec.verify", begin, begin + 5_000))
        for i, (kind, name, module, module_class) in enumerate(steps):
            at = begin + 10 + 20 * i
            if ranges and module is not None:
                own = traces.phase(f"spec.module {module}", at, at + 10)
                rows.append(own | {"module": module, "module_class": module_class})
            correlation = 1 + len(steps) * time + i
            rows.append(traces.launch("cudaLaunchKernel", at + 5, correlation))
            rows.append(traces.kernel(name, begin + 6_000 + 10 * i, begin + 6_005 + 10 * i, correlation, kind=kind))
    return rows


def graph(
    steps: list[Step],
    mapped: list[Step] | None = None,
    around: tuple[str, ...] = (),
    starts: list[int] | None = None,
    copies_as: str | None = None,
    **ids: int,
) -> list[dict[str, Any]]:
    """Verify replays a graph of the steps, which the map says to be ``mapped``, and launches other kernels before it."""
    rows = [traces.phase("spec.verify", 0, 5_000)]
    for i, name in enumerate(around):
        rows += [
            traces.launch("cudaLaunchKernel", 10 + 10 * i, 100 + i),
            traces.kernel(name, 600 + i, 601 + i, 100 + i),
        ]
    rows.append(traces.launch("cudaGraphLaunch", 500, 9))
    for i, (kind, name, *_) in enumerate(steps):
        start = 6_000 + 10 * (starts[i] if starts else i)
        own = ids | {"node": i} if ids else {}
        ran = ("kernel", copies_as) if kind == "memcpy" and copies_as is not None else (kind, name)
        rows.append(traces.kernel(ran[1], start, start + 5, 9, kind=ran[0], stream=7 + i % 2, **own))
    for i, (kind, name, module, module_class) in enumerate(mapped or steps):
        node = {"kind": "node", "name": name if kind == "kernel" else kind, "node_type": kind, "pid": 1, "start_ns": 0}
        rows.append({**node, "dur_ns": 0, "graph_id": 4, "node": i, "module": module, "module_class": module_class})
    return rows


def check(one: list[dict[str, Any]], other: list[dict[str, Any]], phase: str = "verify") -> EagerCheck:
    return check_against(traces.trace(traces.rank_trace(one)), traces.trace(traces.rank_trace(other)), phase)


def counts(result: EagerCheck) -> dict[str, Any]:
    (row,) = result.ranks.iter_rows(named=True)
    return {name: value for name, value in row.items() if value != 0 and name != "rank"}


def kinds(result: EagerCheck) -> list[tuple[Any, ...]]:
    names = ("verdict", "kernel", "graph_module", "eager_module", "count", "graph_place", "eager_place")
    return differences(result).select(names).rows()


def test_a_true_map_has_the_modules_of_the_eager_forward() -> None:
    result = check(graph(FORWARD), eager(FORWARD, times=3))
    assert counts(result) == {
        **dict.fromkeys(("graph_kernels", "in_replay", "eager_kernels", "pairs", "in_replay_pairs"), 11),
        **dict.fromkeys(("compared", "same_module", "same_class"), 11),
        **dict.fromkeys(("graph_instances", "graph_alike", "graph_replays", "graph_placed"), 1),
        **dict.fromkeys(("eager_instances", "eager_alike"), 3),
    }
    assert result.pairs.get_column("verdict").unique().to_list() == ["same"]
    assert result.pairs.get_column("eager_place").to_list() == list(range(11))
    assert (kinds(result), verdict(result), result.remarks, result.prefixes) == ([], [], [], [])


def test_one_kernel_of_another_module_fails_the_check() -> None:
    """The router's product and that of q, k and v have one name: only the modules tell them apart."""
    wrong = [*FORWARD]
    wrong[3] = (*wrong[3][:2], "Model.layers.0.self_attn.o_proj", "RowParallelLinear")
    result = check(graph(FORWARD, wrong), eager(FORWARD))
    assert counts(result) | {"compared": 11, "same_module": 10, "same_class": 10} == counts(result)
    assert kinds(result) == [
        ("module", GEMM, "Model.layers.N.self_attn.o_proj", "Model.layers.N.mlp.gate", 1, 3, 3),
    ]
    (row,) = differences(result).iter_rows(named=True)
    assert (row["graph_class"], row["eager_class"]) == ("gemm.o_proj", "moe.router")
    assert verdict(result) == ["1 kernel of 11 was launched by another module than the node map says"]


def test_a_map_that_is_a_layer_off_is_noticed() -> None:
    wrong = [(kind, name, module and module.replace("layers.1", "layers.2").replace("layers.0", "layers.1"), cls)
             for kind, name, module, cls in FORWARD]  # fmt: skip
    result = check(graph(FORWARD, wrong), eager(FORWARD))
    assert counts(result)["same_module"] == 1
    assert counts(result)["same_class"] == 11
    assert verdict(result) == ["10 kernels of 11 were launched by another module than the node map says"]


def test_nodes_count_in_the_order_of_their_capture_however_streams_ran_them() -> None:
    rows = graph(FORWARD, starts=[*range(10, -1, -1)], graph_id=4)
    assert counts(check(rows, eager(FORWARD)))["same_module"] == 11


def test_a_copy_that_a_graph_runs_as_a_kernel_is_the_copy_and_of_another_class() -> None:
    result = check(graph(FORWARD, copies_as="memcpy32_post"), eager(FORWARD))
    assert counts(result) | {"pairs": 11, "same_module": 11, "same_class": 9} == counts(result)
    (row,) = differences(result).iter_rows(named=True)
    assert (row["verdict"], row["kernel"], row["count"]) == ("class", "(copy)", 2)
    assert (row["graph_class"], row["eager_class"]) == ("attention.attention_core", "memcpy.copy")
    assert verdict(result) == []


def test_kernels_without_their_like_are_named_and_shift_nothing() -> None:
    plain = [*FORWARD[:4], ("kernel", "eager_only", "Model.layers.0.mlp", "MoE"), *FORWARD[4:7], *FORWARD[8:]]
    result = check(graph(FORWARD, around=("fill_inputs", "fill_inputs")), eager(plain))
    assert counts(result) | {"graph_kernels": 13, "in_replay": 11, "eager_kernels": 11, "pairs": 10} == counts(result)
    assert counts(result)["same_module"] == 10
    assert kinds(result) == [
        ("only in graph", "fill_inputs", None, None, 2, 0, None),
        ("only in graph", "(copy)", "Model.layers.N.self_attn.attn", None, 1, 9, None),
        ("only in eager", "eager_only", None, "Model.layers.N.mlp", 1, None, 4),
    ]
    order = result.pairs.select("graph_place", "eager_place").rows()
    assert order[5:8] == [(5, 3), (None, 4), (6, 5)]
    assert verdict(result) == []


def test_work_beside_the_replay_has_no_module_to_compare() -> None:
    """Eagerly it has none either, but only the recording with module ranges knows that."""
    around = ("kernel", "build_input", None, None)
    result = check(graph(FORWARD, around=("build_input",)), eager([around, *FORWARD]))
    assert counts(result) | {"pairs": 12, "in_replay_pairs": 11, "compared": 11} == counts(result)
    assert kinds(result) == [("unknown", "build_input", None, "(no module)", 1, 0, 0)]
    assert verdict(result) == []


def test_without_module_ranges_nothing_is_checked_and_it_says_so() -> None:
    result = check(graph(FORWARD), eager(FORWARD, ranges=False))
    assert counts(result)["pairs"] == 11
    assert "compared" not in counts(result)
    assert result.remarks == [
        "built.parquet has no module ranges, so its kernels have no module: record it with --windows modules"
    ]
    assert verdict(result) == ["no kernel was checked: no pair of equal kernels has a known module on both sides"]


def test_two_recordings_of_one_way_check_no_map_and_it_fails() -> None:
    result = check(eager(FORWARD), eager(FORWARD))
    assert counts(result)["same_module"] == 11
    assert verdict(result) == ["built.parquet replays no graph in verify: no node map was checked"]
    result = check(graph(FORWARD), graph(FORWARD))
    assert counts(result)["same_module"] == 11
    assert verdict(result) == ["built.parquet replays graphs in verify: it is no eager recording"]


def test_replays_that_no_map_places_are_counted() -> None:
    result = check(graph(FORWARD, FORWARD[:4]), eager(FORWARD))
    assert result.remarks == [
        "0 of 1 replay of built.parquet were placed by a node map; kernels of the others have no module"
    ]
    assert verdict(result) == ["no kernel was checked: no pair of equal kernels has a known module on both sides"]


def test_an_outer_module_that_only_one_way_runs_is_left_out_and_named() -> None:
    outer = [(kind, name, module and module.replace("Model.", "ModelForCausalLM.model."), cls)
             for kind, name, module, cls in FORWARD]  # fmt: skip
    result = check(graph(FORWARD), eager(outer))
    assert counts(result)["same_module"] == 11
    assert result.prefixes == [("Model", "ModelForCausalLM.model")]
    assert result.remarks == [
        "modules are compared below their outermost parts, which differ: Model is ModelForCausalLM.model"
    ]


@pytest.mark.parametrize(
    ("modules", "want"),
    [
        ([("A.x.0.y", "B.m.x.0.y"), ("A", "B.m")], {"A": "B.m"}),
        ([("A.x.0.y", "B.x.0.y")], {"A": "B"}),
        ([("A.x.0.y", "B.m.x.0.y"), ("A.z", "A.z")], {}),  # A stands for itself
        ([("A.x.0.y", "B.m.x.0.y"), ("A.z", "C.z")], {}),  # and for one other alone
        ([("A.x.0.y", "B.x.0.y"), ("C.x.0.y", "B.x.0.y")], {}),
        ([("A.layers.0.mlp", "A.layers.1.mlp")], {}),
        ([("A.layers.0.mlp", "B.mlp")], {}),  # a layer is no outer part
        ([("A.attn.proj", "A.mlp.proj")], {}),
        ([("A.x", None), (None, "A.x"), (None, None)], {}),
    ],
)
def test_outer_parts_stand_for_one_other_throughout(
    modules: list[tuple[str | None, str | None]], want: dict[str, str]
) -> None:
    assert outer_parts(modules) == want


def test_an_instance_of_the_median_length_is_compared() -> None:
    rows = eager(FORWARD, times=3)
    last = max(row["correlation"] for row in rows if row["kind"] == "launch")
    short = [row for row in rows if row.get("correlation") != last]
    result = check(graph(FORWARD), short)
    assert counts(result) | {"eager_kernels": 11, "eager_instances": 3, "eager_alike": 2} == counts(result)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="no phase 'nothing'"):
        check(graph(FORWARD), eager(FORWARD), "nothing")
    with pytest.raises(TraceError, match=r"has no device work in draft on rank 0"):
        check(graph(FORWARD), eager(FORWARD), "draft")
    one, other = (traces.trace(traces.rank_trace(eager(FORWARD), rank)) for rank in (0, 1))
    with pytest.raises(TraceError, match="no rank in common"):
        check_against(one, other)


def written(rows: list[dict[str, Any]], path: Path) -> str:
    write_trace(traces.trace(traces.rank_trace(rows)), path)
    return str(path)


def test_the_command_fails_where_modules_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [(*FORWARD[0][:2], "Model.layers.1.input_layernorm", "RMSNorm"), *FORWARD[1:]]
    plain = written(eager(FORWARD), tmp_path / "eager.parquet")
    true, false = (
        written(graph(FORWARD, mapped), tmp_path / f"{name}.parquet")
        for name, mapped in (("true", FORWARD), ("false", wrong))
    )
    assert run(["layers", true, "--against", plain]) == 0
    said = capsys.readouterr()
    assert "graph against eager" in said.out
    assert said.err.count("cannot be checked") == said.err.count("warning") == 1  # no environment is recorded
    assert run(["layers", false, "--against", plain, "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert [row["verdict"] for row in document["differences"]] == ["module"]
    assert [row["graph_module"] for row in document["pairs"] if row["verdict"] == "module"] == [
        "Model.layers.1.input_layernorm"
    ]
    assert "1 kernel of 11 was launched by another module" in said.err
    assert run(["layers", false, "--against", plain]) == 1
    said = capsys.readouterr()
    assert "layers.N.input_layernorm" in said.out
    assert "of another layer than eagerly" in " ".join(said.out.split())


SAMPLES = Path(__file__).parents[2] / "samples"
CAPTURED, EAGER = (SAMPLES / folder / "sglang_tp1_eagle3_steps2.parquet" for folder in (".", "eager"))


@pytest.mark.parametrize(("phase", "nodes"), [("verify", 465), ("draft", 28), ("draft_extend", 23)])
def test_every_kernel_of_a_real_replay_has_the_module_that_launches_it_eagerly(phase: str, nodes: int) -> None:
    """SGLang 0.5.17, EAGLE-3, one H200: the same server started with CUDA graphs and without. Not all of the draft's replay is launched
    eagerly: its attention is prepared in another way."""
    result = check_against(open_trace([CAPTURED]), open_trace([EAGER]), phase)
    (row,) = result.ranks.iter_rows(named=True)
    assert row["in_replay"] == nodes
    assert row["compared"] == row["in_replay_pairs"] == row["same_module"]
    assert row["compared"] == {"verify": 465, "draft": 25, "draft_extend": 23}[phase]
    assert verdict(result) == []
    other = differences(result).filter(pl.col("verdict") == "class")
    assert set(other["kernel"]) == {"(copy)"}  # the graph runs it as a kernel


@pytest.mark.parametrize("shift", [1, -1])
def test_a_real_map_that_is_one_node_off_fails_the_check(shift: int) -> None:
    """Node ids place it all the same, where the names at capture are lost."""
    captured = open_trace([CAPTURED])
    (rank,) = captured.ranks()
    node = pl.col("kind").cast(pl.String) == "node"
    nodes = rank.events.filter(node)
    nodes = nodes.with_columns(pl.col("module", "module_class").shift(shift).over("graph_id"))
    wrong = replace(rank, events=pl.concat([rank.events.filter(~node), nodes]))
    result = check_against(traces.trace(wrong), open_trace([EAGER]))
    (row,) = result.ranks.iter_rows(named=True)
    assert row["compared"] == 465
    assert 100 < row["same_module"] < 300  # neighbours of one module
    assert verdict(result) == [
        f"{465 - row['same_module']} kernels of 465 were launched by another module than the node map says"
    ]


def test_a_real_replay_runs_the_kernels_of_the_eager_forward_in_their_order(reference: Path) -> None:
    """SGLang, EAGLE-3, one H200. This eager recording has no module ranges: kernels can be compared, modules not."""
    folder = reference / "traces/sglang_h200/tp1"
    result = check_against(
        open_trace([folder / "e2_nodemap_m17_rank0.json.gz"]), open_trace([folder / "e2_eager_rank0.json.gz"])
    )
    (row,) = result.ranks.iter_rows(named=True)
    assert [row[name] for name in ("in_replay", "in_replay_pairs", "eager_kernels", "pairs")] == [465, 465, 493, 493]
    assert row["compared"] == 0
    assert verdict(result) == ["no kernel was checked: no pair of equal kernels has a known module on both sides"]


def test_an_eager_recording_of_another_machine_is_refused_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    other = str(SAMPLES / "sglang_tp2_eagle3_steps2.parquet")
    assert run(["layers", other, "--against", str(EAGER)]) == 1
    said = capsys.readouterr().err
    assert "not the same forward" in said
    assert "server.args.tp_size (1 there, 2 here)" in said
    run(["layers", other, "--against", str(EAGER), "--accept-differences"])
    assert "eager recording" in capsys.readouterr().err
    assert run(["layers", other, "--accept-differences"]) == 2
    assert "goes with --against" in capsys.readouterr().err
