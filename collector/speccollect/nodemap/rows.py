"""Node maps of captured graphs -> rows of kind ``node``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from speccollect.cycles.rows import Origin
from speccollect.parts.table import event_table, joined

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


def graph_table(graph_id: int, columns: Mapping[str, Sequence[Any] | None]) -> pa.Table:
    """Rows of one graph, without rank and pid, which are not known everywhere when graphs are captured.

    Made at capture, while a server starts: from lists of 85 000 nodes it took 0.1 s of the interpreter in the middle of the first steps
    that were recorded, and until then lists are what the server's own garbage collector looks through.

    Args:
        graph_id: the graph's number in this process.
        columns: NODE_COLUMNS and ``name``, all of one length; what is missing or None is null.

    Raises:
        ValueError: columns of different lengths.
    """
    lengths = {len(column) for column in columns.values() if column is not None}
    if len(lengths) != 1:
        raise ValueError(f"node map of graph {graph_id}: columns of different lengths {sorted(lengths)}")
    rows = lengths.pop()
    given = {name: list(column) for name in NODE_COLUMNS if (column := columns.get(name)) is not None}
    given.setdefault("node", list(range(rows)))
    names = columns.get("name")
    return event_table(
        rows,
        {
            "kind": "node",
            # a node without a name of its own is called what it is
            "name": list(names) if names is not None else given.get("node_type", ["node"] * rows),
            "start_ns": 0,
            "dur_ns": 0,
            "graph_id": graph_id,
            **given,
        },
        sparse=True,
    )


def node_table(graphs: Sequence[pa.Table], origin: Origin) -> pa.Table:
    """Rows of every graph.

    Args:
        graphs: ``graph_table`` of each; one at least.
        origin: rank and pid.
    """
    whole = joined(graphs)
    who = event_table(whole.num_rows, {"kind": "node", "rank": origin.rank, "pid": origin.pid}, sparse=True)
    for place, name in enumerate(("rank", "pid"), start=1):  # where the schema has them
        whole = whole.add_column(place, who.schema.field(name), who[name])
    return whole
