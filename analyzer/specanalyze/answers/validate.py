"""``validate``: is the trace whole and sound; and the short facts of a trace file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from specanalyze.answers.breakdown import Breakdown, assemble
from specanalyze.answers.cycle_numbering import numberings
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import rank_result
from specanalyze.attribution.wait_warnings import absent_ranks
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, Trace
from specschema.figures import percent

_NAMED: Final = 8
"""Ranks that one line names."""
SCHEMA: Final = {"check": pl.String, "rank": pl.String, "result": pl.String, "detail": pl.String}


def summary(path: Path) -> dict[str, Any]:
    """Facts of a trace file from its footer alone: events, bytes, ranks, schema version."""
    from specanalyze.formats.load import open_trace

    trace = open_trace([path])
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "events": int(pl.scan_parquet(path).select(pl.len()).collect().item()),
        "ranks": [s.key for s in trace.sources],
    }


def validate(trace: Trace, phase_map: Mapping[str, str] | None = None) -> tuple[pl.DataFrame, Breakdown]:
    """Check one recording.

    Returns:
        One row a check and rank (``all`` for what is of the whole recording): check, rank, result (``ok``, ``warning``), detail; and the breakdown it was made of.

    Raises:
        TraceError: the recording cannot be read, has no device activity or no phase range.
    """
    ranks = list(each_rank(trace, _rank, phase_map))
    result = assemble(trace, ranks)
    rows: list[tuple[str, str, bool, str]] = []
    for r in result.ranks:
        total = sum(r.total_ns(p) for p in r.buckets_ns)
        coverage = r.coverage(result.phase)
        lost = coverage["graph_launches"] - coverage["with_gpu_records"]
        share = r.unclassified_ns / r.device_ns if r.device_ns else 0.0
        rows += [
            ("buckets sum to the window", r.key, total == r.window_ns, f"{total} of {r.window_ns} ns"),
            (
                "phases recognised",
                r.key,
                bool(r.instances.get(result.phase)),
                f"{r.instances.get(result.phase, 0)} {result.phase}",
            ),
            ("device work recorded", r.key, bool(r.device_ns), f"{r.device_ns / 1e6:.3f} ms"),
            ("device rows have usable times", r.key, not r.invalid, f"{r.invalid} invalid, dropped"),
            ("durations possible", r.key, not r.cut, f"{r.cut} cut"),
            (
                "graph replays have their kernels",
                r.key,
                not lost,
                f"{coverage['with_gpu_records']} of {coverage['graph_launches']}",
            ),
            ("device work has a launch call", r.key, not r.unattributed[0], f"{r.unattributed[0]} without"),
            ("kernel names known", r.key, share < 0.01, f"{percent(share, 2)} of device time unclassified"),
            (
                "clocks agree",
                r.key,
                r.lead_ns <= 0,
                f"largest lead of an activity over its launch call {max(r.lead_ns, 0)} ns",
            ),
            ("ranges nest", r.key, not r.crossing, f"{sum(r.crossing.values())} cross"),
        ]
    rows += [("cycles numbered alike", n.rank, n.alike, n.detail) for n in numberings(trace, result.ranks)]
    rows += _presence(trace)
    frame = pl.DataFrame(
        [(check, rank, "ok" if fine else "warning", detail) for check, rank, fine, detail in rows],
        schema=SCHEMA,
        orient="row",
    )
    return frame, result


def _presence(trace: Trace) -> list[tuple[str, str, bool, str]]:
    """Whether every rank is there, where the recording says how many it had."""
    entries = [entry for entry in trace.metadata.get("ranks") or () if isinstance(entry, Mapping)]
    world = max((size for entry in entries if isinstance(size := entry.get("world_size"), int)), default=None)
    if world is None:
        return []
    present = [rank for entry in entries if isinstance(rank := entry.get("rank"), int)]
    absent = absent_ranks(present, world)
    found = f"{world - len(absent)} of {world}"
    if absent:
        found += f"; no record of {', '.join(map(str, absent[:_NAMED]))}{', ...' if len(absent) > _NAMED else ''}"
    return [("all ranks recorded", "all", not absent, found)]


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> RankBreakdown:
    return rank_result(source, trace, phase_map, talks=False).breakdown
