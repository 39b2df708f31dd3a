"""The breakdown as a person reads it at a glance."""

from __future__ import annotations

import numpy as np
import polars as pl
from rich.text import Text

from specanalyze.breakdown import Breakdown, RankBreakdown
from specanalyze.render.terminal import console, milliseconds, notes, percent, share_bar, table
from specschema.phases import BUCKETS

ROWS: tuple[tuple[str, str], ...] = (
    ("graph replay", "graph_gap + graph_launch"),
    ("  gaps inside replays", "graph_gap"),
    ("  launching graphs", "graph_launch"),
    ("allreduce (exposed)", "allreduce"),
    ("other communication", "other_comm"),
    ("MoE", "moe"),
    ("attention", "attention"),
    ("GEMM", "gemm"),
    ("other compute", "other_compute"),
    ("whole replays, kernels unknown", "graph_unresolved"),
    ("copies and fills", "memcpy"),
    ("launching eager work", "launch - graph_launch"),
    ("host", "host"),
)
"""(shown as, sum or difference of columns of the instance table)."""


def _column(formula: str) -> pl.Expr:
    """``a + b`` or ``a - b`` over instance columns."""
    words = formula.split()
    if len(words) == 1:
        return pl.col(words[0])
    left, sign, right = words
    return pl.col(left) + pl.col(right) if sign == "+" else pl.col(left) - pl.col(right)


def draw(result: Breakdown, frame: pl.DataFrame, phase: str, by: str) -> None:
    """Print the breakdown."""
    out = console()
    if by == "cycle":
        _draw_cycles(frame, phase)
        return
    phases = [p for r in result.ranks for p in r.buckets_ns] if phase == "all" else [phase]
    for name in dict.fromkeys(phases):
        for rank in result.ranks:
            if name in rank.buckets_ns:
                _draw_rank(rank, name)
                out.print()
    notes(out, _facts(result, phase))


def _totals(rank: RankBreakdown, phase: str) -> dict[str, int]:
    """Column of the instance table -> ns over the whole phase."""
    buckets = rank.buckets_ns[phase]
    return {b: buckets.get(b, 0) for b in BUCKETS} | {"graph_launch": rank.graph_launch_ns[phase]}


def _draw_rank(rank: RankBreakdown, phase: str) -> None:
    total = rank.total_ns(phase)
    instances = rank.instances[phase]
    whole = rank.phase_instances.filter(pl.col("phase") == phase, pl.col("complete")) if instances else None
    sums = pl.DataFrame([_totals(rank, phase)])
    rows: list[list[str | Text]] = []
    for label, formula in ROWS:
        ns = int(sums.select(_column(formula)).item())
        if not ns:
            continue
        spread: list[str] = ["–"] * 3
        if whole is not None and whole.height:
            values = whole.select(_column(formula)).to_series().to_numpy()
            spread = [milliseconds(float(v)) for v in np.percentile(values, [50, 10, 90])]
        share = ns / total if total else None
        bar = Text("") if label.startswith(" ") else share_bar(share)
        rows.append([label, *spread, milliseconds(ns), percent(share), bar])
    if whole is not None and whole.height:
        values = whole.select(pl.sum_horizontal(*BUCKETS)).to_series().to_numpy()
        rows.append(
            [
                "total",
                *(milliseconds(float(v)) for v in np.percentile(values, [50, 10, 90])),
                milliseconds(total),
                "100.0 %",
                "",
            ]
        )
    else:
        rows.append(["total", "–", "–", "–", milliseconds(total), "100.0 %", ""])
    counted = 0 if whole is None else whole.height
    title = f"{phase}, rank {rank.key}: {instances} instances"
    title += f" ({counted} whole)" if counted != instances else ""
    columns = [
        ("", "left"),
        ("median ms", "right"),
        ("p10", "right"),
        ("p90", "right"),
        ("sum ms", "right"),
        ("share", "right"),
        ("", "left"),
    ]
    console().print(table(title, columns, rows))


def _draw_cycles(frame: pl.DataFrame, phase: str) -> None:
    used = [b for b in BUCKETS if frame.get_column(b).sum()]
    columns = [
        ("rank", "left"),
        ("cycle", "right"),
        ("phase", "left"),
        ("total ms", "right"),
        *((b, "right") for b in used),
    ]
    rows = [
        [r["rank"], str(r["cycle"]), r["phase"], milliseconds(r["total_ns"]), *(milliseconds(r[b]) for b in used)]
        for r in frame.iter_rows(named=True)
    ]
    console().print(table(f"{phase} by cycle, ms", columns, rows))


def _facts(result: Breakdown, phase: str) -> list[str]:
    """What lies beside the table: remainders, hidden time, classification, what cannot be said."""
    said = []
    for r in result.ranks:
        parts = [f"window {milliseconds(r.window_ns)} ms" + (f" in {r.windows} windows" if r.windows > 1 else "")]
        if phase in r.gpu_busy_ns:
            parts.append(f"{phase}'s GPU busy {milliseconds(r.gpu_busy_ns[phase])} ms")
            parts.append(f"hidden communication {milliseconds(r.hidden_comm_ns[phase])} ms")
        for name in ("unattributed", "outside"):
            count, ns = getattr(r, name)
            parts.append(f"{name} {milliseconds(ns)} ms ({count} activities)")
        said.append(f"rank {r.key}: " + ", ".join(parts))
    device = sum(r.device_ns for r in result.ranks)
    ways: dict[str, int] = {}
    for r in result.ranks:
        for way, ns in r.decided_ns.items():
            ways[way] = ways.get(way, 0) + ns
    if device:
        shares = ", ".join(f"{_WAYS.get(way, way)} {percent(ns / device)}" for way, ns in ways.items())
        said.append(f"class of device time: {shares}")
    said.append("buckets of all phases sum to the window to the nanosecond; shares are of the phase's own time")
    if all(r.device == "cpu" for r in result.ranks):
        said.append(
            "recorded on a CPU: operators of the worker's thread stand in for device work; graph replay, launch time, "
            "overlap and waiting on a GPU cannot be read from it"
        )
    return said


_WAYS = {"map": "by module", "name": "by name", "unclassified": "unclassified"}
