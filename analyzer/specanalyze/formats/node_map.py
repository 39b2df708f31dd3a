"""Node maps beside a trace (FILE.nodemap.json): the nodes of each captured CUDA graph and the modules that added them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl

from specanalyze.formats import bounded_json
from specanalyze.formats.event_frame import DTYPES
from specschema.errors import TraceError
from specschema.node_types import node_type

SUFFIX: Final = ".nodemap.json"


class CapturedGraph(msgspec.Struct, frozen=True):
    """One captured graph: how many nodes, the type of each in creation order, and the scopes
    [module path, class, first node, end node, depth] of the modules that added them."""

    nodes: int
    kinds: list[int]
    scopes: list[tuple[str, str, int, int, int]] = []


def read_node_map(path: Path) -> list[CapturedGraph]:
    """Read a node map.

    Raises:
        TraceError: no JSON, or not of the layout above.
    """
    try:
        graphs = bounded_json.decode(msgspec.json.Decoder(list[CapturedGraph]), bounded_json.whole_file(path))
    except msgspec.DecodeError as error:
        raise TraceError(f"{path.name} is no node map (list of graphs with nodes, kinds, scopes): {error}") from None
    for index, graph in enumerate(graphs):
        if len(graph.kinds) != graph.nodes:
            raise TraceError(f"{path.name}: graph {index} has {graph.nodes} nodes but {len(graph.kinds)} kinds")
        if any(not 0 <= first <= end for _, _, first, end, _ in graph.scopes):
            raise TraceError(
                f"{path.name}: graph {index} has a scope that begins before its first node or ends before it begins"
            )
    return graphs


def node_rows(graphs: list[CapturedGraph], rank: int, pid: int | None) -> pl.DataFrame:
    """The nodes as events of kind ``node``.

    Args:
        graphs: captured graphs, in order of capture.
        rank: global rank.
        pid: process that captured them.

    Returns:
        kind, rank, pid, name (the node's type), start_ns 0, dur_ns 0, graph_id (index of the graph), node (ordinal), node_type, module and
        module_class of the innermost scope that holds the node; null where none does. ``window`` is null: a node has no time.
    """
    frames = [_graph_rows(index, graph) for index, graph in enumerate(graphs) if graph.nodes]
    if not frames:
        return pl.DataFrame(schema={c: DTYPES[c] for c in ("kind", "rank", "pid", "name", "start_ns", "dur_ns")})
    rows = pl.concat(frames).with_columns(
        kind=pl.lit("node"),
        rank=pl.lit(rank),
        pid=pl.lit(pid),
        name=pl.col("node_type"),
        start_ns=pl.lit(0),
        dur_ns=pl.lit(0),
    )
    return rows.select(pl.col(c).cast(DTYPES[c]) for c in DTYPES if c in rows.columns)


def _graph_rows(index: int, graph: CapturedGraph) -> pl.DataFrame:
    innermost = np.full(graph.nodes, -1, dtype=np.int64)
    for scope in sorted(range(len(graph.scopes)), key=lambda i: graph.scopes[i][4]):
        _, _, first, end, _ = graph.scopes[scope]
        innermost[first:end] = scope  # deeper scopes come later
    scopes = pl.DataFrame(
        [(i, path, kind) for i, (path, kind, *_) in enumerate(graph.scopes)],
        schema={"scope": pl.Int64, "module": pl.String, "module_class": pl.String},
        orient="row",
    )
    types = [node_type(kind) for kind in graph.kinds]
    nodes = pl.DataFrame({"graph_id": index, "node": np.arange(graph.nodes), "node_type": types, "scope": innermost})
    return nodes.join(scopes, on="scope", how="left", maintain_order="left").drop("scope")
