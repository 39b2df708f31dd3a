"""The exact partition of one rank's timeline (RULES R5, design rule D2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.activities import BUCKET_CODE, Activities, communication_code, compute_code
from specanalyze.columns import Ints
from specanalyze.intervals import Segments, by_priority, clip, first_started, subtract, union_by_key
from specanalyze.ranges import PHASE_CODE, Ranges
from specschema.phases import BETWEEN, BUCKETS, OUTSIDE, PHASE_KEYS

_PHASES: Final = len(PHASE_KEYS)
_BUCKETS: Final = len(BUCKETS)


@dataclass(frozen=True)
class Partition:
    """Every nanosecond of the window, given to one (phase, bucket). Stretches are sorted and touch each other.

    Attributes:
        window_start, window_end: the window W, ns.
        start, end: the stretches, ns.
        phase: code of PHASE_CODE.
        bucket: code of BUCKET_CODE.
        range: index of the recognised range (phase instance) the stretch belongs to, -1 where none.
        activity: index of the activity that has the stretch, -1 where nothing ran.
        launch: index of the launch call behind it, -1 where there is none.
        gpu_busy: ns per phase code, union of the phase's own activities inside W.
        hidden_communication: ns per phase code, union of its communication inside W minus what the partition gave it.
    """

    window_start: int
    window_end: int
    start: Ints
    end: Ints
    phase: Ints
    bucket: Ints
    range: Ints
    activity: Ints
    launch: Ints
    gpu_busy: Ints
    hidden_communication: Ints

    @property
    def window_ns(self) -> int:
        return self.window_end - self.window_start

    def totals(self) -> NDArray[np.int64]:
        """ns by (phase code, bucket code); sums to the window to the nanosecond."""
        cell = self.phase * _BUCKETS + self.bucket
        order = np.argsort(cell, kind="stable")
        totals = np.zeros(_PHASES * _BUCKETS, dtype=np.int64)
        if len(order):
            used, first = np.unique(cell[order], return_index=True)
            totals[used] = np.add.reduceat((self.end - self.start)[order], first)  # integers: never through float64
        return totals.reshape(_PHASES, _BUCKETS)

    def check(self) -> None:
        """Raise when the stretches do not tile the window: a bug, never the data's fault."""
        edges = np.concatenate([[self.window_start], self.end])
        if not (np.array_equal(edges[:-1], self.start) and edges[-1] == self.window_end):
            raise AssertionError("the partition does not tile the window")


def window_of(ranges: Ranges, activities: Activities) -> tuple[int, int] | None:
    """W: from the first recognised range to the later of the last range's end and the last end of an activity launched
    inside a recognised range. None without a recognised range."""
    if not len(ranges):
        return None
    inside = activities.range >= 0
    ends = [int(ranges.end.max())]
    if inside.any():
        ends.append(int(activities.end[inside].max()))
    return int(ranges.start.min()), max(ends)


def partition(ranges: Ranges, activities: Activities) -> Partition | None:
    """Give every nanosecond of the window to one phase and bucket; None when no range is recognised."""
    window = window_of(ranges, activities)
    if window is None:
        return None
    begin, end = window
    free_start, free_end = np.array([begin], dtype=np.int64), np.array([end], dtype=np.int64)
    if begin == end:
        free_start = free_end = np.empty(0, dtype=np.int64)
    parts: list[tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]] = []

    def take(segments: Segments, phase: Ints, bucket: Ints, of_range: Ints, activity: Ints, launch: Ints) -> None:
        """Give what is still free of ``segments`` away; the arrays are indexed by owner."""
        nonlocal free_start, free_end
        got = clip(segments, free_start, free_end)
        owner = got.owner
        parts.append((got.start, got.end, phase[owner], bucket[owner], of_range[owner], activity[owner], launch[owner]))
        free_start, free_end = subtract(free_start, free_end, got)

    # (a) running activities, tier by tier; in a tier the one that started first, then the lower stream, then file order
    index = np.arange(len(activities))
    compute, communication = compute_code(activities.bucket), communication_code(activities.bucket)
    for tier in (compute, communication, ~(compute | communication)):
        members = index[tier]
        order = members[np.lexsort((members, activities.stream[members], activities.start[members]))]
        segments = first_started(activities.start, activities.end, order)
        take(segments, activities.phase, activities.bucket, activities.range, index, activities.launch)

    # (b) inside the span of one replay; (c) between a launch call and its first activity
    launches = activities.launches
    call = np.arange(len(launches))
    call_phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE])[launches.range]
    nothing = np.full(len(launches), -1, dtype=np.int64)
    called_first = np.lexsort((call, launches.start))
    priority = np.empty(len(launches), dtype=np.int64)
    priority[called_first] = call
    replay = np.flatnonzero(launches.graph)
    spans = by_priority(launches.first[replay], launches.last[replay], priority[replay])
    spans = Segments(spans.start, spans.end, replay[spans.owner])
    take(spans, call_phase, np.full(len(call), BUCKET_CODE["graph_gap"]), launches.range, nothing, call)
    waiting = first_started(launches.start, launches.first, called_first)
    take(waiting, call_phase, np.full(len(call), BUCKET_CODE["launch"]), launches.range, nothing, call)

    # (d) the host's own time
    rows = np.arange(len(ranges))
    host = np.full(len(rows), BUCKET_CODE["host"])
    unset = np.full(len(rows), -1, dtype=np.int64)
    for level in ranges.cover():
        take(level, ranges.phase, host, rows, unset, unset)
    left = len(free_start)
    one = np.full(left, -1, dtype=np.int64)
    between, host = np.full(left, PHASE_CODE[BETWEEN]), np.full(left, BUCKET_CODE["host"])
    take(Segments(free_start, free_end, np.arange(left)), between, host, one, one, one)

    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    start, stop, phase, bucket, instance, activity, launch = (column[order].astype(np.int64) for column in columns)
    inside_start, inside_end = np.clip(activities.start, begin, end), np.clip(activities.end, begin, end)
    busy = union_by_key(activities.phase, inside_start, inside_end, _PHASES)
    talking = union_by_key(
        activities.phase[communication], inside_start[communication], inside_end[communication], _PHASES
    )
    given = communication_code(bucket)
    shown = np.zeros(_PHASES, dtype=np.int64)
    np.add.at(shown, phase[given], (stop - start)[given])
    result = Partition(begin, end, start, stop, phase, bucket, instance, activity, launch, busy, talking - shown)
    result.check()
    return result
