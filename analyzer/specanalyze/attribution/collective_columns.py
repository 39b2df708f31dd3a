"""What is known of each communication kernel besides its times: from its own row, its graph node, or its name."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import Activities
from specanalyze.collectives import operation
from specanalyze.columns import Ints
from specschema.communication import describe

TOLD: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "dtype": pl.String(),
    "elements": pl.Int64(),
    "group": pl.String(),
    "group_ranks": pl.List(pl.Int32()),
}
"""Columns that the framework tells: on eager kernels' rows, and on the nodes of captured graphs."""
_SPELLING: Final = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
"""Element types in names -> as torch calls them."""
NAMED: Final = ("algorithm", "protocol", "library")
"""Columns that only the kernel's name tells."""


def collective_columns(activities: Activities, index: Ints) -> pl.DataFrame:
    """Columns TOLD, then NAMED, of some activities.

    Args:
        activities: of one rank and window.
        index: which of them.

    Returns:
        One row each. Where the row itself does not tell a column, its node does; where neither does, the name gives the
        operation and the element type; null where nothing does.
    """
    own = told(activities.rows[activities.row[index]])
    placement = activities.placement
    if placement is not None and placement.nodes.height:
        node = np.where(placement.one_of_several[index], -1, placement.node_row[index])
        own = with_nodes(own, told(placement.nodes), node)
    return described(own, activities.rows[activities.row[index]].get_column("name"))


def with_nodes(own: pl.DataFrame, nodes: pl.DataFrame, node: NDArray[Any]) -> pl.DataFrame:
    """Columns TOLD, completed by what nodes of captured graphs tell.

    Args:
        own: columns TOLD.
        nodes: the same of the node rows.
        node: row of ``nodes`` for each row, -1 where none is known.
    """
    of_rows = nodes[np.maximum(node, 0)]
    known = pl.Series(node >= 0)
    return own.with_columns(
        pl.when(pl.col(name).is_null() & known).then(of_rows.get_column(name)).otherwise(pl.col(name)).alias(name)
        for name in TOLD
    )


def described(own: pl.DataFrame, name: pl.Series) -> pl.DataFrame:
    """Columns TOLD, completed by what kernel names tell, then NAMED.

    Args:
        own: columns TOLD.
        name: kernel name of each row.
    """
    names = pl.DataFrame({"_name": name.cast(pl.String)})
    distinct = names.get_column("_name").unique(maintain_order=True).drop_nulls().to_list()
    said = [describe(name) for name in distinct]
    table = pl.DataFrame(
        {
            "_name": distinct,
            "_op": [s.operation for s in said],
            "_dtype": [_SPELLING.get(s.dtype, s.dtype) if s.dtype else None for s in said],
            "algorithm": [s.algorithm for s in said],
            "protocol": [s.protocol for s in said],
            "library": [s.library for s in said],
        },
        schema=dict.fromkeys(("_name", "_op", "_dtype", *NAMED), pl.String),
    )
    by_name = names.join(table, on="_name", how="left", maintain_order="left")
    return pl.concat([own, by_name], how="horizontal").select(
        pl.coalesce("op", "_op").alias("op"),
        pl.coalesce("dtype", "_dtype").alias("dtype"),
        "elements",
        "group",
        "group_ranks",
        *NAMED,
    )


def told(rows: pl.DataFrame) -> pl.DataFrame:
    """Columns TOLD of some rows, null where they have none."""
    columns = [
        rows.get_column(name).cast(dtype)
        if name in rows.columns
        else pl.Series(name, [None] * rows.height, dtype=dtype)
        for name, dtype in TOLD.items()
    ]
    frame = pl.DataFrame([c.alias(name) for c, name in zip(columns, TOLD, strict=True)])
    ops = {text: operation(text) for text in frame.get_column("op").unique().drop_nulls().to_list()}
    return frame.with_columns(pl.col("op").replace_strict(ops, default=None, return_dtype=pl.String))
