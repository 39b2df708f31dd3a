"""Tables of an Nsight Systems export, whatever they are stored in, and the ids that tie their rows together.

The columns and their meaning were compared over export schemas 2.9 (2022.2) to 3.25 (2026.2): tables exist only where they have rows,
columns come and go, and from 2025.6 on the order of rows says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import polars as pl

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX: Final = "NVTX_EVENTS"
STRINGS: Final = "StringIds"
DEVICE_TABLES: Final = (KERNEL, MEMCPY, MEMSET, GRAPH_TRACE)
EVENT_TABLES: Final = (*DEVICE_TABLES, RUNTIME, NVTX)
"""Tables that events are made of. RUNTIME holds the calls of the driver API too."""

META: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Where the export says its version: since 2023, and before."""
SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
GPUS: Final = "TARGET_INFO_GPU"
PROCESSES: Final = "PROCESSES"
MPI_RANKS: Final = "MPI_RANKS"
SYSTEM: Final = "TARGET_INFO_SYSTEM_ENV"

PAYLOAD_SCHEMAS: Final = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
"""Layouts of typed NVTX payloads, since schema 3.24."""

BINARY_COLUMNS: Final = frozenset({"binaryData"})
"""Columns of bytes. A cell that holds something else counts as empty: exporters were seen to declare such a column as text."""
TEXT_COLUMNS: Final = frozenset({"text", "jsonText", "value", "name"})
"""Columns of text; every other column that is read and is not of BINARY_COLUMNS holds integers."""

REQUIRED: Final = {
    KERNEL: ("start", "end", "globalPid", "correlationId"),
    MEMCPY: ("start", "end", "globalPid", "correlationId"),
    MEMSET: ("start", "end", "globalPid", "correlationId"),
    GRAPH_TRACE: ("start", "end", "globalPid", "correlationId"),
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "end", "eventType", "globalTid"),
    STRINGS: ("id", "value"),
}
"""Columns without which a table says nothing; they are in every schema that was looked at."""

PROCESS_MASK: Final = -0x1000000
"""``globalTid & PROCESS_MASK`` is the ``globalPid`` of the thread's process: host, VM and process id without the thread id."""

RowsRead = Callable[[int], None]
"""Called with the number of rows read since the last call."""


class Tables(Protocol):
    """One export.

    Attributes:
        name: file name, for messages.
        lost: what could not be read of a damaged file, one line each.
    """

    name: str
    lost: list[str]

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a table; empty where the export does not have it."""
        ...

    def processes(self, table: str) -> Mapping[int, int]:
        """globalPid -> rows of a table of events."""
        ...

    def span(self, table: str) -> tuple[int, int] | None:
        """First start and last end of a table's rows, ns from the session's start; None without rows.

        Raises:
            TraceError: the file is damaged, or times are no numbers.
        """
        ...

    def read(self, table: str, columns: Sequence[str], process: int | None = None) -> pl.DataFrame:
        """Rows of a table, all or those of one process (globalPid).

        Returns:
            The columns asked for, Int64, String (TEXT_COLUMNS) or Binary (BINARY_COLUMNS); those that the table lacks are null.

        Raises:
            TraceError: the file is damaged, or a column holds something else than it should.
        """
        ...


def span_of(times: pl.DataFrame) -> tuple[int, int] | None:
    """First start and last end of rows with the columns ``start`` and ``end``; an open row ends where it starts."""
    ends = times.select(start=pl.col("start").min(), end=pl.coalesce("end", "start").max()).row(0)
    return None if ends[0] is None or ends[1] is None else (int(ends[0]), int(ends[1]))


def process_id(global_id: int) -> int:
    """Process id on its host in a globalPid or globalTid."""
    return global_id >> 24 & 0xFFFFFF


def dtype(column: str) -> type[pl.DataType]:
    """Type of a column as it is read."""
    if column in BINARY_COLUMNS:
        return pl.Binary
    return pl.String if column in TEXT_COLUMNS else pl.Int64


def empty(columns: Sequence[str]) -> pl.DataFrame:
    """No rows."""
    return pl.DataFrame(schema={column: dtype(column) for column in columns})


def process_column(columns: frozenset[str]) -> str:
    """The column that names the process of each row."""
    return "globalPid" if "globalPid" in columns else "globalTid"
