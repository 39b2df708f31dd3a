"""cupti-python's records as arrays: the memory of each class of records under the layout that cupti-python publishes for it.

Asking a record for its attributes one by one cost most of a window's end (README). A record gives its memory away
(buffer protocol or address), and cupti-python has a numpy dtype for each class, so that one copy makes an array of them. Each
window's arrays are compared with the attributes of the first and the last record of a class; where they differ, or where
there is no dtype, the attributes are asked for.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.kineto.columns import SLICE

logger: Final = logging.getLogger("speccollect")

NAME: Final = "name"
"""The attribute that is text, and a pointer in the record's memory."""

_READ: Final = (
    *("kind", "start", "end", "correlation_id", "device_id", "stream_id", "graph_id", "graph_node_id"),
    *("bytes", "copy_kind", "src_kind", "dst_kind", "memory_kind", "process_id", "thread_id", "cbid"),
)
"""Attributes that become columns or names."""

DtypeOf = Callable[[type], "np.dtype[Any] | None"]
Ints = npt.NDArray[np.int64]


def no_dtype(record_class: type) -> np.dtype[Any] | None:
    """Nothing has a layout: all records are asked for their attributes."""
    return None


def published(cupti: Any) -> DtypeOf:
    """Layouts in cupti-python's module: ``activity_kernel11_dtype`` for ``ActivityKernel11``."""

    def dtype_of(record_class: type) -> np.dtype[Any] | None:
        snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", record_class.__name__).lower()
        found = getattr(cupti, f"{snake}_dtype", None)
        return found if isinstance(found, np.dtype) else None

    return dtype_of


class Table:
    """Attributes of a window's records, by row: each record is the next one of one array.

    Attributes:
        one_by_one: records that had to be asked.
    """

    one_by_one = 0

    def __init__(self, number: npt.NDArray[np.int32], arrays: Sequence[npt.NDArray[Any] | None]) -> None:
        """
        Args:
            number: which of the arrays each row is of.
            arrays: the records; None for those that are no memory.
        """
        self._number = number
        self._arrays = arrays
        self._place = np.zeros(len(number), dtype=np.int64)
        for one in range(len(arrays)):
            rows = np.flatnonzero(number == one)
            self._place[rows] = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self._number)

    def integers(self, rows: npt.NDArray[np.intp], attribute: str) -> Ints:
        """One attribute of some records; unsigned 64-bit ids wrap into int64."""
        values = np.empty(len(rows), dtype=np.int64)
        for number, array in enumerate(self._arrays):
            mine = np.flatnonzero(self._number[rows] == number)
            if not len(mine):
                continue
            if array is not None:
                values[mine] = array[attribute][self._place[rows[mine]]].astype(np.int64)
            else:
                values[mine] = self.asked(rows[mine], attribute)
        return values

    def distinct(self, rows: npt.NDArray[np.intp], attributes: Sequence[str]) -> tuple[npt.NDArray[np.intp], Ints]:
        """A row for each combination of values that occurs, in the order of the rows, and which of them each row has.

        Texts are told apart by their address where the memory has it: the same name twice may be two.
        """
        keys = np.zeros(len(rows), dtype=np.int64)
        for attribute in attributes:
            values, codes = np.unique(self._keys(rows, attribute), return_inverse=True)
            keys = keys * len(values) + codes
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rows[first[order]], rank[which]

    def texts(self, rows: npt.NDArray[np.intp]) -> list[str]:
        """Names of some records."""
        raise NotImplementedError

    def asked(self, rows: npt.NDArray[np.intp], attribute: str) -> Ints:
        """An attribute of records that are no memory."""
        raise NotImplementedError

    def _keys(self, rows: npt.NDArray[np.intp], attribute: str) -> Ints:
        if attribute != NAME:
            return self.integers(rows, attribute)
        keys = np.empty(len(rows), dtype=np.int64)
        codes: dict[str, int] = {}
        for number, array in enumerate(self._arrays):
            mine = np.flatnonzero(self._number[rows] == number)
            if not len(mine):
                continue
            if array is not None:
                keys[mine] = array[NAME][self._place[rows[mine]]].astype(np.int64)
            else:  # addresses are not negative
                told = (~codes.setdefault(text, len(codes)) for text in self.texts(rows[mine]))
                keys[mine] = np.fromiter(told, np.int64, len(mine))
        return keys


class RecordTable(Table):
    """cupti-python's objects, whose memory is copied where it may be."""

    def __init__(self, records: Sequence[Any], dtype_of: DtypeOf, *, pause: Callable[[], None] | None) -> None:
        self._records = records
        self._pause = pause
        classes: dict[type, int] = {}
        number = np.fromiter(
            (classes.setdefault(one, len(classes)) for one in map(type, records)), np.int32, len(records)
        )
        arrays = []
        for record_class, one in classes.items():
            rows = np.flatnonzero(number == one)
            array = self._array([records[i] for i in rows.tolist()], dtype_of(record_class))
            arrays.append(array)
            self.one_by_one += len(rows) if array is None else 0
        super().__init__(number, arrays)

    def texts(self, rows: npt.NDArray[np.intp]) -> list[str]:
        return [self._records[i].name for i in rows.tolist()]

    def asked(self, rows: npt.NDArray[np.intp], attribute: str) -> Ints:
        return self._asked([self._records[i] for i in rows.tolist()], attribute)

    def _asked(self, records: Sequence[Any], attribute: str) -> Ints:
        values = np.empty(len(records), dtype=np.uint64)
        get = attrgetter(attribute)
        step = 4 * SLICE if self._pause is not None else max(1, len(records))
        for begin in range(0, len(records), step):
            part = records[begin : begin + step]
            values[begin : begin + len(part)] = np.fromiter((int(get(r)) for r in part), np.uint64, len(part))
            if self._pause is not None:
                self._pause()
        return values.view(np.int64)

    def _array(self, records: Sequence[Any], dtype: np.dtype[Any] | None) -> npt.NDArray[Any] | None:
        """The records' memory as one array; None where that is not to be had, or does not say what the records say."""
        if dtype is None:
            return None
        try:
            parts = []
            for begin in range(0, len(records), 4 * SLICE):
                parts.append(_memory(records[begin : begin + 4 * SLICE], dtype.itemsize))
                if self._pause is not None:
                    self._pause()
            memory = b"".join(parts)
            if len(memory) != len(records) * dtype.itemsize:
                return None
            array = np.frombuffer(memory, dtype=dtype)
            agrees = all(_same(array[i], records[i]) for i in {0, len(records) - 1})
        except (TypeError, ValueError, AttributeError, BufferError):
            logger.debug("records of %s are asked one by one", type(records[0]).__name__, exc_info=True)
            return None
        return array if agrees else None


def _memory(records: Sequence[Any], size: int) -> bytes:
    """The records' memory, one after another.

    Raises:
        TypeError, AttributeError: they don't give it away.
    """
    try:
        return b"".join(records)
    except TypeError:
        # cupti-python before 13.1 (13.0.1 tried) has no buffer protocol, but tells the address of what its own array views
        return b"".join(ctypes.string_at(address, size) for address in map(attrgetter("ptr"), records))


def _same(row: Any, record: Any) -> bool:
    """Whether what is read of a row is what the record tells."""
    asked = [name for name in _READ if name in row.dtype.names]
    return "kind" in asked and all(int(row[name]) == int(getattr(record, name)) for name in asked)
