"""Rows of a Kineto trace to columns by the compiled scanner: the same events as ``kineto_columns``, without a row object.

The scanner (native/kineto_scan.c) reads plain text only and refuses a piece of text that is anything else; such a piece
goes through ``kineto_columns.decode``, which alone decides what odd text means.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.formats import bounded_json, kineto_columns
from specanalyze.formats.kineto_columns import KIND_OF_CATEGORY, Args
from specanalyze.native.library import library

COMPILES_ABOVE_BYTES: Final = 16 << 20
"""Size of a file that repays compiling the scanner; a scanner that is compiled already serves smaller ones too."""

_MISSING: Final = np.iinfo(np.int64).min
_TIMES_AND_IDS: Final = ("ts_ns", "dur_ns", "pid", "tid")
_KEY_OF: Final = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
_NUMBERS: Final = ("correlation", "device", "stream", "bytes", "elements", "seq", "graph_id", "node")
_TEXTS: Final = ("grid", "block", "op", "dtype", "group", "ranks")
KINDS: Final = (*KIND_OF_CATEGORY.values(), "mark")
"""Kind of each code of a scanner's first column."""
_FACTS: Final = ("op", "dtype", "group", "ranks"), ("elements", "seq")
_TOKEN: Final = msgspec.json.Decoder(Any, float_hook=str)


@dataclass(frozen=True)
class Rows:
    """Events that a scanner holds: those with index ``first <= i < last``."""

    first: int
    last: int


class Scanner:
    """Collects the events of one file.

    Args:
        compiled: the library of native/kineto_scan.c.
    """

    def __init__(self, compiled: ctypes.CDLL) -> None:
        self._c = compiled
        keys = [_KEY_OF[name].encode() for name in (*_NUMBERS, *_TEXTS)]
        categories = [b'"%s"' % category.encode() for category in KIND_OF_CATEGORY]
        self._handle = compiled.scanner_new(
            len(_NUMBERS),
            len(_TEXTS),
            (ctypes.c_char_p * len(keys))(*keys),
            len(categories),
            (ctypes.c_char_p * len(categories))(*categories),
        )
        if not self._handle:
            raise MemoryError
        self._values: list[list[Any]] = [[] for _ in range(2 + len(_TEXTS))]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._c.scanner_free(self._handle)

    def rows(self, text: bytes) -> Rows | None:
        """Append the events of a JSON list of rows; None where the text is not plain, of which nothing is kept."""
        first = int(self._c.scanner_rows(self._handle))
        known = (ctypes.c_size_t * len(self._values))(*self._counts())
        if self._c.scanner_append(self._handle, text, len(text)):
            return None
        try:
            for field, values in enumerate(self._values):
                if field:  # the categories are ours
                    values += [bounded_json.decode(_TOKEN, token) for token in self._tokens(field, len(values))]
        except msgspec.DecodeError:
            self._c.scanner_forget(self._handle, first, known)
            for field in range(1, len(self._values)):
                del self._values[field][known[field] :]
            return None
        return Rows(first, int(self._c.scanner_rows(self._handle)))

    def clear(self) -> None:
        """Forget all rows; frames made of them are not valid any more."""
        self._c.scanner_forget(self._handle, 0, (ctypes.c_size_t * len(self._values))(*self._counts()))

    def frame(self, rows: Rows, without: Collection[str] = ()) -> pl.DataFrame | None:
        """What ``kineto_columns.columns`` gives for the same rows; without some columns of arguments."""
        if rows.first == rows.last:
            return None
        numbers = [self._number(name, rows) for name in _NUMBERS if name not in without]
        series = [
            pl.Series("kind", KINDS).gather(self._codes(0, rows)),
            pl.Series("name", ["", *self._values[1]], dtype=pl.Categorical).gather(self._codes(1, rows) + 1),
            *(self._number(name, rows) for name in ("pid", "tid", "ts_ns", "dur_ns")),
            *(column for column in numbers if column.null_count() < len(column)),
        ]
        for field, name in enumerate(_TEXTS, start=2):
            if name in without:
                continue
            codes = pl.Series(self._codes(field, rows))
            if (codes >= 0).any():
                values = kineto_columns.VALUES_OF[name](self._values[field])
                series.append(values.gather(codes.set(codes < 0, None)))
        in_words = self._array(self._c.scanner_in_words(self._handle), np.dtype(np.uint8), rows)
        frame = pl.DataFrame(series)
        return kineto_columns.by_kind(frame, pl.Series(in_words != 0) & frame["pid"].is_null())

    @property
    def names(self) -> list[str]:
        """Texts that the codes of the second column index."""
        return self._values[1]

    def tells(self, rows: Rows) -> bool:
        """Whether a row has an argument about a collective."""
        texts, numbers = _FACTS
        return any((self._codes(2 + _TEXTS.index(name), rows) >= 0).any() for name in texts) or any(
            (values != _MISSING).any() for name in numbers if (values := self.numbers(name, rows)) is not None
        )

    def codes(self, field: int, rows: Rows) -> NDArray[Any]:
        """Codes of the kinds (field 0) or names (field 1) of some rows; -1 where a row has none."""
        return self._codes(field, rows)

    def numbers(self, name: str, rows: Rows) -> NDArray[Any] | None:
        """A column in the scanner's own memory, the least int64 where a row has no value; None where none has."""
        address = self._c.scanner_numbers(self._handle, (*_TIMES_AND_IDS, *_NUMBERS).index(name))
        return self._array(address, np.dtype(np.int64), rows) if address else None

    def in_words(self, rows: Rows) -> NDArray[np.bool_]:
        """Rows whose pid is words."""
        found: NDArray[np.bool_] = self._array(self._c.scanner_in_words(self._handle), np.dtype(np.uint8), rows) != 0
        return found

    def _counts(self) -> list[int]:
        return [int(self._c.scanner_tokens(self._handle, field)) for field in range(len(self._values))]

    def _tokens(self, field: int, first: int) -> list[bytes]:
        length = ctypes.c_size_t()
        count = int(self._c.scanner_tokens(self._handle, field))
        return [
            ctypes.string_at(self._c.scanner_token(self._handle, field, i, ctypes.byref(length)), length.value)
            for i in range(first, count)
        ]

    def _array(self, address: int, dtype: np.dtype[Any], rows: Rows) -> NDArray[Any]:
        """A column, in the scanner's own memory: valid until the next row is appended."""
        start = address + rows.first * dtype.itemsize
        size = (rows.last - rows.first) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(start)
        memory.scanner = self  # type: ignore[attr-defined]  # arrays and frames made of it keep the memory alive
        array: NDArray[Any] = np.frombuffer(memory, dtype)  # type: ignore[call-overload]
        return array

    def _number(self, name: str, rows: Rows) -> pl.Series:
        address = self._c.scanner_numbers(self._handle, (*_TIMES_AND_IDS, *_NUMBERS).index(name))
        if not address:
            return pl.repeat(None, rows.last - rows.first, dtype=pl.Int64, eager=True).alias(name)
        values = self._array(address, np.dtype(np.int64), rows)
        missing = values == _MISSING
        column = pl.Series(name, values)
        return column.set(pl.Series(missing), None) if missing.any() else column

    def _codes(self, field: int, rows: Rows) -> NDArray[Any]:
        """Index of each row's value, -1 where it has none."""
        address = self._c.scanner_codes(self._handle, field)
        if not address:
            return np.full(rows.last - rows.first, -1, dtype=np.int32)
        return self._array(address, np.dtype(np.int32), rows)


def scanner(size: int) -> Scanner | None:
    """A scanner for a file of ``size`` bytes; None where the machine has none."""
    compiled = _declared(compile_it=size > COMPILES_ABOVE_BYTES)
    return None if compiled is None else Scanner(compiled)


@cache
def _declared(*, compile_it: bool) -> ctypes.CDLL | None:
    compiled = library("kineto_scan", compile_it=compile_it)
    if compiled is None:
        return None
    handle, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    texts = ctypes.POINTER(ctypes.c_char_p)
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "scanner_new": (handle, (number, number, texts, number, texts)),
        "scanner_append": (number, (handle, ctypes.c_char_p, size)),
        "scanner_forget": (None, (handle, size, ctypes.POINTER(size))),
        "scanner_rows": (size, (handle,)),
        "scanner_numbers": (ctypes.c_void_p, (handle, number)),
        "scanner_codes": (ctypes.c_void_p, (handle, number)),
        "scanner_in_words": (ctypes.c_void_p, (handle,)),
        "scanner_tokens": (size, (handle, number)),
        "scanner_token": (ctypes.c_void_p, (handle, number, size, ctypes.POINTER(size))),
        "scanner_free": (None, (handle,)),
    }
    for name, (result, arguments) in signatures.items():
        function: Callable[..., Any] = getattr(compiled, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
    return compiled
