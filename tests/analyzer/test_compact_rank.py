"""A rank summed while it is read gives what its whole tables give, to the last nanosecond."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces
from both_ways import COLLECT, assert_same, both, compact
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import KERNELS, some_rows

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.collective_match import match
from specanalyze.attribution.compact_talk import CompactTalk
from specanalyze.attribution.rank_result import rank_result
from specanalyze.attribution.wait_table import by_replay
from specanalyze.formats.event_frame import table
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import read_trace, write_trace
from specanalyze.native import timeline
from specanalyze.native.library import library
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.events import DEVICE_KINDS
from specschema.phases import PHASE_KEYS

SCANNER = library("kineto_scan")
pytestmark = pytest.mark.skipif(
    COLLECT is None or timeline.compiled() is None, reason="no C compiler on this machine, or switched off"
)


@settings(max_examples=150, deadline=None)
@given(
    some_rows,
    st.integers(1, 5),
)
def test_summed_rows_equal_the_whole_tables(rows: list[dict[str, Any]], pieces: int) -> None:
    # One more launch call and kernel, so that there is a rank; a negative duration is judged by the whole tables.
    rows = [row | {"dur_ns": None} if (row["dur_ns"] or 0) < 0 else row for row in rows]
    rows = [*rows, traces.launch("cudaLaunchKernel", 130, 99), traces.kernel(next(iter(KERNELS)), 131, 140, 99)]
    assert_same(*both(traces.events(rows), pieces))


some_windows = st.sampled_from([0, 0, 1, 1, 3, None])


@settings(max_examples=75, deadline=None)
@given(
    some_rows,
    st.lists(some_windows, min_size=30, max_size=30),
    st.integers(1, 3),
)
def test_windows_are_summed_apart(rows: list[dict[str, Any]], windows: list[int | None], pieces: int) -> None:
    rows = [row | {"dur_ns": None} if (row["dur_ns"] or 0) < 0 else row for row in rows]
    rows = [row | {"window": window} for row, window in zip(rows, windows, strict=False)]
    # Device work in no window of a rank that has some is refused.
    rows = [row | {"window": 0} if row["kind"] in DEVICE_KINDS and row["window"] is None else row for row in rows]
    if not rows:
        return
    assert_same(*both(table(traces.events(rows)), pieces))


def test_a_length_beyond_32_bits_is_kept(tmp_path: Path) -> None:
    rows = [
        traces.phase("spec.verify", 0, 9_000_000_000),
        traces.launch("cudaGraphLaunch", 10, 1),
        traces.kernel("fused_moe_kernel", 30, 40, 1),
        traces.kernel("fused_moe_kernel", 50, 8_000_000_000, 1),
    ]
    got, want = both(traces.events(rows), 2)
    assert_same(got, want)
    assert got.breakdown.buckets_ns["verify"]["moe"] == 10 + 8_000_000_000 - 50


@pytest.mark.parametrize("later", [2, 3, 40])
def test_durations_past_later_starts_are_cut_alike(later: int) -> None:
    rows = [traces.phase("spec.verify", 0, 10), traces.launch("cudaLaunchKernel", 1, 1)]
    rows += [traces.kernel("fused_moe_kernel", 20, 100_000, 1) for _ in range(30)]
    rows += [traces.kernel("fused_moe_kernel", 30 + 10 * i, 35 + 10 * i, 1) for i in range(later)]
    got, want = both(traces.events(rows), 3)
    assert_same(got, want)
    assert got.breakdown.cut == (0 if later < 3 else 30)


def test_columns_grow_with_the_rows() -> None:
    rows = [traces.phase("spec.verify", 0, 100_000)]
    for i in range(3000):
        rows.append(traces.launch(("cudaLaunchKernel", "cudaGraphLaunch")[i % 2], 20 * i, i))
        rows += [
            traces.kernel(list(KERNELS)[(i + k) % len(KERNELS)], 20 * i + 9 * k, 20 * i + 9 * k + 7, i) for k in (0, 1)
        ]
    got, want = both(traces.events(rows), 7)
    assert_same(got, want)
    assert sum(got.breakdown.buckets_ns["verify"].values()) == 100_000


@pytest.mark.parametrize("far", [2**40, -(2**40)])
def test_ids_far_from_each_other_go_the_other_way(far: int) -> None:
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaLaunchKernel", 1, 1),
        traces.launch("cudaLaunchKernel", 2, far),
        traces.kernel("fused_moe_kernel", 10, 20, far),
    ]
    assert compact(traces.events(rows), 1) is None
    assert compact(traces.events([row for row in rows if row.get("correlation") != 1]), 1) is not None


def test_more_streams_than_are_looked_up_go_the_other_way() -> None:
    rows = [traces.phase("spec.verify", 0, 100), traces.launch("cudaLaunchKernel", 1, 1)]
    rows += [traces.kernel("fused_moe_kernel", 10, 20, 1, stream=i) for i in range(513)]
    assert compact(traces.events(rows[:-1]), 1) is not None
    assert compact(traces.events(rows), 1) is None


ODD_ROWS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": 9, "tid": 9, "ts": 0, "dur": 100},
    {"ph": "X", "cat": "user_annotation", "name": "spec.cycle", "pid": 9, "tid": 9, "ts": 0, "dur": 120.5},
    {"ph": "X", "cat": "user_annotation", "name": "no time", "pid": 9, "tid": 9, "dur": 3},
    {"ph": "X", "cat": "user_annotation", "name": "spec.draft", "pid": 9, "tid": 9, "ts": 110, "dur": -3},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 9, "ts": 5, "dur": 6},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 9, "tid": 9, "ts": 7, "dur": 1},
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "pid": 9,
        "tid": 9,
        "ts": 8,
        "args": {"correlation": 1},
    },
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 9,
        "tid": 8,
        "ts": 9,
        "args": {"correlation": 2},
    },
    {"ph": "i", "name": "mark", "pid": "", "tid": "", "ts": 50},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "spec.verify", "pid": 0, "tid": 7, "ts": 20, "dur": 30},
    *(
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args} | times
        for cat, name, pid, tid, args, times in (
            ("kernel", "fused_moe_kernel", 0, 7, {"correlation": 1, "stream": 7}, {"ts": 20, "dur": 5.25}),
            ("kernel", "fused_moe_kernel", 0, 13, {"correlation": 1}, {"ts": 20, "dur": 5}),
            ("kernel", "fused_moe_kernel", 0, 7, {"correlation": 1, "device": 1, "stream": 7}, {"ts": 40, "dur": 9}),
            ("kernel", "unknown", 0, 7, {"correlation": 2}, {"ts": 60, "dur": 0}),
            ("kernel", "unknown", 0, 7, {"correlation": 2}, {"ts": 0, "dur": 5}),
            ("kernel", "unknown", 0, 7, {}, {"ts": 70, "dur": -1}),
            ("kernel", "unknown", 0, 7, {}, {"ts": 70}),
            ("kernel", "unknown", 0, 7, {}, {"dur": 70}),
            ("gpu_memcpy", "Memcpy DtoH", 0, 7, {"correlation": 3, "bytes": 8}, {"ts": 80, "dur": 5}),
        )
    ),
]


@pytest.mark.parametrize("words", [False, True], ids=["plain", "collective"])
def test_rows_of_a_profiler_file_are_summed_as_its_table_has_them(words: bool, tmp_path: Path) -> None:
    assert SCANNER is not None
    rows = [*ODD_ROWS]
    if words:  # then rows go through a frame
        args = {"correlation": 2, "Collective name": "allreduce", "dtype": "BFloat16", "Seq": 4}
        rows.append(
            {"ph": "X", "cat": "kernel", "name": "generic", "pid": 0, "tid": 7, "ts": 90, "dur": 9, "args": args}
        )
    path = tmp_path / "rank0.json"
    document = json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": rows}, indent=1)
    path.write_text(document.replace('"spec.cycle"', '"spec\\u002ecycle"'))
    trace = open_trace([path])
    (source,) = trace.sources
    got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
    assert isinstance(got.communication, CompactTalk), "it was not read compactly"
    assert_same(got, want)
    assert got.breakdown.invalid == 4
    assert got.breakdown.instances["cycle"] == 1


def recordings(reference: Path, tmp_path: Path) -> Iterator[Trace]:
    for name in json.loads((reference / "traces/reference.json").read_text())["traces"]:
        opened = open_trace([reference / "traces" / name])
        yield opened
        path = tmp_path / (name.replace("/", "-") + ".parquet")
        write_trace(opened, path)
        yield read_trace([path])


def test_real_recordings_are_summed_to_the_same(reference: Path, tmp_path: Path) -> None:
    compactly = seen = 0
    for trace in recordings(reference, tmp_path):
        for source in trace.sources:
            seen += 1
            if source.compact is None or source.compact() is None:
                continue
            compactly += 1
            assert_same(rank_result(source, trace), rank_result(replace(source, compact=None), trace))
    assert compactly >= seen / 2


def test_waiting_is_summed_as_the_matched_table_has_it(tmp_path: Path) -> None:
    """Two ranks, three replays of different lengths, and one whose ends contradict the match."""

    def rank(number: int, late: int) -> pl.DataFrame:
        rows = [traces.phase("spec.verify", 0, 10_000)]
        for i in range(4):
            rows.append(traces.launch("cudaGraphLaunch", 10 + 100 * i, i + 1))
            for k in range(3):
                start = 1000 * (i + 1) + 100 * k + (late if k else 0)
                end = 1000 * (i + 1) + 100 * k + 90 + (400 if number and i == 2 and k == 1 else 0)
                rows.append(traces.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", start, end, i + 1))
        return traces.events(rows).with_columns(rank=pl.lit(number, dtype=pl.Int32))

    frames = [rank(0, 0), rank(1, 35)]
    sources = tuple(
        RankSource(str(i), "made", lambda i=i: RankTrace(str(i), i, "made", frames[i]))  # type: ignore[misc]
        for i in range(2)
    )
    path = tmp_path / "trace.parquet"
    write_trace(Trace("made", sources), path)
    result = break_down(read_trace([path]))
    assert all(isinstance(talk, CompactTalk) for talk in result.talk)
    want = match(result.talk)
    assert want is not None
    assert want.voided == 1
    shown = 0
    for talk in result.talk:
        for phase in PHASE_KEYS:
            table_of = by_replay(want, talk.key, phase)
            assert result.waiting(talk.key, phase).equals(table_of)
            shown += table_of.height
    assert shown == 8
    assert result.has_matches
    assert "waits" not in vars(result), "the table of collectives was made"


def test_void_matches_are_matches(tmp_path: Path) -> None:
    """Ends that contradict every match: nothing to show, and the report still says what waiting would be."""
    sources = []
    for number in range(2):
        rows = [
            traces.phase("spec.verify", 0, 1000),
            traces.launch("cudaGraphLaunch", 10, 1),
            traces.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 100 + 300 * number, 150 + 300 * number, 1),
        ]
        events = traces.events(rows).with_columns(rank=pl.lit(number, dtype=pl.Int32))
        read = partial(RankTrace, str(number), number, "made", events)
        sources.append(RankSource(str(number), "made", read))
    path = tmp_path / "trace.parquet"
    write_trace(Trace("made", tuple(sources)), path)
    result = break_down(read_trace([path]))
    assert result.has_matches
    assert not result.waiting("0", "verify").height
    assert "waits" not in vars(result), "the table of collectives was made"
    want = match(result.talk)
    assert want is not None
    assert (want.voided, want.collectives.height) == (1, 2)
