"""The time of each cycle over the request, and how it is spread, traced and untraced."""

from __future__ import annotations

from typing import Final

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.cycles import DECODING
from specanalyze.report.palette import variable
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, table
from specanalyze.report.vega import PERCENT_TICKS, rows, specification

MOST_POINTS: Final = 800
"""More cycles than this are drawn as medians of stretches, with their spread."""
BINS: Final = 60
EDGE: Final = 2.5
"""A plot reaches to this many times the 95th percentile: one hiccup must not flatten all other cycles."""
KINDS: Final = ("untraced", "traced", "disturbed")


def cycle_time_figures(recorded: Recorded) -> list[Figure]:
    """Step over the request and its histogram; empty where no step is known."""
    cycles = recorded.phases.cycles.filter(
        pl.col("rank") == recorded.phases.counted[0], pl.col("mode").is_in(DECODING), pl.col("step_ns") > 0
    ).sort("start_ns")
    if not cycles.height:
        return []
    kind = (
        pl.when(pl.col("window").is_not_null())
        .then(pl.lit("traced"))
        .when(pl.col("control"))
        .then(pl.lit("untraced"))
        .otherwise(pl.lit("disturbed"))
    )
    steps = cycles.select(kind.alias("kind"), ms=pl.col("step_ns") / 1e6)
    # Where the untraced cycles are another run's, each run counts its own.
    place = pl.int_range(1, pl.len() + 1)
    steps = steps.with_columns(cycle=place.over("kind") if recorded.phases.another_run else place)
    return [_over_request(recorded, steps), _histogram(recorded, steps)]


def _edge(values: NDArray[np.float64]) -> float:
    """The longest time shown at its place."""
    return float(min(values.max(), EDGE * np.quantile(values, 0.95)))


def _colour(steps: pl.DataFrame) -> alt.Color:
    used = set(steps.get_column("kind").to_list())
    kinds = [k for k in KINDS if k in used]
    return alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=kinds, range=[variable(k) for k in kinds]),
        legend=alt.Legend(orient="top", symbolOpacity=1),
    )


def _over_request(recorded: Recorded, steps: pl.DataFrame) -> Figure:
    many = steps.height > MOST_POINTS
    stretch = pl.col("cycle") * MOST_POINTS // (steps.height + 1) if many else pl.col("cycle")
    ms = pl.col("ms")
    points = (
        steps.group_by("kind", stretch.alias("_stretch"), maintain_order=True)
        .agg(
            pl.col("cycle").min(),
            pl.len().alias("cycles"),
            ms.median(),
            ms.quantile(0.1).alias("p10"),
            ms.quantile(0.9).alias("p90"),
        )
        .drop("_stretch")
    )
    tip = [
        alt.Tooltip("cycle:Q", title="cycle"),
        alt.Tooltip("ms:Q", title="ms", format=".3f"),
        alt.Tooltip("kind:N", title="observed"),
        alt.Tooltip("cycles:Q", title="cycles together"),
    ]
    base = alt.Chart(rows(points), height=220).encode(
        x=alt.X("cycle:Q", title="n-th decode cycle", scale=alt.Scale(nice=False, zero=False)),
        color=_colour(steps),
        tooltip=tip,
    )
    edge = _edge(steps.get_column("ms").to_numpy())
    beyond = steps.filter(ms > edge).height
    dots = base.mark_circle(size=22, opacity=0.85, clip=True).encode(
        y=alt.Y("ms:Q", title="ms, start to start", scale=alt.Scale(domain=[0, 1.05 * edge]))
    )
    chart = (
        base.mark_rule(strokeWidth=1.5, opacity=0.5, clip=True).encode(y="p10:Q", y2="p90:Q") + dots if many else dots
    )
    cells = [
        [r["kind"], str(r["cycle"]), str(r["cycles"]), f"{r['ms']:.3f}", f"{r['p10']:.3f}", f"{r['p90']:.3f}"]
        for r in points.iter_rows(named=True)
    ]
    columns = [
        ("observed", False),
        ("from cycle", True),
        ("cycles", True),
        ("median ms", True),
        ("p10", True),
        ("p90", True),
    ]
    how = "medians of stretches, with p10 to p90" if many else "one point a cycle"
    how += f"; {beyond} longer than {edge:.1f} ms not shown" if beyond else ""
    return Figure(
        f"{recorded.label}: cycle time over the request ({how})",
        f"Scatter of {steps.height} cycle times in order.",
        specification(chart),
        table(columns, cells, "specanalyze phases TRACE --by cycle"),
        wide=False,
    )


def _histogram(recorded: Recorded, steps: pl.DataFrame) -> Figure:
    values = steps.get_column("ms").to_numpy()
    top = _edge(values)
    low = float(values.min())
    width = max((top - low) / BINS, 0.002 * float(np.median(values)))
    place = ((pl.col("ms") - low) / width).floor().clip(0, BINS)
    bins = steps.with_columns(_bin=place).group_by("kind", "_bin").agg(pl.len().alias("n")).sort("kind", "_bin")
    bins = bins.with_columns(
        share=pl.col("n") / pl.col("n").sum().over("kind"),
        low=low + pl.col("_bin") * width,
        high=low + (pl.col("_bin") + 1) * width,
    ).drop("_bin")
    chart = (
        alt.Chart(rows(bins), height=220)
        .mark_bar(opacity=0.75, binSpacing=0)
        .encode(
            x=alt.X("low:Q", title="cycle, ms", bin="binned", scale=alt.Scale(zero=False)),
            x2="high:Q",
            y=alt.Y("share:Q", title="share of cycles", axis=alt.Axis(labelExpr=PERCENT_TICKS), stack=None),
            color=_colour(steps),
            tooltip=[
                alt.Tooltip("kind:N", title="observed"),
                alt.Tooltip("low:Q", title="from ms", format=".3f"),
                alt.Tooltip("high:Q", title="to ms", format=".3f"),
                alt.Tooltip("n:Q", title="cycles"),
            ],
        )
    )
    cells = []
    for kind in KINDS:
        mine = steps.filter(pl.col("kind") == kind).get_column("ms").to_numpy()
        if len(mine):
            cells.append([kind, str(len(mine)), *(f"{v:.3f}" for v in np.percentile(mine, [0, 10, 50, 90, 99, 100]))])
    columns = [
        ("observed", False),
        ("cycles", True),
        *((f"{q} ms", True) for q in ("least", "p10", "median", "p90", "p99", "most")),
    ]
    return Figure(
        f"{recorded.label}: how cycle times are spread",
        "Histogram of cycle times; the last bin holds what is longer.",
        specification(chart),
        table(columns, cells),
        wide=False,
    )
