"""Parquet files nobody vouches for: what their footers may claim, and which types their columns may have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from specanalyze.memory import JSON_EXPANSION, refuse_beyond
from specschema.errors import TraceError

DAMAGED: Final = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
"""What pyarrow raises on a file that is not what it says."""

_FREE_ROWS: Final = 4 << 20
_ROWS_A_BYTE: Final = 8
"""A trace takes 4 to 7 bytes an event; this allows 40 times as many events in a file."""
_FREE_BYTES: Final = 256 << 20
_EXPANSION: Final = 100
"""Encoded columns to their compressed form: 2 to 8 on real traces."""


class _Unread(io.RawIOBase):
    """A file of which only the size is known."""

    MARK: Final = "nothing of this file is read yet"

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        raise OSError(self.MARK)


def _refuse_misdescribed(parquet: pq.FileMetaData, path: Path, size: int) -> None:
    """Have pyarrow look at the description of every column chunk where it can say what is wrong.

    ``RowGroupMetaData.column`` ends the process on a damaged one; a read looks at all of them before it reads the first byte.
    """
    try:
        with pq.ParquetFile(_Unread(size), metadata=parquet, pre_buffer=True) as file:
            file.read(use_threads=False)
    except DAMAGED as error:
        if _Unread.MARK not in str(error):
            raise TraceError(f"{path.name} is damaged ({reason(error)})") from None


def refuse_bomb(parquet: pq.FileMetaData, path: Path) -> None:
    """Hold what a footer claims against the size of the file, before anything is made of it.

    Raises:
        TraceError: more rows, values or bytes than a trace of that size can hold.
    """
    size = path.stat().st_size
    refuse_beyond(JSON_EXPANSION * sum(len(value) for value in (parquet.metadata or {}).values()))
    _refuse_misdescribed(parquet, path, size)
    groups = [parquet.row_group(i) for i in range(parquet.num_row_groups)]
    rows = sum(max(group.num_rows, 0) for group in groups)
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    values = max(
        (sum(max(chunk.num_values, 0) for chunk in column) for column in zip(*chunks, strict=False)), default=0
    )
    encoded = sum(max(chunk.total_uncompressed_size, 0) for row_group in chunks for chunk in row_group)
    limit = max(_FREE_ROWS, _ROWS_A_BYTE * size)
    if min((group.num_rows for group in groups), default=0) < 0 or max(rows, values) > limit:
        raise TraceError(
            f"{path.name} claims {max(rows, values)} rows or values in {size} bytes (at most {limit} are read from such a file): damaged or hostile"
        )
    if encoded > max(_FREE_BYTES, _EXPANSION * size):
        raise TraceError(
            f"{path.name} claims to grow to {encoded >> 20} MiB from {size} bytes: more than {_EXPANSION} times, damaged or hostile"
        )


def reason(error: Exception) -> str:
    """What pyarrow says, in one short line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def bare(table: pa.Table) -> pa.Table:
    """The table without metadata on its fields and names inside its lists, which a file may fill with anything.

    Raises:
        pyarrow.ArrowInvalid: texts that are not UTF-8, or indexes and offsets that point nowhere.
    """
    table.validate(full=True)
    columns = {}
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        column = table.column(name)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        columns[name] = column
    return pa.table(columns)


def family(kind: pa.DataType) -> str:
    """What a column holds, whatever width it has: integers, text, lists of either, nothing, or something else (its type's name)."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "whole numbers"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = family(kind.value_type)
        return f"lists of {inner}" if inner in ("whole numbers", "text", "nothing") else str(kind)
    return str(kind)


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column's values can become the wanted type's, each of them that is in range."""
    return family(found) in (family(wanted), "nothing") or (
        family(found) == "lists of nothing" and family(wanted).startswith("lists")
    )
