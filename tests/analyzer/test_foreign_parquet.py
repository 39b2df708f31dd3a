"""trace.parquet as other programs write it again: read to the same figures, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specschema.errors import TraceError

ROWS = 44
"""Of each rank."""


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    ranks = []
    for number in (0, 1):
        rows = [phase("spec.verify", 10, 4000, rank=number), phase("spec.draft", 4000, 5000, rank=number)]
        for i in range(14):
            at = 100 * i + 20
            rows += [
                launch("cudaLaunchKernel", at, i, rank=number),
                kernel("fused_moe_kernel", at + 10, at + 60, i, rank=number, grid="1x2x3"),
                kernel("ncclDevKernel_AllReduce_Sum", at + 70, at + 75 + number, i, rank=number, group_ranks=[0, 1]),
            ]
        ranks.append(rank_trace(rows, rank=number))
    write_trace(trace(*ranks), tmp_path / "trace.parquet")
    return tmp_path / "trace.parquet"


def told(path: Path) -> list[Any]:
    return [
        (rank.key, rank.window_ns, rank.buckets_ns, rank.decided_ns) for rank in break_down(open_trace([path])).ranks
    ]


def again(
    ours: Path,
    change: Callable[[pa.Table], pa.Table] = lambda table: table,
    *,
    rows: int = ROWS,
    keys: bool = True,
    **options: Any,
) -> Path:
    """The same recording, written anew, with so many rows a row group."""
    file = pq.ParquetFile(ours)
    table, path = change(file.read()).replace_schema_metadata(None), ours.with_name("again.parquet")
    names = dict(file.metadata.metadata)
    del names[b"ARROW:schema"]
    groups = -(-ROWS // rows)
    entries = json.loads(names[b"specanalyze.ranks"])
    for number, entry in enumerate(entries):
        entry["row_groups"] = [number * groups, groups]
    names[b"specanalyze.ranks"] = json.dumps(entries).encode()
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for number in range(len(entries)):
            writer.write_table(table.slice(number * ROWS, ROWS), row_group_size=rows)
        if keys:
            writer.add_key_value_metadata(names)
    return path


@pytest.mark.parametrize(
    "options",
    [
        *({"version": version} for version in ("1.0", "2.4", "2.6")),
        *({"compression": name} for name in ("none", "snappy", "gzip", "lz4", "brotli", "zstd")),
        {"data_page_version": "2.0"},
        {"use_dictionary": False},
        {"write_statistics": False},
        {"data_page_size": 64},
        {"rows": 1},
        {"rows": 7},
        {"store_schema": False},
    ],
    ids=str,
)
def test_settings_of_a_writer_change_nothing(ours: Path, options: dict[str, Any]) -> None:
    assert told(again(ours, **options)) == told(ours)


def cast(text: pa.DataType | None = None, number: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """All texts, or all int32, of another type."""

    def change(table: pa.Table) -> pa.Table:
        columns = {}
        for name in table.column_names:
            column = table.column(name)
            if text is not None and pa.types.is_dictionary(column.type):
                column = column.cast(pa.string()).cast(text)
            if number is not None and column.type == pa.int32():
                column = column.cast(number)
            columns[name] = column
        return pa.table(columns)

    return change


def with_more(table: pa.Table) -> pa.Table:
    rows = range(table.num_rows)
    return table.append_column("mine", pa.array([{"a": i} for i in rows])).append_column("yours", pa.array(rows))


@pytest.mark.parametrize(
    "change",
    [
        cast(text=pa.string()),
        cast(text=pa.large_string()),
        cast(text=pa.string_view()),
        cast(number=pa.int64()),
        cast(number=pa.int16()),
        lambda table: table.select(table.column_names[::-1]),
        with_more,
    ],
    ids=["plain", "large_string", "string_view", "int64", "int16", "reordered", "more columns"],
)
def test_types_and_order_of_columns_change_nothing(ours: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    assert told(again(ours, change)) == told(ours)


def typed(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        column = table.column(name)
        column = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        return table.set_column(place, name, column.cast(kind))

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (typed("dur_ns", pa.float64()), "column dur_ns holds double, not whole numbers"),
        (typed("start_ns", pa.timestamp("ns")), r"column start_ns holds timestamp\[ns\], not whole numbers"),
        (typed("dur_ns", pa.decimal128(20, 0)), "column dur_ns holds decimal128"),
        (typed("name", pa.binary()), "column name holds binary, not text"),
        (lambda table: table.drop_columns(["kind"]), "has no column kind"),
        (lambda table: table.drop_columns(["start_ns"]), "44 of 44 events have no kind or a start"),
    ],
    ids=["float", "timestamp", "decimal", "bytes", "no kind", "no start"],
)
def test_what_can_not_be_read_is_said(ours: Path, change: Callable[[pa.Table], pa.Table], line: str) -> None:
    with pytest.raises(TraceError, match=line) as said:
        told(again(ours, change))
    assert "\n" not in str(said.value)


def test_a_file_without_our_metadata_is_none_of_ours(ours: Path) -> None:
    """What duckdb and pandas write: they keep rows and types, and lose whose they are."""
    with pytest.raises(TraceError, match=r"has no specanalyze.schema_version in its metadata"):
        told(again(ours, keys=False))


def test_polars_with_the_metadata_of_a_recording(ours: Path) -> None:
    names = {key.decode(): text.decode() for key, text in pq.read_metadata(ours).metadata.items()}
    del names["ARROW:schema"]
    path = ours.with_name("polars.parquet")
    pl.read_parquet(ours).write_parquet(path, metadata=names, row_group_size=ROWS)
    assert told(path) == told(ours)
    pl.read_parquet(ours).write_parquet(path, metadata=names)
    with pytest.raises(TraceError, match="its metadata give a rank row groups 1 to 1 of 1"):
        told(path)
