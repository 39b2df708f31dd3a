"""The exact partition of one rank's timeline (RULES R5, design rule D2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.attribution.activities import BUCKET_CODE, Activities, communication_code, compute_code
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.columns import Ints
from specanalyze.intervals import Segments, by_priority, first_started, overlay, start_order, union_by_key
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
        totals = np.zeros(_PHASES * _BUCKETS, dtype=np.int64)
        np.add.at(totals, self.phase * _BUCKETS + self.bucket, self.end - self.start)  # integers: never through float64
        return totals.reshape(_PHASES, _BUCKETS)

    def check(self) -> None:
        """Raise when the stretches do not tile the window: a bug, never the data's fault."""
        edges = np.concatenate([[self.window_start], self.end])
        if not (np.array_equal(edges[:-1], self.start) and edges[-1] == self.window_end):
            raise AssertionError("the partition does not tile the window")


class _Owners:
    """What the owners of stretches are, whatever their sort: phase, bucket, range, activity and launch call of each."""

    def __init__(self) -> None:
        self._columns: tuple[list[Ints], ...] = ([], [], [], [], [])
        self._count = 0

    def add(
        self,
        phase: Ints,
        bucket: Ints | int,
        *,
        range: Ints | int = -1,
        activity: Ints | int = -1,
        launch: Ints | int = -1,
    ) -> int:
        """Append owners, one an element of ``phase``; the row of the first."""
        first = self._count
        for column, values in zip(self._columns, (phase, bucket, range, activity, launch), strict=True):
            column.append(np.broadcast_to(np.asarray(values, dtype=np.int64), phase.shape))
        self._count += len(phase)
        return first

    def of(self, owner: Ints) -> Iterator[Ints]:
        """The columns, looked up for some owners."""
        return (np.concatenate(column)[owner] for column in self._columns)


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
    layers: list[Segments] = []
    owners = _Owners()

    def lay(segments: Segments, first: int) -> None:
        """Lay a layer under those before; ``first`` is the row in ``owners`` of the segments' owner 0."""
        layers.append(Segments(segments.start, segments.end, segments.owner + first))

    # (a) running activities, tier by tier; in a tier the one that started first, then the lower stream, then file order
    index = np.arange(len(activities))
    working = owners.add(
        activities.phase, activities.bucket, range=activities.range, activity=index, launch=activities.launch
    )
    compute, communication = compute_code(activities.bucket), communication_code(activities.bucket)
    for tier in (compute, communication, ~(compute | communication)):
        members = np.flatnonzero(tier)
        order = members[start_order(activities.start[members], activities.stream[members])]
        lay(first_started(activities.start, activities.end, order), working)

    # (b) inside the span of one replay; (c) between a launch call and its first activity
    launches = activities.launches
    call = np.arange(len(launches))
    call_phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE])[launches.range]
    called_first = np.argsort(launches.start, kind="stable")
    priority = np.empty(len(launches), dtype=np.int64)
    priority[called_first] = call
    replay = np.flatnonzero(launches.graph)
    spans = by_priority(launches.first[replay], launches.last[replay], priority[replay])
    gaps = owners.add(call_phase, BUCKET_CODE["graph_gap"], range=launches.range, launch=call)
    lay(Segments(spans.start, spans.end, replay[spans.owner]), gaps)
    waiting = owners.add(call_phase, BUCKET_CODE["launch"], range=launches.range, launch=call)
    lay(first_started(launches.start, launches.first, called_first), waiting)

    # (d) the host's own time
    host = owners.add(ranges.phase, BUCKET_CODE["host"], range=np.arange(len(ranges)))
    for level in ranges.cover():
        lay(level, host)
    between = owners.add(np.array([PHASE_CODE[BETWEEN]]), BUCKET_CODE["host"])
    lay(Segments(*(np.array([x], dtype=np.int64) for x in (begin, end, 0))), between)

    start, stop, owner = overlay(layers, begin, end)
    phase, bucket, instance, activity, launch = owners.of(owner)
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
