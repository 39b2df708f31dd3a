"""Rows of torch.profiler traces to events: kinds, times, ids, arguments."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specanalyze.formats.event_frame import ALWAYS, DTYPES
from specanalyze.formats.kineto import has_device_rows, identify, read_events
from specschema.errors import TraceError
from specschema.events import COLUMN_NAMES

CASES = Path(__file__).parents[1] / "cases"
BASE_NS = 1_777_000_000_000_000_000


def events_of(folder: Path, *rows: dict[str, Any] | str, **members: Any) -> pl.DataFrame:
    """Events of a file with these rows; text rows are written as they are."""
    path = folder / "trace.json"
    text = ",\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in members.items())
    path.write_text(f'{{{head}"traceEvents": [{text}]}}')
    events, warnings = read_events(path, 5)
    assert warnings == []
    return events


def row(cat: str, name: str, ts: Any = 10, dur: Any = 2, pid: Any = 40, tid: Any = 41, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_kinds_in_file_order(tmp_path: Path) -> None:
    events = events_of(
        tmp_path,
        {"ph": "M", "name": "process_name", "pid": 40, "tid": 0, "ts": 1},
        row("kernel", "k", 50, pid=0, tid=7, correlation=9, stream=7, device=0),
        row("user_annotation", "step[TARGET_VERIFY bs=1]"),
        row("user_annotation", "spec.cycle"),
        row("gpu_user_annotation", "spec.cycle", pid=0, tid=7),
        row("cpu_op", "aten::add"),
        row("cuda_runtime", "cudaLaunchKernel", correlation=9),
        row("cuda_driver", "cuLaunchKernelEx_v3", correlation=10),
        row("cuda_runtime", "cudaGetDevice"),  # no correlation: it starts no work
        row("python_function", "f.py(1): g"),
        row("cuda_sync", "Stream Sync", pid=0, tid=7, correlation=9),
        row("overhead", "Buffer Flush", pid=-1, tid=0),
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 0,
            "dur": 9,
        },
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 9, "pid": 40, "tid": 41, "ts": 10},
        row("gpu_memcpy", "Memcpy HtoD", 60, pid=1, tid=20, bytes=4096, correlation=11),
        row("gpu_memset", "Memset (Device)", 61, pid=1, tid=20, bytes=8, correlation=12, stream=13, device=3),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 99},
    )
    assert events.select("kind", "name", "pid", "tid", "start_ns", "dur_ns", "correlation").rows() == [
        ("kernel", "k", 40, None, 50_000, 2000, 9),
        ("phase", "step[TARGET_VERIFY bs=1]", 40, 41, 10_000, 2000, None),
        ("cycle", "spec.cycle", 40, 41, 10_000, 2000, None),
        ("op", "aten::add", 40, 41, 10_000, 2000, None),
        ("launch", "cudaLaunchKernel", 40, 41, 10_000, 2000, 9),
        ("launch", "cuLaunchKernelEx_v3", 40, 41, 10_000, 2000, 10),
        ("memcpy", "Memcpy HtoD", 40, None, 60_000, 2000, 11),
        ("memset", "Memset (Device)", 40, None, 61_000, 2000, 12),
        ("mark", "Record Window End", 40, None, 99_000, 0, None),
    ]
    device = events.filter(pl.col("device").is_not_null())
    assert device.select("device", "stream", "bytes").rows() == [(0, 7, None), (1, 20, 4096), (3, 13, 8)]
    assert events["rank"].unique().to_list() == [5]
    assert events["window"].unique().to_list() == [0]


def test_columns_have_the_format_s_order_and_types_and_none_is_null_throughout(tmp_path: Path) -> None:
    events = events_of(tmp_path, row("kernel", "k", pid=0, tid=7, correlation=1), row("user_annotation", "draft"))
    assert events.columns == [c for c in COLUMN_NAMES if c in events.columns]
    assert dict(events.schema) == {c: DTYPES[c] for c in events.columns}
    assert [c for c in events.columns if events[c].null_count() == events.height and c not in ALWAYS] == []


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "dur_ns"),
    [
        ("2468135790040.001", "30.000", 2468135790040001, 30000),
        ("1718233344455500.001", "0.64", 1718233344455500001, 640),
        ("12", "0", 12000, 0),
        ("12", "-1", 12000, None),
        ("0.000", "0.000", 0, None),
        ("0", "5", 0, None),
    ],
)
def test_times_of_device_work(tmp_path: Path, ts: str, dur: str, start_ns: int, dur_ns: int | None) -> None:
    text = f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}}}'
    events = events_of(tmp_path, text, baseTimeNanoseconds=BASE_NS, displayTimeUnit="ns")
    assert events.select("start_ns", "dur_ns").row(0) == (BASE_NS + start_ns, dur_ns)


def test_device_work_without_a_time_is_kept_for_counting_and_host_rows_without_one_are_not(tmp_path: Path) -> None:
    events = events_of(
        tmp_path,
        '{"ph": "X", "cat": "kernel", "name": "no dur", "pid": 0, "tid": 7, "ts": 5}',
        '{"ph": "X", "cat": "kernel", "name": "no ts", "pid": 0, "tid": 7, "dur": 5}',
        '{"ph": "X", "cat": "user_annotation", "name": "no ts", "pid": 40, "tid": 41, "dur": 5}',
        '{"ph": "X", "cat": "user_annotation", "name": "unclosed", "pid": 40, "tid": 41, "ts": 5}',
    )
    assert events.select("kind", "name", "start_ns", "dur_ns").rows() == [
        ("kernel", "no dur", 5000, None),
        ("kernel", "no ts", 0, None),
        ("phase", "unclosed", 5000, None),
    ]


def test_arguments_of_kernels_and_collectives(tmp_path: Path) -> None:
    collective = {
        "Collective name": "_allgather_base",
        "dtype": "BFloat16",
        "In msg nelems": 2048,
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1]",
        "Seq": 3_000_000_001,
        "Comms Id": 18012345678901234567,
    }
    args = {"grid": [132, 1, 2], "block": [256, 1, 1], "graph id": 17, "graph node id": (17 << 32) + 9}
    events = events_of(
        tmp_path,
        row("kernel", "nccl", pid=0, tid=7, correlation=1, **args, **collective),
        row("cpu_op", "record_param_comms", **collective),
        row(
            "kernel",
            "all-reduce",
            pid=0,
            tid=7,
            **{"Collective name": "ALL_REDUCE", "Process Group Ranks": "[0, 1, ..., 7]"},
        ),
        row("cpu_op", "triton", stream=1, grid="grid(12,)"),
    )
    names = ["kind", "op", "dtype", "elements", "group", "group_ranks", "seq", "graph_id", "node", "grid", "block"]
    same = ("BFloat16", 2048, "3", [0, 1], 3_000_000_001)
    assert events.select(names).rows() == [
        ("kernel", "allgather", *same, 17, 9, "132x1x2", "256x1x1"),
        ("collective", "allgather", *same, None, None, None, None),
        ("kernel", "allreduce", None, None, None, None, None, None, None, None, None),
        ("op", None, None, None, None, None, None, None, None, None, None),
    ]
    assert events["stream"].to_list() == [7, None, 7, None]


def test_work_of_no_graph_has_no_graph_and_no_node(tmp_path: Path) -> None:
    """From torch 2.12 on Kineto writes both ids for every kernel, as 0 outside graphs."""
    ids = [
        {"graph id": 0, "graph node id": 0},
        {"graph id": 17, "graph node id": 17 << 32},
        {"graph id": 17, "graph node id": (17 << 32) + 3},
        {"graph id": 4},
        {"graph node id": 5 << 32},
        {},
    ]
    events = events_of(tmp_path, *(row("kernel", "k", pid=0, tid=7, **one) for one in ids))
    assert events.select("graph_id", "node").rows() == [
        (None, None),
        (17, 0),
        (17, 3),
        (4, None),
        (None, 0),
        (None, None),
    ]


def test_ids_of_64_bits_are_exact(tmp_path: Path) -> None:
    ids = [5, 4294967301, 2**63 - 1, 2**63 + 5, 2**64 - 1]
    events = events_of(tmp_path, *(row("kernel", "k", pid=0, tid=7, correlation=i) for i in ids))
    assert events["correlation"].to_list() == [5, 4294967301, 2**63 - 1, -(2**63) + 5, -1]


def test_values_of_unexpected_types_do_not_stop_the_reading(tmp_path: Path) -> None:
    events = events_of(
        tmp_path,
        {"ph": "X", "cat": "kernel", "name": 7, "pid": "0", "tid": 7.0, "ts": "12.5", "dur": 1, "args": None},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 13, "dur": 1, "args": ["odd"]},
        "17",
        {
            "ph": "X",
            "cat": "kernel",
            "pid": 0,
            "tid": 7,
            "ts": True,
            "dur": {},
            "args": {"correlation": "8", "grid": None},
        },
    )
    assert events.select("name", "start_ns", "dur_ns", "device", "stream", "correlation").rows() == [
        ("7", 12500, 1000, 0, 7, None),
        ("k", 13000, 1000, 0, 7, None),
        ("", 0, None, 0, 7, 8),
    ]


def test_device_work_belongs_to_the_process_that_launches_graphs(tmp_path: Path) -> None:
    events = events_of(
        tmp_path,
        row("kernel", "k", pid=0, tid=7, correlation=1),
        *(row("cpu_op", "aten::add", pid=1, tid=1) for _ in range(5)),
        *(row("cuda_runtime", "cudaLaunchKernel", pid=2, tid=2, correlation=i) for i in range(3)),
        row("cuda_runtime", "cudaGraphLaunch", pid=3, tid=3, correlation=1),
    )
    assert events["pid"][0] == 3


def test_trace_merged_from_several_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^trace\.json merges the traces of several processes"):
        events_of(tmp_path, row("kernel", "k", pid="[TP00] 0", tid=7, correlation=1))


def test_file_without_events(tmp_path: Path) -> None:
    events = events_of(tmp_path)
    assert events.height == 0
    assert events.columns == list(ALWAYS)


@pytest.mark.parametrize(
    ("file", "rank", "host", "world_size", "base_ns"),
    [
        ("07-cross-rank-wait-custom-allreduce/1756600000.1-TP-1.trace.json", 1, None, 2, BASE_NS),
        ("09-clock-skew-two-hosts/nodeB_701.1790000000000000000.pt.trace.json", 1, "nodeB", 2, BASE_NS),
        ("13-no-distributed-info/1756600000.1-TP-3.trace.json", 3, None, None, BASE_NS),
        ("13-no-distributed-info/trace.json", None, None, None, BASE_NS),
        ("14-metadata-after-events/on_demand.json", 1, None, 2, BASE_NS),
        ("16-nanoseconds-lost-in-float64/trace.json", 0, None, 1, 0),
        ("26-top-level-list/trace.json", None, None, None, 0),
    ],
)
def test_identity(file: str, rank: int | None, host: str | None, world_size: int | None, base_ns: int) -> None:
    found = identify(CASES / file).file
    assert (found.rank, found.host, found.world_size, found.base_ns) == (rank, host, world_size, base_ns)


@pytest.mark.parametrize(
    "said", ["1777000000000000123", '"1777000000000000123"', "1777000000000000123.0", "1.777000000000000123e18"]
)
def test_time_base_however_it_was_rewritten(said: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"baseTimeNanoseconds": {said}, "traceEvents": []}}')
    assert identify(path).file.base_ns == 1777000000000000123


def test_files_without_device_rows() -> None:
    assert not has_device_rows(CASES / "27-cpu-only-trace/trace.json")
    assert has_device_rows(CASES / "28-annotation-overhead-sync-rows/trace.json")


_KINDS = {
    "user_annotation": "phase",
    "cpu_op": "op",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
}


def _counted(path: Path) -> Counter[str]:
    """Events a kind, counted the plain way."""
    counts: Counter[str] = Counter()
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        args = event.get("args") or {}
        kind = _KINDS.get(event.get("cat", "")) if event["ph"] == "X" else "mark" if event["ph"] == "i" else None
        if kind == "op" and "Collective name" in args:
            kind = "collective"
        if kind == "phase" and event["name"] == "spec.cycle":
            kind = "cycle"
        if kind == "launch" and args.get("correlation") is None:
            kind = None
        if kind:
            counts[kind] += 1
    return counts


@pytest.mark.slow
def test_real_traces_have_the_events_that_json_counts(reference: Path) -> None:
    files = sorted((reference / "traces").rglob("*.json.gz"))
    assert len(files) > 20
    for path in files:
        events, warnings = read_events(path, 0)
        assert Counter(events["kind"].cast(pl.String).to_list()) == _counted(path), path.name
        assert warnings == []


def test_real_times_are_those_of_the_text(reference: Path) -> None:
    path = reference / "traces/h200_tp2_probe/rank0.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    base_ns = document["baseTimeNanoseconds"]
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    events = read_events(path, 0)[0].filter(pl.col("kind") == "kernel")
    assert events["start_ns"].to_list() == [base_ns + int(e["ts"].replace(".", "")) for e in kernels]
    assert events["dur_ns"].to_list() == [int(e["dur"].replace(".", "")) for e in kernels]
    assert events["name"].to_list() == [e["name"] for e in kernels]
