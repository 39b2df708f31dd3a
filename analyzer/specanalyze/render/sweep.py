"""A sweep as a person reads it: the points, the line through verify, tok/s by step count, the best setting."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from rich.text import Text

from specanalyze.answers.cycle_account import CLOCKS
from specanalyze.answers.sweep import DRAFT_STEPS, Sweep
from specanalyze.render.recording_name import distinct_names
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, milliseconds, notes, share_bar, table
from specschema.figures import about, counted, percent, rounded


def draw(result: Sweep) -> None:
    """Print the sweep."""
    out = console()
    out.print(_points(result))
    out.print()
    if result.fit.height:
        out.print(_fit(result))
        out.print()
    if result.predictions.height:
        out.print(_predictions(result))
        out.print()
    notes(out, _facts(result))


def _points(result: Sweep) -> object:
    columns = [
        (result.over.replace("_", " "), "right"),
        ("tokens", "right"),
        ("draft ms", "right"),
        ("verify ms", "right"),
        ("extend ms", "right"),
        ("cycle ms", "right"),
        ("accept\nlength", "right"),
        ("tok/s", "right"),
        ("99 % bounds", "right"),
        ("recording", "name"),
    ]
    rows: list[list[str | Text]] = []
    names = dict(
        zip(
            recordings := result.points.get_column("recording").unique(maintain_order=True),
            distinct_names([*recordings]),
            strict=True,
        )
    )
    for r in result.points.iter_rows(named=True):
        name = names[r["recording"]].removesuffix("/trace.parquet")
        speed = r["tokens_per_second"]
        bounds = "–" if r["low"] is None else f"{r['low']:.1f} .. {r['high']:.1f}"
        rows.append(
            [
                r["x"],
                "–" if r["tokens"] is None else about(r["tokens"]),
                milliseconds(r["draft_ns"]),
                milliseconds(r["verify_ns"]),
                milliseconds(r["draft_extend_ns"]),
                milliseconds(r["step_ns"]),
                rounded(r["accept_length"], 2),
                Text(rounded(speed), style="bold green" if r["x"] == result.best else ""),
                bounds,
                name,
            ]
        )
    return table(
        f"sweep over {result.over.replace('_', ' ')}", columns, rows, spare=("recording", "extend ms", "draft ms")
    )


def _fit(result: Sweep) -> object:
    columns = [("verify", "left"), ("fixed ms", "right"), ("99 % bounds", "right"), ("share", "right"), ("", BAR)]
    columns += [("us a token", "right"), ("99 % bounds", "right")]
    rows: list[list[str | Text]] = [
        [
            r["bucket"],
            milliseconds(r["fixed_ns"]),
            _bounds(r["fixed_low_ns"], r["fixed_high_ns"]),
            percent(r["fixed_share"]),
            share_bar(r["fixed_share"]),
            _microseconds(r["slope_ns"]),
            _bounds(r["slope_low_ns"], r["slope_high_ns"], _microseconds),
        ]
        for r in result.fit.iter_rows(named=True)
    ]
    return table(
        f"verify = fixed + slope x tokens, through {counted(result.fit_points, 'point')}",
        columns,
        rows,
        spare=("", "99 % bounds"),
    )


def _microseconds(ns: float) -> str:
    return rounded(ns / 1e3)


def _bounds(low: float | None, high: float | None, written: Callable[[float], str] = milliseconds) -> str:
    """Rounded as the value beside them is, so that it never lies outside."""
    return "–" if low is None or high is None else f"{written(low)} .. {written(high)}"


def _predictions(result: Sweep) -> object:
    columns = [
        ("draft steps", "right"),
        ("accept length", "right"),
        ("cycle ms", "right"),
        ("predicted tok/s", "right"),
        ("measured tok/s", "right"),
    ]
    rows = [
        [
            str(r["draft_steps"]),
            rounded(r["accept_length"], 3),
            milliseconds(r["cycle_ns"]),
            rounded(r["predicted"]),
            rounded(r["measured"]),
        ]
        for r in result.predictions.iter_rows(named=True)
    ]
    return table("by step count: cycle on its line, accept length from acceptance by position", columns, rows)


def _facts(result: Sweep) -> list[str]:
    said = []
    if result.best is not None and result.margin is not None:
        by_x = dict(
            result.points.drop_nulls("tokens_per_second").group_by("x").agg(pl.max("tokens_per_second")).iter_rows()
        )
        what = "draft steps" if result.over == DRAFT_STEPS else result.over.replace("_", " ")
        noise = "beyond noise" if result.clear else "within noise: take the cheaper one, or record both longer"
        said.append(
            f"best: {what} {result.best}, {by_x[result.best]:.1f} tok/s, {percent(result.margin)} above the next "
            f"({result.next_best}, {by_x[result.next_best]:.1f} tok/s), {noise}"
        )
    elif result.points.get_column("tokens_per_second").null_count() == result.points.height:
        said.append("tok/s is unknown: the recordings do not say what was accepted")
    said.append(
        f"draft, verify, extend and the line: mean over whole traced cycles and ranks; cycle and tok/s: {CLOCKS[result.clock]}"
    )
    return said
