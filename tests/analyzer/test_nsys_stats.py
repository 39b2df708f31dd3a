"""Public exports: our figures against ``nsys stats`` of the same file, and a recording made here by the real ``nsys profile``."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from installed_nsys import nsight_systems, ran, run, version

from specanalyze.formats.load import open_trace
from specanalyze.trace import RankTrace

FILES = ("h100_2gpu_1s.sqlite", "saxpy_mpi_schema_2.9.sqlite", "synthetic_schema.sqlite")
MEMCPY = {
    "Memcpy HtoD": "[CUDA memcpy Host-to-Device]",
    "Memcpy DtoH": "[CUDA memcpy Device-to-Host]",
    "Memcpy DtoD": "[CUDA memcpy Device-to-Device]",
    "Memcpy PtoP": "[CUDA memcpy Peer-to-Peer]",
    "Memset": "[CUDA memset]",
}
OLD_NAMES = {
    "cuda_gpu_kern_sum": "gpukernsum",
    "cuda_gpu_mem_time_sum": "gpumemtimesum",
    "nvtx_pushpop_sum": "nvtxppsum",
}


def stats(file: Path, report: str, nsys: Path) -> list[dict[str, Any]]:
    """Rows of a report of NVIDIA's."""
    name = OLD_NAMES[report] if version(nsys) < (2023, 1) else report
    said = run(nsys, "stats", "-q", "-f", "csv", "-r", name, file)
    table = said[said.index("Time (%)") :] if "Time (%)" in said else ""
    return list(csv.DictReader(io.StringIO(table)))


@pytest.fixture(params=FILES)
def export(request: pytest.FixtureRequest, reference: Path, tmp_path: Path) -> Path:
    """A copy: nsys writes into what it reads."""
    return Path(shutil.copy(reference / "traces" / "nsys" / request.param, tmp_path / request.param))


def events_of(ranks: list[RankTrace]) -> pl.DataFrame:
    columns = ["kind", "name", "start_ns", "dur_ns"]
    return pl.concat(
        [r.events.select(pl.col(c).cast(pl.String) if c in ("kind", "name") else c for c in columns) for r in ranks]
    )


def totals(frame: pl.DataFrame) -> dict[str, tuple[int, int, int, int]]:
    """Name -> count, sum, shortest, longest."""
    length = pl.col("dur_ns")
    rows = frame.group_by("name").agg(pl.len(), length.sum(), length.min().alias("low"), length.max().alias("high"))
    return {name: (count, total, low, high) for name, count, total, low, high in rows.iter_rows()}


def told(rows: list[dict[str, Any]], name: str, count: str) -> dict[str, tuple[int, int, int, int]]:
    """The same from NVIDIA's table, whose rows were of one grid size each until 2023."""
    table = pl.DataFrame(
        [
            (row[name], *(int(float(row[c])) for c in (count, "Total Time (ns)", "Min (ns)", "Max (ns)")))
            for row in rows
        ],
        schema={"name": pl.String, "count": pl.Int64, "sum": pl.Int64, "low": pl.Int64, "high": pl.Int64},
        orient="row",
    )
    by_name = table.group_by("name").agg(pl.col("count", "sum").sum(), pl.col("low").min(), pl.col("high").max())
    return {word: (n, total, low, high) for word, n, total, low, high in by_name.iter_rows()}


def test_kernels_and_copies(export: Path) -> None:
    nsys = nsight_systems().nsys
    assert nsys is not None
    events = events_of(list(open_trace([export]).ranks()))
    kernels = totals(events.filter(pl.col("kind") == "kernel"))
    assert kernels == told(stats(export, "cuda_gpu_kern_sum", nsys), "Name", "Instances")
    copies = {
        MEMCPY[name]: row for name, row in totals(events.filter(pl.col("kind").is_in(["memcpy", "memset"]))).items()
    }
    memory = stats(export, "cuda_gpu_mem_time_sum", nsys)
    if copies and not memory:
        pytest.skip("this nsys stats reports no copies of so old an export")
    theirs = told(memory, "Operation", "Count" if memory and "Count" in memory[0] else "Instances")
    assert {"".join(c for c in key if c.isalpha()).lower(): row for key, row in copies.items()} == {
        _plain(key): row for key, row in theirs.items()
    }


def _plain(operation: str) -> str:
    """``[CUDA memcpy HtoD]`` (until 2023) and ``[CUDA memcpy Host-to-Device]`` are the same."""
    for short, long in (
        ("HtoD", "HosttoDevice"),
        ("DtoH", "DevicetoHost"),
        ("DtoD", "DevicetoDevice"),
        ("PtoP", "PeertoPeer"),
    ):
        operation = operation.replace(short, long)
    return "".join(c for c in operation if c.isalpha()).lower()


def projected(rank: RankTrace) -> pl.DataFrame:
    """Device time of the work launched inside each range of its thread: NVIDIA's NVTX projection, from our events."""
    events = rank.events.with_columns(pl.col("kind", "name").cast(pl.String))
    work = events.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
    spans = work.group_by("correlation").agg(
        pl.col("start_ns").min().alias("first"), (pl.col("start_ns") + pl.col("dur_ns")).max().alias("last")
    )
    calls = events.filter(pl.col("kind") == "launch").join(spans, on="correlation")
    calls = calls.select(
        "tid",
        "correlation",
        pl.col("start_ns").alias("call"),
        (pl.col("start_ns") + pl.col("dur_ns")).alias("back"),
        "first",
        "last",
    )
    ranges = events.filter(pl.col("kind").is_in(["phase", "cycle", "op"])).with_row_index("range")
    ranges = ranges.select("range", "name", "tid", "start_ns", "dur_ns")
    inside = ranges.join_where(
        calls.rename({"tid": "caller"}),
        pl.col("tid") == pl.col("caller"),
        pl.col("start_ns") <= pl.col("call"),
        pl.col("back") <= pl.col("start_ns") + pl.col("dur_ns"),
    )
    return inside.group_by("range").agg(
        pl.col("start_ns", "dur_ns").first(),
        pl.col("first").min(),
        (pl.col("last").max() - pl.col("first").min()).alias("span"),
        pl.col("correlation").n_unique().alias("operations"),
    )


@pytest.mark.parametrize("file", FILES)
def test_nvtx_projection(reference: Path, tmp_path: Path, file: str) -> None:
    nsys = nsight_systems().nsys
    assert nsys is not None
    if version(nsys) < (2023, 1):
        pytest.skip("nvtx_gpu_proj_trace came with Nsight Systems 2023")
    copy = Path(shutil.copy(reference / "traces" / "nsys" / file, tmp_path / file))
    said = run(nsys, "stats", "-q", "-f", "csv", "-r", "nvtx_gpu_proj_trace", copy)
    rows = list(csv.DictReader(io.StringIO(said[said.index("Name,") :] if "Name,Projected" in said else "")))
    trace = open_trace([copy])
    base = {str(entry["key"]): int(entry["base_ns"]) for entry in trace.metadata["ranks"]}
    mine = []
    for rank in trace.ranks():
        for _, start, length, first, span, operations in projected(rank).iter_rows():
            mine.append((start - base[rank.key], length, first - base[rank.key], span, operations))
    keys = ("Orig Start (ns)", "Orig Duration (ns)", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
    told = [tuple(row[key] for key in keys) for row in rows]
    if any("" in values for values in told):
        pytest.skip(f"Nsight Systems {version(nsys)} gives no numbers for so old an export")
    assert sorted(mine) == sorted(tuple(map(int, values)) for values in told)


PROGRAM = """
import nvtx
for cycle in range(5):
    nvtx.push_range("spec.cycle", domain="spec", category="cycle", payload=cycle)
    nvtx.push_range("spec.verify", domain="spec", category="phase", payload=cycle)
    nvtx.pop_range(domain="spec")
    nvtx.pop_range(domain="spec")
"""


def recorded(folder: Path) -> Path:
    """A report that nsys made here of PROGRAM; without a GPU, so it holds ranges alone."""
    pytest.importorskip("nvtx")
    nsys = nsight_systems().nsys
    assert nsys is not None
    program = folder / "program.py"
    program.write_text(PROGRAM)
    report = folder / "live.nsys-rep"
    options = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true", "-o", report)
    for _ in range(3):
        done = ran(nsys, "profile", *options, sys.executable, program)
        if done.returncode == 0:
            return report
    # nsys' own service does not always answer its own client on a busy machine: nothing of ours ran yet.
    if "Local Endpoint is not available" in done.stderr + done.stdout:
        pytest.skip("nsys profile can't reach its own service here (Local Endpoint is not available, three times)")
    raise AssertionError(done.stdout[-2000:] + done.stderr[-2000:])


def test_parquet_as_nsys_writes_it(tmp_path: Path) -> None:
    report = recorded(tmp_path)
    nsys = nsight_systems().nsys
    assert nsys is not None
    if version(nsys) < (2023, 4):
        pytest.skip("nsys export -t parquetdir came with 2023.4")
    run(nsys, "export", "-q", "true", "-f", "true", "-t", "parquetdir", "-o", tmp_path / "live_pqtdir", report)
    (one,) = open_trace([report], device="cpu").ranks()
    (other,) = open_trace([tmp_path / "live_pqtdir"], device="cpu").ranks()
    assert other.events.select(pl.all().cast(pl.String)).rows() == one.events.select(pl.all().cast(pl.String)).rows()


def test_a_live_recording(tmp_path: Path) -> None:
    """Our ranges as nsys itself records them: without a GPU here, so ``--device cpu``."""
    report = recorded(tmp_path)
    trace = open_trace([report], device="cpu")
    (rank,) = trace.ranks()
    if not rank.events.height:
        pytest.skip(f"nvtx {metadata.version('nvtx')} emits nothing under this Nsight Systems; 0.2.11 does")
    rows = rank.events.select(pl.col("kind", "name").cast(pl.String), "cycle", pl.col("dur_ns").is_null()).rows()
    closed = [row for n in range(5) for row in (("cycle", "spec.cycle", n, False), ("phase", "spec.verify", n, False))]
    assert rows == closed
    assert abs(rank.events["start_ns"][0] - report.stat().st_mtime_ns) < 60e9, "times are Unix times"
    assert trace.warnings == []
