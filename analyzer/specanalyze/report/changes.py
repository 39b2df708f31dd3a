"""Two recordings against each other: environment first, then what moved beyond noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from specanalyze.answers.compare import FASTER, ONLY, SLOWER, Comparison, compare_measured
from specanalyze.render.terminal import milliseconds, signed_ms
from specanalyze.report.palette import NAMES, variable
from specanalyze.report.recorded import Recorded, measured_of
from specanalyze.report.section import Figure, Section, table
from specanalyze.report.vega import rows, specification
from specschema.errors import SpecError
from specschema.figures import change

_WHERE = {
    "cycle": "outside phases",
    "between": "between phases",
    "typical": "median instead of mean",
    "observing": "untraced instead of traced",
    "elsewhere": "whole recording instead of windows",
    "rest": "rest of the cycle",
}
"""Parts of the cycle that are no leaf phases, see ``cycle_account.PARTS``."""


def changes_section(recordings: Sequence[Recorded], *, accept_differences: bool = False) -> Section:
    """The first recording against its baseline, and the others against the first."""
    title, question = (
        "What moved",
        "Between two recordings: what differs in the environment, and which time moved beyond noise?",
    )
    first = next(r for r in recordings if not r.baseline)
    pairs = [(r, first) if r.baseline else (first, r) for r in recordings if r is not first]
    if not pairs:
        return Section(
            "changes", title, question, missing=("one recording cannot move: give a second one, or --baseline",)
        )
    figures: list[Figure] = []
    notes: list[str] = []
    missing: list[str] = []
    for before, after in pairs:
        try:
            result = compare_measured(measured_of(before), measured_of(after), accept_differences=accept_differences)
        except SpecError as error:
            missing.append(str(error))
            continue
        name = f"{before.label} → {after.label}"
        differ = ", ".join(
            f"{d.name}: {d.before or 'not recorded'} → {d.after or 'not recorded'}" for d in result.differences[:12]
        )
        notes.append(
            f"{name}: {'the environments differ: ' + differ if differ else 'no fact of the environment that both recorded differs'}."
        )
        notes += [f"{name}: {line}" for line in result.warnings]
        figures.append(_figure(name, result))
    return Section("changes", title, question, tuple(figures), tuple(dict.fromkeys(notes)), tuple(missing))


def _figure(name: str, result: Comparison) -> Figure:
    where = (
        pl.concat_str(
            pl.col("phase").replace(_WHERE).fill_null("whole cycle"),
            pl.col("bucket").replace(NAMES).fill_null(""),
            separator=" ",
        )
        .str.strip_chars()
        .str.replace_all("_", " ")
    )
    moved = result.table.with_columns(where=where)
    side = (
        pl.when(pl.col("verdict").is_in([SLOWER]) | ((pl.col("verdict") == ONLY) & (pl.col("change_ns") > 0)))
        .then(pl.lit("slower"))
        .when(pl.col("verdict").is_in([FASTER]) | (pl.col("verdict") == ONLY))
        .then(pl.lit("faster"))
        .otherwise(pl.lit("small or within noise"))
    )
    ms = [
        (pl.col(c) / 1e6).alias(c.removesuffix("_ns"))
        for c in ("change_ns", "low_ns", "high_ns", "before_ns", "after_ns")
    ]
    said = pl.Series("said", [signed_ms(ns) for ns in moved.get_column("change_ns")])
    drawn = (
        moved.with_columns(said)
        # What has no bounds is in the table alone: no bar could say whether it moved.
        .filter(pl.col("scope") != "part", (pl.col("scope") != "rest") | pl.col("low_ns").is_not_null())
        .select("where", "scope", side.alias("side"), "said", *ms)
    )
    worth = drawn.filter((pl.col("scope") != "bucket") | (pl.col("change").abs() > 0.01 * pl.col("after").max()))
    cells = [
        [
            r["where"],
            r["scope"],
            milliseconds(r["before_ns"]),
            milliseconds(r["after_ns"]),
            signed_ms(r["change_ns"]),
            _bounds(r),
            change(r["change_share"], 1),
            r["verdict"],
        ]
        for r in moved.iter_rows(named=True)
    ]
    columns = [
        ("where", False),
        ("scope", False),
        ("before ms", True),
        ("after ms", True),
        ("change ms", True),
        ("99 % bounds", True),
        ("change", True),
        ("verdict", False),
    ]
    return Figure(
        f"{name}: change of a cycle, ms",
        "Bars of the change of each phase and bucket with its bounds; right is slower.",
        _chart(worth),
        table(columns, cells, "specanalyze compare"),
    )


def _bounds(row: Mapping[str, Any]) -> str:
    low, high = row["low_ns"], row["high_ns"]
    return "–" if low is None or high is None else f"{signed_ms(low)} to {signed_ms(high)}"


def _chart(frame: pl.DataFrame) -> dict[str, Any]:
    order = frame.get_column("where").unique(maintain_order=True).to_list()
    scale = alt.Scale(
        domain=["slower", "faster", "small or within noise"],
        range=[variable("slower"), variable("faster"), variable("undecided")],
    )
    base = alt.Chart(rows(frame), height=22 * len(order)).encode(
        y=alt.Y("where:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, domain=False, ticks=False))
    )
    bars = base.mark_bar().encode(
        x=alt.X("change:Q", title="ms a cycle; right is slower"),
        color=alt.Color("side:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        tooltip=[
            alt.Tooltip("where:N"),
            alt.Tooltip("before:Q", title="before ms", format=".3f"),
            alt.Tooltip("after:Q", title="after ms", format=".3f"),
            alt.Tooltip("said:N", title="change ms"),
            alt.Tooltip("side:N", title="verdict"),
        ],
    )
    return specification(bars + base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q"))
