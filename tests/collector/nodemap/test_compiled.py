"""What a compiled model hides from the node map: vLLM compiles a model's layers into one callable of its own."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_torch

from speccollect.nodemap.capture import NodeMap
from speccollect.nodemap.collectives import Collective, CollectiveWatch
from speccollect.nodemap.cuda_graph import Node
from specschema.module_classes import ModuleClass, classify_modules


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


class Served(nn.Module):
    """As vLLM's ``...ForCausalLM``: a module that runs its layers through compiled code."""

    def __init__(self, graph: Operations) -> None:
        super().__init__()
        self.model = Layers()
        self.norm = nn.LayerNorm(4)
        self.compiled = torch.compile(self.model.forward, backend=graph.compile)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.compiled(x))
        return y


class Operations:
    """The 'graph' on a CPU: what the compiled code calls, in the order of its calls."""

    def __init__(self) -> None:
        self.made: list[Node] = []
        self.compilations = 0

    def compile(self, module: Any, inputs: Any) -> Any:
        self.compilations += 1
        names = [str(node.target) for node in module.graph.nodes if node.op.startswith("call")]

        def run(*args: Any) -> Any:
            self.made += [Node("kernel", name) for name in names]
            return module.forward(*args)

        return run

    def count(self) -> int:
        return len(self.made)

    def nodes(self) -> list[Node]:
        return list(self.made)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of much
@torch.no_grad()
def test_nodes_of_compiled_code_belong_to_the_model_and_names_decide_their_class() -> None:
    noted: dict[int, Any] = {}
    graph = Operations()
    nodemap = NodeMap(noted.__setitem__, lambda: graph)
    model, x = Served(graph), torch.ones(1, 4)
    model(x)
    graph.made.clear()
    nodemap.begin(nn.Module())
    model(x)
    nodemap.end()
    assert graph.compilations == 1  # the hooks that are there during a capture compile nothing anew
    rows = noted[0]
    assert len(rows["name"]) >= 3
    assert set(zip(rows["module"], rows["module_class"], strict=True)) == {("Served", "Served")}
    assert classify_modules([("Served", "Served"), ("GraphModule.submod_1", "GraphModule")]) == [
        ModuleClass(None, "container"),
        ModuleClass(None, "container"),
    ]
    assert not hooks_of_torch._global_forward_pre_hooks


class Coordinator:
    """As vLLM's GroupCoordinator: its method and its custom operator meet in ``_all_reduce_out_place``."""

    unique_name, ranks = "tp:0", (0, 1)

    def __init__(self, graph: Operations) -> None:
        self._graph = graph

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return self._all_reduce_out_place(input_)

    def _all_reduce_out_place(self, input_: torch.Tensor) -> torch.Tensor:
        self._graph.made.append(Node("kernel", "all_reduce"))
        return input_ * 2


def test_collectives_of_compiled_code_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Operations()
    module = type(sys)("vllm.distributed.parallel_state")
    module.GroupCoordinator = Coordinator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", module)
    coordinator = Coordinator(graph)
    watch = CollectiveWatch(graph.count)
    watch.start()
    coordinator.all_reduce(torch.ones(3, 4))  # eager: once, though it comes by both
    coordinator._all_reduce_out_place(torch.ones(5))  # as the operator in compiled code calls it
    watch.stop()
    assert [(span.first, span.end, span.collective) for span in watch.spans] == [
        (0, 1, Collective("allreduce", "float32", 12, "tp:0", (0, 1))),
        (1, 2, Collective("allreduce", "float32", 5, "tp:0", (0, 1))),
    ]
