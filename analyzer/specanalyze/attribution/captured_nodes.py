"""The nodes of one rank's captured CUDA graphs, and the modules that added them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.columns import Ints, factorize, integers, of_kind, texts
from specschema.module_classes import ModuleClass, classify_modules

DEVICE_NODE_TYPES: Final = ("kernel", "memcpy", "memset")
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


def module_classes(nodes: pl.DataFrame) -> list[ModuleClass]:
    """Class of the module of each row (columns module, module_class)."""
    paths, classes = texts(nodes, "module"), texts(nodes, "module_class")
    pairs = [(p or "", c or "") for p, c in zip(paths, classes, strict=True)]
    distinct = list(dict.fromkeys(pairs))
    decided = dict(zip(distinct, classify_modules(distinct), strict=True))
    decided[("", "")] = ModuleClass(None, "outside modules")
    return [decided[pair] for pair in pairs]


@dataclass(frozen=True)
class NodeMap:
    """What a rank's node rows say, looked at once.

    Attributes:
        rows: the node rows.
        modules: class of the module of each.
        graphs: the captured graphs.
        elements: elements of the collective of each row, -1 where it has none.
    """

    rows: pl.DataFrame
    modules: list[ModuleClass]
    graphs: list[Graph]
    elements: Ints

    @staticmethod
    def of(events: pl.DataFrame) -> NodeMap:
        """The node map of one rank's events."""
        rows = of_kind(events, ("node",))
        return NodeMap(rows, module_classes(rows), captured_graphs(rows), integers(rows, "elements", -1))
