"""What a captured graph is made of, for ``nodemap_check``: is it the same graph with the map and without?"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import torch

from speccollect.nodemap.cuda_graph import kernel_name
from specschema.node_types import node_type


class NodeFacts(NamedTuple):
    """One node, as far as the map could change it."""

    type: str
    kernel: str | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared_bytes: int = 0


class GraphFacts(NamedTuple):
    """Nodes in creation order, and how many edges."""

    nodes: tuple[NodeFacts, ...]
    edges: int


def kept_graph() -> Any:
    """A torch graph that keeps its nodes after the capture; None where this torch can't."""
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return None
    return graph if hasattr(graph, "raw_cuda_graph") else None


def graph_facts(graph: Any) -> GraphFacts:
    """Facts of a captured graph of ``kept_graph``.

    Raises:
        RuntimeError: CUDA refuses.
    """
    from cuda.bindings import driver

    raw = driver.CUgraph(int(graph.raw_cuda_graph()))
    count = _answer(driver.cuGraphGetNodes(raw, 0))[-1]
    handles = _answer(driver.cuGraphGetNodes(raw, count))[0][:count] if count else []
    edges = _answer(driver.cuGraphGetEdges(raw, 0))[-1]
    return GraphFacts(tuple(_node_facts(driver, handle) for handle in handles), int(edges))


def _node_facts(driver: Any, handle: Any) -> NodeFacts:
    kind = node_type(int(_answer(driver.cuGraphNodeGetType(handle))[0]))
    if kind != "kernel":
        return NodeFacts(kind)
    p = _answer(driver.cuGraphKernelNodeGetParams(handle))[0]
    grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
    return NodeFacts(kind, kernel_name(int(handle)), grid, block, int(p.sharedMemBytes))


def _answer(answer: Any) -> Any:
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"CUDA answered {error!r}")
    return values


def differences(a: GraphFacts, b: GraphFacts, most: int = 5) -> list[str]:
    """Where two graphs differ, one line each; empty where they are the same."""
    said = []
    if a.edges != b.edges:
        said.append(f"{a.edges} edges and {b.edges}")
    if len(a.nodes) != len(b.nodes):
        kinds = [dict(collections.Counter(node.type for node in g.nodes)) for g in (a, b)]
        said.append(f"{len(a.nodes)} nodes and {len(b.nodes)}: {kinds[0]} and {kinds[1]}")
    odd = [(i, x, y) for i, (x, y) in enumerate(zip(a.nodes, b.nodes, strict=False)) if x != y]
    said += [f"node {i}: {_said(x)} and {_said(y)}" for i, x, y in odd[:most]]
    if len(odd) > most:
        said.append(f"{len(odd) - most} more nodes differ")
    return said


def _said(node: NodeFacts) -> str:
    if node.type != "kernel":
        return node.type
    return f"{(node.kernel or 'kernel')[:60]} grid {node.grid} block {node.block} shared {node.shared_bytes}"


def counts(facts: GraphFacts) -> dict[str, int]:
    """Nodes by type."""
    return dict(collections.Counter(node.type for node in facts.nodes))
