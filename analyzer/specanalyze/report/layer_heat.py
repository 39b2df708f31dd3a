"""Inside the graph replay: a heat map of layers, and the modules that take most."""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import polars as pl

from specanalyze.answers.layers import by_layer, by_module
from specanalyze.render.terminal import milliseconds
from specanalyze.report.palette import NAMES, shown_as, variable
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, table
from specanalyze.report.vega import CHANGE_TICKS, percent_text, rows, specification
from specschema.figures import counted, percent

SCHEME: Final = "cividis"
"""Reads the same to the colour-blind and in grey."""


LEAST_SPAN: Final = 0.1
"""Share of the median layer at the ends of the colours, at least: a few per cent are noise and must not look like more."""


def layer_figures(recorded: Recorded) -> list[Figure]:
    """Layer by bucket (mean over ranks), layer by rank where there are several, and the modules."""
    found = recorded.layers
    if found is None:
        return []
    inside = found.table.filter(pl.col("layer").is_not_null())
    figures = []
    if inside.height:
        ranks = found.table.get_column("rank").n_unique()
        spent = inside.group_by("layer", "bucket", maintain_order=True).agg(
            (pl.col("median_ns").sum() / ranks).alias("ns")
        )
        gaps = inside.group_by("layer", maintain_order=True).agg(
            pl.lit("graph_gap").alias("bucket"), (pl.col("median_gap_ns").sum() / ranks).alias("ns")
        )
        cells = pl.concat([spent, gaps.select(spent.columns)]).sort("layer")
        order = (
            cells.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", descending=True).get_column("bucket").to_list()
        )
        figures.append(_by_bucket(recorded, cells, order))
        if ranks > 1:
            figures.append(_by_rank(recorded, by_layer(found)))
    figures.append(_modules(recorded))
    return figures


def _by_bucket(recorded: Recorded, cells: pl.DataFrame, order: list[str]) -> Figure:
    wide = cells.pivot(on="bucket", index="layer", values="ns").with_columns(pl.col(order).fill_null(0.0))
    lines = [[str(r["layer"]), *(f"{r[b] / 1e3:.1f}" for b in order)] for r in wide.iter_rows(named=True)]
    columns = [("layer", True), *((f"{b.replace('_', ' ')} µs", True) for b in order)]
    shown = cells.with_columns(pl.col("bucket").replace(NAMES), us=pl.col("ns") / 1e3).drop("ns")
    title = f"{recorded.label}: median µs a replay by layer, mean over ranks"
    words = f"Heat map of {counted(cells['layer'].n_unique(), 'layer')} by {', '.join(order)}."
    return Figure(
        title,
        words,
        _heat(shown, "bucket", [shown_as(b) for b in order]),
        table(columns, lines, "specanalyze layers TRACE"),
    )


def _by_rank(recorded: Recorded, layers: pl.DataFrame) -> Figure:
    ranks = layers.get_column("rank").unique(maintain_order=True).to_list()
    middle = pl.col("total_ns").median().over("rank")
    shown = layers.select(
        "layer",
        bucket=pl.format("rank {}", "rank"),
        us=pl.col("total_ns") / 1e3,
        apart=pl.when(middle > 0).then(pl.col("total_ns") / middle - 1),
    )
    lines = [
        [
            r["rank"],
            str(r["layer"]),
            f"{r['total_ns'] / 1e3:.1f}",
            f"{r['communication_ns'] / 1e3:.1f}",
            f"{r['gap_ns'] / 1e3:.1f}",
            "stands out" if r["outlier"] else "–",
        ]
        for r in layers.iter_rows(named=True)
    ]
    columns = [
        ("rank", False),
        ("layer", True),
        ("total µs", True),
        ("communication µs", True),
        ("gaps µs", True),
        ("outlier", False),
    ]
    title = f"{recorded.label}: whole layers, how far from the rank's median layer"
    return Figure(
        title,
        f"Heat map of layers by {counted(len(ranks), 'rank')}.",
        _heat(shown, "bucket", [f"rank {r}" for r in ranks], _apart(shown)),
        table(columns, lines, "specanalyze layers TRACE"),
    )


_FROM_ZERO: Final = alt.Color(
    "us:Q",
    title="µs",
    scale=alt.Scale(scheme=SCHEME, domainMin=0),
    legend=alt.Legend(orient="top", gradientLength=220, gradientThickness=10),
)


def _apart(frame: pl.DataFrame) -> alt.Color:
    """Layers of a model are alike: what is worth a colour is how far one is from the others, from LEAST_SPAN on."""
    furthest = max(LEAST_SPAN, float(frame.select(pl.col("apart").abs().max()).item() or 0.0))
    return alt.Color(
        "apart:Q",
        title="from the median layer",
        scale=alt.Scale(scheme=SCHEME, domain=[-furthest, furthest]),
        legend=alt.Legend(orient="top", gradientLength=220, gradientThickness=10, labelExpr=CHANGE_TICKS),
    )


def _heat(frame: pl.DataFrame, row: str, order: list[str], colour: alt.Color = _FROM_ZERO) -> dict[str, Any]:
    layers = frame.get_column("layer").n_unique()
    chart = (
        alt.Chart(rows(frame), height=26 * len(order))
        .transform_calculate(from_median=percent_text("apart", "+"))
        .mark_rect(stroke="var(--paper)", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "layer:O",
                title="layer",
                axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=layers <= 40, domain=False),
            ),
            y=alt.Y(
                f"{row}:N",
                sort=order,
                title=None,
                axis=alt.Axis(domain=False, ticks=False, labelLimit=200, minExtent=110),
            ),
            color=colour,
            tooltip=[
                alt.Tooltip("layer:O", title="layer"),
                alt.Tooltip(f"{row}:N", title="what"),
                alt.Tooltip("us:Q", title="µs", format=",.2f"),
                *([alt.Tooltip("from_median:N", title="from the median")] if "apart" in frame.columns else []),
            ],
        )
    )
    return specification(chart)


def _modules(recorded: Recorded) -> Figure:
    assert recorded.layers is not None
    modules = by_module(recorded.layers)
    named = modules.with_columns(pl.col("module").fill_null("(no module)"), pl.col("module_class").fill_null("–"))
    lines = [
        [
            r["rank"],
            r["module"],
            r["module_class"],
            shown_as(r["bucket"]),
            str(r["activities"]),
            milliseconds(r["exposed_ns"]),
            milliseconds(r["gap_before_ns"]),
            percent(r["share"]),
        ]
        for r in named.iter_rows(named=True)
    ]
    columns = [
        ("rank", False),
        ("module", False),
        ("class", False),
        ("bucket", False),
        ("activities", True),
        ("exposed ms", True),
        ("gaps before ms", True),
        ("share", True),
    ]
    spent = pl.col("exposed_ns") + pl.col("gap_before_ns")
    top = (
        named.group_by("module", "bucket", maintain_order=True)
        .agg((spent.sum() / 1e6).alias("ms"), pl.col("share").mean())
        .sort("ms", descending=True)
        .head(15)
    )
    buckets = top.get_column("bucket").unique(maintain_order=True).to_list()
    top = top.with_columns(pl.col("bucket").replace(NAMES), pl.col("module").str.slice(-60).alias("module"))
    order = top.get_column("module").unique(maintain_order=True).to_list()
    chart = (
        alt.Chart(rows(top), height=22 * len(order))
        .transform_calculate(part=percent_text("share"))
        .mark_bar()
        .encode(
            y=alt.Y("module:N", sort=order, title=None, axis=alt.Axis(labelLimit=380, domain=False, ticks=False)),
            x=alt.X("ms:Q", title="ms, all ranks together, the gap before included"),
            color=alt.Color(
                "bucket:N",
                title=None,
                scale=alt.Scale(domain=[shown_as(b) for b in buckets], range=[variable(b) for b in buckets]),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=[
                alt.Tooltip("module:N"),
                alt.Tooltip("bucket:N"),
                alt.Tooltip("ms:Q", format=".3f"),
                alt.Tooltip("part:N", title="share"),
            ],
        )
    )
    return Figure(
        f"{recorded.label}: modules that take most",
        "Bars of the fifteen modules that take most time.",
        specification(chart),
        table(columns, lines, "specanalyze layers TRACE"),
    )
