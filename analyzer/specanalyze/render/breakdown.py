"""The breakdown as a person reads it at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from rich.text import Text

from specanalyze.answers.breakdown import Breakdown
from specanalyze.answers.calibration import Calibration
from specanalyze.answers.control import WHOLE
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, milliseconds, notes, share_bar, table
from specschema.figures import change, counted, percent
from specschema.phases import BUCKETS

ROWS: tuple[tuple[str, str], ...] = (
    ("graph replay", "graph_gap + graph_launch"),
    ("  gaps in replays", "graph_gap"),
    ("  graph launches", "graph_launch"),
    ("allreduce (exposed)", "allreduce"),
    ("other communication", "other_comm"),
    ("MoE", "moe"),
    ("attention", "attention"),
    ("GEMM", "gemm"),
    ("other compute", "other_compute"),
    ("unresolved replays", "graph_unresolved"),
    ("copies and fills", "memcpy"),
    ("eager launches", "launch - graph_launch"),
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


_BAR = 12
"""Columns of a whole bar: at 80 columns an estimate must keep its bounds beside it (rule D6)."""

ALLREDUCE_ROW = "allreduce (exposed)"

IDLE_ROWS = ("graph replay", "  gaps in replays", "  graph launches", "eager launches", "host")
"""Rows made of idle time alone: observing makes these dearer, so they are what a calibration scales (rule D6)."""


def draw(
    result: Breakdown, frame: pl.DataFrame, phase: str, by: str, calibrations: Mapping[str, Calibration] | None = None
) -> None:
    """Print the breakdown."""
    out = console()
    if by == "cycle":
        _draw_cycles(frame, phase)
        return
    phases = [p for r in result.ranks for p in r.buckets_ns] if phase == "all" else [phase]
    for name in dict.fromkeys(phases):
        for rank in result.ranks:
            if name in rank.buckets_ns:
                _draw_rank(rank, name, (calibrations or {}).get(rank.key), result.waiting(rank.key, name))
                out.print()
    profiled = {r.key for r in result.ranks if r.device_ns}  # of the others the warnings tell
    said = [*_facts(result, phase), *(_observed(c) for c in (calibrations or {}).values() if c.rank in profiled)]
    if any(c.scale is not None for c in (calibrations or {}).values()):
        said.append(
            "median, p10 and p90 are over whole instances; the untraced estimate and its bounds are means over instances"
        )
    notes(out, said)


def _totals(rank: RankBreakdown, phase: str) -> dict[str, int]:
    """Column of the instance table -> ns over the whole phase."""
    buckets = rank.buckets_ns[phase]
    return {b: buckets.get(b, 0) for b in BUCKETS} | {"graph_launch": rank.graph_launch_ns[phase]}


def _observed(calibration: Calibration) -> str:
    """The observer effect of this trace, or why it is unknown (rule D6)."""
    if calibration.reason is not None or calibration.untraced_ns is None or calibration.measured_ns is None:
        return f"{calibration.reason}; launch, gap and host times are as the profiler distorted them"
    untraced, mean, traced = calibration.untraced_ns.value, calibration.measured_ns, calibration.traced_ns
    effect = "the median of the traced cycles is not known"
    if traced is not None:
        effect = (
            f"observing made the median cycle {milliseconds(traced)} ms long instead of {milliseconds(untraced)} "
            f"({change(traced / untraced - 1)})"
        )
    whole = calibration.control is None or calibration.control == WHOLE
    control = "untraced median" if whole else f"typical one of {calibration.control}"
    reached = f"which makes the mean traced cycle ({milliseconds(mean)} ms) the {control} ({milliseconds(untraced)})"
    if not calibration.scale:
        reached = "since busy work alone is at least as long as the untraced cycle"
    return (
        f"rank {calibration.rank}: {effect}; untraced estimate = busy time as measured, idle time x {calibration.scale:.2f}, "
        f"{reached}; "
        "an estimate with its bounds"
    )


def _estimate(label: str, mean_ns: float, calibration: Calibration | None) -> list[str]:
    """Estimated untraced time of one instance and its bounds, as two cells."""
    if calibration is None or calibration.scale is None:
        return []
    if label not in IDLE_ROWS:
        return [milliseconds(mean_ns), ""]
    found = calibration.idle_estimate(mean_ns)
    assert found is not None
    value, low, high = found
    return [milliseconds(value), f"{low / 1e6:.2f}..{high / 1e6:.2f}"]


def _draw_rank(rank: RankBreakdown, phase: str, calibration: Calibration | None, waits: pl.DataFrame) -> None:
    total = rank.total_ns(phase)
    instances = rank.instances[phase]
    whole = rank.phase_instances.filter(pl.col("phase") == phase, pl.col("complete")) if instances else None
    columns_of = [_column(formula).alias(label) for label, formula in ROWS]
    sums = pl.DataFrame([_totals(rank, phase)]).select(columns_of).row(0, named=True)
    columns_of.append(pl.sum_horizontal(*BUCKETS).alias("total"))
    spreads = _spreads(whole, columns_of)
    means = {label: ns / max(instances, 1) for label, ns in {**sums, "total": total}.items()}
    if whole is not None and whole.height:
        means = whole.select(column.mean() for column in columns_of).row(0, named=True)
    rows: list[list[str | Text]] = []
    for label, _ in ROWS:
        ns = int(sums[label])
        if not ns:
            continue
        spread = spreads[label]
        share = ns / total if total else None
        bar = Text("") if label.startswith(" ") else share_bar(share, _BAR)
        estimate = _estimate(label, means[label], calibration) if instances else []
        rows.append([label, *spread, milliseconds(ns), percent(share), *estimate, bar])
        if label == ALLREDUCE_ROW:
            rows += _waiting_rows(waits, total, len(estimate))
    estimated = calibration is not None and calibration.scale is not None and instances > 0
    rows.append(
        [
            "total",
            *spreads["total"],
            milliseconds(total),
            "100.0 %",
            *([_estimated_total(phase, means["total"], calibration), ""] if estimated else []),
            "",
        ]
    )
    complete = 0 if whole is None else whole.height
    title = f"{phase}, rank {rank.key}, ms: {counted(instances, 'instance')}"
    title += f" ({complete} whole)" if complete != instances else ""
    columns = [
        ("", "left"),
        ("median", "right"),
        ("p10", "right"),
        ("p90", "right"),
        ("sum", "right"),
        ("share", "right"),
        *([("untraced\nestimate", "right"), ("bounds", "right")] if estimated else []),
        ("", BAR),
    ]
    console().print(table(title, columns, rows, spare=("sum", "p10", "p90", "bounds")))


def _spreads(instances: pl.DataFrame | None, columns: Sequence[pl.Expr]) -> dict[str, list[str]]:
    """Column -> median, 10th and 90th percentile over instances, in ms; dashes without any. All columns in one query."""
    if instances is None or not instances.height:
        return {column.meta.output_name(): ["–"] * 3 for column in columns}
    table = instances.select(columns)
    found = np.percentile(table.to_numpy(), [50, 10, 90], axis=0)
    return {name: [milliseconds(float(v)) for v in found[:, at]] for at, name in enumerate(table.columns)}


def _waiting_rows(waits: pl.DataFrame, total: int, more: int) -> list[list[str | Text]]:
    """Waiting for the other ranks and transfer, of the collectives that all ranks recorded (rule D4), a replay."""
    rows: list[list[str | Text]] = []
    for label, column in (("  waiting", "wait_ns"), ("  transfer", "transfer_ns")):
        if not waits.height:
            break
        replays = waits.filter(pl.col("replay").is_not_null()).get_column(column).to_numpy()
        spread = [milliseconds(float(v)) for v in np.percentile(replays, [50, 10, 90])] if len(replays) else ["–"] * 3
        ns = int(waits.get_column(column).sum())
        share = percent(ns / total) if total else "–"
        rows.append([label, *spread, milliseconds(ns), share, *[""] * more, Text("")])
    return rows


def _estimated_total(phase: str, mean_ns: float, calibration: Calibration | None) -> str:
    """Mean untraced time of an instance that takes so long: the phase's calibrated cells over its measured ones."""
    assert calibration is not None
    cells = calibration.cells.filter(pl.col("phase") == phase)
    measured, calibrated = (float(cells.get_column(c).sum()) for c in ("measured_ns", "calibrated_ns"))
    return milliseconds(mean_ns * calibrated / measured if measured else None)


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
        parts = [
            f"window {milliseconds(r.window_ns)} ms" + (f" in {counted(r.windows, 'window')}" if r.windows > 1 else "")
        ]
        if phase in r.gpu_busy_ns:
            parts.append(f"{phase}'s GPU busy {milliseconds(r.gpu_busy_ns[phase])} ms")
            parts.append(f"hidden communication {milliseconds(r.hidden_comm_ns[phase])} ms")
        for name in ("unattributed", "outside"):
            count, ns = getattr(r, name)
            parts.append(f"{name} {milliseconds(ns)} ms ({counted(count, 'activity')})")
        said.append(f"rank {r.key}: " + ", ".join(parts))
    device = sum(r.device_ns for r in result.ranks)
    ways: dict[str, int] = {}
    for r in result.ranks:
        for way, ns in r.decided_ns.items():
            ways[way] = ways.get(way, 0) + ns
    if device:
        shares = ", ".join(f"{_WAYS.get(way, way)} {percent(ns / device)}" for way, ns in ways.items())
        said.append(f"class of device time: {shares}")
    said += _placed(result)
    if result.has_matches:
        said.append(
            "waiting = a rank's duration of a collective minus the shortest of all ranks', transfer = the shortest; over matched "
            "collectives, the hidden part included (see ranks)"
        )
    elif len(result.ranks) == 1:
        said.append("one rank: how much of allreduce is waiting for other ranks is unknown")
    said.append("buckets of all phases sum to the window to the nanosecond; shares are of the phase's own time")
    if all(r.device == "cpu" for r in result.ranks):
        said.append(
            "recorded on a CPU: operators of the worker's thread stand in for device work; graph replay, launch time, "
            "overlap and waiting on a GPU cannot be read from it"
        )
    return said


def _placed(result: Breakdown) -> list[str]:
    """How graph replays found their nodes, where there is a node map."""
    placed, by_id, by_stream, unsure, count, names = (
        sum(r.node_map.get(name, 0) for r in result.ranks)
        for name in ("placed", "by_id", "by_stream", "unsure", "other_count", "other_names")
    )
    if not placed:
        return []
    ways = {
        "by node ids": by_id,
        "by the order within each of their streams": by_stream,
        "by order of start": placed - by_id - by_stream,
    }
    used = {how: times for how, times in ways.items() if times}
    how = ", ".join(used if len(used) == 1 else (f"{times} {how}" for how, times in used.items()))
    said = [f"node map: {placed} of {counted(placed + count + names, 'graph replay')} placed, {how}"]
    if unsure:
        said.append(
            f"node map: {counted(unsure, 'activity')} on parallel streams may as well be an equal kernel's node on the other "
            "stream (order does not tell; node ids do: --windows ...,cupti)"
        )
    return said


_WAYS = {"map": "by module", "name": "by name", "unclassified": "unclassified"}
