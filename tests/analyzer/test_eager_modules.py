"""Eager work takes the module of the innermost module range around its launch call, on the thread that made it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import traces
from torch import nn
from traces import kernel, launch, phase, rank_trace

import speccollect
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.layers import by_layer, layers
from specanalyze.attribution.analysis import analyse
from specanalyze.cli import run
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace
from speccollect.rank.recorder import get_recorder

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

LAYER = (
    ("Model.layers.0.input_layernorm", "RMSNorm", ADD, "other_compute", "norm"),
    ("Model.layers.0.self_attn.qkv_proj", "QKVParallelLinear", GEMM, "gemm", "qkv_proj"),
    ("Model.layers.0.self_attn.attn", "RadixAttention", ADD, "attention", "attention_core"),
    ("Model.layers.0.self_attn.o_proj", "RowParallelLinear", GEMM, "gemm", "o_proj"),
    ("Model.layers.0.self_attn.o_proj", "RowParallelLinear", ALLREDUCE, "allreduce", "allreduce"),
    ("Model.layers.0.mlp.gate", "ReplicatedLinear", GEMM, "moe", "router"),
    ("Model.layers.0.mlp.experts", "FusedMoE", GEMM, "moe", "experts"),
)


def module(path: str, start: int, end: int, module_class: str | None = None, **more: Any) -> dict[str, Any]:
    """A module range as the collector writes it."""
    return phase(f"spec.module {path}", start, end, module=path, module_class=module_class, **more)


def eager_layer() -> list[dict[str, Any]]:
    """One verify: every kernel launched in its module's range, running long after it."""
    rows = [
        phase("spec.verify", 0, 1000),
        module("Model", 5, 900, "Model"),
        module("Model.layers.0", 6, 890, "DecoderLayer"),
    ]
    rows.append(module("Model.layers.0.mlp", 500, 880, "SparseMoeBlock"))
    for i, (path, cls, name, _, _) in enumerate(LAYER):
        at = 10 + 100 * i
        rows.append(module(path, at, at + 50, cls))
        rows += [launch("cudaLaunchKernel", at + 20, i + 1), kernel(name, 1000 + 20 * i, 1010 + 20 * i, i + 1)]
    return rows


def test_eager_kernels_have_the_module_that_launched_them() -> None:
    result = layers(traces.trace(rank_trace(eager_layer())))
    got = [
        (r["module"], r["bucket"], r["subclass"], r["layer"], r["exposed_ns"])
        for r in result.table.iter_rows(named=True)
    ]
    assert sorted(got) == sorted((path, bucket, finer, 0, 10) for path, _, _, bucket, finer in LAYER)
    assert list(dict.fromkeys(path for path, *_ in got)) == list(
        dict.fromkeys(path for path, *_ in LAYER)
    )  # in order of call
    assert (result.placed, result.replays, result.unplaced_ns) == (0, 0, 0)
    (rank,) = break_down(traces.trace(rank_trace(eager_layer()))).ranks
    assert rank.decided_ns == {"map": 70, "name": 0, "unclassified": 0}
    assert rank.buckets_ns["verify"]["moe"] == 20


def test_without_module_ranges_names_decide() -> None:
    rows = [row for row in eager_layer() if "module " not in row["name"]]
    (rank,) = break_down(traces.trace(rank_trace(rows))).ranks
    assert rank.decided_ns["map"] == 0
    assert rank.buckets_ns["verify"]["gemm"] == 40  # the experts' product looks like any other


def test_a_launch_on_another_thread_or_outside_all_modules_is_in_none() -> None:
    rows = [phase("spec.verify", 0, 1000), module("Model.norm", 10, 100, "RMSNorm")]
    rows += [
        launch("cudaLaunchKernel", 50, 1, tid=9),
        launch("cudaLaunchKernel", 100, 2),
        launch("cudaLaunchKernel", 99, 3),
    ]
    rows += [kernel(GEMM, 1000 + 100 * i, 1010 + 100 * i, i) for i in (1, 2, 3)]
    rows.append(kernel(GEMM, 1500, 1510, None))  # its launch call was not recorded
    ((analysis,),) = [[*a.windows] for a in analyse(traces.trace(rank_trace(rows)))]
    placement = analysis.activities.placement
    assert placement is not None
    assert placement.node_row.tolist() == [-1, -1, 0, -1]


def test_two_processes_with_equal_thread_ids_are_kept_apart() -> None:
    rows = [
        phase("spec.verify", 0, 1000),
        module("Model.norm", 10, 100, "RMSNorm", pid=2),
        launch("cudaLaunchKernel", 50, 1),
    ]
    rows.append(kernel(GEMM, 1000, 1010, 1))
    ((analysis,),) = [[*a.windows] for a in analyse(traces.trace(rank_trace(rows)))]
    assert analysis.activities.placement is None


def test_the_node_map_stands_above_the_module_that_launched_the_graph() -> None:
    node = {
        "kind": "node",
        "name": "kernel",
        "pid": 1,
        "start_ns": 0,
        "dur_ns": 0,
        "node_type": "kernel",
        "graph_id": 0,
    }
    rows = [phase("spec.verify", 0, 1000), module("Runner", 10, 300, "Runner"), launch("cudaGraphLaunch", 20, 1)]
    rows += [kernel(ADD, 100, 110, 1), {**node, "node": 0, "module": "Model.norm", "module_class": "RMSNorm"}]
    rows += [
        module("Model.lm_head", 30, 90, "ParallelLMHead"),
        launch("cudaLaunchKernel", 40, 2),
        kernel(GEMM, 200, 210, 2),
    ]
    result = layers(traces.trace(rank_trace(rows)))
    assert result.table.select("module", "subclass", "exposed_ns").rows() == [
        ("Model.norm", "norm", 10),
        ("Model.lm_head", "lm_head", 10),
    ]
    assert (result.placed, result.replays) == (1, 1)


def test_a_trace_without_a_map_or_ranges_says_what_would_have_them(tmp_path: Path) -> None:
    rows = [phase("spec.decode", 0, 100), launch("cudaLaunchKernel", 10, 1), kernel(GEMM, 20, 50, 1)]
    rows += [phase("spec.verify", 200, 300), module("Model.norm", 210, 290), launch("cudaLaunchKernel", 220, 2)]
    rows.append(kernel(ADD, 230, 240, 2))
    with pytest.raises(
        Exception, match=r"replays no graph in decode and has no module ranges there.*--windows modules"
    ):
        layers(traces.trace(rank_trace(rows)), "decode")


# Real torch.profiler output, on a CPU: operators stand in for kernels


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate_up_proj, self.down_proj = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(torch.relu(self.gate_up_proj(self.norm(x))))
        return x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.lm_head = nn.Linear(32, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.lm_head(x)
        return y


CYCLES = 4


def operators_by_module(trace: Trace) -> dict[str | None, Counter[str]]:
    """Module -> operators that have an instant of their own in it, by name."""
    found: dict[str | None, Counter[str]] = {}
    for analysis in analyse(trace):
        for window in analysis.windows:
            acts = window.activities
            assert acts.placement is not None
            modules = [*acts.placement.nodes.get_column("module").cast(pl.String).to_list(), None]
            _, first = np.unique(acts.row, return_index=True)
            for at in first.tolist():
                path = modules[acts.placement.node_row[at]]
                found.setdefault(path, Counter())[acts.names[acts.name[at]]] += 1
    return found


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def ranges_of_torch(net: Net, path: Path) -> Trace:
    """The same forwards under torch.profiler, each module in a record_function of its own."""
    paths = {m: f"Net.{name}" if name else "Net" for name, m in net.named_modules()}
    open_ranges: list[Any] = []

    def enter(m: nn.Module, args: Any) -> None:
        open_ranges.append(torch.profiler.record_function(f"module {paths[m]}"))
        open_ranges[-1].__enter__()

    def leave(m: nn.Module, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = [h for m in net.modules() for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, torch.no_grad():
        for _ in range(CYCLES):
            with torch.profiler.record_function("spec.decode"):
                net(torch.ones(2, 32))
    for handle in handles:
        handle.remove()
    profiler.export_chrome_trace(str(path))
    return open_trace([path], device="cpu")


def recorded(net: Net, path: Path) -> Trace:
    """The same forwards recorded by the collector, with ``modules``."""
    with speccollect.record(path, windows=f"skip=2,warmup=1,record={CYCLES},repeat=1,modules"):
        recorder = get_recorder()
        for _ in range(CYCLES + 8):
            cycle = recorder.begin_cycle("decode", 1, 0, ["a"])
            with recorder.phase("decode"), torch.no_grad():
                net(torch.ones(2, 32))
            recorder.end_cycle(cycle)
            recorder.accept(cycle, [1], None)
    return open_trace([path])


def test_the_collectors_stamps_and_torchs_own_ranges_say_the_same_of_every_operator(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECANALYZE_DIR", raising=False)
    theirs = operators_by_module(ranges_of_torch(net, tmp_path / "rank0.json"))
    ours = operators_by_module(recorded(net, tmp_path / "trace.parquet"))
    modules = {f"Net.layers.{i}.{name}" for i in range(3) for name in ("norm", "gate_up_proj", "down_proj")}
    assert modules | {"Net.lm_head"} <= set(theirs)
    for path in (*sorted(modules), "Net.lm_head", "Net.layers.0"):
        assert ours[path] == theirs[path], path
    assert sum(theirs["Net.lm_head"].values()) >= CYCLES


def test_commands_show_eager_layers(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPECANALYZE_DIR", raising=False)
    trace = recorded(net, tmp_path / "trace.parquet")
    result = layers(trace, "decode")
    assert by_layer(result).get_column("layer").to_list() == [0, 1, 2]
    by_module = dict(result.table.filter(pl.col("bucket") == "gemm").select("module", "subclass").rows())
    assert by_module["Net.lm_head"] == "lm_head"
    assert by_module["Net.layers.1.down_proj"] == "mlp"
    (rank,) = break_down(trace).ranks
    # What is outside every module (argmax, the copies of the loop) takes its share of a CPU, a larger one on a busy machine.
    assert rank.decided_ns["map"] > rank.decided_ns["name"] > 0
    assert rank.decided_ns["unclassified"] == 0
    assert run(["layers", str(tmp_path / "trace.parquet"), "--phase", "decode", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["module"] for row in document["modules"]} >= {"Net.layers.N.down_proj", "Net.lm_head"}
    assert run(["layers", str(tmp_path / "trace.parquet"), "--phase", "decode"]) == 0
    assert "by the module that launched it" in " ".join(capsys.readouterr().out.split())


def test_times_do_not_move_with_module_ranges() -> None:
    with_modules, without = (
        break_down(traces.trace(rank_trace([r for r in eager_layer() if keep or "module " not in r["name"]]))).ranks[0]
        for keep in (True, False)
    )
    busy = [{p: sum(row.values()) for p, row in rank.buckets_ns.items()} for rank in (with_modules, without)]
    assert busy[0] == busy[1]
    assert with_modules.window_ns == without.window_ns
