"""The compiled passes over one rank's device rows; see timeline.c. There is no Python form: who finds none takes the whole tables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.native.library import library

Ints = NDArray[np.int64]
Array = NDArray[Any]

_LEVELS: Final = 3
_Pointer = ctypes.c_void_p


class _Window(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_size_t),
        ("start", _Pointer),
        ("length", _Pointer),
        ("call", _Pointer),
        ("bucket", _Pointer),
        ("order", _Pointer),
        ("call_start", _Pointer),
        ("call_first", _Pointer),
        ("call_range", _Pointer),
        ("call_graph", _Pointer),
        ("waits", ctypes.c_size_t),
        ("wait", _Pointer),
        ("spans", ctypes.c_size_t),
        ("span_start", _Pointer),
        ("span_end", _Pointer),
        ("span_call", _Pointer),
        ("range_phase", _Pointer),
        ("level_count", ctypes.c_size_t * _LEVELS),
        ("level_start", _Pointer * _LEVELS),
        ("level_end", _Pointer * _LEVELS),
        ("level_range", _Pointer * _LEVELS),
        ("tier", _Pointer),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("wide", "buckets", "between", "outside", "unattributed")),
        *((name, ctypes.c_int32) for name in ("gap", "launch", "host")),
    )


class _Kept(ctypes.Structure):
    _fields_ = (
        ("exposed", _Pointer),
        ("gap", _Pointer),
        ("gap_range", _Pointer),
        ("instants", ctypes.c_size_t),
        ("instant", _Pointer),
        ("counts", _Pointer),
        ("before", _Pointer),
        ("stretches", ctypes.c_size_t),
        ("stretch_start", _Pointer),
        ("stretch_phase", _Pointer),
        ("stretch_bucket", _Pointer),
    )


@dataclass(frozen=True)
class Stretches:
    """What is kept of a partition's stretches, by device row.

    Attributes:
        exposed: ns that the partition gave to the row, of the type of lengths.
        gap: ns of the graph gap that ends where the row begins, 0 where none does.
        gap_range: range of that gap's launch call, -1 where none, int32.
    """

    exposed: Array
    gap: Ints
    gap_range: NDArray[np.int32]


@dataclass(frozen=True)
class Tiles:
    """A partition as it lies in time: stretches that touch each other; neighbours of one phase, bucket and range are one.

    Attributes:
        start, length: ns.
        phase, bucket: codes, uint8.
    """

    start: Ints
    length: Ints
    phase: NDArray[np.uint8]
    bucket: NDArray[np.uint8]


@dataclass(frozen=True)
class RowSums:
    """What ``Passes.rows`` sums up.

    Attributes:
        busy, talking: by phase: union of its rows, and of its communication, inside the window, ns.
        whole, count: by phase: union over the whole recording, ns; number of rows.
        present: by phase: whether a row lies in the window.
        look_ns, look_count: by (decided by the map, look).
        lead: the most by which a row starts before its call, ns; None where no row has a call.
    """

    busy: Ints
    talking: Ints
    whole: Ints
    count: Ints
    present: NDArray[np.bool_]
    look_ns: Ints
    look_count: Ints
    lead: int | None


@dataclass(frozen=True)
class PartitionSums:
    """The partition, summed.

    Attributes:
        totals, by_range: ns by (phase, bucket) and by (range, bucket).
        graph_phase, graph_range: the part of ``launch`` that graph launches made.
        before: ns of the phases that count before each instant that was asked for.
        stretches: None where they were not asked for.
    """

    totals: Ints
    by_range: Ints
    graph_phase: Ints
    graph_range: Ints
    before: Ints
    stretches: Stretches | None = None


class Passes:
    """The compiled passes over the same rows.

    Args:
        compiled: of ``compiled``.
        start: ns, int64, contiguous.
        length: ns, uint32 or int64.
    """

    def __init__(self, compiled: ctypes.CDLL, start: Ints, length: Array) -> None:
        self._c = compiled
        self.start, self.length = start, length

    @property
    def _wide(self) -> int:
        return int(self.length.dtype.itemsize == 8)

    def settle(self, columns: Sequence[Array]) -> bool:
        """Sort start, length and other columns by start, in place and stably; False where they are far from it (then in no order)."""
        moved = [self.length, *columns]
        pointers = (_Pointer * len(moved))(*(_at(column) for column in moved))
        widths = (ctypes.c_int * len(moved))(*(column.dtype.itemsize for column in moved))
        return bool(self._c.timeline_settle(len(self.start), _at(self.start), len(moved), pointers, widths))

    def cut(self, stream: Array, streams: int) -> tuple[int, bool]:
        """Cut lengths that run past three or more later starts of their stream (uint16), in place.

        Returns:
            How many were cut, and whether these are all: False where too many rows of a stream run at once.
        """
        arrays = (_at(self.start), _at(self.length))
        count = int(self._c.timeline_cut(len(self.start), *arrays, self._wide, _at(stream), streams))
        return (count, True) if count >= 0 else (-1 - count, False)

    def extents(self, call: Array, call_range: Array, calls: int) -> tuple[Ints, Ints, Array, int | None]:
        """By call: first start, last end and number of its rows; and the last end of a row launched inside a range."""
        first = np.full(calls, np.iinfo(np.int64).max, dtype=np.int64)
        last = np.full(calls, np.iinfo(np.int64).min, dtype=np.int64)
        count = np.zeros(calls, dtype=np.int32)
        arrays = (_at(call), _at(call_range), _at(first), _at(last), _at(count))
        latest = int(self._c.timeline_extents(len(self.start), _at(self.start), _at(self.length), self._wide, *arrays))
        return first, last, count, None if latest == np.iinfo(np.int64).min else latest

    def window(
        self,
        *,
        arrays: dict[str, Array | None],
        levels: Sequence[tuple[Ints, Ints, Ints]],
        numbers: dict[str, int],
    ) -> Window:
        """Bind what the passes over a window need; see ``window`` in timeline.c for names and types."""
        bound = _Window(rows=len(self.start), start=_at(self.start), length=_at(self.length), wide=self._wide)
        for name, array in arrays.items():
            setattr(bound, name, None if array is None else _at(array))
        for name, number in numbers.items():
            setattr(bound, name, number)
        for i, (start, end, owner) in enumerate(levels):
            bound.level_count[i] = len(start)
            bound.level_start[i], bound.level_end[i], bound.level_range[i] = _at(start), _at(end), _at(owner)
        return Window(self._c, bound, self.length, (self.start, arrays, levels))


class Window:
    """The passes over one window; holds what they point to."""

    def __init__(self, compiled: ctypes.CDLL, bound: _Window, length: Array, held: object) -> None:
        self._c = compiled
        self._bound = bound
        self._length = length
        self._held = held

    def partition(
        self, phases: int, ranges: int, instants: Ints, counts: NDArray[np.bool_], *, stretches: bool = False
    ) -> PartitionSums:
        """Partition the window and sum it up.

        Args:
            phases, ranges: how many there are.
            instants: ns, in order.
            counts: of each phase, whether its time is summed before them.
            stretches: keep what each row got.
        """
        buckets = int(self._bound.buckets)
        totals, by_range = (np.zeros((n, buckets), dtype=np.int64) for n in (phases, ranges))
        graph_phase, graph_range = (np.zeros(n, dtype=np.int64) for n in (phases, ranges))
        results = (totals, by_range, graph_phase, graph_range)
        before = np.zeros(len(instants), dtype=np.int64)
        kept = _Kept(instants=len(instants), instant=_at(instants), counts=_at(counts), before=_at(before))
        found = None
        if stretches:
            rows = len(self._length)
            found = Stretches(
                np.zeros_like(self._length), np.zeros(rows, dtype=np.int64), np.full(rows, -1, dtype=np.int32)
            )
            kept.exposed, kept.gap, kept.gap_range = map(_at, (found.exposed, found.gap, found.gap_range))
        self._c.timeline_partition(ctypes.byref(self._bound), *map(_at, results), ctypes.byref(kept))
        return PartitionSums(*results, before, found)

    def tiles(self, phases: int, ranges: int) -> Tiles:
        """Partition the window and keep its stretches.

        Args:
            phases, ranges: how many there are.
        """
        bound = self._bound
        # A stretch begins where something begins or ends; pages that are not reached are never made.
        most = 2 * (int(bound.rows) + int(bound.waits) + int(bound.spans) + sum(bound.level_count)) + 1
        start, phase, bucket = np.empty(most, dtype=np.int64), *(np.empty(most, dtype=np.uint8) for _ in range(2))
        kept = _Kept(stretch_start=_at(start), stretch_phase=_at(phase), stretch_bucket=_at(bucket))
        shapes = ((phases, int(bound.buckets)), (max(1, ranges), int(bound.buckets)), (phases,), (max(1, ranges),))
        sums = [np.zeros(shape, dtype=np.int64) for shape in shapes]
        self._c.timeline_partition(ctypes.byref(bound), *map(_at, sums), ctypes.byref(kept))
        count = int(kept.stretches)
        start, phase, bucket = (column[:count].copy() for column in (start, phase, bucket))
        return Tiles(start, np.diff(start, append=bound.end), phase, bucket)

    def rows(self, look: Array, by_map: Array | None, looks: int, phases: int) -> RowSums:
        """Sum up the device rows."""
        busy, talking, whole, count = (np.zeros(phases, dtype=np.int64) for _ in range(4))
        present = np.zeros(phases, dtype=np.bool_)
        look_ns, look_count = (np.zeros((2, looks), dtype=np.int64) for _ in range(2))
        results = (busy, talking, whole, count, present, look_ns, look_count)
        lead = int(
            self._c.timeline_rows(
                ctypes.byref(self._bound),
                _at(look),
                look.dtype.itemsize,
                None if by_map is None else _at(by_map),
                looks,
                *map(_at, results),
            )
        )
        return RowSums(*results, lead=None if lead == np.iinfo(np.int64).min else lead)


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def cover(
    compiled: ctypes.CDLL, instant: Ints, thread: Array, asked: NDArray[np.bool_], level: Sequence[Ints], found: Array
) -> None:
    """Write the owner of the segment that covers each instant into ``found`` (int32), where one does and the thread is asked for.

    Args:
        instant, thread: ns, and number of the thread (uint16).
        asked: of each number of a thread.
        level: start, end and owner of disjoint segments, by start.
    """
    start, end, owner = (np.ascontiguousarray(column) for column in level)
    arrays = (_at(start), _at(end), _at(owner), _at(found))
    compiled.timeline_covering(len(instant), _at(instant), _at(thread), _at(asked), len(start), *arrays)


@cache
def compiled(*, compile_it: bool = True) -> ctypes.CDLL | None:
    """The library, or None where there is none (and ``compile_it`` is false, or no compiler is at hand)."""
    found = library("timeline", compile_it=compile_it)
    if found is None:
        return None
    size, number, pointer = ctypes.c_size_t, ctypes.c_int, _Pointer
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "timeline_settle": (number, (size, pointer, number, pointer, pointer)),
        "timeline_cut": (ctypes.c_ssize_t, (size, pointer, pointer, number, pointer, size)),
        "timeline_covering": (None, (size, pointer, pointer, pointer, size, *(pointer,) * 4)),
        "timeline_extents": (ctypes.c_int64, (size, pointer, pointer, number, *(pointer,) * 5)),
        "timeline_partition": (None, (pointer,) * 6),
        "timeline_rows": (ctypes.c_int64, (pointer, pointer, number, pointer, size, *(pointer,) * 7)),
    }
    for name, (result, arguments) in signatures.items():
        function: Any = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
