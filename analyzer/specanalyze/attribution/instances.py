"""One row for each instance of a phase: its buckets, its cycle, and whether it was recorded whole (design rule D9)."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import BUCKET_CODE
from specanalyze.attribution.analysis import WindowAnalysis
from specanalyze.attribution.cut_off import cut_off
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.attribution.window_rows import analysed_rows
from specanalyze.columns import Ints
from specschema.phases import BUCKETS, CYCLE, PHASE_KEYS

_OPENING = [PHASE_CODE[p] for p in ("prefill", "decode", "idle")]


def instance_table(window: WindowAnalysis) -> pl.DataFrame:
    """Phase instances of one window of one rank.

    Returns:
        One row a recognised range: window, cycle (its own number, else that of the cycle range around it, else counted),
        phase, start_ns, end_ns, replays (graph launch calls), lost_replays (those without any activity), cut_off (an edge of the
        window cuts it, see ``cut_off``), complete (neither), and one ``<bucket>`` column of ns each. Sums over instances equal the
        partition's phase totals.
    """
    ranges, part = window.ranges, window.partition
    count, buckets = len(ranges), len(BUCKETS)
    sums = np.zeros(count * buckets, dtype=np.int64)
    graph_launch = np.zeros(count, dtype=np.int64)
    if part is not None:
        mine = part.range >= 0
        np.add.at(sums, part.range[mine] * buckets + part.bucket[mine], (part.end - part.start)[mine])
        calling = mine & graph_launch_time(window)
        np.add.at(graph_launch, part.range[calling], (part.end - part.start)[calling])
    replays, lost = _replays(window)
    off = cut_off(ranges, analysed_rows(window))
    return instance_rows(window.window, ranges, sums.reshape(count, buckets), graph_launch, replays, lost, off)


def instance_rows(
    window: int,
    ranges: Ranges,
    sums: Ints,
    graph_launch: Ints,
    replays: Ints,
    lost: Ints,
    off: NDArray[np.bool_],
) -> pl.DataFrame:
    """The table of ``instance_table``.

    Args:
        sums: ns by (range, bucket).
        graph_launch: the part of each range's launch time that graph launches made, ns.
        replays, lost: graph launch calls of each range, and those of them without any activity.
        off: ranges that an edge of the window cuts.
    """
    count = len(ranges)
    table = pl.DataFrame(
        {
            "window": np.full(count, window, dtype=np.int64),
            "cycle": cycle_numbers(ranges),
            "phase": np.array(PHASE_KEYS)[ranges.phase] if count else np.array([], dtype=str),
            "start_ns": ranges.start,
            "end_ns": ranges.end,
            "replays": replays,
            "lost_replays": lost,
            "cut_off": off,
            "complete": (lost == 0) & ~off,
        },
        schema_overrides={"phase": pl.String},
    )
    return table.with_columns(
        *(pl.Series(bucket, sums[:, i]) for i, bucket in enumerate(BUCKETS)), pl.Series("graph_launch", graph_launch)
    )


def graph_launch_time(window: WindowAnalysis) -> NDArray[np.bool_]:
    """Which stretches of the partition are launch time of a graph launch (rule D3: part of graph replay)."""
    part, launches = window.partition, window.activities.launches
    if part is None or not len(launches):
        return np.zeros(0 if part is None else len(part.start), dtype=bool)
    calling: NDArray[np.bool_] = (part.bucket == BUCKET_CODE["launch"]) & launches.graph[part.launch]
    return calling & (part.launch >= 0)


def _replays(window: WindowAnalysis) -> tuple[Ints, Ints]:
    """Graph launch calls of each range, and how many of them have no activity."""
    acts = window.activities
    count = len(window.ranges)
    called = acts.graph_call_range[acts.graph_call_range >= 0]
    recorded = acts.launches.range[acts.launches.graph & (acts.launches.range >= 0)]
    replays = np.bincount(called, minlength=count).astype(np.int64)
    return replays, replays - np.bincount(recorded, minlength=count).astype(np.int64)


def cycle_numbers(ranges: Ranges) -> Ints:
    """Cycle of each range: its own number, else the cycle range of its thread that encloses its start, else counted.

    Counting: a cycle starts with each draft, with each verify that no draft precedes in its cycle, and with each
    prefill, decode or idle step; a draft_extend belongs to the verify before it.
    """
    numbers = ranges.cycle.copy()
    outer = np.flatnonzero(ranges.phase == PHASE_CODE[CYCLE])
    if len(outer):
        outer = outer[np.argsort(ranges.start[outer], kind="stable")]
        unnumbered = numbers[outer] < 0
        if unnumbered.all():
            numbers[outer] = np.arange(len(outer))
        at = np.searchsorted(ranges.start[outer], ranges.start, side="right") - 1
        holder = outer[np.maximum(at, 0)]
        inside = (at >= 0) & (ranges.start < ranges.end[holder]) & (ranges.thread == ranges.thread[holder])
        take = (numbers < 0) & inside
        numbers[take] = numbers[holder[take]]
        return numbers
    if (numbers >= 0).any() or not len(ranges):
        return numbers
    order = np.argsort(ranges.start, kind="stable")
    phase = ranges.phase[order]
    draft, verify = phase == PHASE_CODE["draft"], phase == PHASE_CODE["verify"]
    # Index of the latest draft and of the latest verify before each range: a verify opens a cycle unless a draft lies
    # between it and the verify before it.
    place = np.arange(len(phase))
    last_draft = np.maximum.accumulate(np.where(draft, place, -1))
    before = np.concatenate([[-1], np.maximum.accumulate(np.where(verify, place, -1))[:-1]])
    opens = draft | (verify & (last_draft <= before)) | np.isin(phase, _OPENING)
    numbers[order] = np.maximum(np.cumsum(opens) - 1, 0)
    return numbers
