"""Writes small Nsight Systems exports from a few rows, so that a test shows its whole input."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, Any]]
TEXT = {"text", "jsonText", "value", "name"}
BYTES = {"binaryData"}


def global_pid(pid: int) -> int:
    """Host and VM id 1, then the process: what exports write in globalPid."""
    return (1 << 48) | (pid << 24)


def global_tid(pid: int, tid: int) -> int:
    return global_pid(pid) | tid


def kernel(start: int, end: int, name: int, correlation: int | None, pid: int = 111, **more: Any) -> dict[str, Any]:
    """A row of CUPTI_ACTIVITY_KIND_KERNEL with the columns that every schema has."""
    row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation}
    row |= {"globalPid": global_pid(pid), "demangledName": name, "shortName": name, "mangledName": name}
    row |= dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (132, 1, 1, 256, 1, 1), strict=True))
    return row | {"graphNodeId": None} | more


def call(
    start: int, end: int, name: int, correlation: int, pid: int = 111, tid: int = 1, **more: Any
) -> dict[str, Any]:
    """A row of CUPTI_ACTIVITY_KIND_RUNTIME."""
    row = {"start": start, "end": end, "eventClass": 0, "globalTid": global_tid(pid, tid), "correlationId": correlation}
    return row | {"nameId": name, "returnValue": 0, "callchainId": None} | more


def nvtx(
    start: int, end: int | None, text: str | int | None, *, pid: int = 111, tid: int = 1, **more: Any
) -> dict[str, Any]:
    """A row of NVTX_EVENTS: a push/pop range unless ``eventType`` says otherwise; a number is the id of a registered string."""
    row: dict[str, Any] = {
        "start": start,
        "end": end,
        "eventType": 59,
        "rangeId": None,
        "category": None,
        "color": None,
    }
    row |= {"text": text if isinstance(text, str) else None, "globalTid": global_tid(pid, tid), "endGlobalTid": None}
    row |= {"textId": text if isinstance(text, int) else None, "domainId": 0}
    return row | more


def strings(*values: str) -> list[dict[str, Any]]:
    """StringIds 1, 2, ..."""
    return [{"id": i, "value": value} for i, value in enumerate(values, 1)]


def sqlite_export(path: Path, tables: Mapping[str, Rows], schema: str = "3.25.0") -> Path:
    """Write an SQLite export; a table's columns are those of its first row."""
    meta = "META_DATA_EXPORT" if int(schema.split(".")[0]) >= 3 else "EXPORT_META_DATA"
    version = [{"name": "EXPORT_SCHEMA_VERSION", "value": schema}]
    connection = sqlite3.connect(path)
    for table, rows in {meta: version, **tables}.items():
        columns = list(rows[0])
        kinds = ", ".join(f'"{c}" {"TEXT" if c in TEXT else "BLOB" if c in BYTES else "INTEGER"}' for c in columns)
        connection.execute(f"CREATE TABLE {table} ({kinds})")
        values = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} VALUES ({values})", [[row[c] for c in columns] for row in rows])
    connection.commit()
    connection.close()
    return path


def parquet_export(folder: Path, tables: Mapping[str, Rows]) -> Path:
    """Write a folder with one Parquet file a table; ids are unsigned, as nsys writes them."""
    folder.mkdir()
    for table, rows in tables.items():
        columns = {}
        for c in rows[0]:
            kind = pa.string() if c in TEXT else pa.uint64() if c.startswith("global") else pa.int64()
            kind = pa.binary() if c in BYTES else kind
            columns[c] = pa.array([row[c] for row in rows], kind)
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return folder
