"""Writes Perfetto's protobuf trace (perfetto.dev/docs/reference/trace-packet-proto), which ui.perfetto.dev opens, offline too.

A rank is a process, a row of the time line a track, a launch call and its first activity are joined by an arrow, accept length and batch
size are counters. Field numbers are those of Perfetto's published schema; a test parses what is written with that schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, Final

import numpy as np
import polars as pl

from specanalyze.columns import Ints, factorize, integers
from specanalyze.exports.export_events import ExportedRank
from specanalyze.exports.tracks import process_id, tracks
from specanalyze.formats import protobuf_columns as pb

_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR, _CLOCKS = 8, 10, 11, 12, 13, 60, 6
"""Fields of TracePacket."""
_TYPE, _TRACK, _NAME, _CATEGORY, _ANNOTATION, _FLOW, _END_OF_FLOW, _DOUBLE = 9, 11, 10, 3, 4, 47, 48, 44
"""Fields of TrackEvent."""
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
"""Values of TrackEvent.Type."""
_NEEDS_STATE: Final = 2
_CLEARS_STATE: Final = 1
_BOOTTIME, _REALTIME = 6, 1

_TIME_BYTES: Final = 9
_TRACK_BYTES: Final = 5
_ID_BYTES: Final = 4
_LARGEST_PID: Final = 2**31 - 1
_CHUNK: Final = 1 << 17
_SEQUENCE: Final = pb.number(_SEQUENCE_ID, 1)
_STATEFUL: Final = _SEQUENCE + pb.number(_FLAGS, _NEEDS_STATE)
_EVENT_NAMES, _CATEGORIES, _TEXTS = 2, 1, 29
"""Fields of InternedData: names, categories, annotation texts."""
_FACTS: Final = 1
"""Id of the one annotation name, ``facts``."""


class PerfettoTrace:
    """Writes ranks one after another; memory stays that of one chunk and of the distinct names."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._known: dict[int, dict[str, int]] = {_EVENT_NAMES: {}, _CATEGORIES: {}, _TEXTS: {}}
        self._processes: set[int] = set()
        self._began = False
        self.events = 0

    def write(self, rank: ExportedRank) -> None:
        """Write one rank."""
        if not self._began:
            self._begin(rank.start_ns or 0)
        base = (rank.number + 1) << 16
        pid = process_id(rank, self._processes, _LARGEST_PID)
        label = rank.label if rank.trace.host is None else f"{rank.label} on {rank.trace.host}"
        process = pb.number(1, pid) + pb.text(6, label)
        self._packet(pb.text(_DESCRIPTOR, pb.number(1, base) + pb.text(3, process) + pb.number(11, 3)))
        for number, (name, counted) in enumerate(_counters(rank), 1):
            self._counter(base + number, base, name, counted)
        for number, track in enumerate(tracks(rank), 16):
            child = pb.number(1, base + number) + pb.number(5, base) + pb.text(2, track.name) + pb.number(12, number)
            self._packet(pb.text(_DESCRIPTOR, child))
            for slices in track.pieces(_CHUNK):
                self._slices(slices, base + number, rank.number)

    def _begin(self, origin_ns: int) -> None:
        """The host's Unix time is the trace's clock; nothing was interned yet."""
        clocks = b"".join(pb.text(1, pb.number(1, clock) + pb.number(2, origin_ns)) for clock in (_BOOTTIME, _REALTIME))
        self._packet(pb.text(_CLOCKS, clocks) + _SEQUENCE)
        facts = pb.text(3, pb.number(1, _FACTS) + pb.text(2, "facts"))
        self._packet(_SEQUENCE + pb.number(_FLAGS, _CLEARS_STATE) + pb.text(_INTERNED, facts))
        self._began = True

    def _packet(self, packet: bytes) -> None:
        self._file.write(pb.text(_PACKET, packet))

    def _interned(self, kind: int, frame: pl.DataFrame, column: str) -> Ints:
        """Ids of a column's texts, numbered in the order in which they first occur, and written then; 0 for null."""
        known = self._known[kind]
        codes, values = factorize(frame, column)
        first = np.zeros(len(values) + 1, dtype=np.int64)  # the last place is that of null
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        new = [values[code] for code in np.argsort(first[: len(values)]).tolist() if values[code] not in known]
        if new:
            entries = []
            for value in new:
                known[value] = len(known) + 1
                entries.append(pb.text(kind, pb.number(1, known[value]) + pb.text(2, value)))
            self._packet(_STATEFUL + pb.text(_INTERNED, b"".join(entries)))
        return np.array([*(known[value] for value in values), 0], dtype=np.int64)[codes]

    def _slices(self, slices: pl.DataFrame, uuid: int, rank: int) -> None:
        slices = slices.with_columns(
            pl.coalesce("bucket", "kind").alias("category"),
            pl.when(pl.col("detail") != "").then("detail").alias("detail"),
        )
        self.events += slices.height
        start, length = integers(slices, "start_ns", 0), integers(slices, "dur_ns", 0)
        count = slices.height
        # At one instant ends come before begins, inner ends and outer begins first, so that the stack is right.
        index = np.arange(count)
        ended = np.flatnonzero(length > 0)
        when = np.concatenate([start, (start + length)[ended]])
        order = np.lexsort(
            (
                np.concatenate([index, -ended]),
                np.concatenate([-length, length[ended]]),
                np.concatenate([np.ones(count), np.zeros(len(ended))]),
                when,
            )
        )
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        name = self._interned(_EVENT_NAMES, slices, "name")
        category = self._interned(_CATEGORIES, slices, "category")
        facts = self._interned(_TEXTS, slices, "detail")
        flow_out, has_out = _flow(slices, "flow_out", rank)
        flow_in, has_in = _flow(slices, "flow_in", rank)
        shape = (length == 0) * 8 + (facts > 0) * 4 + has_out * 2 + has_in
        groups: list[tuple[Ints, pb.Bytes]] = []
        for kind in np.unique(shape).tolist():  # at most sixteen shapes
            mine = np.flatnonzero(shape == kind)
            event: list[bytes | pb.Bytes] = [
                pb.number(_TYPE, _INSTANT if kind & 8 else _BEGIN),
                pb.number(_TRACK, uuid),
            ]
            event += pb.numbers(_CATEGORY, category[mine], _ID_BYTES) + pb.numbers(_NAME, name[mine], _ID_BYTES)
            if kind & 4:
                event += pb.message(_ANNOTATION, [pb.number(1, _FACTS), *pb.numbers(17, facts[mine], _ID_BYTES)])
            if kind & 2:
                event += pb.fixed64(_FLOW, flow_out[mine])
            if kind & 1:
                event += pb.fixed64(_END_OF_FLOW, flow_in[mine])
            groups.append((place[mine], _packets(start[mine], event)))
        end = [pb.number(_TYPE, _END), pb.number(_TRACK, uuid)]
        groups.append((place[count:], _packets((start + length)[ended], end)))
        self._file.write(pb.interleaved(groups, len(order)))

    def _counter(self, uuid: int, parent: int, name: str, counted: pl.DataFrame) -> None:
        counter = (
            pb.number(1, uuid)
            + pb.number(5, parent)
            + pb.text(2, name)
            + pb.text(8, b"")
            + pb.number(12, uuid & 0xFFFF)
        )
        self._packet(pb.text(_DESCRIPTOR, counter))
        value = counted.get_column("value").cast(pl.Float64).to_numpy()
        event = [pb.number(_TYPE, _COUNTER), pb.number(_TRACK, uuid), *pb.fixed64(_DOUBLE, value)]
        self._file.write(_packets(integers(counted, "start_ns", 0), event).tobytes())


def _packets(when: Ints, event: Sequence[bytes | pb.Bytes]) -> pb.Bytes:
    """One TracePacket a time, ready to be appended to a Trace."""
    packet = [*pb.numbers(_TIMESTAMP, when, _TIME_BYTES), _STATEFUL, *pb.message(_TRACK_EVENT, event)]
    return pb.rows(len(when), pb.message(_PACKET, packet))


def _flow(
    slices: pl.DataFrame, column: str, rank: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Ids of the arrows, the rank in the high bits because correlation ids repeat among processes; and which slices have one."""
    has = slices.get_column(column).is_not_null().to_numpy()
    ids = integers(slices, column, 0).astype(np.uint64) ^ (np.uint64(rank + 1) << np.uint64(48))
    return ids, has


def _counters(rank: ExportedRank) -> list[tuple[str, pl.DataFrame]]:
    """Accept length (mean over the requests) and batch size at the start of each cycle that knows them."""
    cycles = rank.rows(np.flatnonzero(rank.of_kinds("cycle")))
    found = []
    for name, value in (
        ("accept length (tokens a request)", pl.col("accept_lengths").list.mean()),
        ("batch size (requests)", pl.col("batch_size").cast(pl.Float64)),
    ):
        rows = cycles.select("start_ns", value.alias("value")).drop_nulls().sort("start_ns")
        if rows.height:
            found.append((name, rows))
    return found


def write_perfetto(file: BinaryIO, ranks: Iterable[ExportedRank]) -> int:
    """Write all ranks; the number of slices and instants."""
    trace = PerfettoTrace(file)
    for _ in map(trace.write, ranks):  # a loop variable would hold a rank while the next one is read
        pass
    return trace.events
