"""Nsight Systems' SQLite export (``nsys export -t sqlite``), read column by column and never written to."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl

from specanalyze.formats import nsys_tables as nsys
from specschema.errors import TraceError
from specschema.figures import counted, were

_BATCH: Final = 1 << 16
_TEXT_BATCH: Final = 512
_LONGEST_TEXT: Final = 1 << 20
"""Bytes of a cell. A hostile file's cells may all name the same long chain of pages; so texts are read in small batches, too, and
all of them together may take _TEXTS_A_BYTE times the file."""
_FREE_TEXT: Final = 64 << 20
_TEXTS_A_BYTE: Final = 4
_LONG: Final = nsys.TEXT_COLUMNS | nsys.BINARY_COLUMNS
"""Columns whose cells may be long."""
_SALVAGED_BATCH: Final = 64
"""Rows of the batch in which SQLite meets a damaged page are lost, so few at a time."""


class SqliteTables:
    """See ``nsys_tables.Tables``. The file is opened read-only and immutable: no lock, no journal beside it, no schema code is run.

    Args:
        path: the file.
        salvage: give the rows before the first damaged page instead of refusing the table.
        rows_read: told how many rows were read.

    Raises:
        TraceError: no SQLite file, or no export of Nsight Systems.
    """

    def __init__(self, path: Path, *, salvage: bool = False, rows_read: nsys.RowsRead | None = None) -> None:
        self.path = path
        self.name = path.name
        self.lost: list[str] = []
        self.rows_read = rows_read
        self._salvage = salvage
        self._counts: dict[str, Mapping[int, int]] = {}
        if not path.stat().st_size:
            raise TraceError(f"{self.name} is empty: the export ended early, or was not copied; make it again")
        known = self._tables
        if not known.keys() & {*nsys.EVENT_TABLES, *nsys.META}:
            found = ", ".join(sorted(known)[:6]) or "no table"
            raise TraceError(
                f"{self.name} is an SQLite file but no export of Nsight Systems: it holds {found}; make one with nsys export -t sqlite"
            )
        for table, required in nsys.REQUIRED.items():
            missing = [column for column in required if table in known and column not in known[table]]
            if missing:
                raise TraceError(
                    f"{self.name}: table {table} has no column {', '.join(missing)}: this is no whole export of Nsight Systems"
                )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection; what SQLite says against the file becomes one line."""
        try:
            connection = sqlite3.connect(f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise TraceError(f"{self.name} can't be opened: {error}") from None
        try:
            if hasattr(connection, "setlimit"):  # Python 3.11
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA query_only = ON")
            yield connection
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise TraceError(
                f"{self.name} is damaged: SQLite says {str(error).splitlines()[0][:120]!r}; export it again (nsys export -t sqlite)"
            ) from None
        except UnicodeDecodeError:
            raise TraceError(f"{self.name} is damaged: a text in it is not UTF-8") from None
        finally:
            connection.close()

    @cached_property
    def _tables(self) -> dict[str, frozenset[str]]:
        """Plain tables and their stored columns. A view, a virtual table or a generated column would run code of the file."""
        found: dict[str, frozenset[str]] = {}
        wanted = {
            *nsys.EVENT_TABLES,
            *nsys.META,
            nsys.STRINGS,
            nsys.SESSION,
            nsys.GPUS,
            nsys.PROCESSES,
            nsys.MPI_RANKS,
            nsys.SYSTEM,
            nsys.PAYLOAD_SCHEMAS,
            nsys.PAYLOAD_ENTRIES,
        }
        with self._connected() as connection:
            for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
                if name not in wanted:
                    if kind == "table":
                        found[str(name)] = frozenset()
                    continue
                if kind != "table" or not str(sql).lstrip().upper().startswith("CREATE TABLE"):
                    raise TraceError(
                        f"{self.name}: {name} is a {kind}, not a plain table: this is no export of Nsight Systems"
                    )
                columns = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
                if any(hidden for *_, hidden in columns):
                    raise TraceError(f"{self.name}: {name} has computed columns: this is no export of Nsight Systems")
                found[name] = frozenset(str(column[1]) for column in columns)
        return found

    def columns(self, table: str) -> frozenset[str]:
        return self._tables.get(table, frozenset())

    def processes(self, table: str) -> Mapping[int, int]:
        if not self.columns(table):
            return {}
        if table not in self._counts:
            try:
                self._counts[table] = self._counted(table)
            except TraceError:
                if not self._salvage:
                    raise
                key = nsys.process_column(self.columns(table))
                ids = self.read(table, [key]).get_column(key).drop_nulls() & nsys.PROCESS_MASK
                self._counts[table] = dict(ids.alias("process").value_counts().sort("process").iter_rows())
        return self._counts[table]

    def _counted(self, table: str) -> Mapping[int, int]:
        key = nsys.process_column(self.columns(table))
        query = f'SELECT "{key}" & {nsys.PROCESS_MASK}, COUNT(*) FROM "{table}" WHERE "{key}" IS NOT NULL GROUP BY 1 ORDER BY 1'
        with self._connected() as connection:
            return dict(connection.execute(query).fetchall())

    def span(self, table: str) -> tuple[int, int] | None:
        if not self.columns(table):
            return None
        query = f'SELECT MIN("start"), MAX(COALESCE("end", "start")) FROM "{table}"'
        try:
            with self._connected() as connection:
                found = connection.execute(query).fetchone()
        except TraceError:
            if not self._salvage:
                raise
            return nsys.span_of(self.read(table, ["start", "end"]))
        if not all(end is None or isinstance(end, int) for end in found):
            raise TraceError(
                f"{self.name}: the times of {table} are no whole numbers: this is no whole export of Nsight Systems"
            )
        return None if None in found else (found[0], found[1])

    def read(self, table: str, columns: Sequence[str], process: int | None = None) -> pl.DataFrame:
        present = self.columns(table)
        if not present:
            return nsys.empty(columns)
        wanted = ", ".join(f'"{column}"' if column in present else f'NULL AS "{column}"' for column in columns)
        query, values = f'SELECT {wanted} FROM "{table}"', tuple[int, ...]()
        if process is not None:
            query += f' WHERE "{nsys.process_column(present)}" & {nsys.PROCESS_MASK} = ?'
            values = (process,)
        frames: list[pl.DataFrame] = []
        batch = _SALVAGED_BATCH if self._salvage else _TEXT_BATCH if _LONG & {*columns} else _BATCH
        texts = [at for at, column in enumerate(columns) if column in _LONG]
        left = max(_FREE_TEXT, _TEXTS_A_BYTE * self.path.stat().st_size)
        try:
            with self._connected() as connection:
                cursor = connection.execute(query, values)
                while rows := cursor.fetchmany(batch):
                    left -= sum(len(row[at]) for row in rows for at in texts if isinstance(row[at], (str, bytes)))
                    if left < 0:
                        raise TraceError(
                            f"{self.name}: the texts of {table} take more than the file: damaged or hostile"
                        )
                    frames.append(self._frame(table, columns, rows))
                    if self.rows_read is not None:
                        self.rows_read(len(rows))
        except TraceError as error:
            if not self._salvage:
                raise
            read = sum(frame.height for frame in frames)
            line = f"lost: {error}; {counted(read, 'row')} of {table} {were(read)} read before it"
            if line not in self.lost:
                self.lost.append(line)
        return pl.concat(frames) if frames else nsys.empty(columns)

    def _frame(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        """Rows as columns."""
        return pl.DataFrame([self._series(table, c, v) for c, v in zip(columns, zip(*rows, strict=True), strict=True)])

    def _series(self, table: str, column: str, values: Sequence[Any]) -> pl.Series:
        """One column. SQLite lets any cell hold anything; such a cell is refused, or empty in a column of bytes."""
        if column in nsys.BINARY_COLUMNS:
            values = [value if isinstance(value, bytes) else None for value in values]
        try:
            return pl.Series(column, values, dtype=nsys.dtype(column), strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            what = "text" if column in nsys.TEXT_COLUMNS else "whole numbers"
            raise TraceError(
                f"{self.name}: column {column} of {table} does not hold {what}: this is no whole export of Nsight Systems"
            ) from None
