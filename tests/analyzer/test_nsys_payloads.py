"""NCCL's typed NVTX payloads in exports of Nsight Systems (schema 3.24 and newer)."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from installed_nsys import nsight_systems, run
from nsys_export import Rows, call, kernel, nvtx, parquet_export, sqlite_export, strings

from specanalyze.formats.load import open_trace

NVTX, KERNEL, RUNTIME = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
ALL_REDUCE, ALL_GATHER = (1 << 24) + 4, (1 << 24) + 2
COMMUNICATOR = 0xFEDC_BA98_7654_3210
UINT64, INT, SIZE = 18, 5, 22
SOURCE = Path(__file__).resolve().parents[1] / "support" / "nccl_payloads.c"


def blob(schema: int, payload: bytes, *, domain: int = 1, last: int = 32) -> bytes:
    return struct.pack("<4Q", domain, schema, len(payload), last) + payload


def reduce_payload(size: int) -> bytes:
    return struct.pack("<QQi4x", COMMUNICATOR, size, 0)


def entry(schema: int, idx: int, kind: int, name: str, offset: int | None, **more: Any) -> dict[str, Any]:
    row = {"domainId": 1, "schemaId": schema, "idx": idx, "flags": None, "type": kind, "name": name}
    return row | {"description": None, "arrayOrUnionDetail": None, "offset": offset} | more


def schema(number: int, size: int, **more: Any) -> dict[str, Any]:
    row = {"domainId": 1, "schemaId": number, "name": None, "type": 1, "flags": None, "numEntries": 3}
    return row | {"payloadSize": size, "alignTo": None} | more


ENTRIES = [
    entry(ALL_REDUCE, 0, UINT64, "NCCL communicator ID", None),
    entry(ALL_REDUCE, 1, SIZE, "Message size [bytes]", 8),
    entry(ALL_REDUCE, 2, (1 << 24) + 11, "Reduction operation", 16),
    entry(ALL_GATHER, 0, UINT64, "NCCL communicator ID", None),
    entry(ALL_GATHER, 1, SIZE, "Message size [bytes]", 8),
]
SCHEMAS = [schema(ALL_REDUCE, 24), schema(ALL_GATHER, 16)]


def tables(blobs: Sequence[tuple[str, bytes | str | None]], entries: Rows = ENTRIES) -> dict[str, Rows]:
    """A verify with one kernel, and a range of domain NCCL for each blob."""
    ranges = [nvtx(0, None, "NCCL", eventType=75, domainId=1), nvtx(0, 50, "spec.verify", domainId=0)]
    rows = [row | {"binaryData": None} for row in ranges]
    rows += [nvtx(1 + n, 2 + n, name, domainId=1) | {"binaryData": data} for n, (name, data) in enumerate(blobs)]
    return {
        "StringIds": strings("cudaLaunchKernel_v7000", "gemm"),
        RUNTIME: [call(10, 20, 1, 900)],
        KERNEL: [kernel(30, 40, 2, 900)],
        NVTX: rows,
        "NVTX_PAYLOAD_SCHEMAS": SCHEMAS,
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": list(entries),
    }


def collectives(path: Path) -> tuple[list[tuple[Any, ...]], list[str]]:
    """(op, group, bytes) of each collective, and the warnings that speak of payloads."""
    trace = open_trace([path])
    (rank,) = trace.ranks()
    events = rank.events.with_columns(
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in (("bytes", pl.Int64), ("group", pl.String))
        if name not in rank.events.columns
    )
    rows = events.filter(pl.col("kind").cast(pl.String) == "collective")
    found = rows.select(pl.col("op", "group").cast(pl.String), "bytes").rows()
    return found, [line for line in trace.warnings if "payload" in line]


GIVEN: list[tuple[str, bytes | str | None]] = [
    ("ncclAllReduce", blob(ALL_REDUCE, reduce_payload(8192))),
    ("ncclAllGather", blob(ALL_GATHER, struct.pack("<QQ", 77, 4096), last=48)),
    ("ncclAllReduce", blob(ALL_REDUCE, reduce_payload(2**40))),
    ("ncclAllReduce", None),
    ("ncclGroupStart", blob(ALL_REDUCE, reduce_payload(1))),  # no collective
]
WANTED = [
    ("allreduce", str(COMMUNICATOR), 8192),
    ("allgather", "77", 4096),
    ("allreduce", str(COMMUNICATOR), 2**40),
    ("allreduce", None, None),
]


def test_payloads_say_communicator_and_bytes(tmp_path: Path) -> None:
    assert collectives(sqlite_export(tmp_path / "a.sqlite", tables(GIVEN))) == (WANTED, [])


def test_payloads_of_a_parquet_export(tmp_path: Path) -> None:
    assert collectives(parquet_export(tmp_path / "a_pqtdir", tables(GIVEN))) == (WANTED, [])


def test_a_schema_that_every_process_registers_alike_is_one(tmp_path: Path) -> None:
    twice = tables(GIVEN[:1], [*ENTRIES, *ENTRIES]) | {"NVTX_PAYLOAD_SCHEMAS": [*SCHEMAS, *SCHEMAS]}
    assert collectives(sqlite_export(tmp_path / "a.sqlite", twice)) == (WANTED[:1], [])


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [*ENTRIES, entry(ALL_REDUCE, 1, SIZE, "Message size [bytes]", 16)],  # told in two ways
    ],
)
def test_a_layout_that_is_not_told_is_not_guessed(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    given = tables(GIVEN[:1], entries or [entry(ALL_GATHER, 0, UINT64, "NCCL communicator ID", None)])
    found, said = collectives(sqlite_export(tmp_path / "a.sqlite", given))
    assert found == [("allreduce", None, None)]
    assert said == [
        "rank pid111: 1 NCCL payload of a layout that the export does not tell: communicator and size unknown there"
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"short",
        blob(ALL_REDUCE, reduce_payload(1))[:-1],
        blob(ALL_REDUCE, reduce_payload(1), domain=2),
        blob(ALL_REDUCE, reduce_payload(1), last=7),
        blob(ALL_REDUCE, struct.pack("<Q", COMMUNICATOR)),  # shorter than its schema
    ],
)
def test_bytes_of_another_form_are_counted(tmp_path: Path, data: bytes) -> None:
    found, said = collectives(sqlite_export(tmp_path / "a.sqlite", tables([("ncclAllReduce", data), GIVEN[0]])))
    assert found == [("allreduce", None, None), WANTED[0]]
    assert len(said) == 1


@pytest.mark.parametrize(
    "size",
    [
        entry(ALL_GATHER, 1, SIZE, "Message size [bytes]", 8, flags=2),  # a pointer
        entry(ALL_GATHER, 1, SIZE, "Message size [bytes]", None),  # a place that follows from alignment
        entry(ALL_GATHER, 1, 20, "Message size [bytes]", 8),  # a double
    ],
)
def test_a_field_of_another_form_is_unknown_and_the_others_are_not(tmp_path: Path, size: dict[str, Any]) -> None:
    given = tables(GIVEN[1:2], [ENTRIES[3], size])
    assert collectives(sqlite_export(tmp_path / "a.sqlite", given)) == ([("allgather", "77", None)], [])


def test_a_cell_of_text_counts_as_empty(tmp_path: Path) -> None:
    found, said = collectives(sqlite_export(tmp_path / "a.sqlite", tables([("ncclAllReduce", "0a0b"), GIVEN[0]])))
    assert (found, said) == ([("allreduce", None, None), WANTED[0]], [])


def test_payloads_as_json_say_the_same(tmp_path: Path) -> None:
    """What exports before 3.24 may hold."""
    given = tables([("ncclAllReduce", None)])
    text = '{"NCCL communicator ID":"0x5af","Message size [bytes]":8192}'
    given[NVTX] = [{**row, "jsonText": text if row["text"] == "ncclAllReduce" else None} for row in given[NVTX]]
    assert collectives(sqlite_export(tmp_path / "a.sqlite", given))[0] == [("allreduce", "0x5af", 8192)]


def nvtx_headers() -> Path:
    """Folder of nvtx3/nvToolsExtPayload.h, or a skipped test."""
    places = [*Path("/usr/local").glob("cuda*/include"), Path("/usr/include")]
    places += [found for folder in sys.path for found in Path(folder).glob("nvidia/*/include")]
    for place in places:
        if (place / "nvtx3" / "nvToolsExtPayload.h").is_file():
            return place
    pytest.skip("NVTX 3's headers are not installed")


def test_payloads_that_the_real_nsight_systems_recorded(tmp_path: Path) -> None:
    """Before 3.24, SQLite leaves payloads out and JSON holds them raw: those bytes, in the newer layout, say what was written."""
    nsys = nsight_systems().nsys
    assert nsys is not None
    program = tmp_path / "payloads"
    built = subprocess.run(
        ["cc", f"-I{nvtx_headers()}", str(SOURCE), "-o", str(program), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    report = tmp_path / "r.nsys-rep"
    run(
        nsys,
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "-f",
        "true",
        "-o",
        report.with_suffix(""),
        program,
    )
    run(nsys, "export", "-q", "true", "-f", "true", "-t", "json", "-o", tmp_path / "r.json", report)
    found = []
    for line in (tmp_path / "r.json").read_text().splitlines():
        if "BinaryData" in line:
            (payload,) = json.loads(line)["NvtxEvent"]["Payload"]["BinaryData"]
            found.append(("ncclAllReduce", blob(int(payload["SchemaId"]), base64.b64decode(payload["Data"]))))
    assert len(found) == 3
    assert collectives(sqlite_export(tmp_path / "a.sqlite", tables(found))) == (
        [("allreduce", str(COMMUNICATOR), 1024 << n) for n in range(3)],
        [],
    )
