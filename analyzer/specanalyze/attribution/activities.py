"""Device activities and launch calls of one rank, joined (RULES R1, R2, R3, R10)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.eager_modules import with_eager_modules
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.attribution.replay_nodes import Placement, place
from specanalyze.columns import Ints, again, distinct, factorize, integers, of_kind, places, rows_by_key
from specschema.events import DEVICE_KINDS
from specschema.kernel_classes import BY_OPERATION, KernelClass, classify
from specschema.module_classes import LOGITS, inside_logits
from specschema.phases import BUCKETS, COMMUNICATION_BUCKETS, COMPUTE_BUCKETS, OUTSIDE, UNATTRIBUTED, WHOLE_REPLAY

BUCKET_CODE: Final = {bucket: code for code, bucket in enumerate(BUCKETS)}
"""Bucket -> code used in arrays."""

_IS_COMPUTE: Final = np.array([bucket in COMPUTE_BUCKETS for bucket in BUCKETS])
_IS_COMMUNICATION: Final = np.array([bucket in COMMUNICATION_BUCKETS for bucket in BUCKETS])

GRAPH_LAUNCH: Final = re.compile(r"^(cuda|cu|hip)GraphLaunch(_ptsz|_v\d+)*$")
"""Launch calls whose activities form one graph replay; Nsight Systems and CUPTI add ``_vNNNN``, ``_ptsz``."""

IMPOSSIBLE_OVERLAP: Final = 3
"""RULES R10: a duration that runs past this many later starts of its own stream is impossible."""


@dataclass(frozen=True)
class Launches:
    """Launch calls that have at least one valid activity, in file order.

    Attributes:
        start: ns.
        range: index of the innermost recognised range that encloses the call on its own thread, -1 where none.
        first, last: first start and last end of its activities, ns.
        activities: how many it has.
        graph: True for a graph launch.
        thread: (pid, tid) index of the ranges, -1 for a thread without ranges.
    """

    start: Ints
    range: Ints
    first: Ints
    last: Ints
    activities: Ints
    graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Activities:
    """Valid device activities of one rank, in file order.

    Attributes:
        start, end: ns; impossible durations already cut.
        stream: stream id.
        bucket: code of BUCKET_CODE.
        phase: code of PHASE_CODE: the phase of the launch call, ``outside`` or ``unattributed``.
        launch: index into ``launches``, -1 where no launch call was recorded.
        range: index of the recognised range it belongs to, -1 where none.
        name: code into ``names``.
        names: distinct kernel names.
        subclass: code into ``subclasses``: router, topk, lm_head, norm, sampling, the operation of a collective, ...
        subclasses: distinct finer classes.
        by_map: True where the node map decided the class.
        classified: False where neither map nor table knew it.
        placement: the node of each activity, where captured graphs are known.
        row: row of the activity in ``rows``.
        rows: the frame of device rows, for the other columns.
        launches: launch calls with activities.
        graph_call_start, graph_call_range: all graph launch calls of the recording, with or without activities:
            start in ns and innermost recognised range (-1: none), in file order.
        invalid: rows dropped because they have no usable time.
        cut: durations cut.
    """

    start: Ints
    end: Ints
    stream: Ints
    bucket: Ints
    phase: Ints
    launch: Ints
    range: Ints
    name: Ints
    names: tuple[str, ...]
    subclass: Ints
    subclasses: tuple[str, ...]
    by_map: NDArray[np.bool_]
    classified: NDArray[np.bool_]
    row: Ints
    rows: pl.DataFrame
    launches: Launches
    graph_call_start: Ints
    graph_call_range: Ints
    invalid: int
    cut: int
    placement: Placement | None = None

    def __len__(self) -> int:
        return len(self.start)


def cut_impossible(start: Ints, end: Ints, stream: Ints) -> tuple[Ints, int]:
    """Cut durations that run past three or more later starts of their own stream (RULES R10).

    Args:
        start, end: ns.
        stream: number of the stream (device included), from 0.

    Returns:
        The ends, cut at the next start on their stream, and how many were cut.
    """
    end = end.copy()
    cut = 0
    for _, rows in rows_by_key(stream, int(stream.max(initial=-1)) + 1):  # one turn a stream
        rows = rows[np.argsort(start[rows], kind="stable")]
        starts, ends = start[rows], end[rows]
        # What does not even reach the third start behind its own place is possible: nearly all of them.
        maybe = np.flatnonzero(starts[IMPOSSIBLE_OVERLAP:] < ends[:-IMPOSSIBLE_OVERLAP])
        after = np.searchsorted(starts, starts[maybe], side="right")
        overlapped = np.searchsorted(starts, ends[maybe], side="left") - after
        bad = overlapped >= IMPOSSIBLE_OVERLAP
        end[rows[maybe[bad]]] = starts[after[bad]]
        cut += int(bad.sum())
    return end, cut


class _Classes(NamedTuple):
    """Class of each device row: name code, bucket code, subclass code, classified; and the distinct texts."""

    name: Ints
    names: list[str]
    bucket: Ints
    subclass: Ints
    subclasses: list[str]
    classified: NDArray[np.bool_]


def _classes(rows: pl.DataFrame) -> _Classes:
    """Class of each device row, looking at each distinct (name, operation) once."""
    name, names = factorize(rows, "name")
    op, ops = factorize(rows, "op")
    kind, kinds = factorize(rows, "kind")
    width = max(len(names), 1)
    used, inverse = distinct((op + 1) * width + name)
    found = [classify(names[code % width], ops[code // width - 1] if code >= width else None) for code in used.tolist()]
    unresolved = KernelClass("graph_unresolved", "graph_unresolved", BY_OPERATION)
    found = [unresolved if names[c % width] == WHOLE_REPLAY else f for c, f in zip(used.tolist(), found, strict=True)]
    subclasses = list(dict.fromkeys([*(f.subclass for f in found), "copy"]))
    bucket = np.array([BUCKET_CODE[f.bucket] for f in found], dtype=np.int64)[inverse]
    subclass = np.array([subclasses.index(f.subclass) for f in found], dtype=np.int64)[inverse]
    known = np.array([f.rule is not None for f in found], dtype=bool)[inverse]
    copies = np.isin(kind, [k for k, text in enumerate(kinds) if text in ("memcpy", "memset")])
    return _Classes(
        name,
        names,
        np.where(copies, BUCKET_CODE["memcpy"], bucket),
        np.where(copies, subclasses.index("copy"), subclass),
        subclasses,
        known | copies,
    )


def class_of_look(name: str, kind: str, operation: str | None) -> tuple[str, str, bool]:
    """Bucket and finer class of a device row, and whether a rule knew it: by its kind, its name, and its operation if it tells one."""
    if kind in ("memcpy", "memset"):
        return "memcpy", "copy", True
    if name == WHOLE_REPLAY:
        return "graph_unresolved", "graph_unresolved", True
    found = classify(name, operation)
    return found.bucket, found.subclass, found.rule is not None


def join_activities(events: pl.DataFrame, ranges: Ranges) -> Activities:
    """Join a rank's device activities with their launch calls, and these with the phase ranges.

    Args:
        events: one rank's events.
        ranges: the rank's recognised ranges.
    """
    rows = of_kind(events, DEVICE_KINDS)
    start, duration = integers(rows, "start_ns", 0), integers(rows, "dur_ns", -1)
    row = np.flatnonzero(duration >= 0)
    invalid = len(start) - len(row)
    valid = rows[row] if invalid else rows
    start = start[row]
    stream = integers(valid, "stream", -1)
    streams, stream_number = distinct(stream)
    device_and_stream = distinct(integers(valid, "device", 0))[1] * len(streams) + stream_number
    end, cut = cut_impossible(start, start + duration[row], distinct(device_and_stream)[1])
    classes = _classes(valid)
    bucket, classified = classes.bucket, classes.classified
    subclass, subclasses = classes.subclass, classes.subclasses

    calls = _outer_first(of_kind(events, ("launch",)))
    call_start = integers(calls, "start_ns", 0)
    call_id = integers(calls, "correlation", -1)
    launch_of, used = _match(integers(valid, "correlation", -1), call_id, calls)
    call_range = ranges.innermost(_threads(calls, ranges), call_start)
    is_graph = _graph_calls(calls)
    graph_call = np.flatnonzero(is_graph)
    is_graph[graph_call[again(call_id[graph_call], -1)]] = False  # a call written twice is one replay

    count = len(used)
    first = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)
    joined = launch_of >= 0
    np.minimum.at(first, launch_of[joined], start[joined])
    np.maximum.at(last, launch_of[joined], end[joined])
    launches = Launches(
        call_start[used],
        call_range[used],
        first,
        last,
        np.bincount(launch_of[joined], minlength=count).astype(np.int64),
        is_graph[used],
    )
    placement = place(events, valid, start, launch_of, launches.graph)
    call = used[launch_of] if len(used) else launch_of
    pid, tid = (np.where(joined, integers(calls, c, -1)[call], -1) if len(used) else launch_of for c in ("pid", "tid"))
    placement = with_eager_modules(placement, events, pid, tid, call_start[call] if len(used) else launch_of)
    by_map = np.zeros(len(start), dtype=bool)
    if (placement.node_row >= 0).any():
        bucket, by_map = mapped_bucket(bucket, placement)
        subclass, subclasses = mapped_subclass(subclass, subclasses, bucket, by_map & compute_code(bucket), placement)
        classified = classified | by_map
    phase = np.full(len(start), PHASE_CODE[UNATTRIBUTED], dtype=np.int64)
    of_range = np.full(len(start), -1, dtype=np.int64)
    of_range[joined] = launches.range[launch_of[joined]]
    range_phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE])  # index -1: in no range
    phase[joined] = range_phase[of_range[joined]]
    graph_call = np.flatnonzero(is_graph)
    return Activities(
        start,
        end,
        stream,
        bucket,
        phase,
        launch_of,
        of_range,
        classes.name,
        tuple(classes.names),
        subclass,
        tuple(subclasses),
        by_map,
        classified,
        row,
        rows,
        launches,
        call_start[graph_call],
        call_range[graph_call],
        invalid,
        cut,
        placement if placement.nodes.height else None,
    )


def mapped_bucket(bucket: Ints, placement: Placement) -> tuple[Ints, NDArray[np.bool_]]:
    """Buckets with the node map's say: computing kernels take their module's class; communication and copies keep theirs.

    So no activity changes its tier, and the partition's busy and idle totals do not depend on the map. A collective or
    copy whose node is known counts as decided by the map too: rule D5 keeps it what it is wherever it sits.
    """
    of_node = np.array(
        [-1 if m.bucket is None else BUCKET_CODE[m.bucket] for m in placement.modules] + [-1], dtype=np.int64
    )
    mapped = of_node[placement.node_row]
    logits = _in_logits(placement)
    for code, name in enumerate(BUCKETS):
        inside = inside_logits(name)
        if inside is not None and inside.bucket is not None:
            mapped[logits & (bucket == code)] = BUCKET_CODE[inside.bucket]
    computing = compute_code(bucket)
    return np.where((mapped >= 0) & computing, mapped, bucket), np.where(
        computing, mapped >= 0, placement.node_row >= 0
    )


def _in_logits(placement: Placement) -> NDArray[np.bool_]:
    """Activities of modules that make logits, where the kernel says which part it is."""
    return np.array([m.subclass == LOGITS for m in placement.modules] + [False], dtype=bool)[placement.node_row]


def _outer_first(calls: pl.DataFrame) -> pl.DataFrame:
    """Launch calls in file order; by start where calls that have one id may lie in another: the outer one then comes first."""
    ids, start = integers(calls, "correlation", -1), integers(calls, "start_ns", 0)
    if bool((start[1:] >= start[:-1]).all()) or not again(ids, -1).any():
        return calls
    return calls[np.argsort(start, kind="stable")]


def _match(correlation: Ints, call_correlation: Ints, calls: pl.DataFrame) -> tuple[Ints, Ints]:
    """Launch call of each activity.

    Returns:
        index into ``used`` per activity (-1: none), and ``used``: rows of ``calls`` that have an activity, in file order.
    """
    known = np.flatnonzero(call_correlation != -1)
    ids, place = distinct(call_correlation[known])
    if not len(ids):
        return np.full(len(correlation), -1, dtype=np.int64), np.empty(0, dtype=np.int64)
    # Of two calls with one id (the driver's inside the runtime's) the first one counts: see _outer_first.
    row = np.empty(len(ids), dtype=np.int64)
    row[place[::-1]] = known[::-1]
    at = places(ids, correlation)
    hit = at >= 0
    used, call = distinct(row[at[hit]])
    found = np.full(len(correlation), -1, dtype=np.int64)
    found[hit] = call
    return found, used


def _threads(calls: pl.DataFrame, ranges: Ranges) -> Ints:
    """Thread index of each call among the threads that have ranges, -1 for other threads."""
    pid, tid = integers(calls, "pid", 0), integers(calls, "tid", 0)
    thread = np.full(len(pid), -1, dtype=np.int64)
    for number, (p, t) in enumerate(ranges.threads):
        thread[(pid == p) & (tid == t)] = number
    return thread


def _graph_calls(calls: pl.DataFrame) -> NDArray[np.bool_]:
    codes, names = factorize(calls, "name")
    graph = np.array([bool(GRAPH_LAUNCH.match(name)) for name in names] + [False], dtype=bool)
    return graph[codes]


def mapped_subclass(
    subclass: Ints, subclasses: list[str], bucket: Ints, decided: NDArray[np.bool_], placement: Placement
) -> tuple[Ints, list[str]]:
    """Finer classes with the module's own where the map decided."""
    inside = {b: c.subclass for b in BUCKETS if (c := inside_logits(b)) is not None}
    longer = list(dict.fromkeys([*subclasses, *(m.subclass for m in placement.modules), *inside.values()]))
    code = {text: i for i, text in enumerate(longer)}
    of_node = np.array([code[m.subclass] for m in placement.modules] + [0], dtype=np.int64)
    own = of_node[placement.node_row]
    logits = _in_logits(placement)
    for name, finer in inside.items():
        own[logits & (bucket == BUCKET_CODE[name])] = code[finer]
    return np.where(decided, own, subclass), longer


def compute_code(bucket: Ints) -> NDArray[np.bool_]:
    """Which bucket codes are of the compute tier."""
    return _IS_COMPUTE[bucket]


def communication_code(bucket: Ints) -> NDArray[np.bool_]:
    """Which bucket codes are of the communication tier."""
    return _IS_COMMUNICATION[bucket]
