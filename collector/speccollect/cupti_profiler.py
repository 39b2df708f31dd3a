"""The kernel tier through NVIDIA's cupti-python: each device activity comes with its graph and node, on any driver.

An alternative to ``profiler.Profiler`` in windows, chosen with ``--backend cupti``. There are no ranges: phases come from
the recorder's stamps. GRAPH_TRACE, which would hide the nodes, is never asked for. CUPTI stays attached after a window
(launches stay dearer; the trace's own control cycles after the first window show it).

CUPTI hands buffers over on threads of its own choice, under the interpreter lock. So buffers are large (a usual window
fills none, and all is handed over when it ends) and nothing but collecting is done then.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti_columns import ClockFit, RecordKinds, read_records
from speccollect.cupti_records import published
from speccollect.kineto import KinetoColumns

BUFFER_BYTES: Final = 32 << 20
"""About 150 000 kernel records."""

CLOCK_READS: Final = 9
"""CUPTI's and the host's clocks are read together this often; the closest pair counts."""

FORCED: Final = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also what is not complete."""


class CuptiProfiler:
    """One window's profiler, with the methods and attributes of ``profiler.Profiler``.

    Attributes:
        kind: what it records.
        prepare_cost_ns, start_cost_ns, stop_cost_ns, events_cost_ns: how long the serving thread was held.
        facts: what the trace's metadata says of this window: the clock's fit and what was lost.
    """

    kind = "cupti-python: device activity with node ids"
    has_ranges = False
    plain = False
    metadata = False
    ids_only = False

    def __init__(self, max_records: int, cupti: Any = None) -> None:
        """
        Args:
            max_records: records kept; more are counted and dropped.
            cupti: the module, imported if not given.

        Raises:
            ImportError: cupti-python is not installed, or finds no CUPTI.
        """
        if cupti is None:
            cupti = importlib.import_module("cupti.cupti")
        self._cupti = cupti
        self._kinds = RecordKinds.of(cupti.ActivityKind)
        self._max = max_records
        self._records: list[Any] = []
        self._dropped = 0
        self._enabled: list[Any] = []
        self._thread_ids: int | None = None
        self._since = 0
        self._begin = (0, 0, 0)
        self._clock = ClockFit((0, 0, 0), (0, 0, 0))
        self.facts: dict[str, Any] = {}
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

    def stop(self) -> list[Any]:
        """Stop recording, and return the records."""
        begun = time.perf_counter_ns()
        self._clock = ClockFit(self._begin, self._read_clocks())
        self._disable()
        stopped = time.perf_counter_ns()
        self.stop_cost_ns = stopped - begun
        self._cupti.activity_flush_all(FORCED)
        records, self._records = self._records, []
        self.events_cost_ns = time.perf_counter_ns() - stopped
        self.facts = {
            "clock": "CUPTI's, against CLOCK_REALTIME read beside it",
            "clock_offset_ns": [self._clock.begin[1], self._clock.end[1]],
            "clock_error_ns": max(self._clock.begin[2], self._clock.end[2]),
            "dropped": self._dropped,
        }
        return records

    def read(self, events: list[Any], *, pause: Callable[[], None] | None) -> KinetoColumns:
        """Columns of ``stop``'s records."""
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
    """A closed window's records: what ``kineto_events.Events`` is for Kineto's. Stops the profiler when it is made."""

    reader = "cupti-python"
    off_thread = False

    def __init__(self, profiler: CuptiProfiler) -> None:
        self._profiler = profiler
        self._records: list[Any] = profiler.stop()

    def __len__(self) -> int:
        return len(self._records)

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
        self._records = []


@functools.lru_cache(maxsize=4096)
def call_name(cupti: Any, runtime: bool, callback: int) -> str:
    """Name of an API function from CUPTI's callback id, with CUPTI's version suffix (``cudaGraphLaunch_v10000``)."""
    try:
        listed = (cupti.runtime_api_trace_cbid if runtime else cupti.driver_api_trace_cbid)(callback)
    except ValueError:  # newer than this cupti-python, or named with two underscores, which its enumeration leaves out
        domain = cupti.CallbackDomain.RUNTIME_API if runtime else cupti.CallbackDomain.DRIVER_API
        return str(cupti.get_callback_name(domain, callback)).lstrip("_")
    return str(listed.name)
