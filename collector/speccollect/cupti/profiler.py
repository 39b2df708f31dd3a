"""The kernel tier through NVIDIA's cupti-python: each device activity comes with its graph and node, on any driver.

An alternative to ``kineto.profiler.Profiler`` in windows, chosen with ``--backend cupti``. There are no ranges: phases come from
the recorder's stamps. GRAPH_TRACE, which would hide the nodes, is never asked for. CUPTI stays attached after a window
(launches stay dearer; the trace's own control cycles after the first window show it).

CUPTI hands buffers over on threads of its own choice. Where the compiled part is there (``buffers``) it takes them without the
interpreter, and the serving thread does no more at a window's end than switch recording off. Else cupti-python takes them under the
interpreter lock and makes an object of each record: then buffers are large (a usual window fills none, and all is handed over
when it ends, which holds the server for seconds) and nothing but collecting is done then.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti.buffers import Buffers, CuptiError, RawRecords, mistrust, open_buffers
from speccollect.cupti.columns import ClockFit, RecordKinds, columns_of, read_records
from speccollect.cupti.records import published
from speccollect.kineto.columns import KinetoColumns

BUFFER_BYTES: Final = 32 << 20
"""About 150 000 kernel records."""

CLOCK_READS: Final = 9
"""CUPTI's and the host's clocks are read together this often; the closest pair counts."""

FORCED: Final = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also what is not complete."""


class CuptiProfiler:
    """One window's profiler, with the methods and attributes of ``kineto.profiler.Profiler``.

    Attributes:
        kind: what it records.
        prepare_cost_ns, start_cost_ns, stop_cost_ns, events_cost_ns: how long the serving thread was held.
        facts: what the trace's metadata says of this window: the clock's fit, what was lost, and why records are objects
            where they are.
    """

    kind = "cupti-python: device activity with node ids"
    has_ranges = False
    plain = False
    metadata = False
    ids_only = False

    def __init__(self, max_records: int, cupti: Any = None, buffers: Buffers | None = None) -> None:
        """
        Args:
            max_records: records kept; more are counted and dropped.
            cupti: the module, imported if not given.
            buffers: what takes CUPTI's buffers; cupti-python if neither is given and there can be none of ours.

        Raises:
            ImportError: cupti-python is not installed, or finds no CUPTI.
        """
        self.facts: dict[str, Any] = {}
        if cupti is None:
            cupti = importlib.import_module("cupti.cupti")
            opened = open_buffers(cupti, RecordKinds.of(cupti.ActivityKind))
            if isinstance(opened, Buffers):
                buffers = opened
            else:
                self.facts["objects_because"] = opened
        self._cupti = cupti
        self._buffers = buffers
        self._kinds = RecordKinds.of(cupti.ActivityKind)
        self._max = max_records
        self._records: list[Any] = []
        self._dropped = 0
        self._enabled: list[Any] = []
        self._thread_ids: int | None = None
        self._since = 0
        self._begin = (0, 0, 0)
        self._clock = ClockFit((0, 0, 0), (0, 0, 0))
        self.prepare_cost_ns = 0
        self.start_cost_ns = 0
        self.stop_cost_ns = 0
        self.events_cost_ns = 0

    def prepare(self) -> None:
        """Attach to the device; what is recorded until ``start`` is left out later.

        Raises:
            Exception: cupti-python's own, where another tool has CUPTI or the driver refuses; nothing stays enabled.
        """
        begun = time.perf_counter_ns()
        cupti = self._cupti
        kind = cupti.ActivityKind
        try:
            if self._buffers is not None:
                self._buffers.begin(self._max)
            else:
                cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
            # thread ids as the system has them, like the phases' rows; put back afterwards, since Kineto counts on the other
            self._thread_ids = int(cupti.get_thread_id_type())
            cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
            for wanted in (
                kind.CONCURRENT_KERNEL,
                kind.MEMCPY,
                kind.MEMCPY2,
                kind.MEMSET,
                kind.RUNTIME,
                kind.DRIVER,
            ):
                cupti.activity_enable(wanted)
                self._enabled.append(wanted)
        except Exception:
            self._disable()
            raise
        self.prepare_cost_ns = time.perf_counter_ns() - begun

    def start(self) -> None:
        """Records are kept from here on."""
        begun = time.perf_counter_ns()
        self._begin = self._read_clocks()
        self._since = self._begin[0]
        self.start_cost_ns = time.perf_counter_ns() - begun

    def stop(self) -> list[Any] | RawRecords:
        """Stop recording, and return the records; raw ones come later, of themselves.

        Raises:
            CuptiError: no thread could be started to fetch them.
        """
        begun = time.perf_counter_ns()
        self._clock = ClockFit(self._begin, self._read_clocks())
        self._disable()
        stopped = time.perf_counter_ns()
        self.stop_cost_ns = stopped - begun
        records: list[Any] | RawRecords
        if self._buffers is not None:
            records = self._buffers.end(self._max)
        else:
            self._cupti.activity_flush_all(FORCED)
            records, self._records = self._records, []
        self.events_cost_ns = time.perf_counter_ns() - stopped
        self.facts |= {
            "clock": "CUPTI's, against CLOCK_REALTIME read beside it",
            "clock_offset_ns": [self._clock.begin[1], self._clock.end[1]],
            "clock_error_ns": max(self._clock.begin[2], self._clock.end[2]),
            "dropped": self._dropped,
        }
        return records

    def read(self, events: list[Any] | RawRecords, *, pause: Callable[[], None] | None) -> KinetoColumns:
        """Columns of ``stop``'s records.

        Raises:
            CuptiError: raw records that can't be believed; the windows after this one take cupti-python's objects.
        """
        if isinstance(events, RawRecords):
            columns, counts = self._read_raw(events)
        else:
            columns, counts = read_records(
                events,
                self._kinds,
                self._clock,
                self._call_name,
                since=self._since,
                pause=pause,
                dtype_of=published(self._cupti),
            )
        self.facts.update(counts)
        return columns

    def _read_raw(self, records: RawRecords) -> tuple[KinetoColumns, dict[str, int]]:
        try:
            table = records.table(begun=self._clock.begin[0], ended=self._clock.end[0])
        except CuptiError as error:
            mistrust(str(error))
            raise
        finally:
            self.facts.update(records.facts)
        columns, counts = columns_of(table, self._kinds, self._clock, self._call_name, since=self._since)
        counts["other"] = records.other
        return columns, counts

    def _completed(self, records: list[Any]) -> None:
        room = self._max - len(self._records)
        if len(records) > room:
            self._dropped += len(records) - max(0, room)
            records = records[: max(0, room)]
        self._records.extend(records)

    def _disable(self) -> None:
        while self._enabled:
            self._cupti.activity_disable(self._enabled.pop())
        if self._thread_ids is not None:
            self._cupti.set_thread_id_type(self._thread_ids)
            self._thread_ids = None

    def _read_clocks(self) -> tuple[int, int, int]:
        """(CUPTI's time, Unix time minus it, uncertainty), of the closest of some readings."""
        readings = []
        for _ in range(CLOCK_READS):
            before = time.time_ns()
            device = int(self._cupti.get_timestamp())
            after = time.time_ns()
            readings.append((after - before, device, (before + after) // 2 - device))
        width, device, offset = min(readings)
        return device, offset, width // 2 + 1

    def _call_name(self, runtime: bool, callback: int) -> str:
        return call_name(self._cupti, runtime, callback)


class CuptiEvents:
    """A closed window's records: what ``kineto.events.Events`` is for Kineto's. Stops the profiler when it is made.

    Attributes:
        reader: what reads them.
        off_thread: raw records need no interpreter lock.
    """

    def __init__(self, profiler: CuptiProfiler) -> None:
        self._profiler = profiler
        self._records: list[Any] | RawRecords = profiler.stop()
        self.off_thread = isinstance(self._records, RawRecords)
        self.reader = "cupti buffers" if self.off_thread else "cupti-python"

    def __len__(self) -> int:
        return len(self._records)

    def settle(self) -> None:
        """Somebody else is about to take CUPTI: raw buffers that came back later would be lost."""
        if isinstance(self._records, RawRecords):
            self._records.settle()

    def columns(self, *, pause: Callable[[], None] | None) -> KinetoColumns:
        return self._profiler.read(self._records, pause=pause)

    def texts(self, rows: Sequence[int]) -> Iterator[str]:
        """cupti-python's records carry none."""
        return iter("" for _ in rows)

    def numbers(
        self, rows: Sequence[int], keys: Sequence[str], *, pause: Callable[[], None] | None
    ) -> list[npt.NDArray[np.int64]]:
        """Nor these: graph and node are columns of their own."""
        return [np.full(len(rows), -1, dtype=np.int64) for _ in keys]

    def release(self) -> None:
        if isinstance(self._records, RawRecords):
            self._records.release()
        else:
            self._records = []


def preload() -> None:
    """Import cupti-python where it is installed: the first import takes longer than the serving thread should be held."""
    with contextlib.suppress(ImportError):
        importlib.import_module("cupti.cupti")


@functools.lru_cache(maxsize=4096)
def call_name(cupti: Any, runtime: bool, callback: int) -> str:
    """Name of an API function from CUPTI's callback id, with CUPTI's version suffix (``cudaGraphLaunch_v10000``)."""
    try:
        listed = (cupti.runtime_api_trace_cbid if runtime else cupti.driver_api_trace_cbid)(callback)
    except ValueError:  # newer than this cupti-python, or named with two underscores, which its enumeration leaves out
        domain = cupti.CallbackDomain.RUNTIME_API if runtime else cupti.CallbackDomain.DRIVER_API
        return str(cupti.get_callback_name(domain, callback)).lstrip("_")
    return str(listed.name)
