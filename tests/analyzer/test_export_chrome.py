"""The Chrome JSON export comes back through our own importer with every nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.analysis import analyse
from specanalyze.exports.export import export
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.phases import PHASE_KEYS

SAMPLES = Path(__file__).resolve().parents[2] / "samples"

KEPT = (
    *("kind", "name", "pid", "tid", "start_ns", "dur_ns", "correlation", "device", "stream", "bytes", "grid", "block"),
    *("op", "dtype", "elements", "group", "group_ranks", "seq", "graph_id", "node"),
)
"""Columns that the format holds."""


def rows(recording: Trace) -> list[pl.DataFrame]:
    found = []
    for rank in recording.ranks():
        events = rank.events
        events = events.with_columns(pl.lit(None).alias(c) for c in KEPT if c not in events.columns)
        events = events.filter(
            ~pl.col("kind").cast(pl.String).is_in(["node", "request"]), pl.col("window").is_not_null()
        )
        texts = [
            pl.col(c).cast(pl.List(pl.String)).list.join(",") if c == "group_ranks" else pl.col(c).cast(pl.String)
            for c in KEPT
        ]
        found.append(events.select(texts))
    return found


def assert_round_trip(recording: Trace, folder: Path) -> None:
    done = export(recording, "chrome", folder / "t.json.gz")
    again = open_trace(done.files)
    for before, after in zip(rows(recording), rows(again), strict=True):
        assert before.height == after.height
        different = [c for c in KEPT if not before[c].equals(after[c], null_equal=True)]
        assert different == []


def test_every_kind_of_row(tmp_path: Path) -> None:
    base = 1_795_964_426_162_386_907
    collective: dict[str, Any] = {
        "op": "allreduce",
        "dtype": "BFloat16",
        "elements": 8192,
        "group": "tp",
        "group_ranks": [0, 1],
        "seq": 12,
    }
    recording = trace(
        rank_trace(
            [
                kernel("first of all", base, base + 1, None),
                phase("spec.cycle", base + 1, base + 100_000_001, window=0),
                phase("spec.verify", base + 1, base + 999, window=0),
                phase("never closed", base + 2, None, window=0),
                launch("cudaGraphLaunch", base + 3, 7, window=0),
                kernel(
                    'void k<"q">(\\n, é)',
                    base + 4,
                    base + 1_000_005,
                    7,
                    grid="132x1x1",
                    block="256x1x1",
                    graph_id=3,
                    node=5,
                ),
                kernel("ncclDevKernel_AllReduce", base + 6, base + 6, 7, **collective),
                kernel("no usable time", base + 7, None, 7),
                kernel("Memcpy DtoH", base + 8, base + 20, 7, kind="memcpy", bytes=4096),
                {**phase("c10d::allreduce_", base + 9, base + 11), "kind": "collective", **collective},
                {**phase("aten::mul", base + 9, base + 10), "kind": "op"},
                {**phase("mark", base + 12, base + 12), "kind": "mark"},
            ]
        )
    )
    frame = next(recording.ranks()).events.with_columns(pl.lit(0).alias("window").cast(pl.Int64))
    whole = Trace("t", (recording.sources[0].__class__("0", "t", lambda: rank_trace(frame.to_dicts())),))
    assert_round_trip(whole, tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        ["sglang_h200/tp2/e2_m13_rank0.json.gz", "sglang_h200/tp2/e2_m13_rank1.json.gz"],
        ["public/hta_128rank_sampled_rank-0.json.gz"],
        ["public/tracelens_vllm_decode_fullgraph_replay_mi300x.json.gz"],
        ["public/tracelens_vllm_tp8_rank0_b200_eager.json.gz"],
    ],
    ids=["SGLang on two GPUs", "a rank of 128", "ROCm", "B200"],
)
def test_real_recordings(reference: Path, tmp_path: Path, files: list[str]) -> None:
    assert_round_trip(open_trace([reference / "traces" / file for file in files]), tmp_path)


def test_the_breakdown_is_the_same(reference: Path, tmp_path: Path) -> None:
    recording = open_trace([reference / "traces/sglang_h200/tp1/e5_m13_rank0.json.gz"])
    done = export(recording, "chrome", tmp_path / "t.json")
    before, after = (break_down(t).ranks[0] for t in (recording, open_trace(done.files)))
    assert after.buckets_ns == before.buckets_ns
    assert after.window_ns == before.window_ns


def two_windows() -> Trace:
    """Two windows whose correlation ids count from anew: 5 and 6 name a call of verify here, of draft there."""
    rows = []
    for window, (name, at) in enumerate([("spec.verify", 1000), ("spec.draft", 2000)]):
        rows += [
            phase(name, at, at + 100, window=window),
            launch("cudaLaunchKernel", at + 10, 5, window=window),
            launch("cudaLaunchKernel", at + 20, 6 + window, window=window),
            kernel("flash_fwd_kernel", at + 30, at + 40, 5, window=window),
            kernel("flash_fwd_kernel", at + 50, at + 60, 6 + window, window=window),
            kernel("without a launch call", at + 70, at + 71, None, window=window),
        ]
    return trace(rank_trace(rows))


def activities(recording: Trace) -> list[dict[str, int]]:
    """Rank by rank: phase -> device activities, over all windows."""
    found = []
    for rank in analyse(recording):
        counted = np.bincount(np.concatenate([w.activities.phase for w in rank.windows]), minlength=len(PHASE_KEYS))
        found.append({name: int(count) for name, count in zip(PHASE_KEYS, counted, strict=True) if count})
    return found


def device_busy(recording: Trace) -> list[dict[str, int]]:
    """Rank by rank: phase of the cycle -> ns in which the device was busy for it, over all windows."""
    ranks = break_down(recording).ranks
    return [{p: r.gpu_busy_ns.get(p, 0) for p in ("draft", "verify", "draft_extend", "decode")} for r in ranks]


def test_ids_of_one_window_name_no_call_of_another(tmp_path: Path) -> None:
    (path,) = export(two_windows(), "chrome", tmp_path / "t.json").files
    written = json.loads(path.read_text())["traceEvents"]

    def ids(category: str) -> list[tuple[float, int]]:
        return [(row["ts"], row["args"].get("correlation")) for row in written if row.get("cat") == category]

    assert ids("cuda_runtime") == [(1.01, 1), (1.02, 2), (2.01, 3), (2.02, 4)]
    assert ids("kernel") == [(1.03, 1), (1.05, 2), (1.07, None), (2.03, 3), (2.05, 4), (2.07, None)]
    arrows = [(row["ph"], row["id"]) for row in written if row.get("cat") == "ac2g"]
    assert sorted(arrows) == [("f", n) for n in (1, 2, 3, 4)] + [("s", n) for n in (1, 2, 3, 4)]
    assert activities(open_trace([path])) == [{"draft": 2, "verify": 2, "unattributed": 2}]


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.parquet")))
def test_windows_keep_their_device_work(tmp_path: Path, sample: str) -> None:
    recording = open_trace([SAMPLES / sample])
    again = open_trace(export(recording, "chrome", tmp_path / "t.json").files)
    assert activities(again) == activities(recording)
    assert device_busy(again) == device_busy(recording)
    assert any(device_busy(recording)[0].values())
    for rank in again.ranks():
        calls = rank.events.filter(pl.col("kind").cast(pl.String) == "launch").get_column("correlation").drop_nulls()
        assert calls.is_unique().all()
        assert calls.to_numpy().max() < 2**31


def small() -> Trace:
    rows = []
    for n in range(4):
        at = n * 100
        rows += [
            phase("spec.cycle", at, at + 90, cycle=10 + n, window=0),
            phase("spec.verify", at + 5, at + 80, window=0),
            launch("cudaLaunchKernel", at + 10, n, window=0),
            kernel("flash_fwd_kernel", at + 85, at + 120, n, window=0),
        ]
    return trace(rank_trace(rows), rank_trace(rows, rank=1))


def test_cycles_keep_their_late_kernels(tmp_path: Path) -> None:
    done = export(small(), "chrome", tmp_path / "t.json", cycles=(11, 13))
    assert [path.name for path in done.files] == ["t.rank0.json", "t.rank1.json"]
    document = json.loads(done.files[0].read_text())
    assert document["baseTimeNanoseconds"] == 0
    kernels = [row for row in document["traceEvents"] if row.get("cat") == "kernel"]
    assert [(row["ts"], row["dur"], row["args"]["class"], row["args"]["phase"]) for row in kernels] == [
        (0.185, 0.035, "attention", "verify"),
        (0.285, 0.035, "attention", "verify"),
    ]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of the cycles asked for; it has cycles 10 to 13"):
        export(small(), "chrome", tmp_path / "t.json", cycles=(20, 30))
    assert list(tmp_path.iterdir()) == []
    for name, to in (
        ("t.txt", "chrome"),
        ("t.json", "perfetto"),
        ("t.json", "nsys"),
        ("t.json", "other"),
        ("no/t.json", "chrome"),
    ):
        with pytest.raises(UsageError):
            export(small(), to, tmp_path / name)
    (tmp_path / "t.rank1.json").write_text("mine")
    with pytest.raises(UsageError, match=r"t\.rank1\.json exists"):
        export(small(), "chrome", tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.rank1.json"]
    export(small(), "chrome", tmp_path / "t.json", force=True)
    assert json.loads((tmp_path / "t.rank1.json").read_text())["distributedInfo"] == {"rank": 1}


def test_gzip_is_what_it_says(tmp_path: Path) -> None:
    (path, _) = export(small(), "chrome", tmp_path / "t.json.gz").files
    assert json.loads(gzip.decompress(path.read_bytes()))["displayTimeUnit"] == "ms"
