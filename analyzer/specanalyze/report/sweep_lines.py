"""Fixed and per-token cost of verify over a sweep, and tok/s measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from specanalyze.answers.best_setting import in_order
from specanalyze.answers.sweep import Sweep, sweep_measured
from specanalyze.render.terminal import milliseconds
from specanalyze.report.palette import recording, shown_as, variable
from specanalyze.report.recorded import Recorded, measured_of
from specanalyze.report.section import Figure, Section, table
from specanalyze.report.vega import rows, specification
from specschema.errors import SpecError, UsageError
from specschema.figures import counted, percent

_TITLE, _QUESTION = "Fixed and per-token cost", "What would fewer or more draft steps cost and bring?"


def sweep_section(
    recordings: Sequence[Recorded], values: Sequence[str] | None = None, *, accept_differences: bool = False
) -> Section:
    """A line through verify's time over its tokens, from two recordings on."""
    speculating = [r for r in recordings if r.main_phase == "verify"]
    if len(speculating) < 2:
        alone = (
            "one speculating recording makes no sweep: give recordings of the same server at other step counts (specanalyze report steps2/ steps3/ steps5/)",
        )
        return Section("sweep", _TITLE, _QUESTION, missing=alone)
    try:
        if values is not None and len(values) != len(speculating):
            raise UsageError(
                f"--values: {counted(len(values), 'value')} for {counted(len(speculating), 'speculating recording')}"
            )
        result = sweep_measured(
            [measured_of(r) for r in speculating], values=values, accept_differences=accept_differences
        )
    except SpecError as error:
        return Section("sweep", _TITLE, _QUESTION, missing=(str(error),))
    named = {r.trace.name: r.label for r in speculating}
    points = result.points.with_columns(pl.col("recording").replace(named))
    figures: list[Figure] = []
    missing: list[str] = []
    if result.fit.height and points.get_column("tokens").null_count() == 0:
        figures.append(_line(result, points))
    else:
        missing.append(
            "no line can be drawn: " + (result.warnings[0] if result.warnings else "verify's tokens are unknown")
        )
    if result.predictions.height or points.get_column("tokens_per_second").null_count() < points.height:
        figures.append(_speed(result, points))
    notes = list(result.warnings)
    if result.best is not None and result.margin is not None:
        sure = "beyond noise" if result.clear else "within noise"
        notes.insert(
            0,
            f"Best measured: {result.over.replace('_', ' ')} {result.best}, {percent(result.margin)} ahead of {result.next_best} ({sure}).",
        )
    return Section("sweep", _TITLE, _QUESTION, tuple(figures), tuple(notes), tuple(missing))


def _line(result: Sweep, points: pl.DataFrame) -> Figure:
    total = result.fit.row(0, named=True)
    fixed, slope = total["fixed_ns"] / 1e6, total["slope_ns"] / 1e6
    most = float(points.select(pl.col("tokens").max()).item())
    line = pl.DataFrame({"tokens": [0.0, most * 1.1], "ms": [fixed, fixed + slope * most * 1.1]})
    seen = points.select("recording", "tokens", ms=pl.col("verify_ns") / 1e6, steps=pl.col("draft_steps"))
    names = points.get_column("recording").unique(maintain_order=True).to_list()
    colours = alt.Scale(domain=names, range=[recording(n) for n in range(len(names))])
    drawn = (
        alt.Chart(rows(line), height=260)
        .mark_line(color=variable("graph_launch"), strokeDash=[5, 4])
        .encode(
            x=alt.X("tokens:Q", title="tokens verified a cycle"),
            y=alt.Y("ms:Q", title="verify, ms a cycle", scale=alt.Scale(zero=True)),
        )
    )
    dots = (
        alt.Chart(rows(seen))
        .mark_circle(size=110, opacity=1)
        .encode(
            x="tokens:Q",
            y="ms:Q",
            color=alt.Color("recording:N", title=None, scale=colours, legend=alt.Legend(orient="top")),
            tooltip=[
                alt.Tooltip("recording:N"),
                alt.Tooltip("steps:Q", title="draft steps"),
                alt.Tooltip("tokens:Q"),
                alt.Tooltip("ms:Q", title="verify ms", format=".3f"),
            ],
        )
    )
    cells = [
        [
            shown_as(r["bucket"]),
            milliseconds(r["fixed_ns"]),
            _bounds(r, "fixed"),
            milliseconds(r["slope_ns"]),
            _bounds(r, "slope"),
            percent(r["fixed_share"]),
        ]
        for r in result.fit.iter_rows(named=True)
    ]
    columns = [
        ("bucket", False),
        ("fixed ms", True),
        ("bounds", True),
        ("ms a token", True),
        ("bounds", True),
        ("share of fixed", True),
    ]
    sign = "+" if round(slope, 3) >= 0 else "−"
    title = f"verify = {fixed:.2f} ms {sign} {abs(slope):.3f} ms a token ({result.fit_points} points)"
    return Figure(
        title,
        "Line through verify time over tokens: its height at zero is the fixed cost, its slope the cost of a token.",
        specification(drawn + dots),
        table(columns, cells, "specanalyze sweep"),
        wide=False,
    )


def _bounds(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_low_ns"], row[f"{name}_high_ns"]
    return "–" if low is None or high is None else f"{milliseconds(low)} to {milliseconds(high)}"


def _speed(result: Sweep, points: pl.DataFrame) -> Figure:
    measured = points.filter(pl.col("tokens_per_second").is_not_null()).select(
        "x", pl.lit("measured").alias("how"), tok_s="tokens_per_second", low="low", high="high"
    )
    predicted = result.predictions.select(
        x=pl.col("draft_steps").cast(pl.String),
        how=pl.lit("predicted"),
        tok_s="predicted",
        low=pl.lit(None, pl.Float64),
        high=pl.lit(None, pl.Float64),
    )
    frame = pl.concat([measured, predicted])
    order = sorted(
        frame.get_column("x").unique().to_list(),
        key=in_order,
    )
    base = alt.Chart(rows(frame), height=260).encode(
        x=alt.X("x:O", sort=order, title=result.over.replace("_", " "), axis=alt.Axis(labelAngle=0))
    )
    scale = alt.Scale(domain=["measured", "predicted"], range=[variable("verify"), variable("draft")])
    speed = base.encode(
        y=alt.Y("tok_s:Q", title="tok/s a request", scale=alt.Scale(zero=False)),
        color=alt.Color("how:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        tooltip=[
            alt.Tooltip("x:O", title=result.over),
            alt.Tooltip("how:N"),
            alt.Tooltip("tok_s:Q", title="tok/s", format=".2f"),
        ],
    )
    # Predicted ones as hollow rings around the measured ones, so that neither hides the other.
    dots = speed.transform_filter("datum.how == 'measured'").mark_point(size=70, filled=True, opacity=1)
    rings = speed.transform_filter("datum.how == 'predicted'").mark_point(size=220, strokeWidth=2, opacity=1)
    bounds = base.transform_filter("datum.how == 'measured'").mark_rule().encode(y="low:Q", y2="high:Q")
    layers = ([bounds] if measured.height else []) + ([rings] if predicted.height else []) + [dots][: measured.height]
    cells = [
        [r["x"], r["how"], f"{r['tok_s']:.2f}", "–" if r["low"] is None else f"{r['low']:.2f} to {r['high']:.2f}"]
        for r in frame.iter_rows(named=True)
    ]
    columns = [(result.over.replace("_", " "), True), ("how", False), ("tok/s", True), ("bounds", True)]
    return Figure(
        "Speed over the setting",
        "Points: tok/s measured, with bounds, and predicted for every step count.",
        specification(alt.LayerChart(layer=layers)),
        table(columns, cells, "specanalyze sweep"),
        wide=False,
    )
