"""``phases`` in the terminal: device and host side by side, the true clock beside them."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from specanalyze.answers.pace import Pace
from specanalyze.answers.phases_report import TOTAL, PhaseReport
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, milliseconds, notes, share_bar, table
from specschema.figures import counted, percent

RANKS = 4
"""More ranks than this: only the first is drawn; --output writes all."""

ROWS = 40
"""Longer tables are cut here; --output writes all of it."""


def draw(report: PhaseReport, frame: pl.DataFrame, by: str) -> None:
    """Print the report."""
    out = console()
    said = list(report.notes)
    if by == "cycle":
        _draw_cycles(out, report, frame)
    elif by == "request":
        _draw_requests(out, frame)
    else:
        keys = list(report.breakdown)
        shown = keys if len(keys) <= RANKS else keys[:1]
        for key in shown:
            _draw_rank(out, key, frame.filter(pl.col("rank") == key))
            out.print()
        if len(shown) < len(keys):
            said.append(f"{counted(len(keys) - 1, 'more rank')}: --output FILE.csv writes them all")
    if by != "cycle" and report.pace.cycles:
        out.print(_speed(report))
    elif by != "cycle" and report.accept_length is not None:
        said.append(f"accept length {report.accept_length:.3f}")
    if frame.height > ROWS and by != "rank":
        said.append(f"{counted(frame.height - ROWS, 'more row')}: --output FILE.csv writes them all")
    notes(out, said)


def _draw_rank(out: Console, key: str, rows: pl.DataFrame) -> None:
    views = {view: rows.filter(pl.col("view") == view) for view in ("device", "host", "untraced")}
    counts = {view: int(found["cycles"][0]) for view, found in views.items() if found.height}
    whole = {view: int(found["whole_cycles"][0]) for view, found in views.items() if found.height}
    main = next((v for v in ("device", "untraced", "host") if views[v].height), None)
    if main is None:
        return
    order = list(dict.fromkeys(views[main]["phase"].to_list() + rows["phase"].to_list()))
    order.sort(key=lambda p: p == TOTAL)
    cells: list[list[str | Text]] = []
    for phase in order:
        got = {view: found.filter(pl.col("phase") == phase).to_dicts() for view, found in views.items()}
        row: dict[str, Any] = got[main][0] if got[main] else {}
        label = {"draft_extend": "draft extend", TOTAL: "cycle"}.get(phase, phase)
        bar = Text("") if phase == TOTAL else share_bar(row.get("share"))
        cell: list[str | Text] = [label, milliseconds(row.get("mean_ns")), percent(row.get("share")), bar]
        cell += [milliseconds(row.get(q)) for q in ("median_ns", "p10_ns", "p90_ns")]
        for view in ("host", "untraced"):
            if view in counts and view != main:
                cell.append(milliseconds(got[view][0]["median_ns"]) if got[view] else "–")
        cells.append(cell)
    title = {"device": "device view", "host": "host view", "untraced": "host view, untraced"}
    columns = [
        (f"rank {key}", "left"),
        ("mean ms", "right"),
        ("share", "right"),
        ("", BAR),
        ("median", "right"),
        ("p10", "right"),
        ("p90", "right"),
    ]
    columns += [
        (f"{name}\nmedian", "right")
        for view, name in (("host", "host view"), ("untraced", "host view,\nuntraced"))
        if view in counts and view != main
    ]
    said = ", ".join(
        f"{title[v]}: {counted(n, 'cycle')}" + (f" ({whole[v]} whole)" if whole[v] != n else "")
        for v, n in counts.items()
    )
    out.print(table("Cycle by phase, ms", columns, cells, caption=said, spare=("p10", "p90")))


def _speed(report: PhaseReport) -> Any:
    rows: list[list[str]] = []
    for name, pace in (("untraced", report.untraced), ("traced", report.traced)):
        if pace.cycles:
            rows.append([name, *_pace_cells(pace)])
    columns = [
        ("cycles", "left"),
        ("counted", "right"),
        ("median ms", "right"),
        ("tok/s", "right"),
        ("tok/s a\nrequest", "right"),
        ("ms a token\np50", "right"),
        ("p90", "right"),
        ("p99", "right"),
    ]
    speculates = report.cycles.filter(pl.col("mode").is_in(("speculative", "mixed"))).height > 0
    length = "not recorded" if report.accept_length is None else f"{report.accept_length:.3f}"
    said = "tok/s: tokens over the time of the counted cycles; breakeven, compare and diagnose take the median cycle"
    if speculates and report.traced.cycles and report.untraced.cycles:
        said += "; accept length: all verify steps, traced and untraced"
    if report.control is not None and report.control.place is not None:
        said += "; traced and untraced cycles stand at other places of a request whose cycles change: the note on observing compares like with like"
    return table(f"Speed, accept length {length}" if speculates else "Speed", columns, rows, caption=said)


def _pace_cells(pace: Pace) -> list[str]:
    latency = pace.inter_token_ns or (None, None, None)
    return [
        str(pace.cycles),
        milliseconds(pace.step_ns[1] if pace.step_ns else None),
        "–" if pace.tok_s is None else f"{pace.tok_s:.1f}",
        "–" if pace.tok_s_request is None else f"{pace.tok_s_request:.1f}",
        *(milliseconds(v) for v in latency),
    ]


def _draw_cycles(out: Console, report: PhaseReport, frame: pl.DataFrame) -> None:
    names = [p for p in (*report.phases, "other") if f"device_{p}_ns" in frame.columns]
    columns = [
        ("rank", "left"),
        ("cycle", "right"),
        ("window", "right"),
        ("mode", "left"),
        ("step ms", "right"),
        ("tokens", "right"),
    ]
    columns += [(_two_lines(p, view), "right") for view in ("D", "H") for p in names]
    rows = [
        [
            row["rank"],
            *(
                "–" if row[c] is None else str(row[c]).replace("speculative", "spec.")
                for c in ("cycle", "window", "mode")
            ),
            milliseconds(row["step_ns"]),
            "–" if row["tokens"] is None else str(row["tokens"]),
            *(milliseconds(row[f"{view}_{p}_ns"]) for view in ("device", "host") for p in names),
        ]
        for row in _inside_first(frame).head(ROWS).to_dicts()
    ]
    spare = [_two_lines(p, view) for p in ("prefill", "idle", "decode") for view in ("D", "H")]
    spare += [_two_lines(p, "H") for p in names]
    out.print(table("Cycles, ms (D: device, H: host), traced ones first", columns, rows, spare=spare))


def _two_lines(phase: str, view: str) -> str:
    """Header of a phase's column: as narrow as its figures."""
    return f"{phase.replace('_', chr(10))} {view}" if "_" in phase else f"{phase}\n{view}"


def _inside_first(frame: pl.DataFrame) -> pl.DataFrame:
    """Traced cycles before the others: only they have a device view."""
    return frame.sort(pl.col("window").is_null(), "rank", "start_ns", maintain_order=True)


def _draw_requests(out: Console, frame: pl.DataFrame) -> None:
    columns = [
        ("request", "left"),
        ("cycles", "right"),
        ("tokens", "right"),
        ("accept\nlength", "right"),
        ("tok/s", "right"),
        ("step ms", "right"),
        ("step\np10", "right"),
        ("step\np90", "right"),
        ("ms a token\np50", "right"),
        ("p90", "right"),
        ("p99", "right"),
        ("clock", "left"),
    ]
    rows = [
        [
            row["request"],
            str(row["cycles"]),
            str(row["tokens"]),
            "–" if row["accept_length"] is None else f"{row['accept_length']:.3f}",
            f"{row['tok_s']:.1f}",
            *(milliseconds(row[f"step_{q}_ns"]) for q in ("median", "p10", "p90")),
            *(milliseconds(row[f"inter_token_{q}_ns"]) for q in ("p50", "p90", "p99")),
            row["clock"],
        ]
        for row in frame.head(ROWS).to_dicts()
    ]
    out.print(table("Requests", columns, rows, spare=("step\np10", "step\np90")))
