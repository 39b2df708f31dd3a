"""Node maps of captured graphs -> rows of kind ``node``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from speccollect.cycles.rows import Origin
from speccollect.parts.table import event_table

NODE_COLUMNS: Final = (
    "node",
    "node_type",
    "module",
    "module_class",
    "op",
    "dtype",
    "elements",
    "group",
    "group_ranks",
)


def node_table(graphs: Mapping[int, Mapping[str, Sequence[Any]]], origin: Origin) -> pa.Table:
    """Rows of every graph.

    Args:
        graphs: graph id -> columns (NODE_COLUMNS and ``name``), all of one length within a graph.
        origin: rank and pid.

    Raises:
        ValueError: columns of different lengths.
    """
    tables = []
    for graph_id, columns in graphs.items():
        lengths = {len(column) for column in columns.values() if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"node map of graph {graph_id}: columns of different lengths {sorted(lengths)}")
        rows = lengths.pop()
        given = {name: list(columns[name]) for name in NODE_COLUMNS if columns.get(name) is not None}
        given.setdefault("node", list(range(rows)))
        names = columns.get("name")
        tables.append(
            event_table(
                rows,
                {
                    "kind": "node",
                    "rank": origin.rank,
                    "pid": origin.pid,
                    # a node without a name of its own is called what it is
                    "name": list(names) if names is not None else given.get("node_type", ["node"] * rows),
                    "start_ns": 0,
                    "dur_ns": 0,
                    "graph_id": graph_id,
                    **given,
                },
            )
        )
    return pa.concat_tables(tables)
