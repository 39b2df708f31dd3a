"""Kineto's events -> numpy columns: what a column holds, and the Python reader, in slices that let the serving thread run.

The Python reader gets a Python object per event (``kineto_results.events()``); what costs is calling its methods. One
``numpy.fromiter`` over ``map`` of the unbound method per column was the fastest of the ways tried
(benchmarks/collector_write.py): 40 to 60 % of a loop that builds a tuple per event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SLICE: Final = 256
"""Events read in one go: about 0.3 ms of the interpreter lock."""

DEVICE_TYPES: Final = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
"""Kineto's activity type -> kind."""

PAUSE_SECONDS: Final = 0.0003
"""After each slice the lock is let go, so that a serving thread waits for one slice at most."""


class _Codes(dict[str, int]):
    """Text -> small number, new texts numbered as they come."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


@dataclass
class KinetoColumns:
    """Events in the order Kineto gives them.

    Attributes:
        start, duration: int64 ns since the Unix epoch.
        correlation: ties device rows to the runtime call that launched them.
        device, resource: device ordinal and stream of device rows; process id and thread id of host rows.
        name, type: codes into ``names`` and ``types`` (Kineto's activity types).
        details: further columns of device rows by name (graph_id, node, bytes), int64, -1 where unknown.
    """

    start: npt.NDArray[np.int64]
    duration: npt.NDArray[np.int64]
    correlation: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]
    resource: npt.NDArray[np.int64]
    name: npt.NDArray[np.int32]
    type: npt.NDArray[np.int32]
    names: list[str]
    types: list[str]
    details: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def of_type(self, *types: str) -> npt.NDArray[np.bool_]:
        """Mask of the rows of some activity types."""
        return np.array([name in types for name in self.types] or [False], dtype=np.bool_)[self.type]

    def named(self, rows: npt.NDArray[np.intp], test: Callable[[str], bool]) -> npt.NDArray[np.intp]:
        """Those of ``rows`` whose name passes a test; the test sees each name once."""
        return rows[np.array([test(name) for name in self.names] or [False], dtype=np.bool_)[self.name[rows]]]

    def name_mask(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Mask of the rows whose name passes a test; the test sees each name once."""
        return np.array([test(name) for name in self.names] or [False], dtype=np.bool_)[self.name]


def guessed_type(name: str, on_device: bool, user: bool) -> str:
    """Activity type for a torch that does not tell it (2.11 and older): by device, annotation flag and name."""
    if on_device:
        if user:
            return "gpu_user_annotation"
        if name.startswith("Memcpy"):
            return "gpu_memcpy"
        return "gpu_memset" if name.startswith("Memset") else "kernel"
    if user:
        return "user_annotation"
    if name.startswith("cuda"):
        return "cuda_runtime"
    if name.startswith("cu") and name[2:3].isupper():
        return "cuda_driver"
    return "cpu_op"


def types_of(event_of: Callable[[int], Any], columns: KinetoColumns) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Type codes where torch tells none: decided once for each different (name, device, resource).

    Args:
        event_of: row -> ``_KinetoEvent``.
        columns: all other columns.

    A host row and a device row of one name differ in device or resource: process and thread ids against a device ordinal
    and a stream, and no process has both the id of a device and a thread with the id of one of its streams.
    """
    _, device = np.unique(columns.device, return_inverse=True)
    _, resource = np.unique(columns.resource, return_inverse=True)
    key = (columns.name.astype(np.int64) * (device.max() + 1) + device) * (resource.max() + 1) + resource
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    types = _Codes()
    codes = []
    for row in first.tolist():
        event = event_of(row)
        on_device = str(event.device_type()).rpartition(".")[2] != "CPU"
        codes.append(types[guessed_type(event.name(), on_device, event.is_user_annotation())])
    return np.array(codes, dtype=np.int32)[inverse], list(types)


def read_columns(events: Sequence[Any], *, pause: Callable[[], None] | None) -> KinetoColumns:
    """Read every event's columns.

    Args:
        events: ``_KinetoEvent`` objects.
        pause: called after each slice to let other threads have the interpreter; None reads in one go.

    Returns:
        Columns of len(events) rows.
    """
    count = len(events)
    numbers = {name: np.empty(count, dtype=np.int64) for name in ("start", "duration", "correlation", "device", "res")}
    codes = {name: np.empty(count, dtype=np.int32) for name in ("name", "type")}
    names, types = _Codes(), _Codes()
    if count:
        event = type(events[0])
        told = hasattr(event, "activity_type")
        readers = (
            (numbers["start"], event.start_ns),
            (numbers["duration"], event.duration_ns),
            (numbers["correlation"], event.correlation_id),
            (numbers["device"], event.device_index),
            (numbers["res"], event.device_resource_id),
        )
        texts = [(codes["name"], event.name, names)]
        if told:
            texts.append((codes["type"], event.activity_type, types))
        step = SLICE if pause is not None else 16 * SLICE
        for begin in range(0, count, step):
            part = events[begin : begin + step]
            size = len(part)
            for target, method in readers:
                target[begin : begin + size] = np.fromiter(map(method, part), np.int64, size)
            for codes_of, method, table in texts:
                codes_of[begin : begin + size] = np.fromiter(map(table.__getitem__, map(method, part)), np.int32, size)
            if pause is not None:
                pause()
    columns = KinetoColumns(
        start=numbers["start"],
        duration=numbers["duration"],
        correlation=numbers["correlation"],
        device=numbers["device"],
        resource=numbers["res"],
        name=codes["name"],
        type=codes["type"],
        names=list(names),
        types=list(types),
    )
    if count and not types:
        columns.type, columns.types = types_of(events.__getitem__, columns)
    return columns
