"""What is told of single activities, summed while a rank is read, is what its whole tables tell."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces
from both_ways import COLLECT, assert_same_windows, both_sources
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import some_replays, some_rows

from specanalyze.answers.accept import accepts_of_trace
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.kernels import KernelTimes, kernels, rank_kernels
from specanalyze.answers.layers import layers, window_layers
from specanalyze.answers.measured import measure
from specanalyze.answers.overhead import measure_overhead, rank_tiers
from specanalyze.answers.phase_cycles import phase_cycles
from specanalyze.answers.phases_report import phase_report
from specanalyze.answers.ranks_report import compare_ranks
from specanalyze.answers.validate import validate
from specanalyze.attribution.activities import BUCKET_CODE
from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.cycles import cycle_table
from specanalyze.attribution.host_rows import host_rows
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.rank_result import ReadRank, rank_result, read_rank
from specanalyze.attribution.window_marks import analysed_marks
from specanalyze.attribution.window_work import WindowWork, analysed_work
from specanalyze.columns import of_kind
from specanalyze.formats.event_frame import table
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.native import timeline
from specanalyze.trace import RankSource, RankTrace, Trace

pytestmark = pytest.mark.skipif(
    COLLECT is None or timeline.compiled() is None, reason="no C compiler on this machine, or switched off"
)
SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.parquet"))
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@settings(max_examples=40, deadline=None)
@given(some_replays(), some_rows, st.integers(1, 4))
def test_random_replays_are_told_alike_both_ways(
    replays: list[dict[str, Any]], rows: list[dict[str, Any]], pieces: int
) -> None:
    rows = [row | {"dur_ns": None} if (row["dur_ns"] or 0) < 0 else row for row in rows]
    one = [traces.launch("cudaLaunchKernel", 130, 99), traces.kernel("fused_moe_kernel", 131, 140, 99)]
    assert_same_windows(*both_sources(traces.events([*replays, *rows, *one]), pieces))


@settings(max_examples=20, deadline=None)
@given(some_replays(), st.lists(st.sampled_from([0, 0, 1]), min_size=40, max_size=40))
def test_windows_are_told_apart(replays: list[dict[str, Any]], windows: list[int]) -> None:
    numbered = [
        row | {"window": None if row["kind"] == "node" else windows[(row["correlation"] or 0) % 40]} for row in replays
    ]
    verify = [traces.phase("spec.verify", 0, 120, window=number) for number in (0, 1)]
    assert_same_windows(*both_sources(table(traces.events([*numbered, *verify])), 2))


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_recordings_of_the_collector_are_told_alike_both_ways(path: Path) -> None:
    trace = open_trace([path])
    assert trace.sources[0].compact is not None
    assert trace.sources[0].compact() is not None
    assert_same_windows(trace.sources[0], trace)


def one_window() -> list[dict[str, Any]]:
    """A verify of 100 ns: a replay of two kernels with a gap between them, one behind the other's end; eager work in no phase."""
    node = {"kind": "node", "name": "kernel", "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel"}
    nodes = [
        {**node, "graph_id": 0, "node": i, "module": f"model.layers.{i}.mlp.experts", "module_class": "FusedMoE"}
        for i in range(2)
    ]
    return [
        *nodes,
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaGraphLaunch", 5, 1),
        traces.kernel("fused_moe_kernel", 10, 30, 1),
        traces.kernel("unknown", 45, 60, 1),
        traces.launch("cudaLaunchKernel", 110, 2),
        traces.kernel("fused_moe_kernel", 55, 70, 2, stream=9),
    ]


def work_of(rows: list[dict[str, Any]], *, compactly: bool) -> WindowWork:
    source, trace = both_sources(traces.events(rows), 1)
    if not compactly:
        source = RankSource("0", "a test", source.read)
    read = read_rank(source, trace, look=lambda work: work)
    (work,) = read.looked
    return work


@pytest.mark.parametrize("compactly", [True, False])
def test_each_activity_has_what_the_partition_gave_it_and_the_gap_before_it(compactly: bool) -> None:
    work = work_of(one_window(), compactly=compactly)
    found = sorted(
        zip(
            work.length.tolist(),
            work.exposed.tolist(),
            work.gap.tolist(),
            work.node.tolist(),
            work.phase.tolist(),
            strict=True,
        )
    )
    verify, outside = PHASE_CODE["verify"], PHASE_CODE["outside"]
    assert found == [(15, 10, 0, -1, outside), (15, 15, 15, 1, verify), (20, 20, 0, 0, verify)]
    assert work.in_graph.tolist().count(True) == 2
    assert work.nodes is not None
    assert set(work.bucket.tolist()) == {BUCKET_CODE["moe"]}


@pytest.mark.parametrize("compactly", [True, False])
def test_without_nodes_and_ranges_nothing_is_placed_and_nothing_exposed(compactly: bool) -> None:
    rows = [row for row in one_window() if row["kind"] in ("launch", "kernel")]
    work = work_of(rows, compactly=compactly)
    outside = PHASE_CODE["outside"]
    assert work.nodes is None
    for column, value in (
        ("node", -1),
        ("exposed", 0),
        ("gap", 0),
        ("gap_range", -1),
        ("range", -1),
        ("phase", outside),
    ):
        assert getattr(work, column).tolist() == [value] * 3, column
    assert sorted(work.in_graph.tolist()) == [False, True, True]
    assert work.gap_phase.tolist() == [outside] * 3
    alone = work_of([row for row in rows if row["kind"] == "kernel"], compactly=compactly)
    assert alone.call.tolist() == [-1] * 3
    assert alone.phase.tolist() == [PHASE_CODE["unattributed"]] * 3
    assert not alone.in_graph.any()


@pytest.mark.parametrize("compactly", [True, False])
def test_communication_and_activities_are_kept_where_they_are_asked_for(compactly: bool) -> None:
    source, trace = both_sources(traces.events(two_cycles()), 1)
    if not compactly:
        source = RankSource("0", "a test", source.read)
    read: ReadRank[None] = read_rank(source, trace)
    assert (read.talks, read.communication, read.looked) == ({}, None, [])
    asked: ReadRank[int] = read_rank(source, trace, talks=True, look=len)
    assert asked.looked == [2]
    assert len(asked.talks) == 1
    assert asked.communication is not None
    result = rank_result(source, trace, talks=False)
    assert (result.communication, result.warnings) == (None, [])
    assert rank_result(source, trace).communication is not None


def test_a_rank_whose_eager_modules_are_told_is_read_whole() -> None:
    """Narrow columns have no room for the module of each launch call."""
    path = "model.layers.0.mlp.gate"
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.phase(f"spec.module {path}", 5, 20, module=path, module_class="Linear"),
        traces.launch("cudaLaunchKernel", 10, 1),
        traces.kernel("unknown", 30, 50, 1),
    ]
    source, trace = both_sources(traces.events(rows), 1)
    read: ReadRank[WindowWork] = read_rank(source, trace, look=lambda work: work)
    (work,) = read.looked
    assert work.classified.tolist() == [True]
    assert read.rank.events.filter(kind="kernel").height == 1


Ends = list[tuple[int, int]]


@pytest.mark.parametrize("compactly", [True, False])
@pytest.mark.parametrize(
    ("kernels", "gaps"),
    [
        # Launched in no range: the window ends at 100, in the gap, which nobody had to wait for there.
        ([(10, 20), (150, 161)], {10: 0, 150: 0}),
        ([(10, 20), (30, 42), (150, 161)], {10: 0, 30: 10, 150: 0}),
        # It begins at 0, in the gap before the kernel at 15.
        ([(-30, -10), (15, 25)], {-30: 0, 15: 15}),
        # An activity without length has no instant, and waits for nothing.
        ([(10, 20), (30, 30)], {10: 0, 30: 0}),
        ([(10, 20), (30, 30), (45, 60)], {10: 0, 30: 0, 45: 25}),
    ],
)
def test_a_gap_belongs_to_the_activity_that_ends_it_inside_the_window(
    kernels: Ends, gaps: dict[int, int], compactly: bool
) -> None:
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaGraphLaunch", -40, 1, tid=2),
        *(traces.kernel("fused_moe_kernel", start, end, 1) for start, end in kernels),
        traces.launch("cudaLaunchKernel", 80, 2),
        traces.kernel("fused_moe_kernel", 85, 90, 2, stream=9),
    ]
    work = work_of(rows if max(end for _, end in kernels) < 80 else rows[:-2], compactly=compactly)
    lengths = {end - start: start for start, end in kernels}
    found = {lengths[n]: gap for n, gap in zip(work.length.tolist(), work.gap.tolist(), strict=True) if n in lengths}
    assert found == gaps


@pytest.mark.parametrize("compactly", [True, False])
def test_layers_and_kernels_of_it(compactly: bool) -> None:
    work = work_of(one_window(), compactly=compactly)
    inside = window_layers(work, "verify")
    assert (inside.placed, inside.replays, inside.unplaced_ns) == (1, 1, 0)
    assert inside.times.sort("layer").select("layer", "activities", "ns", "gap_ns").rows() == [
        (0, 1, 20, 0),
        (1, 1, 15, 15),
    ]
    assert window_layers(work, "outside").unplaced_ns == 10
    table_of = rank_kernels("0", [KernelTimes.of(work), KernelTimes.of(work)])
    assert table_of.select("phase", "name", "count", "sum_ns", "exposed_ns", "median_ns").sort(
        "phase", "name"
    ).rows() == [
        ("outside", "fused_moe_kernel", 2, 30, 20, 15.0),
        ("verify", "fused_moe_kernel", 2, 40, 40, 20.0),
        ("verify", "unknown", 2, 30, 30, 15.0),
    ]


def two_cycles() -> list[dict[str, Any]]:
    """The device work of the first cycle ends 30 ns after the second begins; 20 ns of each step are in no leaf."""
    rows = []
    for cycle, start in ((7, 0), (8, 100)):
        rows += [
            {**traces.phase("spec.cycle", start, start + 90, cycle=cycle), "kind": "cycle"},
            traces.phase("spec.verify", start + 10, start + 90, cycle=cycle),
            traces.launch("cudaLaunchKernel", start + 20, cycle),
            traces.kernel("fused_moe_kernel", start + 40, start + 130, cycle),
        ]
    return rows


@pytest.mark.parametrize("compactly", [True, False])
def test_the_time_of_no_leaf_is_told_between_cycle_starts(compactly: bool) -> None:
    source, trace = both_sources(traces.events(two_cycles()), 1)
    if not compactly:
        source = RankSource("0", "a test", source.read)
    read: ReadRank[None] = read_rank(source, trace)
    (marks,) = read.marks
    assert marks.instants.tolist() == [0, 100]
    assert marks.before.tolist() == [0, 10]
    assert marks.range_end.max() == 230
    cycles = phase_cycles(read)
    assert cycles.select("cycle", "device_other_ns", "runs_over").rows() == [(7, 10, True), (8, None, None)]


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "trace.parquet"
    events = traces.events(rows).with_columns(rank=pl.lit(0, dtype=pl.Int32))
    write_trace(Trace("made", (RankSource("0", "made", partial(RankTrace, "0", 0, "made", events)),)), path)
    return path


def test_a_rank_is_read_around_an_instant_alone(tmp_path: Path) -> None:
    """With its nodes, and both ends included; other forms give the same rows."""
    (source,) = open_trace([written(tmp_path, one_window())]).sources
    assert source.near is not None
    near = source.around(10, 45).events
    assert near.select("kind", "start_ns").filter(pl.col("kind") != "node").rows() == [("kernel", 10), ("kernel", 45)]
    assert of_kind(near, ("node",)).height == 2
    whole = RankSource("0", "made", source.read).around(10, 45).events
    assert near.select(whole.columns).equals(whole)
    assert not of_kind(source.around(500, 600).events, ("kernel", "launch", "phase")).height


def test_what_lies_beside_a_rank_takes_all_of_its_events(tmp_path: Path) -> None:
    path = written(tmp_path, one_window())
    log = tmp_path / "other.cycles.json"
    log.write_text("{}")
    assert open_trace([path], cycles=log).sources[0].near is None
    assert open_trace([path], salvage=True).sources[0].near is None


def operator(name: str) -> dict[str, Any]:
    return {"kind": "op", "name": name, "pid": 1, "tid": 1, "start_ns": 3, "dur_ns": 4}


def test_host_rows_are_read_without_device_rows(tmp_path: Path) -> None:
    request = {"kind": "request", "name": "r", "start_ns": 0, "dur_ns": 90, "request_ids": ["a"], "prompt_tokens": 5}
    rows = [*one_window(), operator("gloo:broadcast"), operator("aten::mm"), request]
    (source,) = open_trace([written(tmp_path, rows)]).sources
    rank = host_rows(source)
    assert of_kind(rank.events, ("kernel",)).get_column("start_ns").null_count() == 1
    assert of_kind(rank.events, ("request",)).get_column("prompt_tokens").to_list() == [5]
    assert of_kind(rank.events, ("op",)).get_column("name").cast(pl.String).to_list() == ["aten::mm"]
    assert rank_tiers(rank, pl.DataFrame())[2] == rank_tiers(source.read(), pl.DataFrame())[2]
    (salvaged,) = open_trace([tmp_path / "trace.parquet"], salvage=True).sources
    assert host_rows(salvaged).events.equals(salvaged.read().events)


def test_ranges_of_libraries_are_no_operators(tmp_path: Path) -> None:
    (source,) = open_trace([written(tmp_path, [*one_window(), operator("gloo:broadcast")])]).sources
    (one,) = of_kind(host_rows(source).events, ("op",)).get_column("name").to_list()
    assert one is None
    assert rank_tiers(host_rows(source), pl.DataFrame())[2] == ("phases", "kernels")


def _never() -> RankTrace:
    raise AssertionError("the whole rank was read")


def without_whole_ranks() -> Trace:
    trace = open_trace([Path(__file__).parents[2] / "samples/sglang_tp2_eagle3_steps2.parquet"])
    return replace(trace, sources=tuple(replace(source, read=_never) for source in trace.sources))


def test_no_answer_takes_whole_ranks() -> None:
    """So that a long recording takes the memory of narrow columns, whatever is asked of it."""
    trace = without_whole_ranks()
    assert break_down(trace).ranks
    assert layers(trace).table.height
    assert kernels(trace).height
    assert phase_report(trace).cycles.height
    assert compare_ranks(trace).waits is not None
    assert measure(trace).cycle_count
    assert measure_overhead(trace).table.height
    assert accepts_of_trace(trace).verify_steps
    assert validate(trace)[0].height
    assert cycle_table(trace).height


def test_a_report_takes_no_whole_ranks() -> None:
    pytest.importorskip("altair", reason="the report needs altair, vl-convert-python and jinja2")
    from specanalyze.report.cycle_timeline import timeline
    from specanalyze.report.recorded import record

    recorded = record(without_whole_ranks(), "a recording")
    assert recorded.layers is not None
    assert timeline(recorded) is not None


def test_layers_of_a_file(tmp_path: Path) -> None:
    found = layers(open_trace([written(tmp_path, one_window())]))
    assert found.table.select("layer", "exposed_ns", "gap_before_ns", "median_ns", "instances").rows() == [
        (0, 20, 0, 20.0, 1),
        (1, 15, 15, 15.0, 1),
    ]


def test_marks_may_lie_before_behind_and_on_the_edges_of_the_window() -> None:
    """Verify from 10 to 100, its kernels from 20 to 40 and, of another thread's launch in no range, from 60 to 70 and beyond the end."""
    rows = [
        traces.phase("spec.verify", 10, 100),
        traces.launch("cudaLaunchKernel", 15, 1),
        traces.kernel("fused_moe_kernel", 20, 40, 1),
        traces.launch("cudaLaunchKernel", 50, 2, tid=2),
        traces.kernel("fused_moe_kernel", 60, 70, 2),
        traces.launch("cudaLaunchKernel", 90, 3, tid=2),
        traces.kernel("fused_moe_kernel", 95, 130, 3),
    ]
    (window,) = analyse_rank(traces.rank_trace(rows)).windows
    assert window.partition is not None
    instants = np.array([0, 10, 11, 49, 50, 52, 60, 63, 70, 90, 99, 100, 101, 500])
    marks = analysed_marks(window, window.partition, instants)
    # Launch time and kernels of no phase: 50 to 70 and 90 to 100.
    expected = [0, 0, 0, 0, 0, 2, 10, 13, 20, 20, 29, 30, 30, 30]
    assert marks.before.tolist() == expected
    assert marks.range_end.tolist() == [40]
    assert marks.other_before(np.array([63, 0, 500])).tolist() == [13, 0, 30]
    assert analysed_marks(window, window.partition, instants[:0]).before.tolist() == []


def test_ranges_are_whole_unless_it_is_told_which_are() -> None:
    (window,) = analyse_rank(traces.rank_trace([row for row in one_window() if row["kind"] != "node"])).windows
    assert analysed_work(window).whole.tolist() == [True, True]
    assert analysed_work(window, np.array([False])).whole.tolist() == [False, True]


@pytest.mark.parametrize("compactly", [True, False])
def test_a_window_without_activities_has_columns_without_rows(compactly: bool) -> None:
    work = work_of([traces.phase("spec.verify", 0, 100), traces.launch("cudaLaunchKernel", 10, 1)], compactly=compactly)
    columns = ("length", "exposed", "gap", "gap_range", "name", "bucket", "phase", "subclass", "classified", "range")
    assert [len(getattr(work, column)) for column in (*columns, "call", "node", "in_graph")] == [0] * 13
    assert len(work) == 0
