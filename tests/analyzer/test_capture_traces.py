"""Pairs of a trace of CUDA graph capture and a trace of its replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import capture_pair
import polars as pl
import pytest
from typer.testing import CliRunner

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.layers import layers
from specanalyze.attribution.activities import join_activities
from specanalyze.attribution.carry_nodes import with_nodes
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.cli import app
from specanalyze.formats.capture_modules import with_paths
from specanalyze.formats.capture_traces import settled, with_captures
from specanalyze.formats.captured_graphs import captured_graphs
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError

pytest.importorskip("torch")

LAYER = [
    ("aten::addmm", "ToyAttention.Linear_0"),
    ("aten::mm", "ToyAttention"),
    ("aten::_softmax", "ToyAttention"),
    ("aten::mm", "ToyAttention"),
    ("aten::addmm", "ToyAttention.Linear_1"),
    ("aten::add", ""),
    ("aten::native_layer_norm", "LayerNorm"),
    ("aten::addmm", "Linear"),
    ("aten::add", ""),
]
NODES = [
    *((op, ".".join(filter(None, [f"Toy.layers.{n}", below]))) for n in range(2) for op, below in LAYER),
    ("aten::native_layer_norm", "Toy.LayerNorm"),
]
KERNELS = [capture_pair.kernel_of(op) for op, _ in NODES]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return capture_pair.record(tmp_path_factory.mktemp("profiler") / "cpu.json")


def pair(folder: Path, rows: list[dict[str, Any]], kernels: list[list[str]], *, names: bool = True) -> Trace:
    """The replays, opened with the capture that lies in a folder beside them."""
    capture = capture_pair.write(
        folder / "capture_traces" / "bs_4_rank0.json", capture_pair.captured(rows, names=names)
    )
    replay = capture_pair.write(folder / "profile-TP-0.trace.json", capture_pair.replayed(kernels))
    return with_nodes(with_captures(open_trace([replay]), capture.parent))


def nodes_of(trace: Trace) -> list[int | None]:
    """Node that each kernel of the only rank is found to be, in the order of the file."""
    (rank,) = trace.ranks()
    placement = join_activities(rank.events, recognised_ranges(rank.events)).placement
    assert placement is not None
    nodes = [*placement.nodes.get_column("node").to_list(), None]
    return [nodes[row] for row in placement.node_row.tolist()]


def test_each_launch_of_a_capture_is_a_node_of_the_module_that_made_it(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    path = capture_pair.write(tmp_path / "bs_4_rank0.json", capture_pair.captured(profiled, names=True))
    (graph,) = captured_graphs(path).graphs
    assert graph.get_column("node").to_list() == list(range(len(NODES)))
    assert graph.get_column("module").to_list() == [module for _, module in NODES]
    assert graph.get_column("name").to_list() == KERNELS
    assert set(graph.get_column("node_type")) == {"kernel"}
    assert graph.get_column("module_class").to_list()[:2] == ["Linear", "ToyAttention"]


def test_the_kernels_of_every_replay_get_their_modules(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    trace = pair(tmp_path, profiled, [KERNELS, KERNELS])
    assert nodes_of(trace) == [*range(len(NODES))] * 2
    result = layers(trace)
    assert (result.placed, result.replays) == (2, 2)
    assert result.table.get_column("layer").drop_nulls().unique().sort().to_list() == [0, 1]
    attention = result.table.filter(pl.col("bucket") == "attention")
    assert attention.get_column("module").unique().sort().to_list() == [
        "Toy.layers.0.ToyAttention",
        "Toy.layers.1.ToyAttention",
    ]
    assert attention.get_column("exposed_ns").sum() == 2 * 2 * 3 * 1000  # replays, layers, kernels, ns each


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        (KERNELS[:-1], "other_count"),
        ([*KERNELS[:4], KERNELS[5], KERNELS[4], *KERNELS[6:]], "other_names"),
    ],
)
def test_replays_that_are_not_the_captured_graph_are_counted(
    tmp_path: Path, profiled: list[dict[str, Any]], kernels: list[str], reason: str
) -> None:
    trace = pair(tmp_path, profiled, [KERNELS, kernels])
    assert nodes_of(trace) == [*range(len(NODES)), *[None] * len(kernels)]
    (counted,) = break_down(trace).ranks
    assert counted.node_map[reason] == 1


def test_without_kernel_names_in_the_capture_order_and_count_decide(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    """CUDA's launch calls do not name the kernel."""
    trace = pair(tmp_path, profiled, [KERNELS], names=False)
    assert nodes_of(trace) == [*range(len(NODES))]
    fewer = pair(tmp_path, profiled, [KERNELS[1:]], names=False)
    assert nodes_of(fewer) == [None] * len(KERNELS[1:])


def test_without_modules_the_operator_stands_for_them(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    """A capture without Python frames (with_stack=False), as SGLang's combined trace is."""
    rows = [row for row in profiled if row["cat"] == "cpu_op"]
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", capture_pair.captured(rows, names=False))).graphs
    assert set(graph.get_column("module_class")) == {"operator"}
    outermost = {"aten::addmm": "aten::linear", "aten::mm": "aten::matmul", "aten::_softmax": "aten::softmax"}
    outermost |= {"aten::native_layer_norm": "aten::layer_norm", "aten::add": "aten::add"}
    assert graph.get_column("module").to_list() == [outermost[op] for op, _ in NODES]
    assert graph.get_column("name").null_count() == graph.height


def test_what_runs_during_a_capture_and_what_shows_no_activity_is_no_node(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    rows = capture_pair.captured(profiled, names=True)
    begin = next(row for row in rows if row["name"] == "cudaStreamBeginCapture")
    extra = [
        capture_pair.call("MemcpyAsync", begin, begin["ts"] + 0.05, 500),
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD",
            "pid": 0,
            "tid": 3,
            "ts": begin["ts"] + 5,
            "dur": 1,
            "args": {"correlation": 500},
        },
        capture_pair.call("LaunchHostFunc", begin, rows[-1]["ts"] + 0.05, 501),
        capture_pair.call("LaunchKernel", begin | {"tid": 99}, begin["ts"] + 0.1, 502),
    ]
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", [*rows, *extra])).graphs
    assert graph.get_column("name").to_list() == KERNELS


def test_copies_and_fills_are_nodes_of_their_type(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = capture_pair.captured(profiled, names=True)
    begin = next(row for row in rows if row["name"] == "cudaStreamBeginCapture")
    rows.append(capture_pair.call("MemsetAsync", begin, begin["ts"] + 0.05, 500))
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", rows)).graphs
    assert graph.get_column("node_type").to_list()[:2] == ["memset", "kernel"]
    assert graph.get_column("name").to_list()[0] is None


def test_a_driver_call_within_a_launch_is_no_node_of_its_own(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = capture_pair.captured(profiled, names=True)
    launch = next(row for row in rows if row["args"].get("correlation") == 10)
    launch["dur"] = 0.003
    rows.append(capture_pair.call("LaunchKernel", launch, launch["ts"] + 0.001, 600) | {"name": "cuLaunchKernel"})
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", rows)).graphs
    assert graph.get_column("name").to_list() == KERNELS


def test_graphs_come_in_order_of_capture(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = capture_pair.captured(profiled, names=True)
    begin = next(row for row in rows if row["name"] == "cudaStreamBeginCapture")
    other = begin | {"tid": 99}
    for number, name in enumerate(("StreamBeginCapture", "LaunchKernel", "StreamEndCapture")):
        rows.append(capture_pair.call(name, other, begin["ts"] - 100 + number, 700 + number))
    found = captured_graphs(capture_pair.write(tmp_path / "c.json", rows))
    assert [graph.height for graph in found.graphs] == [1, len(NODES)]
    assert found.graphs[0].select("module", "module_class", "name").rows() == [(None, None, None)]


def test_within_compiled_modules_the_operator_is_told(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = [
        row | {"name": row["name"].replace("Linear_", "GraphModule_")}
        for row in capture_pair.captured(profiled, names=True)
    ]
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", rows)).graphs
    first = graph.select("module", "module_class").row(0)
    assert first == ("Toy.layers.0.ToyAttention.GraphModule_0.aten::linear", "operator")
    whole = min(rows, key=lambda row: float(row["ts"]))["ts"]
    around = capture_pair.call("", rows[0], float(whole), 0) | {
        "cat": "cpu_op",
        "name": "vllm::whole",
        "dur": 10_000_000,
    }
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", [*rows, around])).graphs
    first = graph.select("module", "module_class").row(0)
    assert first == ("Toy.layers.0.ToyAttention.GraphModule_0", "GraphModule"), "that operator is not below the module"


def test_a_node_that_a_collective_added_says_so(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = capture_pair.captured(profiled, names=True)
    launch = next(row for row in rows if row["args"].get("correlation") == 12)
    facts = {"Collective name": "_allgather_base", "In msg nelems": 4096, "dtype": "BFloat16"}
    facts |= {"Process Group Name": "tp", "Process Group Ranks": "[0, 1]"}
    told = launch | {"cat": "cpu_op", "name": "record_param_comms", "args": facts}
    (graph,) = captured_graphs(capture_pair.write(tmp_path / "c.json", [*rows, told])).graphs
    columns = graph.select("op", "dtype", "elements", "group", "group_ranks")
    assert columns.row(2) == ("allgather", "BFloat16", 4096, "tp", [0, 1])
    assert columns.drop("group_ranks").rows()[:2] == [(None,) * 4] * 2


def test_a_capture_that_launches_another_graph_is_left_out(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = capture_pair.captured(profiled, names=True)
    # well before the last launch: within a nanosecond of it, rounding could put one into the other
    rows.append(capture_pair.call("GraphLaunch", rows[-1], rows[-1]["ts"] - 0.1, 700))
    found = captured_graphs(capture_pair.write(tmp_path / "c.json", rows))
    assert (found.graphs, found.child_graphs) == ([], 1)


def test_a_capture_whose_end_is_missing_is_counted(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    rows = [r for r in capture_pair.captured(profiled, names=True) if r["name"] != "cudaStreamEndCapture"]
    found = captured_graphs(capture_pair.write(tmp_path / "c.json", rows))
    assert (found.graphs, found.unfinished) == ([], 1)


def test_a_rank_without_a_capture_of_its_own_takes_the_lowest_ranks(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    pair(tmp_path, profiled, [KERNELS])
    other = capture_pair.write(tmp_path / "profile-TP-1.trace.json", capture_pair.replayed([KERNELS]), rank=1)
    trace = with_nodes(with_captures(open_trace([tmp_path / "profile-TP-0.trace.json", other]), tmp_path))
    assert layers(trace).placed == 2
    assert (
        trace.warnings.count("rank 1 has no capture trace of its own: its graphs are taken to be those of rank 0") == 1
    )


def test_each_rank_has_its_own_captures_and_nodes_known_before_give_way(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    mine = pair(tmp_path, profiled, [KERNELS])
    fewer = [row for row in capture_pair.captured(profiled, names=True) if row["args"].get("correlation") != 10]
    capture_pair.write(tmp_path / "capture_traces" / "bs_4_rank1.json", fewer, rank=1)
    paths = [tmp_path / "profile-TP-0.trace.json", tmp_path / "profile-TP-1.trace.json"]
    capture_pair.write(paths[1], capture_pair.replayed([KERNELS[1:]]), rank=1)
    both = with_nodes(with_captures(open_trace(paths), tmp_path))
    assert layers(both).placed == 2
    assert both.warnings == []
    (once,) = mine.ranks()
    (again,) = with_captures(mine, tmp_path).ranks()
    kinds = [rank.events.get_column("kind").cast(pl.String).to_list().count("node") for rank in (once, again)]
    assert kinds == [len(NODES)] * 2


def test_an_import_with_captures_no_longer_lacks_the_node_map(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    """Nsight Systems' exports say that they can't know it."""
    pair(tmp_path, profiled, [KERNELS])
    trace = open_trace([tmp_path / "profile-TP-0.trace.json"])
    lacking = {"recording": {"source": "import", "unknown": ["accept lengths", "node map"]}}
    told = with_captures(Trace(trace.name, trace.sources, lacking), tmp_path)
    assert told.metadata == {"recording": {"source": "import", "unknown": ["accept lengths"]}}


def test_modules_that_like_graphs_do_not_agree_on_are_unknown() -> None:
    nodes = pl.DataFrame(
        {
            "graph_id": [0, 0, 1, 1, 2],
            "node": [0, 1, 0, 1, 0],
            "node_type": ["kernel"] * 5,
            "name": ["gemm", "norm", "gemm", "norm", "gemm"],
            "module": ["m.layers.0.fc", "m.norm", "m.layers.1.fc", "m.norm", "m.layers.2.fc"],
            "module_class": ["Linear", "Norm", "Linear", "Norm", "Linear"],
        }
    )
    known, unsure = settled(nodes)
    assert unsure == 2
    assert known.get_column("module").to_list() == [None, "m.norm", None, "m.norm", "m.layers.2.fc"]


def test_paths_number_what_a_parent_has_several_of() -> None:
    def called(name: str, start: int, end: int) -> dict[str, object]:
        return {"name": f"nn.Module: {name}", "pid": 1, "tid": 1, "start_ns": start, "end_ns": end}

    calls = pl.DataFrame(
        [
            called("Model_0", 0, 100),
            called("MambaDecoderLayer_0", 1, 10),
            called("RMSNorm_0", 2, 3),
            called("RMSNorm_1", 4, 5),
            called("RMSNorm_0", 6, 7),  # once more
            called("AttentionDecoderLayer_0", 10, 20),  # begins where the other ends
            called("RotaryEmbedding_0", 12, 13),
            called("MambaDecoderLayer_1", 20, 30),
        ]
    )
    assert with_paths(calls).get_column("module").to_list() == [
        "Model",
        "Model.layers.0",
        "Model.layers.0.RMSNorm_0",
        "Model.layers.0.RMSNorm_1",
        "Model.layers.0.RMSNorm_0",
        "Model.layers.1",
        "Model.layers.1.RotaryEmbedding",
        "Model.layers.2",
    ]


def test_a_folder_without_a_capture_is_refused(tmp_path: Path, profiled: list[dict[str, Any]]) -> None:
    replay = capture_pair.write(tmp_path / "profile-TP-0.trace.json", capture_pair.replayed([KERNELS]))
    trace = open_trace([replay])
    with pytest.raises(UsageError, match="no such file or folder"):
        with_captures(trace, tmp_path / "nothing")
    (tmp_path / "capture_traces").mkdir()
    (tmp_path / "capture_traces" / "execution_details.json").write_text("[]")
    with pytest.raises(UsageError, match="holds no capture trace"):
        with_captures(trace, tmp_path / "capture_traces")
    with pytest.raises(TraceError, match="no captured graph in it"):
        list(with_captures(trace, replay).ranks())


def test_import_names_the_kernels_of_replays_and_points_to_captures(
    tmp_path: Path, profiled: list[dict[str, Any]]
) -> None:
    pair(tmp_path, profiled, [KERNELS])
    replay, output = str(tmp_path / "profile-TP-0.trace.json"), tmp_path / "out" / "trace.parquet"
    output.parent.mkdir()
    run = CliRunner().invoke(app, ["import", replay, "-o", str(output)])
    assert run.exit_code == 0
    assert "holds traces of graph capture: --capture" in run.stderr
    run = CliRunner().invoke(app, ["import", replay, "--capture", str(tmp_path), "-o", str(output), "--force"])
    assert run.exit_code == 0, run.output
    assert "--capture" not in run.stderr
    run = CliRunner().invoke(app, ["layers", str(output), "--json"])
    assert json.loads(run.stdout)["placed"] == 1
    run = CliRunner().invoke(app, ["import", replay, "--capture", "x", "--node-map", "y", "-o", str(output), "--force"])
    assert isinstance(run.exception, UsageError)


@pytest.mark.parametrize(
    ("folder", "replay", "replays", "layers_known"),
    [
        ("sglang_decode", "sglang_Qwen3-8B_decode.json.gz", 1, 36),
        ("vllm_decode_full", "graph_execution.json.gz", 1, 0),
        ("vllm_prefilldecode_piecewise", "graph_execution.json.gz", 25, 0),
    ],
)
def test_real_pairs_of_servers_fit(reference: Path, folder: str, replay: str, replays: int, layers_known: int) -> None:
    """SGLang (Qwen3-8B) and vLLM (gpt-oss, compiled by torch: no modules within) on AMD GPUs, from TraceLens' tests."""
    home = reference / "traces" / "public" / "capture_pairs" / folder
    if not home.is_dir():
        pytest.skip("the pairs of traces are not at hand")
    trace = with_nodes(with_captures(open_trace([home / replay]), home))
    found = layers(trace, phase="decode")
    assert (found.placed, found.replays) == (replays, replays)
    assert found.table.get_column("layer").drop_nulls().n_unique() == layers_known
    assert trace.warnings == []
