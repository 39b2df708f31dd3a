"""The breakdown as a table and as JSON."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.breakdown import Breakdown
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.wait_table import wait_json
from specschema.errors import TraceError, UsageError
from specschema.phases import BUCKETS, OUTSIDE, PHASE_KEYS, UNATTRIBUTED

GROUPINGS: Final = ("rank", "cycle")
"""What ``breakdown`` can be split by."""


def breakdown_frame(result: Breakdown, phase: str | None = None, by: str = "rank") -> pl.DataFrame:
    """The breakdown as a table.

    Args:
        result: of ``break_down``.
        phase: one phase, ``all``, or None for the recording's main phase.
        by: ``rank``: one row a rank, phase and bucket; ``cycle``: one row a rank and phase instance.

    Returns:
        by rank: rank, phase, bucket, total_ns, share (of the phase's total), instances, and over its complete instances
        mean_ns, p10_ns, median_ns, p90_ns. By cycle: rank, window, cycle, phase, start_ns, end_ns, replays,
        lost_replays, cut_off, complete, total_ns and one column a bucket.

    Raises:
        UsageError: an unknown grouping or phase.
    """
    if by not in GROUPINGS:
        raise UsageError(f"cannot split by {by!r}; use one of {', '.join(GROUPINGS)}")
    phase = phase or result.phase
    if phase != "all" and phase not in PHASE_KEYS:
        raise UsageError(f"no phase {phase!r}; use all or one of {', '.join(PHASE_KEYS)}")
    wanted = list(PHASE_KEYS) if phase == "all" else [phase]
    if phase != "all" and not any(phase in r.buckets_ns for r in result.ranks):
        has = [p for p in PHASE_KEYS if any(p in r.buckets_ns for r in result.ranks)]
        raise TraceError(f"{result.name} has no {phase} time; it has {', '.join(has)}")
    if by == "cycle":
        frames = [
            r.phase_instances.filter(pl.col("phase").is_in(wanted)).with_columns(
                pl.lit(r.key).alias("rank"), pl.sum_horizontal(*BUCKETS).alias("total_ns")
            )
            for r in result.ranks
            if r.phase_instances.height
        ]
        table = pl.concat(frames)
        first = [
            "rank",
            "window",
            "cycle",
            "phase",
            "start_ns",
            "end_ns",
            "replays",
            "lost_replays",
            "cut_off",
            "complete",
            "total_ns",
        ]
        return table.select(*first, *BUCKETS)
    rows = [row for r in result.ranks for p in wanted if p in r.buckets_ns for row in _bucket_rows(r, p)]
    return pl.DataFrame(rows, schema=_RANK_SCHEMA)


_RANK_SCHEMA: Final = {
    "rank": pl.String,
    "phase": pl.String,
    "bucket": pl.String,
    "total_ns": pl.Int64,
    "share": pl.Float64,
    "instances": pl.Int64,
    "mean_ns": pl.Float64,
    "p10_ns": pl.Float64,
    "median_ns": pl.Float64,
    "p90_ns": pl.Float64,
}


def _bucket_rows(rank: RankBreakdown, phase: str) -> list[dict[str, Any]]:
    total = rank.total_ns(phase)
    whole = rank.phase_instances.filter(pl.col("phase") == phase, pl.col("complete"))
    rows = []
    for bucket in (b for b in BUCKETS if b in rank.buckets_ns[phase]):
        ns = rank.buckets_ns[phase][bucket]
        values = whole.get_column(bucket).to_numpy()
        spread = np.percentile(values, [10, 50, 90]) if len(values) else [None] * 3
        rows.append(
            {
                "rank": rank.key,
                "phase": phase,
                "bucket": bucket,
                "total_ns": ns,
                "share": ns / total if total else None,
                "instances": rank.instances[phase],
                "mean_ns": float(values.mean()) if len(values) else None,
                "p10_ns": spread[0],
                "median_ns": spread[1],
                "p90_ns": spread[2],
            }
        )
    return rows


def breakdown_json(result: Breakdown, phase: str = "all") -> dict[str, Any]:
    """The breakdown in the documented JSON layout (docs/commands.md): all times in integer ns.

    Args:
        result: of ``break_down``.
        phase: ``all`` or one phase.
    """
    ranks: dict[str, Any] = {}
    for r in result.ranks:
        phases = {
            p: {
                "instances": r.instances[p],
                "total_ns": r.total_ns(p),
                "gpu_busy_ns": r.gpu_busy_ns[p],
                "hidden_comm_ns": r.hidden_comm_ns[p],
                "graph_launch_ns": r.graph_launch_ns[p],
                "graph_replay_ns": r.graph_launch_ns[p] + r.buckets_ns[p].get("graph_gap", 0),
                "buckets_ns": r.buckets_ns[p],
            }
            for p in PHASE_KEYS
            if p in r.buckets_ns and phase in ("all", p)
        }
        ranks[r.key] = {
            "window_ns": r.window_ns,
            "windows": r.windows,
            "device": r.device,
            "source": r.source,
            "phases": phases,
            "coverage": r.coverage(result.phase),
            "device_time_ns": r.device_ns,
            "decided_by_ns": r.decided_ns,
            "node_map": r.node_map or None,
        }
        for name, (count, ns) in ((UNATTRIBUTED, r.unattributed), (OUTSIDE, r.outside)):
            if count:
                ranks[r.key][name] = {"count": count, "busy_ns": ns}
        if r.invalid:
            ranks[r.key]["invalid"] = {"count": r.invalid}
        if r.cut:
            ranks[r.key]["cut"] = {"count": r.cut}
        if cut_off := r.cut_off:
            ranks[r.key]["cut_off_instances"] = cut_off
    coverage: dict[str, int] = {}
    for r in result.ranks:
        for key, number in r.coverage(result.phase).items():
            coverage[key] = coverage.get(key, 0) + number
    whole = pl.concat([r.phase_instances for r in result.ranks if r.phase_instances.height])
    recorded = (
        whole.filter(pl.col("phase") == result.phase, pl.col("complete"))
        .select(pl.sum_horizontal(*BUCKETS))
        .to_series()
    )
    mean = int(recorded.sum()) // recorded.len() if recorded.len() else None
    names: dict[str, int] = {}
    for r in result.ranks:
        for name, ns in r.unclassified_names.items():
            names[name] = names.get(name, 0) + ns
    return {
        "trace": result.name,
        "phase": result.phase,
        "ranks": ranks,
        "coverage": coverage,
        "graph_launches": coverage["graph_launches"],
        f"{result.phase}_per_recorded_instance_ns": mean,
        "unclassified_share": result.unclassified_share,
        "unclassified_names": dict(sorted(names.items(), key=lambda item: -item[1])[:20]),
        "wait": wait_json(result.waits),
        "warnings": result.warnings,
    }
