"""torch.cuda.graph_annotations beside the node map, for ``nodemap_check``: both note at capture which node belongs where.

torch (2.12 and newer, driver and cuda-bindings from 13.1 on) annotates the nodes of a scope under the id that profilers show at
replay: the executable graph in the high half, the node's ordinal in the low one (torch/cuda/_graph_annotations.py). The map's
ordinals and its number of the executable graph must be the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from speccollect.nodemap.capture import INSTANTIATED, NodeMap, graph_id_of
from speccollect.nodemap.cuda_graph import ORDINAL_MASK, CapturedGraph
from speccollect.nodemap_check.model import LAYERS, TOKENS, WIDTH, Model

Check = Callable[[bool, str], None]
Say = Callable[[str], None]

NEEDS = "driver and cuda-bindings from 13.1 on"


class Marked(Model):
    """The model with a scope of torch's around each layer."""

    def __init__(self, scope: Callable[[str], AbstractContextManager[Any]]) -> None:
        super().__init__(None)
        self.scope = scope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x
        for number, layer in enumerate(self.layers):
            with self.scope(f"layers.{number}"):
                y = layer(y)
        return y


def unavailable() -> str | None:
    """Why this torch annotates no graphs here; None where it does."""
    annotations = getattr(torch.cuda, "graph_annotations", None)
    if annotations is None:
        return f"torch {torch.__version__} has no torch.cuda.graph_annotations"
    return None if annotations.is_available() else f"torch.cuda.graph_annotations needs {NEEDS}"


def compare_annotations(
    annotations: Mapping[int, Sequence[Any]], rows: Mapping[str, Sequence[Any]], executable: int
) -> tuple[int, int, list[str]]:
    """Annotations ``layers.N`` against the map's modules.

    Args:
        annotations: node id -> annotations, as torch.cuda.graph_annotations.get_kernel_annotations has them.
        rows: columns of the graph's node rows.
        executable: the executable graph's id.

    Returns:
        Nodes annotated; those of them that the map has in the same layer; what differs, one line each.
    """
    module = dict(zip(rows["node"], rows["module"], strict=True))
    found, same, differing = 0, 0, []
    for tools_id, notes in annotations.items():
        if tools_id >> 32 != executable:
            continue
        found += 1
        layer, path = str(notes[-1]["name"]), module.get(tools_id & ORDINAL_MASK)
        if path is not None and f".{layer}." in f".{path}.":
            same += 1
        else:
            differing.append(f"node {tools_id & ORDINAL_MASK}: annotated {layer}, the map has {path}")
    return found, same, differing


@torch.no_grad()
def check_annotations(check: Check, say: Say) -> None:
    """Captures a model with both on, and compares node by node."""
    why = unavailable()
    if why is not None:
        say(f"      annotations are not compared: {why}")
        return
    annotations: Any = torch.cuda.graph_annotations  # type: ignore[attr-defined,unused-ignore]
    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, CapturedGraph).install()
    model = Marked(annotations.mark_kernels).to("cuda", torch.bfloat16)
    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x)  # warm up
    torch.cuda.synchronize()
    annotations.clear_kernel_annotations()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, enable_annotations=True):  # type: ignore[call-arg,unused-ignore]
            model(x)
    finally:
        nodemap.remove()
    number = graph_id_of(graph)
    executables = [made for made, captured in INSTANTIATED.items() if captured == number]
    check(len(executables) == 1, f"annotations: the runtime tells the id of the executable graph: {executables}")
    if number is None or number not in noted or not executables:
        return
    found, same, differing = compare_annotations(annotations.get_kernel_annotations(), noted[number], executables[0])
    check(found == same > LAYERS, f"annotations: {same} of {found} annotated nodes lie in the same layer of the map")
    for line in differing[:5]:
        say(f"      {line}")
