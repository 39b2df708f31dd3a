"""A node map beside an eager recording in the terminal: the count of each rank, then every kind of difference."""

from __future__ import annotations

from typing import Any

import polars as pl

from specanalyze.answers.eager_check import CLASS, MODULE, UNKNOWN, EagerCheck, differences
from specanalyze.render.kernel_name import bare
from specanalyze.render.terminal import console, notes, table
from specschema.figures import counted


def draw(result: EagerCheck, top: int) -> None:
    """Print the counts, and the ``top`` largest kinds of difference."""
    out = console()
    columns = [
        ("rank", "left"),
        ("graph", "right"),
        ("of them\nreplayed", "right"),
        ("eager", "right"),
        ("equal\npairs", "right"),
        ("of them\nreplayed", "right"),
        ("modules\ncompared", "right"),
        ("same\nmodule", "right"),
        ("same\nclass", "right"),
    ]
    names = (
        "graph_kernels",
        "in_replay",
        "eager_kernels",
        "pairs",
        "in_replay_pairs",
        "compared",
        "same_module",
        "same_class",
    )
    ranks = list(result.ranks.iter_rows(named=True))
    rows = [[r["rank"], *(str(r[name]) for name in names)] for r in ranks]
    out.print(table(f"{result.phase}, kernels of one instance each: graph against eager", columns, rows))
    kinds = differences(result)
    unknown = int(kinds.filter(pl.col("verdict") == UNKNOWN)["count"].sum())
    kinds = kinds.filter(pl.col("verdict") != UNKNOWN)
    if kinds.height:
        out.print()
        out.print(
            table(
                f"what differs ({min(top, kinds.height)} of {counted(kinds.height, 'kind')}, layers together)",
                [
                    ("what", "left"),
                    ("count", "right"),
                    ("first at", "right"),
                    ("kernel", "name"),
                    ("module", "left"),
                ],
                [
                    [
                        r["verdict"],
                        str(r["count"]),
                        str(r["eager_place"] if r["graph_place"] is None else r["graph_place"]),
                        bare(r["kernel"]),
                        _module(r),
                    ]
                    for r in kinds.head(top).iter_rows(named=True)
                ],
                spare=("first at",),
            )
        )
    blind = [f"{counted(unknown, 'pair')} with a module unknown on one side or both"] if unknown else []
    alike = (
        f"rank {r['rank']}: of {counted(r[f'{side}_instances'], 'instance')} {side}, {r[f'{side}_alike']} have these very kernels and "
        "modules"
        for r in ranks
        for side in ("graph", "eager")
    )
    notes(out, [*blind, *result.remarks, *alike])


def _module(row: dict[str, Any]) -> str:
    """The module of a row of ``differences``, or both where they differ."""
    graph, eager = row["graph_module"], row["eager_module"]
    if row["verdict"] == CLASS:
        return f"{graph}\n{row['graph_class']} in the graph,\n{row['eager_class']} eagerly"
    if row["verdict"] == MODULE:
        return (
            f"{graph},\nof another layer than eagerly" if graph == eager else f"{graph} in the graph,\n{eager} eagerly"
        )
    return str(graph or eager or "")
