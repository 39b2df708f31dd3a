"""Nsight Systems' Parquet export (``nsys export -t parquetdir``): a folder with one file a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from specanalyze.formats import nsys_tables as nsys
from specanalyze.formats.parquet_bounds import DAMAGED, bare, family, reason, refuse_bomb
from specschema.errors import TraceError


class ParquetTables:
    """See ``nsys_tables.Tables``.

    Args:
        folder: the export.
        salvage: go on without tables that are damaged.
        rows_read: told how many rows were read.
    """

    def __init__(self, folder: Path, *, salvage: bool = False, rows_read: nsys.RowsRead | None = None) -> None:
        self.path = folder
        self.name = folder.name
        self.lost: list[str] = []
        self.rows_read = rows_read
        self._salvage = salvage
        self._columns: dict[str, frozenset[str]] = {}
        for table, required in nsys.REQUIRED.items():
            present = self.columns(table)
            missing = [column for column in required if present and column not in present]
            if missing:
                raise TraceError(
                    f"{self.name}/{table}.parquet has no column {', '.join(missing)}: this is no whole export of Nsight Systems"
                )

    def _file(self, table: str) -> Path:
        return self.path / f"{table}.parquet"

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            self._columns[table] = frozenset()
            if self._file(table).is_file():
                try:
                    footer = pq.read_metadata(self._file(table))
                    names = footer.schema.to_arrow_schema().names
                except DAMAGED as error:
                    self._damaged(table, error)
                else:
                    refuse_bomb(footer, self._file(table))
                    if len({*names}) < len(names):
                        raise TraceError(f"{self.name}/{table}.parquet has two columns of one name: it is damaged")
                    self._columns[table] = frozenset(names)
        return self._columns[table]

    def _damaged(self, table: str, error: Exception) -> None:
        line = f"{self.name}/{table}.parquet is damaged ({reason(error)})"
        if not self._salvage:
            raise TraceError(f"{line}; --salvage goes on without it") from None
        if f"lost: {line}" not in self.lost:
            self.lost.append(f"lost: {line}")

    def processes(self, table: str) -> Mapping[int, int]:
        key = nsys.process_column(self.columns(table))
        ids = self.read(table, [key]).get_column(key).drop_nulls() & nsys.PROCESS_MASK
        counts = ids.alias("process").value_counts().sort("process")
        return dict(zip(counts["process"].to_list(), counts["count"].to_list(), strict=True))

    def span(self, table: str) -> tuple[int, int] | None:
        return nsys.span_of(self.read(table, ["start", "end"]))

    def read(self, table: str, columns: Sequence[str], process: int | None = None) -> pl.DataFrame:
        present = self.columns(table)
        if not present:
            return nsys.empty(columns)
        key = nsys.process_column(present)
        kept = [column for column in dict.fromkeys((*columns, key)) if column in present]
        try:
            arrow = bare(pq.ParquetFile(self._file(table)).read(columns=kept))  # polars trusts what it is given
        except DAMAGED as error:
            self._damaged(table, error)
            return nsys.empty(columns)
        for column in kept:
            if column in nsys.BINARY_COLUMNS:
                continue
            _refuse_odd(arrow.schema.field(column).type, column, f"{self.name}/{table}.parquet")
        frame = pl.DataFrame(pl.from_arrow(arrow))
        frame = frame.select(_typed(frame.schema[column], column) for column in kept)
        if process is not None:
            frame = frame.filter(pl.col(key) & nsys.PROCESS_MASK == process)
        if self.rows_read is not None:
            self.rows_read(frame.height)
        missing = [pl.lit(None, dtype=nsys.dtype(column)).alias(column) for column in columns if column not in present]
        return frame.with_columns(missing).select(columns)


def _refuse_odd(found: pa.DataType, column: str, file: str) -> None:
    """Lists, bytes and the like stand for neither a number nor a text."""
    if family(found) not in ("whole numbers", "text", "nothing") and not pa.types.is_floating(found):
        what = "text" if column in nsys.TEXT_COLUMNS else "whole numbers"
        raise TraceError(
            f"{file}: column {column} holds {found}, not {what}: this is no whole export of Nsight Systems"
        )


def _typed(found: pl.DataType, column: str) -> pl.Expr:
    """Ids are unsigned in Parquet and signed in SQLite: the same 64 bits."""
    if column in nsys.BINARY_COLUMNS:
        return pl.col(column) if found == pl.Binary else pl.lit(None, dtype=pl.Binary).alias(column)
    if found == pl.UInt64 and column not in nsys.TEXT_COLUMNS:
        return pl.col(column).reinterpret(signed=True)
    if found in (pl.Categorical, pl.Enum):
        # A dictionary of texts counts as its texts; polars refuses to make numbers of it.
        return pl.col(column).cast(pl.String).cast(nsys.dtype(column), strict=False)
    return pl.col(column).cast(nsys.dtype(column), strict=False)
