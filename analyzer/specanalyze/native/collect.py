"""The compiled half of ``rank_collector.Collector``: takes batches of rows apart into narrow columns; see collect.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.native.library import library

Ints = NDArray[np.int64]
Array = NDArray[Any]

DONE, NEW_LOOK, NEW_STREAM, NEW_THREAD, ODD, NO_MEMORY = range(6)
"""Why ``Columns.take`` stopped."""
NO_ID: Final = int(np.iinfo(np.int32).min)
"""Stands for an unknown correlation id."""

_Pointer = ctypes.c_void_p
_DEVICE: Final = {
    "start": np.int64,
    "length": np.uint32,
    "stream": np.uint16,
    "look": np.uint16,
    "id": np.int32,
    "ran": np.int32,
    "node": np.int32,
}
_CALLS: Final = {"start": np.int64, "id": np.int32, "thread": np.uint16, "graph": np.bool_}


class Column(ctypes.Structure):
    """``column`` of collect.c."""

    _fields_ = (("values", _Pointer), ("valid", _Pointer), ("offset", ctypes.c_int64))


class Batch(ctypes.Structure):
    """``batch`` of collect.c."""

    _fields_ = (
        ("rows", ctypes.c_size_t),
        *((name, _Pointer) for name in ("kind", "name", "op", "group", "graph", "look_of")),
        ("kinds", ctypes.c_int64),
        ("names", ctypes.c_int64),
        ("ops", ctypes.c_int64),
        *(
            (name, Column)
            for name in ("start", "length", "window", "stream", "device", "pid", "tid", "id", "ran", "node")
        ),
        *((name, ctypes.c_int64) for name in ("one_device", "one_pid", "wanted", "most_start", "most_length")),
        *((name, ctypes.c_int64) for name in ("earliest", "latest")),
        ("streams", _Pointer),
        ("threads", _Pointer),
        ("stream_count", ctypes.c_int64),
        ("thread_count", ctypes.c_int64),
        ("host", _Pointer),
        ("device_row", _Pointer),
        ("hosts", ctypes.c_size_t),
        ("device_rows", ctypes.c_size_t),
        ("at", ctypes.c_size_t),
    )


class Columns:
    """Columns of one window, growing."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        self._c = compiled
        self._handle = compiled.collect_new()
        if not self._handle:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._c.collect_free(self._handle)

    def take(self, batch: Batch) -> int:
        """Take the rows of a batch from ``batch.at`` on; why it stopped."""
        why = int(self._c.collect_rows(self._handle, ctypes.byref(batch)))
        if why == NO_MEMORY:
            raise MemoryError
        return why

    @property
    def rows(self) -> int:
        return int(self._c.collect_count(self._handle, 0))

    @property
    def invalid(self) -> int:
        return int(self._c.collect_count(self._handle, 2))

    def device(self) -> dict[str, Array]:
        """The device rows' columns, handed over: start, length (int64 where 32 bits do not do), stream, look, id, ran, node.

        The last two are empty where no batch had the column.
        """
        columns = self._taken(_DEVICE, 0, self.rows)
        longs = int(self._c.collect_count(self._handle, 3))
        if longs:
            length = columns["length"].astype(np.int64)
            rows = self._view(self._c.collect_long_rows(self._handle), longs)
            length[rows] = self._view(self._c.collect_long_lengths(self._handle), longs)
            columns["length"] = length
        return columns

    def calls(self) -> dict[str, Array]:
        """The launch calls' columns, handed over: start, id, thread, graph."""
        return self._taken(_CALLS, len(_DEVICE), int(self._c.collect_count(self._handle, 1)))

    def _taken(self, types: dict[str, Any], first: int, count: int) -> dict[str, Array]:
        columns: dict[str, Array] = {}
        for i, (name, kind) in enumerate(types.items(), start=first):
            address = self._c.collect_take(self._handle, i)
            if not address:
                columns[name] = np.empty(0, dtype=kind)
                continue
            memory = (ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address)
            memory.owner = _Owner(self._c, address)  # frees it with the last array on it
            columns[name] = np.frombuffer(memory, dtype=kind)
        return columns

    @staticmethod
    def _view(address: int, count: int) -> Ints:
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).copy()


class _Owner:
    """Frees a column."""

    def __init__(self, compiled: ctypes.CDLL, address: int) -> None:
        self._c = compiled
        self._address = address

    def __del__(self) -> None:
        self._c.collect_free_column(self._address)


def address(array: Array | None) -> int | None:
    """Where an array lies, for a field of ``Batch``; None for no array."""
    return None if array is None else int(array.ctypes.data)


@cache
def compiled(*, compile_it: bool = True) -> ctypes.CDLL | None:
    """The library, or None where there is none (and ``compile_it`` is false, or no compiler is at hand)."""
    found = library("collect", compile_it=compile_it)
    if found is None:
        return None
    size, pointer, number = ctypes.c_size_t, _Pointer, ctypes.c_int
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "collect_new": (pointer, ()),
        "collect_rows": (number, (pointer, pointer)),
        "collect_count": (size, (pointer, number)),
        "collect_take": (pointer, (pointer, number)),
        "collect_long_rows": (pointer, (pointer,)),
        "collect_long_lengths": (pointer, (pointer,)),
        "collect_free_column": (None, (pointer,)),
        "collect_free": (None, (pointer,)),
    }
    for name, (result, arguments) in signatures.items():
        function: Any = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
