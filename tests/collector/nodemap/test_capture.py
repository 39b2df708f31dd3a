"""The node map on real modules. A CPU has no CUDA graph, so here a node is an operator that torch dispatches while the
capture lasts: what is tested is which module owns it, which collective it runs, and that nothing stays behind.
The CUDA side is checked on a GPU by ``python -m speccollect.nodemap_check``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.modules import module as hooks_of_torch
from torch.utils._python_dispatch import TorchDispatchMode

from speccollect.nodemap.capture import NodeMap, _collective_of_node, graph_id_of, install
from speccollect.nodemap.collectives import Collective, CollectiveWatch, Span
from speccollect.nodemap.cuda_graph import CapturedGraph, Node, demangled
from speccollect.nodemap.replays import UNKNOWN, ReplayStamps


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The 'graph': operators in the order of their dispatch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Node] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append(Node("kernel", func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))

    def count(self) -> int:
        return len(self.made)

    def nodes(self) -> list[Node]:
        return list(self.made)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y * 2  # the product belongs to the Mlp itself


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Graph:
    """Stands where torch's CUDAGraph does."""


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    yield
    assert not hooks_of_torch._global_forward_pre_hooks
    assert not hooks_of_torch._global_forward_hooks


@pytest.fixture
def operators() -> Operators:
    return Operators()


@torch.no_grad()
def capture(nodemap: NodeMap, operators: Operators, work: Any) -> Graph:
    graph = Graph()
    with operators:
        nodemap.begin(graph)
        work()
        nodemap.end()
    return graph


def test_each_node_belongs_to_the_innermost_module(operators: Operators) -> None:
    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, lambda: operators)
    model, x = Model(), torch.ones(1, 4)
    model(x)  # a warm-up run outside the capture leaves nothing

    def work() -> None:
        torch.add(model(torch.neg(x)), 1)

    graph = capture(nodemap, operators, work)
    assert graph_id_of(graph) == 0
    rows = noted[0]
    assert [row for row in zip(rows["name"], rows["module"], rows["module_class"], strict=True) if row[0] != "t"] == [
        ("neg", None, None),
        ("mm", "Model.layers.0.up", "Linear"),
        ("relu", "Model.layers.0", "Mlp"),
        ("mm", "Model.layers.0.down", "Linear"),
        ("mul", "Model.layers.0", "Mlp"),
        ("mm", "Model.layers.1.up", "Linear"),
        ("relu", "Model.layers.1", "Mlp"),
        ("mm", "Model.layers.1.down", "Linear"),
        ("mul", "Model.layers.1", "Mlp"),
        ("add", None, None),
    ]
    assert {len(column) for column in rows.values()} == {len(operators.made)}


def test_a_module_that_layers_share_is_named_after_the_layer_it_runs_in(operators: Operators) -> None:
    class Layer(nn.Module):
        def __init__(self, rotary: nn.Module) -> None:
            super().__init__()
            self.rotary = rotary

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.rotary(x)
            return y

    shared, x = nn.ReLU(), torch.ones(2)
    noted: dict[int, Any] = {}
    capture(
        NodeMap(noted.__setitem__, lambda: operators),
        operators,
        lambda: nn.Sequential(Layer(shared), Layer(shared))(x),
    )
    assert noted[0]["module"] == ["Sequential.0.rotary", "Sequential.1.rotary"]


def test_graphs_are_numbered_in_order_of_capture(operators: Operators) -> None:
    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, lambda: operators)
    x = torch.ones(2)
    graphs = [capture(nodemap, operators, lambda: torch.neg(x)) for _ in range(3)]
    assert [graph_id_of(graph) for graph in graphs] == [0, 1, 2]
    assert sorted(noted) == [0, 1, 2]
    assert graph_id_of(Graph()) is None


def test_a_model_that_fails_leaves_no_hook(operators: Operators) -> None:
    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, lambda: operators)

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("out of memory, say")

    with operators:
        nodemap.begin(Graph())
        with pytest.raises(ValueError, match="out of memory"):
            nn.Sequential(Mlp(), Failing())(torch.ones(1, 4))
        nodemap.end()
    assert noted[0]["module"][-1] == "Sequential.0"


def test_a_reader_that_fails_costs_the_map_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        asked = 0

        def count(self) -> int:
            self.asked += 1
            if self.asked > 2:
                raise RuntimeError("cudaGraphGetNodes answered 1")
            return 0

        def nodes(self) -> list[Node]:
            raise AssertionError("not asked for a broken map")

    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, Broken)
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        for _ in range(2):
            nodemap.begin(Graph())
            result = Model()(torch.ones(1, 4))
            nodemap.end()
    assert result.shape == (1, 4)
    assert noted == {}
    assert [r.getMessage() for r in caplog.records] == [
        "speccollect: this graph gets no node map: RuntimeError: cudaGraphGetNodes answered 1"
    ]


def test_without_cuda_bindings_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    nodemap = NodeMap(lambda graph_id, rows: None, CapturedGraph)
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        nodemap.begin(Graph())
        nodemap.end()
        nodemap.begin(Graph())
        nodemap.end()
    [record] = caplog.records
    assert record.getMessage().endswith("(pip install cuda-bindings)")


def test_install_wraps_torchs_captures_and_remove_puts_them_back() -> None:
    class Keeper:
        def note_graph(self, graph_id: int, rows: Any) -> None: ...

    graph_class = torch.cuda.graphs.CUDAGraph
    before = dict(vars(graph_class))
    nodemap = install(Keeper())
    changed = {name for name, value in vars(graph_class).items() if value is not before.get(name)}
    assert changed == {"capture_begin", "capture_end"}
    nodemap.remove()
    assert dict(vars(graph_class)) == before


class Coordinator:
    """As SGLang's GroupCoordinator: a group that picks one of several transports."""

    unique_name = "tp:0"
    ranks = (0, 1)

    def __init__(self, device_group: Any) -> None:
        self.device_group = device_group

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        copy = input_.clone()
        torch.distributed.all_reduce(copy, group=self.device_group)
        return copy

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        output.copy_(input)


@pytest.fixture
def process_group(tmp_path: Any) -> Iterator[Any]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.fixture
def coordinator(process_group: Any, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    module = type(sys)("sglang.srt.distributed.parallel_state")
    module.GroupCoordinator = Coordinator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Coordinator(process_group)


def test_collectives_are_noted_above_their_transport(coordinator: Coordinator, operators: Operators) -> None:
    originals = dict(vars(Coordinator)), torch.distributed.all_reduce
    watch = CollectiveWatch(operators.count)
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    with operators:
        watch.start()
        coordinator.all_reduce(x)
        coordinator.all_gather_into_tensor(torch.empty_like(x), x)
        torch.distributed.all_reduce(torch.ones(5))
        watch.stop()
        coordinator.all_reduce(x)
    assert [span.collective for span in watch.spans] == [
        Collective("allreduce", "bfloat16", 12, "tp:0", (0, 1)),
        Collective("allgather", "bfloat16", 12, "tp:0", (0, 1)),
        Collective("allreduce", "float32", 5, coordinator.device_group.group_name, (0,)),
    ]
    assert all(span.end > span.first for span in watch.spans)
    assert (dict(vars(Coordinator)), torch.distributed.all_reduce) == originals


def test_the_collectives_columns_reach_its_kernel_alone() -> None:
    what = Collective("allreduce", "bfloat16", 6144, "tp:0", (0, 1))
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    nodes = [
        Node("kernel", "gemm"),
        Node("event_record"),
        Node("kernel", nccl),
        Node("event_wait"),
        Node("kernel", "elementwise_kernel"),
        Node("kernel", "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>(sglang::RankData*)"),
        Node("kernel", "some_copy"),
        Node("kernel", "another_copy"),
    ]
    spans = [Span(1, 4, what), Span(4, 6, what), Span(6, 8, what)]  # alone; after a copy; names that prove nothing
    found = _collective_of_node(nodes, spans)
    assert [i for i, collective in enumerate(found) if collective is not None] == [2, 5]


def test_kernel_names_are_written_as_profilers_write_them() -> None:
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
    assert demangled(mangled) == (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    assert demangled("_fwd_kernel") == "_fwd_kernel"
    assert demangled("_Znot_a_symbol") == "_Znot_a_symbol"


def test_stamps_tell_which_graph_a_launch_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100, 1000, 10))

    class CUDAGraph:
        def replay(self) -> None: ...

    original = CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", CUDAGraph)
    graphs = [CUDAGraph() for _ in range(3)]
    graphs[0]._speccollect_graph_id = 4  # type: ignore[attr-defined]
    graphs[1]._speccollect_graph_id = 7  # type: ignore[attr-defined]
    stamps = ReplayStamps(capacity=4, clock=lambda: next(ticks))
    stamps.start()
    for graph in (graphs[0], graphs[1], graphs[0], graphs[2], graphs[1]):  # the fifth finds no room
        graph.replay()
    stamps.stop()
    assert CUDAGraph.replay is original
    launches = np.array([99, 105, 121, 130, 145, 165, 175, 185], dtype=np.int64)
    assert stamps.graph_ids(launches).tolist() == [UNKNOWN, 4, 7, 7, 4, UNKNOWN, UNKNOWN, UNKNOWN]
    correlations = np.arange(50, 58)[::-1].copy()  # of the eight launches; ids need not rise with time
    activities = np.array([57, 56, 56, 53, 12, 99], dtype=np.int64)
    assert stamps.of_activities(launches, correlations, activities).tolist() == [UNKNOWN, 4, 4, 4, UNKNOWN, UNKNOWN]
    assert stamps.of_activities(launches[:0], correlations[:0], activities[:1]).tolist() == [UNKNOWN]
    stamps.start()
    stamps.stop()
    assert stamps.graph_ids(launches).tolist() == [UNKNOWN] * 8
