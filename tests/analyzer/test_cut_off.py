"""Instances that an edge of a profiler window cuts off: what is evidence for it, what is none, and that all ways of reading agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces
from both_ways import COLLECT, assert_same, both
from hypothesis import given, settings
from hypothesis import strategies as st

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.breakdown_table import breakdown_frame, breakdown_json
from specanalyze.answers.calibration import calibrate
from specanalyze.answers.kernels import kernels
from specanalyze.answers.layers import layers
from specanalyze.answers.measured import measure
from specanalyze.answers.phases_report import phase_report, phases_frame
from specanalyze.attribution import cut_off as module
from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.cycles import cycle_table
from specanalyze.attribution.instances import instance_table
from specanalyze.attribution.rank_result import rank_result
from specanalyze.formats.load import open_trace
from specanalyze.native import timeline
from specanalyze.trace import RankSource, Trace

SAMPLES = Path(__file__).parents[2] / "samples"
WHOLE = ("gemm", "fused_moe_kernel", "norm", "gemm")
Rows = list[dict[str, Any]]


def replay(
    number: int, names: tuple[str, ...], *, streams: tuple[int, ...] = (7,), phase: str = "verify", call: bool = True
) -> Rows:
    """A phase of ten that replays a graph; its kernels run one after another behind it, on its streams in turn."""
    at = 100 * number
    rows = [traces.phase(f"spec.{phase}", at, at + 10)]
    if call:
        rows.append(traces.launch("cudaGraphLaunch", at + 5, 1000 + number))
    for place, name in enumerate(names):
        begin = at + 20 + 5 * place
        rows.append(traces.kernel(name, begin, begin + 4, 1000 + number, stream=streams[place % len(streams)]))
    return rows


def eager(number: int, phase: str, *, recorded: bool = True, stream: int = 7) -> Rows:
    at = 100 * number + 60
    rows = [traces.phase(f"spec.{phase}", at, at + 10), traces.launch("cudaLaunchKernel", at + 1, 2000 + number)]
    return [*rows, traces.kernel("gemm", at + 12, at + 15, 2000 + number, stream=stream)] if recorded else rows


def cut(*rows: dict[str, Any]) -> list[tuple[str, int, bool, bool]]:
    """(phase, start, cut off, complete) of the instances that are not whole."""
    (window,) = analyse_rank(traces.rank_trace(rows)).windows
    table = instance_table(window).filter(~pl.col("complete"))
    return table.select("phase", "start_ns", "cut_off", "complete").rows()


def test_a_replay_that_ends_with_the_records_is_cut_off() -> None:
    rows = [*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, WHOLE[:2])]
    assert cut(*rows) == [("verify", 200, True, False)]


def test_the_partition_does_not_ask_whether_an_instance_is_cut_off() -> None:
    (window,) = analyse_rank(traces.rank_trace([*replay(0, WHOLE), *replay(1, WHOLE[:2])])).windows
    assert window.partition is not None
    assert window.partition.window_end == 129
    table = instance_table(window)
    assert table.select("phase", "other_compute", "gemm", "moe", "graph_gap", "launch").rows()[1] == (
        *("verify", 0, 4, 4, 1, 15),
    )


def test_one_that_begins_with_the_records_is_cut_off() -> None:
    rows = [*replay(0, WHOLE[1:]), *replay(1, WHOLE), *replay(2, WHOLE)]
    assert cut(*rows) == [("verify", 0, True, False)]


def test_records_that_are_lost_inside_a_window_are_another_matter() -> None:
    rows = [*replay(0, WHOLE), *replay(1, WHOLE[:2]), *replay(2, WHOLE)]
    assert cut(*rows) == []
    # nor is one at the edge that lacks a record in its middle
    assert cut(*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, (*WHOLE[:1], *WHOLE[2:]))) == []
    # the end is no edge where other work runs behind it on its stream
    rows = [*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, WHOLE[:2]), *eager(2, "draft_extend")]
    assert cut(*rows) == []
    # another stream's is none behind it
    rows = [*replay(0, WHOLE), *replay(1, WHOLE[:2]), *eager(1, "draft_extend", stream=9)]
    assert cut(*rows) == [("verify", 100, True, False)]


def test_replays_without_any_records_are_counted_as_before() -> None:
    rows = [*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, ())]
    assert cut(*rows) == [("verify", 200, False, False)]


def test_a_shorter_graph_is_not_a_cut_one() -> None:
    # the same short replay elsewhere
    assert cut(*replay(0, WHOLE[:2]), *replay(1, WHOLE), *replay(2, WHOLE[:2]), *replay(3, WHOLE[:2])) == []
    # other kernels than a longer one begins with
    assert cut(*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, ("norm", "gemm"))) == []
    # the longer one is of another phase
    assert cut(*replay(0, WHOLE), *replay(1, WHOLE), *replay(2, WHOLE[:2], phase="draft_extend")) == []
    # nothing longer
    assert cut(*replay(0, WHOLE)) == []


def test_a_cut_replay_at_the_other_edge_does_not_excuse_one() -> None:
    rows = [*replay(0, ("gemm",)), *replay(1, WHOLE), *replay(2, WHOLE), *replay(3, ("gemm",))]
    assert cut(*rows) == [("verify", 0, True, False), ("verify", 300, True, False)]


def test_streams_are_compared_one_by_one() -> None:
    """The kernels of two streams start in another order in each replay; each stream keeps its own."""
    whole = replay(0, ("a", "x", "b", "y", "c"), streams=(7, 8))
    turned = replay(1, ("x", "a", "b"), streams=(8, 7))
    turned[-1] = {**turned[-1], "stream": 7}
    assert cut(*whole, *turned) == [("verify", 100, True, False)]
    assert cut(*whole, *replay(1, ("x", "b", "a"), streams=(8, 7))) == []


def nodes(graph: int, names: tuple[str, ...]) -> Rows:
    """A captured graph of kernels."""
    row = {"kind": "node", "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel", "graph_id": graph}
    return [{**row, "name": name, "node": place} for place, name in enumerate(names)]


def test_a_known_graph_says_itself_how_many_activities_it_has() -> None:
    maps = [*nodes(1, WHOLE), *nodes(2, WHOLE[:2])]
    # as short as a captured graph: whole, though a longer replay begins so
    assert cut(*maps, *replay(0, WHOLE), *replay(1, WHOLE[:2])) == []
    assert cut(*nodes(1, WHOLE), *replay(0, WHOLE), *replay(1, WHOLE[:2])) == [("verify", 100, True, False)]
    # node ids alone tell it, without another replay
    rows = [*maps, *replay(0, WHOLE[:2])]
    place = 0
    for row in rows:
        if row["kind"] == "kernel":
            row |= {"graph_id": 1, "node": place}
            place += 1
    assert cut(*rows) == [("verify", 0, True, False)]


def test_event_nodes_show_nothing_that_could_lack() -> None:
    event = {**nodes(1, ("event_record",))[0], "node_type": "event_record", "node": 2}
    assert cut(*nodes(1, WHOLE[:2]), event, *replay(0, WHOLE[:2])) == []


def test_what_begins_behind_the_last_record_is_cut_off() -> None:
    before = [*replay(0, WHOLE), *eager(0, "draft_extend"), *replay(1, WHOLE[:2])]
    assert cut(*before, *eager(1, "draft_extend", recorded=False)) == [
        ("verify", 100, True, False),
        ("draft_extend", 160, True, False),
    ]
    # without a launch call, too
    assert cut(*before[:-4], *replay(1, (), call=False)) == [("verify", 100, True, False)]
    # a phase that never has device work lacks none
    assert cut(*replay(0, WHOLE), traces.phase("spec.idle", 1, 2), traces.phase("spec.idle", 90, 95)) == []
    # nor is anything said where records without a launch call follow
    unknown = traces.kernel("gemm", 190, 195, None)
    assert cut(*replay(0, WHOLE), *eager(0, "draft_extend"), *eager(1, "draft_extend", recorded=False), unknown) == []


def test_a_real_window_that_ends_in_a_verify() -> None:
    """296 of 1772 kernels of the last verify: its time is in the sums and in no mean."""
    trace = open_trace([SAMPLES / "sglang_tp4_mla61_eagle3_steps2.parquet"])
    result = break_down(trace)
    for rank in result.ranks:
        assert rank.cut_off == {"verify": 1}
        assert rank.coverage("verify")["verify_with_gpu_records"] == 40
        last = rank.phase_instances.filter("cut_off")
        assert last.select("phase", "replays", "lost_replays").rows() == [("verify", 1, 0)]
        mine = (
            breakdown_frame(result)
            .filter(pl.col("rank") == rank.key, pl.col("bucket") == "attention")
            .row(0, named=True)
        )
        assert mine["instances"] == 40
        assert mine["p10_ns"] < mine["mean_ns"] < mine["p90_ns"]
    assert breakdown_json(result)["ranks"]["0"]["cut_off_instances"] == {"verify": 1}
    assert sum("1 phase instance (1 verify) cut off by an edge of a profiler window" in w for w in result.warnings) == 4
    report = phase_report(trace)
    for row in phases_frame(report).filter(pl.col("view") == "device", pl.col("phase") == "verify").to_dicts():
        assert (row["cycles"], row["whole_cycles"]) == (40, 39)
        assert row["p10_ns"] < row["mean_ns"] < row["p90_ns"]


@pytest.mark.parametrize(
    ("sample", "want"),
    [
        ("sglang_tp1_eagle3_steps2", {"draft_extend": 1}),
        ("sglang_tp4_mla61_plain", {"decode": 1}),
        ("sglang_tp2_eagle3_steps2", {}),
        ("vllm_tp1_eagle3_steps2", {}),
        ("sglang_v1_tp1_eagle3_steps2_cupti", {}),
    ],
)
def test_real_recordings(sample: str, want: dict[str, int]) -> None:
    assert break_down(open_trace([SAMPLES / f"{sample}.parquet"])).ranks[0].cut_off == want


GRAPHS = [("a", "b", "a", "c"), ("a", "b"), ("b", "a", "c"), ("c",), ("a", "a", "a", "b", "c", "c")]


@st.composite
def windows(draw: st.DrawFn) -> Rows:
    """Replays of some graphs on some streams, of which a late begin, an early end and losses leave a part."""
    graphs = draw(st.lists(st.sampled_from(GRAPHS), min_size=1, max_size=3))
    lanes = [draw(st.lists(st.sampled_from([7, 7, 8]), min_size=len(g), max_size=len(g))) for g in graphs]
    rows: Rows = []
    count = draw(st.integers(1, 6))
    for number in range(count):
        which = draw(st.integers(0, len(graphs) - 1))
        at, step = 100 * number, draw(st.integers(1, 12))
        phase = draw(st.sampled_from(["verify", "verify", "verify", "draft"]))
        rows.append(traces.phase(f"spec.{phase}", at, at + 30))
        rows.append(traces.launch("cudaGraphLaunch", at + 5, 1000 + number))
        for place, (name, stream) in enumerate(zip(graphs[which], lanes[which], strict=True)):
            begin = at + 20 + step * place
            ids: dict[str, Any] = {"graph_id": which, "node": place} if draw(st.integers(0, 3)) == 0 else {}
            rows.append(traces.kernel(name, begin, begin + 4, 1000 + number, stream=stream, **ids))
        if draw(st.booleans()):
            rows.append(traces.phase("spec.draft_extend", at + 40, at + 50))
            rows.append(traces.launch("cudaLaunchKernel", at + 41, 2000 + number))
            known = draw(st.sampled_from([2000 + number, 2000 + number, None]))
            rows.append(traces.kernel("c", at + 85, at + 88, known, stream=draw(st.sampled_from([7, 9]))))
    begin, end = draw(st.sampled_from([0, 0, 25, 33])), draw(st.integers(20, 100 * count + 20))
    if draw(st.booleans()):
        maps = [row for number, names in enumerate(graphs) if draw(st.booleans()) for row in nodes(number, names)]
        rows += maps
    lost = draw(st.integers(0, 30))
    kept = [
        row
        for place, row in enumerate(rows)
        if row["kind"] != "kernel" or (begin <= row["start_ns"] and row["start_ns"] + 4 <= end and place != lost)
    ]
    return draw(st.permutations(kept))


def second_reading(rows: Rows) -> list[tuple[str, int]]:
    """Phases that are cut off, (phase, start), by the words of ``cut_off``'s docstring; for rows without nodes."""
    kernels = sorted((row for row in rows if row["kind"] == "kernel"), key=lambda row: row["start_ns"])
    calls = {row["correlation"]: row for row in rows if row["kind"] == "launch"}
    ranges = [row for row in rows if row["kind"] == "phase"]

    def place(call: dict[str, Any]) -> dict[str, Any] | None:
        return next((r for r in ranges if r["start_ns"] <= call["start_ns"] < r["start_ns"] + r["dur_ns"]), None)

    work: dict[int, Rows] = {}
    for row in kernels:
        if row["correlation"] in calls:
            work.setdefault(row["correlation"], []).append(row)
    replays = {c: its for c, its in work.items() if calls[c]["name"] == "cudaGraphLaunch"}

    def lanes(its: Rows) -> list[tuple[str, ...]]:
        return [tuple(r["name"] for r in its if r["stream"] == s) for s in sorted({r["stream"] for r in its})]

    def alone(correlation: int, *, last: bool) -> bool:
        """Whether each of its streams has nothing behind it, or before it."""
        edge = [
            k["correlation"]
            for s in {r["stream"] for r in replays[correlation]}
            for k in [r for r in kernels if r["stream"] == s][-1 if last else 0 :][:1]
        ]
        return set(edge) == {correlation}

    def begins(one: tuple[str, ...], other: tuple[str, ...], *, last: bool) -> bool:
        return (other[: len(one)] if last else other[len(other) - len(one) :]) == one and len(one) <= len(other)

    found = set()
    at_edge = {c for c in replays if alone(c, last=True) or alone(c, last=False)}
    for c, its in replays.items():
        phase = place(calls[c])
        assert phase is not None
        others = {o: w for o, w in replays.items() if o != c and place(calls[o])["name"] == phase["name"]}  # type: ignore[index]
        if any(Counter(lanes(w)) == Counter(lanes(its)) for o, w in others.items() if o not in at_edge):
            continue
        for last in (True, False):
            for w in others.values():
                if not alone(c, last=last) or len(w) <= len(its):
                    continue
                in_order = begins(tuple(r["name"] for r in its), tuple(r["name"] for r in w), last=last)
                by_lane = all(any(begins(one, o, last=last) for o in lanes(w)) for one in lanes(its))
                if in_order or by_lane:
                    found.add((phase["name"], phase["start_ns"]))
    worked = {(p["name"], p["start_ns"]) for c in work if (p := place(calls[c])) is not None}
    if work:
        last_call = max(calls[c]["start_ns"] for c in work)
        unknown = [r["start_ns"] for r in kernels if r["correlation"] not in calls]
        for r in ranges:
            me = r["name"], r["start_ns"]
            replaying = any(c["name"] == "cudaGraphLaunch" and place(c) is r for c in calls.values())
            if me in worked or replaying or r["start_ns"] <= max([last_call, *unknown]):
                continue
            if r["name"] in {name for name, _ in worked}:
                found.add(me)
    return sorted((name.removeprefix("spec."), start) for name, start in found)


@settings(max_examples=300, deadline=None)
@given(windows())
def test_random_windows_by_the_second_reading(rows: Rows) -> None:
    rows = [row for row in rows if row["kind"] != "node"]
    if not any(row["kind"] == "kernel" for row in rows):
        return
    (window,) = analyse_rank(traces.rank_trace(rows)).windows
    got = instance_table(window).filter("cut_off").select("phase", "start_ns").rows()
    assert sorted(got) == second_reading(rows)


@pytest.mark.skipif(
    COLLECT is None or timeline.compiled() is None, reason="no C compiler on this machine, or switched off"
)
@settings(max_examples=300, deadline=None)
@given(windows(), st.integers(1, 3))
def test_random_windows_are_the_same_both_ways(rows: Rows, pieces: int) -> None:
    if any(row["kind"] == "kernel" for row in rows):
        assert_same(*both(traces.events(rows), pieces))


def test_streams_of_two_devices_are_two_streams() -> None:
    other = {**traces.kernel("gemm", 190, 195, 1100), "device": 1}
    rows = [*replay(0, WHOLE), *replay(1, WHOLE[:2]), traces.launch("cudaLaunchKernel", 150, 1100), other]
    assert cut(*rows) == [("verify", 100, True, False)]
    rank = traces.rank_trace(rows)
    source = RankSource("0", "a test", lambda: rank)
    whole = rank_result(source, Trace("a test", (source,)))
    assert whole.breakdown.cut_off == {"verify": 1}


def with_ids(rows: Rows) -> Rows:
    """The kernels of each replay name their nodes in graph 1."""
    places: Counter[int] = Counter()
    told = []
    for row in rows:
        if row["kind"] == "kernel":
            row = {**row, "graph_id": 1, "node": places[row["correlation"]]}
            places[row["correlation"]] += 1
        told.append(row)
    return told


def test_layers_leave_it_out_and_say_how_much_that_is() -> None:
    maps = [row | {"module": f"model.layers.{row['node']}.mlp", "module_class": "MLP"} for row in nodes(1, WHOLE)]
    rows = with_ids([*maps, *replay(0, WHOLE), *replay(1, WHOLE), *replay(2, WHOLE[:2])])
    found = layers(traces.trace(traces.rank_trace(rows)))
    assert found.table.select("layer", "activities", "exposed_ns", "instances").rows() == [
        (layer, 2, 8, 2) for layer in range(4)
    ]
    assert (found.placed, found.replays, found.unplaced_ns, found.left_out_ns) == (3, 3, 0, 8)
    # where no instance is whole, what there is is shown
    alone = layers(traces.trace(traces.rank_trace(with_ids([*maps, *replay(0, WHOLE[:2])]))))
    assert alone.table.select("layer", "exposed_ns", "instances").rows() == [(0, 4, 1), (1, 4, 1)]
    assert alone.left_out_ns == 0


def test_figures_a_cycle_are_made_of_whole_instances() -> None:
    rows = [*replay(0, WHOLE), *eager(0, "draft"), *replay(1, WHOLE), *eager(1, "draft"), *replay(2, WHOLE[:2])]
    trace = traces.trace(traces.rank_trace(rows))
    (rank,) = break_down(trace).ranks
    assert rank.instances == {"draft": 2, "verify": 3, "between": 0}
    assert rank.whole == {"draft": 2, "verify": 2, "between": 0}
    table = measure(trace).kernels.filter(pl.col("phase") == "verify").sort("name")
    assert table.select(
        "name", "count", "whole_count", "sum_ns", "whole_sum_ns", "exposed_ns", "whole_exposed_ns"
    ).rows() == [
        ("fused_moe_kernel", 3, 2, 12, 8, 12, 8),
        ("gemm", 5, 4, 20, 16, 20, 16),
        ("norm", 2, 2, 8, 8, 8, 8),
    ]
    assert "whole_count" not in kernels(trace).columns


def test_calibrated_times_are_of_whole_cycles() -> None:
    trace = open_trace([SAMPLES / "sglang_tp4_mla61_plain.parquet"])
    (rank, *_), cycles = break_down(trace).ranks, cycle_table(trace)
    found = calibrate(rank, cycles.filter(pl.col("rank") == rank.key))
    assert found.reason is None
    whole = rank.phase_instances.filter(pl.col("phase") == "decode", "complete")
    for bucket in ("moe", "attention", "gemm", "graph_gap"):
        cell = found.cells.filter(pl.col("phase") == "decode", pl.col("bucket") == bucket)
        assert cell["measured_ns"].item() == pytest.approx(whole[bucket].mean())
    assert found.measured_ns == pytest.approx(found.cells["measured_ns"].sum())


def test_the_outermost_rows_of_streams_may_lie_slices_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE", 2)
    rows = [*eager(0, "draft", stream=9), *replay(1, WHOLE), *replay(2, WHOLE, streams=(7, 8)), *replay(3, WHOLE[:2])]
    assert cut(*rows) == [("verify", 300, True, False)]
    assert cut(*rows, *eager(4, "draft", stream=9)) == [("verify", 300, True, False)]
    assert cut(*rows, *eager(4, "draft", stream=7)) == []
