"""Which node of its captured CUDA graph each activity of a replay is (design 5.3), and the class this gives it (D5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints, factorize, integers, of_kind, texts
from specschema.kernel_classes import classify
from specschema.module_classes import ModuleClass, classify_modules
from specschema.phases import COMMUNICATION_BUCKETS

DEVICE_NODE_TYPES = ("kernel", "memcpy", "memset")
"""Node types that show an activity when they run; event, host and empty nodes show none."""


@dataclass(frozen=True)
class Graph:
    """Nodes of one captured graph that show activities, in creation order.

    Attributes:
        graph_id: as in the node rows.
        node: ordinal of each.
        kind: node type of each.
        name: kernel name of each as the driver gave it at capture, None where it was not recorded.
        row: row of each in the frame of node rows.
    """

    graph_id: int
    node: Ints
    kind: tuple[str, ...]
    name: tuple[str | None, ...]
    row: Ints


@dataclass
class Placement:
    """Node of each device activity.

    Attributes:
        node_row: row of ``nodes`` for each activity, -1 where no node is known.
        nodes: the node rows.
        modules: class of each row of ``nodes``.
        placed: replays whose activities all found their node.
        by_id: the part of ``placed`` found by node ids, not by order.
        other_count: replays whose number of activities fits no captured graph.
        other_names: replays whose kernels contradict the map: names decide there.
        one_of_several: True for activities of replays that fit several captured graphs whose collectives differ in size at that
            node (batch sizes of one model): its module is known, the size of its message is not.
    """

    node_row: Ints
    nodes: pl.DataFrame
    modules: list[ModuleClass]
    placed: int = 0
    by_id: int = 0
    other_count: int = 0
    other_names: int = 0
    reasons: list[str] = field(default_factory=list)
    one_of_several: NDArray[np.bool_] = field(kw_only=True)


def captured_graphs(nodes: pl.DataFrame) -> list[Graph]:
    """The captured graphs of one rank's ``node`` rows."""
    graph_id, ordinal = integers(nodes, "graph_id", -1), integers(nodes, "node", -1)
    code, kinds = factorize(nodes, "node_type")
    names = texts(nodes, "name")
    shows = np.isin(code, [k for k, kind in enumerate(kinds) if kind in DEVICE_NODE_TYPES])
    graphs = []
    for graph in np.unique(graph_id):
        rows = np.flatnonzero((graph_id == graph) & shows)
        rows = rows[np.argsort(ordinal[rows], kind="stable")]
        types = tuple(kinds[c] for c in code[rows])
        # A node whose name is its type has none of its own.
        own = tuple(
            None if (text := names[r]) in (None, t) else text for r, t in zip(rows.tolist(), types, strict=True)
        )
        graphs.append(Graph(int(graph), ordinal[rows], types, own, rows))
    return graphs


def place(
    events: pl.DataFrame, rows: pl.DataFrame, start: Ints, launch: Ints, is_graph: NDArray[np.bool_]
) -> Placement:
    """Find the node of each activity.

    Node ids that the recording carries are used as they are. Otherwise, among the captured graphs (only the one whose id the
    recording carries, where it does), the n-th activity of a replay by start time is the n-th node, where a graph has as
    many nodes that show activities as the replay has activities, and the types and names agree with it; of several such graphs the first one counts (captures of one model for several batch
    sizes have the same modules).

    Args:
        events: the rank's events, for its node rows.
        rows: the valid device rows.
        start: start of each, ns.
        launch: index of each row's launch call, -1 where none.
        is_graph: per launch call: a graph launch.
    """
    nodes = of_kind(events, ("node",))
    modules = module_classes(nodes)
    result = Placement(
        np.full(len(start), -1, dtype=np.int64), nodes, modules, one_of_several=np.zeros(len(start), dtype=bool)
    )
    if not nodes.height:
        return result
    graphs = captured_graphs(nodes)
    by_id = _place_by_id(nodes, rows, result)
    in_replay = np.flatnonzero((launch >= 0) & np.append(is_graph, False)[launch] & ~by_id)
    order = in_replay[np.lexsort((in_replay, start[in_replay], launch[in_replay]))]
    bounds = np.flatnonzero(np.diff(launch[order], prepend=-1, append=-1))
    name, names = factorize(rows, "name")
    kind, kinds = factorize(rows, "kind")
    signs = _name_signs(names)
    ran = integers(rows, "graph_id", -1)
    shapes: dict[tuple[int, bytes], list[Graph] | str | None] = {}
    elements = integers(nodes, "elements", -1)
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):  # one turn a replay
        members = order[low:high]
        asked = int(ran[members[0]])
        shape = (asked, name[members].tobytes())
        if shape not in shapes:
            candidates = [g for g in graphs if asked in (-1, g.graph_id)]
            shapes[shape] = _fitting(
                candidates, modules, [names[n] for n in name[members]], [kinds[k] for k in kind[members]], signs
            )
        fitting = shapes[shape]
        if isinstance(fitting, list):
            result.node_row[members] = fitting[0].row
            for other in fitting[1:]:
                result.one_of_several[members] |= elements[other.row] != elements[fitting[0].row]
            result.placed += 1
        elif fitting == "names":
            result.other_names += 1
        else:
            result.other_count += 1
    return result


def _place_by_id(nodes: pl.DataFrame, rows: pl.DataFrame, result: Placement) -> NDArray[np.bool_]:
    """Use graph and node ids where the device rows carry ids of captured graphs."""
    graph_id, ordinal = integers(rows, "graph_id", -1), integers(rows, "node", -1)
    known = (graph_id >= 0) & (ordinal >= 0)
    if not known.any():
        return known
    keys = pl.DataFrame(
        {"graph_id": integers(nodes, "graph_id", -1), "node": integers(nodes, "node", -1)}
    ).with_row_index("row")
    asked = pl.DataFrame({"graph_id": graph_id, "node": ordinal})
    found = asked.join(
        keys.unique(["graph_id", "node"], keep="first"), on=["graph_id", "node"], how="left", maintain_order="left"
    )
    row = found.get_column("row").cast(pl.Int64).fill_null(-1).to_numpy()
    hit = known & (row >= 0)
    replay = integers(rows, "correlation", -1)
    wrong = np.isin(replay, replay[hit & _renamed(nodes, rows, np.where(hit, row, 0))])
    result.other_names += len(np.unique(replay[hit & wrong]))
    settled = hit | wrong
    hit &= ~wrong
    result.node_row[:] = np.where(hit, row, -1)
    replays = len(np.unique(replay[hit]))
    result.placed += replays
    result.by_id += replays
    return settled


def _renamed(nodes: pl.DataFrame, rows: pl.DataFrame, row: Ints) -> NDArray[np.bool_]:
    """Kernels whose name is not the one that their node had at capture; False where either is no kernel or has no name."""
    at_capture = nodes.select(
        pl.when(pl.col("node_type").cast(pl.String) == "kernel", pl.col("name").cast(pl.String) != "kernel").then(
            pl.col("name").cast(pl.String)
        )
    ).to_series()
    ran = rows.select(pl.col("name").cast(pl.String), kernel=pl.col("kind").cast(pl.String) == "kernel")
    differs = (at_capture.gather(row) != ran.get_column("name")) & ran.get_column("kernel")
    return differs.fill_null(False).to_numpy()


def module_classes(nodes: pl.DataFrame) -> list[ModuleClass]:
    """Class of the module of each row (columns module, module_class)."""
    paths, classes = texts(nodes, "module"), texts(nodes, "module_class")
    pairs = [(p or "", c or "") for p, c in zip(paths, classes, strict=True)]
    distinct = list(dict.fromkeys(pairs))
    decided = dict(zip(distinct, classify_modules(distinct), strict=True))
    decided[("", "")] = ModuleClass(None, "outside modules")
    return [decided[pair] for pair in pairs]


NO_PRODUCT_IN: Final = frozenset({"norm", "qk_norm", "rotary", "embedding", "topk", "activation", "sampling"})
"""Finer classes of modules that hold no matrix product, so a GEMM there contradicts the map."""
NO_COLLECTIVE_IN: Final = frozenset({"rotary", "qk_norm", "router", "topk", "attention_core", "activation", "qkv_proj"})
"""Finer classes of modules that hold no collective. Norms may: fused allreduce + norm kernels run in them."""
NORM_IN: Final = frozenset({"norm", "qk_norm", "attention_core", "moe_block", "container", "outside modules"})
"""Finer classes of modules that may hold a norm kernel."""


def _name_signs(names: list[str]) -> dict[str, str]:
    """Names that by themselves prove what they are: name -> attention, moe, communication, gemm or norm."""
    signs = {}
    for name in names:
        found = classify(name)
        if found.rule is None:
            continue
        if found.bucket in COMMUNICATION_BUCKETS:
            signs[name] = "communication"
        elif found.bucket in ("attention", "moe", "gemm"):
            signs[name] = found.bucket
        elif found.subclass == "norm":
            signs[name] = "norm"
    return signs


def _fitting(
    graphs: list[Graph], modules: list[ModuleClass], names: list[str], kinds: list[str], signs: dict[str, str]
) -> list[Graph] | str | None:
    """The captured graphs that a replay of these activities may be one of; ``names`` where only the names speak against them."""
    fits_count = False
    found = []
    for graph in graphs:
        if len(graph.kind) != len(names):
            continue
        fits_count = True
        if all(
            _agrees(node_kind, node_name, modules[row], kind, signs.get(name), name)
            for node_kind, node_name, row, kind, name in zip(
                graph.kind, graph.name, graph.row.tolist(), kinds, names, strict=True
            )
        ):
            found.append(graph)
    return found or ("names" if fits_count else None)


def _agrees(node_kind: str, node_name: str | None, module: ModuleClass, kind: str, sign: str | None, name: str) -> bool:
    """Whether an activity can be this node. Copies of a graph may run as kernels named memcpy*, never the other way.

    A kernel name recorded at capture proves it alone; without one the class that the name suggests must fit the module.
    """
    if node_kind != kind and not (
        node_kind in ("memcpy", "memset") and kind == "kernel" and name.startswith(("mem", "copy"))
    ):
        return False
    if node_name is not None and node_kind == kind == "kernel":
        return node_name == name
    if sign is None or module.bucket is None:
        return True
    if sign == "communication":
        return module.subclass not in NO_COLLECTIVE_IN
    if sign == "gemm":
        return module.subclass not in NO_PRODUCT_IN
    if sign == "norm":
        return module.subclass in NORM_IN
    return module.bucket == sign
