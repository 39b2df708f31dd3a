"""One rank's partition summed up: its phases and buckets, its remainders, and how its device time was classified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import BUCKET_CODE, Activities, communication_code
from specanalyze.attribution.analysis import RankAnalysis
from specanalyze.attribution.compact_window import Looks, WindowSums
from specanalyze.attribution.instances import graph_launch_time, instance_rows, instance_table
from specanalyze.attribution.partition import Partition
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.replay_nodes import COUNTS
from specanalyze.columns import Ints
from specanalyze.formats.compact_rank import CompactRank
from specanalyze.intervals import union_by_key
from specanalyze.native.timeline import RowSums
from specschema.phases import BUCKETS, OUTSIDE, PHASE_KEYS, UNATTRIBUTED

UNKNOWN_OPERATION: Final = "unknown"
"""Subclass of a communication kernel whose name does not tell its operation (specschema.kernel_classes)."""


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
        activities: valid device rows, those of no length included.
        device_ns: plain sum of activity durations; overlapping work counts twice, so only shares are made of it.
        unclassified_ns: the part of it whose kernel names no rule knows.
        decided_ns: way of classifying -> its part of device_ns.
        lead_ns: the largest time by which an activity starts before its own launch call (clock skew), 0 if none does.
        whole: instances per phase with all their records.
        phase_instances: one row a phase instance (see ``instances.instance_table``).
        unclassified_names: kernel name -> ns.
        unknown_communication: names of communication kernels whose operation nothing tells -> activities.
        crossing: see ``ranges.Ranges``.
        node_map: replays placed (by_id: of these, by node ids; by_stream: by the order within each of several streams, where
            unsure counts activities that an equal one on another stream might be), other_count and other_names: not placed, names
            decide; empty without node rows.
    """

    key: str
    source: str
    device: str
    window_ns: int = 0
    windows: int = 0
    instances: dict[str, int] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)
    gpu_busy_ns: dict[str, int] = field(default_factory=dict)
    hidden_comm_ns: dict[str, int] = field(default_factory=dict)
    buckets_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    graph_launch_ns: dict[str, int] = field(default_factory=dict)
    unattributed: tuple[int, int] = (0, 0)
    outside: tuple[int, int] = (0, 0)
    invalid: int = 0
    cut: int = 0
    activities: int = 0
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

    def whole_ranges(self, window: int) -> NDArray[np.bool_] | None:
        """Of each range of a window, whether its records are whole; None of a window without ranges."""
        table = self.phase_instances
        mine = table.filter(pl.col("window") == window) if table.height else table
        return mine.get_column("complete").to_numpy() if mine.height else None

    @property
    def cut_off(self) -> dict[str, int]:
        """Phase -> instances that an edge of their window cuts off; those of which it does."""
        table = self.phase_instances
        if not table.height:
            return {}
        counts = table.group_by("phase").agg(pl.col("cut_off").sum().cast(pl.Int64))
        found = dict(counts.iter_rows())
        return {phase: found[phase] for phase in PHASE_KEYS if found.get(phase)}

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
            f"{phase}_with_gpu_records": mine.filter(pl.col("lost_replays") == 0).height if mine.height else 0,
        }


def rank_breakdown(analysis: RankAnalysis) -> RankBreakdown:
    """Sum one rank's windows."""
    rank = analysis.trace
    result = RankBreakdown(rank.key, rank.source, rank.device)
    tables = []
    unrecognised: dict[str, None] = {}
    sums = _PhaseSums()
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
        sums.totals += part.totals()
        sums.instances += window.ranges.instances()
        sums.busy += part.gpu_busy
        sums.hidden += part.hidden_communication
        sums.present |= _present(part, acts)
        calling = graph_launch_time(window)
        np.add.at(sums.graph_launch, part.phase[calling], (part.end - part.start)[calling])
        tables.append(instance_table(window))
    return _finished(result, sums, tables, tuple(unrecognised))


@dataclass
class _PhaseSums:
    """By phase code: ns by bucket, ranges, ns of gpu_busy, hidden_comm and graph_launch, whether it has an activity in W."""

    totals: Ints = field(default_factory=lambda: np.zeros((len(PHASE_KEYS), len(BUCKETS)), dtype=np.int64))
    instances: Ints = field(default_factory=lambda: np.zeros(len(PHASE_KEYS), dtype=np.int64))
    busy: Ints = field(default_factory=lambda: np.zeros(len(PHASE_KEYS), dtype=np.int64))
    hidden: Ints = field(default_factory=lambda: np.zeros(len(PHASE_KEYS), dtype=np.int64))
    graph_launch: Ints = field(default_factory=lambda: np.zeros(len(PHASE_KEYS), dtype=np.int64))
    present: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(len(PHASE_KEYS), dtype=bool))


def _finished(
    result: RankBreakdown, sums: _PhaseSums, tables: list[pl.DataFrame], unrecognised: tuple[str, ...]
) -> RankBreakdown:
    for p in np.flatnonzero(sums.present | (sums.instances > 0) | sums.totals.any(axis=1)):
        phase = PHASE_KEYS[p]
        result.instances[phase] = int(sums.instances[p])
        result.gpu_busy_ns[phase] = int(sums.busy[p])
        result.hidden_comm_ns[phase] = int(sums.hidden[p])
        result.graph_launch_ns[phase] = int(sums.graph_launch[p])
        result.buckets_ns[phase] = {BUCKETS[b]: int(sums.totals[p, b]) for b in np.flatnonzero(sums.totals[p])}
    result.phase_instances = pl.concat(tables) if tables else pl.DataFrame()
    if tables:
        whole = result.phase_instances.group_by("phase").agg(pl.col("complete").sum().cast(pl.Int64))
        found = dict(whole.iter_rows())
        result.whole = {phase: found.get(phase, 0) for phase in result.instances}
    result.unrecognised = unrecognised
    if sum(result.total_ns(p) for p in result.buckets_ns) != result.window_ns:
        raise AssertionError("buckets do not sum to the window")
    return result


def summed_breakdown(rank: CompactRank, windows: Sequence[WindowSums], looks: Looks) -> RankBreakdown:
    """What ``rank_breakdown`` gives, of windows that are summed already."""
    result = RankBreakdown(rank.key, rank.source, "cuda")
    tables = []
    unrecognised: dict[str, None] = {}
    sums = _PhaseSums()
    communication = communication_code(np.arange(len(BUCKETS)))
    for window in windows:
        rows, part = window.rows, window.partition
        unrecognised.update(dict.fromkeys(window.ranges.unrecognised))
        result.invalid += window.invalid
        result.cut += window.cut
        for pair, count in window.ranges.crossing.items():
            result.crossing[pair] = result.crossing.get(pair, 0) + count
        for name in (UNATTRIBUTED, OUTSIDE):
            count, ns = getattr(result, name)
            code = PHASE_CODE[name]
            setattr(result, name, (count + int(rows.count[code]), ns + int(rows.whole[code])))
        result.lead_ns = max(result.lead_ns, rows.lead or 0)
        for way, replays in window.node_map.items():
            result.node_map[way] = result.node_map.get(way, 0) + replays
        _add_looks(result, rows, looks)
        if part is None:
            continue
        result.windows += 1
        result.window_ns += window.window_ns
        sums.totals += part.totals
        sums.instances += window.ranges.instances()
        sums.busy += rows.busy
        sums.hidden += rows.talking - part.totals[:, communication].sum(axis=1)
        sums.present |= rows.present
        sums.graph_launch += part.graph_phase
        tables.append(
            instance_rows(
                window.number, window.ranges, part.by_range, part.graph_range, window.replays, window.lost, window.off
            )
        )
    return _finished(result, sums, tables, tuple(unrecognised))


def _add_looks(result: RankBreakdown, rows: RowSums, looks: Looks) -> None:
    """Classification of a window's device time, by what its rows look like."""
    by_name, by_map = (rows.look_ns[i].tolist() for i in (0, 1))
    counts = rows.look_count.sum(axis=0).tolist()
    known = looks.classified.tolist()
    ways = {"map": sum(by_map), "name": 0, "unclassified": 0}
    for i, (name, _, _) in enumerate(looks.looks):  # one turn a distinct name
        ways["name" if known[i] else "unclassified"] += by_name[i]
        if not known[i] and by_name[i]:
            result.unclassified_names[name] = result.unclassified_names.get(name, 0) + by_name[i]
        untold = looks.subclass[i] == UNKNOWN_OPERATION and looks.bucket[i] == BUCKET_CODE["other_comm"]
        if untold and counts[i]:
            result.unknown_communication[name] = result.unknown_communication.get(name, 0) + counts[i]
    result.activities += sum(counts)
    result.device_ns += sum(ways.values())
    result.unclassified_ns += ways["unclassified"]
    for way, ns in ways.items():
        result.decided_ns[way] = result.decided_ns.get(way, 0) + ns


def _present(part: Partition, acts: Activities) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Phases with an activity inside W (an empty one at its start counts, one that ends there does not)."""
    inside = (acts.start < part.window_end) & ((acts.end > part.window_start) | (acts.start >= part.window_start))
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
    result.activities += len(acts)
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
        for name in COUNTS:
            result.node_map[name] = result.node_map.get(name, 0) + getattr(acts.placement, name)
    for way, ns in ways.items():
        result.decided_ns[way] = result.decided_ns.get(way, 0) + ns
