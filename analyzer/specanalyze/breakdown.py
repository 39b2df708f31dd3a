"""``breakdown``: where each phase's time goes, rank by rank, exact and with its remainders named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.activities import BUCKET_CODE, Activities
from specanalyze.analysis import RankAnalysis, analyse
from specanalyze.cycles import rank_cycles
from specanalyze.instances import graph_launch_time, instance_table
from specanalyze.intervals import union_by_key
from specanalyze.partition import Partition
from specanalyze.ranges import PHASE_CODE
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.phases import BUCKETS, OUTSIDE, PHASE_KEYS, REMAINDERS, UNATTRIBUTED

UNKNOWN_OPERATION: Final = "unknown"
"""Subclass of a communication kernel whose name does not tell its operation (specschema.kernel_classes)."""

GROUPINGS: Final = ("rank", "cycle")
"""What ``breakdown`` can be split by."""


@dataclass
class RankBreakdown:
    """One rank's partition, summed over its windows.

    Attributes:
        key: rank in reports.
        window_ns: length of the window(s) W.
        windows: how many.
        instances, gpu_busy_ns, hidden_comm_ns: per phase.
        buckets_ns: phase -> bucket -> ns; zero buckets left out.
        graph_launch_ns: phase -> the part of its ``launch`` that graph launches made.
        unattributed, outside: (activities, busy ns as the union of their intervals) over the whole recording.
        invalid: device rows without a usable time, dropped.
        cut: impossible durations, cut.
        device_ns: plain sum of activity durations; overlapping work counts twice, so only shares are made of it.
        unclassified_ns: the part of it whose kernel names no rule knows.
        decided_ns: way of classifying -> its part of device_ns.
        lead_ns: the largest time by which an activity starts before its own launch call (clock skew), 0 if none does.
        phase_instances: one row a phase instance (see ``instances.instance_table``).
        unclassified_names: kernel name -> ns.
        unknown_communication: names of communication kernels whose operation nothing tells -> activities.
        crossing: see ``ranges.Ranges``.
        node_map: replays placed (by_id: of these, by node ids), other_count and other_names: not placed, names decide;
            empty without node rows.
    """

    key: str
    source: str
    device: str
    window_ns: int = 0
    windows: int = 0
    instances: dict[str, int] = field(default_factory=dict)
    gpu_busy_ns: dict[str, int] = field(default_factory=dict)
    hidden_comm_ns: dict[str, int] = field(default_factory=dict)
    buckets_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    graph_launch_ns: dict[str, int] = field(default_factory=dict)
    unattributed: tuple[int, int] = (0, 0)
    outside: tuple[int, int] = (0, 0)
    invalid: int = 0
    cut: int = 0
    device_ns: int = 0
    unclassified_ns: int = 0
    decided_ns: dict[str, int] = field(default_factory=dict)
    lead_ns: int = 0
    crossing: dict[tuple[str, str], int] = field(default_factory=dict)
    phase_instances: pl.DataFrame = field(default_factory=pl.DataFrame)
    unclassified_names: dict[str, int] = field(default_factory=dict)
    unknown_communication: dict[str, int] = field(default_factory=dict)
    unrecognised: tuple[str, ...] = ()
    node_map: dict[str, int] = field(default_factory=dict)

    def total_ns(self, phase: str) -> int:
        return sum(self.buckets_ns.get(phase, {}).values())

    def coverage(self, phase: str) -> dict[str, int]:
        """Graph launches and phase instances, and how many of each have their device records (rule D9)."""
        table = self.phase_instances
        mine = table.filter(pl.col("phase") == phase) if table.height else table
        replays = int(table["replays"].sum()) if table.height else 0
        lost = int(table["lost_replays"].sum()) if table.height else 0
        return {
            "graph_launches": replays,
            "with_gpu_records": replays - lost,
            f"{phase}_ranges": mine.height,
            f"{phase}_with_gpu_records": mine.filter(pl.col("complete")).height if mine.height else 0,
        }


@dataclass
class Breakdown:
    """All ranks of a recording.

    Attributes:
        name: the recording.
        phase: phase that reports show by default: verify, else the phase the recording has.
        ranks: in order.
        warnings: one line each.
        cycles: of ``cycles.cycle_table``, for the calibration.
    """

    name: str
    phase: str
    ranks: list[RankBreakdown]
    warnings: list[str]
    cycles: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def unclassified_share(self) -> float:
        """Share (0..1) of all ranks' device time whose kernel names no rule knows."""
        device = sum(r.device_ns for r in self.ranks)
        return sum(r.unclassified_ns for r in self.ranks) / device if device else 0.0


def break_down(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Breakdown:
    """Attribute every rank's timeline to phases and buckets.

    Args:
        trace: the recording.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        TraceError: no rank has a recognised range, or the recording has no rank.
    """
    ranks, cycles = [], []
    for analysis in analyse(trace, phase_map):
        ranks.append(rank_breakdown(analysis))
        cycles.append(rank_cycles(analysis.trace, phase_map, trace.metadata))
        del analysis  # or it would stay in memory while the next rank is read
    result = assemble(trace, ranks)
    result.cycles = pl.concat(cycles)
    return result


def assemble(trace: Trace, ranks: list[RankBreakdown]) -> Breakdown:
    """Put the ranks' own breakdowns together, with the recording's warnings.

    Raises:
        TraceError: as ``break_down``.
    """
    if not ranks:
        raise TraceError(f"{trace.name} holds no rank")
    if not any(r.windows for r in ranks):
        found = sorted({name for r in ranks for name in r.unrecognised})
        listed = ", ".join(found[:12]) + (", ..." if len(found) > 12 else "") if found else "none"
        raise TraceError(
            f"no phase ranges (spec.* or a server's own) in {', '.join(r.source for r in ranks)}; "
            f"annotations found: {listed}; give a --phase-map, or record with the collector"
        )
    present = [p for p in PHASE_KEYS if p not in REMAINDERS and any(r.instances.get(p) for r in ranks)]
    phase = "verify" if "verify" in present else (present[0] if present else "cycle")
    warnings = list(trace.warnings)
    for r in ranks:
        warnings += _warnings(r, phase)
    return Breakdown(trace.name, phase, ranks, warnings)


def rank_breakdown(analysis: RankAnalysis) -> RankBreakdown:
    """Sum one rank's windows."""
    rank = analysis.trace
    result = RankBreakdown(rank.key, rank.source, rank.device)
    tables = []
    unrecognised: dict[str, None] = {}
    totals = np.zeros((len(PHASE_KEYS), len(BUCKETS)), dtype=np.int64)
    instances, busy, hidden = (np.zeros(len(PHASE_KEYS), dtype=np.int64) for _ in range(3))
    present = np.zeros(len(PHASE_KEYS), dtype=bool)
    graph_launch = np.zeros(len(PHASE_KEYS), dtype=np.int64)
    for window in analysis.windows:
        acts, part = window.activities, window.partition
        unrecognised.update(dict.fromkeys(window.ranges.unrecognised))
        result.invalid += acts.invalid
        result.cut += acts.cut
        for pair, count in window.ranges.crossing.items():
            result.crossing[pair] = result.crossing.get(pair, 0) + count
        _add_remainders(result, acts)
        _add_classification(result, acts)
        if part is None:
            continue
        result.windows += 1
        result.window_ns += part.window_ns
        totals += part.totals()
        instances += window.ranges.instances()
        busy += part.gpu_busy
        hidden += part.hidden_communication
        present |= _present(part, acts)
        calling = graph_launch_time(window)
        np.add.at(graph_launch, part.phase[calling], (part.end - part.start)[calling])
        tables.append(instance_table(window))
    for p in np.flatnonzero(present | (instances > 0) | totals.any(axis=1)):
        phase = PHASE_KEYS[p]
        result.instances[phase] = int(instances[p])
        result.gpu_busy_ns[phase] = int(busy[p])
        result.hidden_comm_ns[phase] = int(hidden[p])
        result.graph_launch_ns[phase] = int(graph_launch[p])
        result.buckets_ns[phase] = {BUCKETS[b]: int(totals[p, b]) for b in np.flatnonzero(totals[p])}
    result.phase_instances = pl.concat(tables) if tables else pl.DataFrame()
    result.unrecognised = tuple(unrecognised)
    if sum(result.total_ns(p) for p in result.buckets_ns) != result.window_ns:
        raise AssertionError("buckets do not sum to the window")
    return result


def _present(part: Partition, acts: Activities) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Phases with an activity inside W (an empty one at its edge counts)."""
    inside = (acts.start < part.window_end) & (acts.end >= part.window_start)
    present = np.zeros(len(PHASE_KEYS), dtype=bool)
    present[acts.phase[inside]] = True
    return present


def _add_remainders(result: RankBreakdown, acts: Activities) -> None:
    for name in (UNATTRIBUTED, OUTSIDE):
        rows = np.flatnonzero(acts.phase == PHASE_CODE[name])
        busy = union_by_key(np.zeros(len(rows), dtype=np.int64), acts.start[rows], acts.end[rows], 1)
        count, ns = getattr(result, name)
        setattr(result, name, (count + len(rows), ns + int(busy[0])))
    called = np.flatnonzero(acts.launch >= 0)
    if len(called):
        lead = int((acts.launches.start[acts.launch[called]] - acts.start[called]).max())
        result.lead_ns = max(result.lead_ns, lead)


def _add_classification(result: RankBreakdown, acts: Activities) -> None:
    duration = acts.end - acts.start
    result.device_ns += int(duration.sum())
    unknown = ~acts.classified
    result.unclassified_ns += int(duration[unknown].sum())
    per_name = np.zeros(len(acts.names), dtype=np.int64)
    np.add.at(per_name, acts.name[unknown], duration[unknown])
    for n in np.flatnonzero(per_name):
        name = acts.names[n]
        result.unclassified_names[name] = result.unclassified_names.get(name, 0) + int(per_name[n])
    if UNKNOWN_OPERATION in acts.subclasses:
        untold = acts.subclass == acts.subclasses.index(UNKNOWN_OPERATION)
        untold &= acts.bucket == BUCKET_CODE["other_comm"]
        for n, count in zip(*np.unique(acts.name[untold], return_counts=True), strict=True):
            name = acts.names[n]
            result.unknown_communication[name] = result.unknown_communication.get(name, 0) + int(count)
    ways = {
        "map": int(duration[acts.by_map].sum()),
        "name": int(duration[~unknown & ~acts.by_map].sum()),
        "unclassified": int(duration[unknown].sum()),
    }
    if acts.placement is not None:
        for name, count in (
            ("placed", acts.placement.placed),
            ("by_id", acts.placement.by_id),
            ("other_count", acts.placement.other_count),
            ("other_names", acts.placement.other_names),
        ):
            result.node_map[name] = result.node_map.get(name, 0) + count
    for way, ns in ways.items():
        result.decided_ns[way] = result.decided_ns.get(way, 0) + ns


def _warnings(rank: RankBreakdown, phase: str) -> list[str]:
    """What a reader of this rank's figures must know."""
    said = []
    name = f"rank {rank.key}"
    if rank.invalid:
        said.append(f"{name}: {rank.invalid} invalid device rows without a usable time were dropped")
    if rank.cut:
        said.append(
            f"{name}: {rank.cut} activities ran past three or more later starts of their stream; "
            "their impossible durations were cut at the next start"
        )
    coverage = rank.coverage(phase)
    lost = coverage["graph_launches"] - coverage["with_gpu_records"]
    if lost:
        said.append(
            f"{name}: {lost} of {coverage['graph_launches']} graph replays have no GPU records (incomplete recording); "
            "their instances are left out of means, and no idle share is given"
        )
    if rank.outside[0]:
        count, ns = rank.outside
        said.append(
            f"{name}: {count} device activities ({ns / 1e6:.3f} ms) were launched outside every phase range: shown as outside"
        )
    if rank.unattributed[0]:
        count, ns = rank.unattributed
        said.append(
            f"{name}: {count} device activities ({ns / 1e6:.3f} ms): their launch call was not recorded; shown as unattributed"
        )
    for kernel, count in list(rank.unknown_communication.items())[:3]:
        said.append(
            f"{name}: {count} activities of {kernel.partition('(')[0]} are communication of unknown operation: shown as other "
            "communication; a recording with collective arguments (eager, CPU activity) would tell"
        )
    for reason, words in (
        ("other_count", "have another number of activities than any captured graph"),
        ("other_names", "contradict the node map by their kernels"),
    ):
        count = rank.node_map.get(reason, 0)
        if count:
            said.append(f"{name}: {count} graph replays {words}: classes there are by name")
    for (earlier, later), count in rank.crossing.items():
        said.append(
            f"{name}: {count} ranges of {earlier} and {later} cross without nesting; an instant in both goes to {later}, "
            "which started last"
        )
    if rank.lead_ns > 0:
        said.append(
            f"{name}: device and host clocks disagree: an activity starts {rank.lead_ns} ns before its launch call"
        )
    return said


def breakdown_frame(result: Breakdown, phase: str | None = None, by: str = "rank") -> pl.DataFrame:
    """The breakdown as a table.

    Args:
        result: of ``break_down``.
        phase: one phase, ``all``, or None for the recording's main phase.
        by: ``rank``: one row a rank, phase and bucket; ``cycle``: one row a rank and phase instance.

    Returns:
        by rank: rank, phase, bucket, total_ns, share (of the phase's total), instances, and over its complete instances
        mean_ns, p10_ns, median_ns, p90_ns. By cycle: rank, window, cycle, phase, start_ns, end_ns, replays,
        lost_replays, complete, total_ns and one column a bucket.

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
        "warnings": result.warnings,
    }
