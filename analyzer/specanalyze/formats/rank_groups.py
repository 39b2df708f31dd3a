"""Where the rows of a rank lie: files of Parquet with a footer, and their row groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from specanalyze.formats import rank_tables
from specanalyze.formats.parquet_bounds import DAMAGED, family, fits, reason
from specschema.errors import TraceError
from specschema.events import COLUMN_NAMES, EVENT_SCHEMA

_KNOWN: Final = frozenset({*COLUMN_NAMES, *rank_tables.COLUMNS})

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TraceFile:
    """One file with a footer."""

    path: Path
    sections: dict[str, Any]
    parquet: pq.FileMetaData
    keys: dict[bytes, bytes]


@dataclass
class RankGroups:
    """Where the rows of one rank are."""

    key: str
    rank: int
    entry: dict[str, Any] = field(default_factory=dict)
    parts: list[tuple[TraceFile, list[int]]] = field(default_factory=list)


class GroupProgress:
    """Bytes of row groups over those of all files; a row group read twice counts once."""

    def __init__(self, report: Progress | None, files: Sequence[TraceFile]) -> None:
        self._report = report
        self._total = sum(
            f.parquet.row_group(g).total_byte_size for f in files for g in range(f.parquet.num_row_groups)
        )
        self._done: dict[tuple[Path, int], int] = {}

    def add(self, file: TraceFile, group: int) -> None:
        if self._report is not None:
            self._done[file.path, group] = file.parquet.row_group(group).total_byte_size
            self._report(sum(self._done.values()), self._total)


def types_of(file: TraceFile) -> dict[str, pa.DataType]:
    """Arrow type of each column.

    Raises:
        TraceError: they can't be told, or a column that is read has a type of another family, or stands there twice.
    """
    try:
        schema = file.parquet.schema.to_arrow_schema()
    except DAMAGED as error:
        raise TraceError(f"{file.path.name} has a damaged footer ({reason(error)})") from None
    names = [name for name in schema.names if name in _KNOWN]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError(f"{file.path.name} has two columns {twice}: damaged, or not written by this tool")
    for name in names:
        wanted = EVENT_SCHEMA.field(rank_tables.COLUMNS.get(name, name)).type
        if not fits(schema.field(name).type, wanted):
            raise TraceError(
                f"{file.path.name}: column {name} holds {family(schema.field(name).type)}, not {family(wanted)}: "
                "damaged, or not written by this tool"
            )
    return dict(zip(schema.names, schema.types, strict=True))


def columns_of(file: TraceFile, group: int) -> list[str]:
    """Known columns of a row group that are not null throughout, as far as its statistics say so.

    Raises:
        TraceError: the row group names a column otherwise than the file's schema.
    """
    row_group, schema = file.parquet.row_group(group), file.parquet.schema
    names: list[str] = []
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        if column.path_in_schema != schema.column(i).path:
            raise TraceError(f"{file.path.name} has a damaged footer (column {i} has two names)")
        name = column.path_in_schema.split(".")[0]
        nulls = column.statistics.null_count if column.is_stats_set and column.statistics.has_null_count else None
        is_list = "." in column.path_in_schema  # the nulls of a list column are those of its elements
        if name in _KNOWN and (is_list or nulls != row_group.num_rows):
            names.append(name)
    return list(dict.fromkeys(names))
