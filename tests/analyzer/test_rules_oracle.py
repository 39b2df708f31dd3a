"""The whole way from files to figures against a second reading of the rules: partition, remainders and waiting of random recordings."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import rules_oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.breakdown_table import breakdown_json
from specanalyze.formats import kineto_scan
from specanalyze.formats.load import open_trace
from specanalyze.native import collect, timeline
from specanalyze.native.library import library
from specschema.kernel_classes import classify

CASES = Path(__file__).resolve().parents[1] / "cases"
BASE_NS = 1_777_000_000_123_456_789
T0_NS = 2_468_135_790_123_456
KERNELS = {
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT": "gemm",
    "void flash::flash_fwd_splitkv_kernel<128, true>(flash::Flash_fwd_params)": "attention",
    "fused_moe_kernel": "moe",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "allreduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "other_comm",
}
RANGES = ("spec.verify", "spec.draft", "spec.draft_extend", "spec.cycle", "spec.prefill", "spec.decode", "spec.sample")
SERVER_RANGES = (
    "draft",
    "draft_extend",
    "step[VERIFY bs=2]",
    "step[TARGET_VERIFY bs=2]",
    "step[DRAFT_EXTEND_V2 bs=1]",
    "step[DECODE bs=4]",
    "scheduler.run_batch",
)
CALLS = ("cudaGraphLaunch", "cuGraphLaunch", "cudaLaunchKernel", "cudaMemcpyAsync")
PHASE_FIGURES = ("instances", "total_ns", "gpu_busy_ns", "hidden_comm_ns", "buckets_ns")


@pytest.fixture(params=["compiled passes", "whole tables"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways of reading and summing a rank."""
    if request.param == "whole tables":
        monkeypatch.setenv("SPECANALYZE_NATIVE", "0")
    caches = (library, timeline.compiled, collect.compiled, kineto_scan._declared)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def bucket_of(name: str, collective: str | None) -> str:
    if collective is not None:
        return "allreduce" if collective == "allreduce" else "other_comm"
    return classify(name).bucket


def readable() -> list[Any]:
    found = []
    for folder in sorted(CASES.iterdir()):
        if (folder / "expected.json").exists():
            want = json.loads((folder / "expected.json").read_text())
            aside = [*folder.glob("*.nodemap.json"), *folder.glob("*.cycles.json")]  # not of RULES.md
            if "ranks" in want and "phase_map" not in want and not aside:
                found.append(pytest.param(folder, want, id=folder.name))
    return found


@pytest.mark.parametrize(("folder", "want"), readable())
def test_every_case_says_what_its_files_give_by_the_rules(folder: Path, want: dict[str, Any]) -> None:
    files = [folder / name for name in want["input"] if not name.endswith(".jsonl") and name != "tokenizer.trace.json"]
    for given_files in [[f] for f in files] if want.get("separate_inputs") else [files]:
        try:
            mine = rules_oracle.expected(given_files, bucket_of)
        except (json.JSONDecodeError, UnicodeDecodeError):
            pytest.skip("a case of a file that no strict reader takes")
        for key, figures in mine["ranks"].items():
            assert figures == want["ranks"][key]
        waited, told = want.get("wait") or {}, mine["wait"] or {}
        for key in waited.keys() & told.keys():
            assert told[key] == waited[key], key


def microseconds(ns: int) -> str:
    return f"{Decimal(ns) / 1000:.3f}"


@st.composite
def recordings(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Ranks of one recording: the same calls on each, with a life of their own in times, durations and lost records."""
    ranks = draw(st.integers(1, 3))
    world = draw(st.sampled_from([None, ranks, ranks + 1]))
    hosts = [draw(st.sampled_from(["a", "b"])) for _ in range(ranks)]
    instant, length = st.integers(0, 120), st.integers(0, 60)
    names = draw(st.sampled_from([RANGES, RANGES, SERVER_RANGES]))
    ranges = draw(st.lists(st.tuples(st.sampled_from(names), instant, length, st.integers(1, 2)), max_size=5))
    ranges.append((draw(st.sampled_from(names[:6])), draw(instant), draw(length) + 1, 1))
    calls = draw(st.lists(st.tuples(st.sampled_from(CALLS), instant, st.integers(1, 3)), max_size=4))
    work = draw(
        st.lists(
            st.tuples(
                st.sampled_from([*KERNELS, "Memset (Device)"]),
                instant,
                st.integers(-1, 60),
                st.integers(5, 7),
                st.integers(-1, len(calls) + 1),
                st.sampled_from([None, None, None, 1, 2]),
            ),
            max_size=9,
        )
    )
    return [
        {
            "rank": rank,
            "world": world,
            "group": world or ranks,
            "host": hosts[rank],
            "ranges": ranges,
            "calls": [c for c in calls if draw(st.integers(0, 9))],
            "ids": {c: i for i, c in enumerate(calls)},
            "work": [
                (name, start + draw(st.integers(0, 5)), max(min(length, 0), length + draw(st.integers(-5, 5))), *rest)
                for name, start, length, *rest in work
                if draw(st.integers(0, 19))
            ],
        }
        for rank in range(ranks)
    ]


def written(rank: dict[str, Any], folder: Path) -> Path:
    """A rank as torch's trace handler would write it; its file is named by host and process."""
    pid = 100 + rank["rank"]
    rows: list[str] = []

    def row(category: str, name: str, start: int, length: int, thread: int, args: dict[str, Any]) -> None:
        where = 0 if category in ("kernel", "gpu_memset") else pid
        rows.append(
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {where}, "tid": {thread}, '
            f'"ts": {microseconds(T0_NS + start)}, "dur": {microseconds(length)}, "args": {json.dumps(args)}}}'
        )

    for name, start, length, thread in rank["ranges"]:
        row("user_annotation", name, start, length, thread, {})
    for call in rank["calls"]:
        name, start, thread = call
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        row(category, name, start, 2, thread, {"correlation": rank["ids"][call]})
    replays = {i for (name, *_), i in rank["ids"].items() if "GraphLaunch" in name}
    for name, start, length, stream, correlation, seq in rank["work"]:
        args: dict[str, Any] = {"device": 0, "stream": stream}
        if correlation >= 0:
            args["correlation"] = correlation
        if seq is not None and "nccl" in name and correlation not in replays:  # replays have no numbers
            args |= {"Process Group Name": "0", "Seq": seq, "Process Group Ranks": str(list(range(rank["group"])))}
        row("kernel" if name in KERNELS else "gpu_memset", name, start, length, stream, args)
    told = {"rank": rank["rank"]} | ({} if rank["world"] is None else {"world_size": rank["world"]})
    path = folder / f"{rank['host']}_{pid}.1790000000000000000.pt.trace.json"
    path.write_text(
        f'{{"distributedInfo": {json.dumps(told)}, "baseTimeNanoseconds": {BASE_NS}, "traceEvents": [{", ".join(rows)}]}}'
    )
    return path


def multiset(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings())
def test_random_recordings_come_to_what_the_rules_say(engine: None, recording: list[dict[str, Any]]) -> None:
    if not any(rank["work"] for rank in recording):
        return
    with tempfile.TemporaryDirectory() as name:
        files = [written(rank, Path(name)) for rank in recording if rank["work"]]
        mine = rules_oracle.expected(files, bucket_of)
        got = breakdown_json(break_down(open_trace([Path(f) for f in files])))
    assert set(got["ranks"]) == set(mine["ranks"])
    for key, want in mine["ranks"].items():
        rank = got["ranks"][key]
        assert rank["window_ns"] == want["window_ns"]
        assert {p: {k: v[k] for k in PHASE_FIGURES} for p, v in rank["phases"].items()} == want["phases"]
        for remainder in ("unattributed", "outside", "invalid"):
            assert rank.get(remainder) == want.get(remainder)
    if mine["wait"] is None:
        assert got["wait"] is None
        return
    assert multiset(got["wait"]["per_collective_ns"]) == multiset(mine["wait"]["per_collective_ns"])
    for key in ("complete", "voided", "unmatched_kernels", "wait_ns", "transfer_ns"):
        assert got["wait"][key] == mine["wait"][key], key
