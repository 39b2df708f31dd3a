"""A rank with captured graphs, summed while it is read, gives what its whole tables give."""

from __future__ import annotations

import json
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
from timelines import some_replays, some_rows

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.compact_talk import CompactTalk
from specanalyze.attribution.rank_result import rank_result
from specanalyze.formats.event_frame import table
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import read_trace, write_trace
from specanalyze.native import timeline
from specanalyze.trace import RankSource, RankTrace, Trace

pytestmark = pytest.mark.skipif(
    COLLECT is None or timeline.compiled() is None, reason="no C compiler on this machine, or switched off"
)
SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.parquet"))


@settings(max_examples=200, deadline=None)
@given(some_replays(), some_rows, st.integers(1, 4), st.booleans())
def test_placed_rows_equal_the_whole_tables(
    replays: list[dict[str, Any]], rows: list[dict[str, Any]], pieces: int, last: bool
) -> None:
    rows = [row | {"dur_ns": None} if (row["dur_ns"] or 0) < 0 else row for row in rows]
    one = [traces.launch("cudaLaunchKernel", 130, 99), traces.kernel("fused_moe_kernel", 131, 140, 99)]
    whole = [*rows, *replays, *one] if last else [*replays, *rows, *one]
    assert_same(*both(traces.events(whole), pieces))


@settings(max_examples=100, deadline=None)
@given(some_replays(), st.lists(st.sampled_from([0, 0, 1]), min_size=40, max_size=40), st.integers(1, 3))
def test_nodes_belong_to_every_window(replays: list[dict[str, Any]], windows: list[int], pieces: int) -> None:
    numbered = [
        row | {"window": None if row["kind"] == "node" else windows[(row["correlation"] or 0) % 40]} for row in replays
    ]
    verify = [traces.phase("spec.verify", 0, 120, window=number) for number in (0, 1)]
    assert_same(*both(table(traces.events([*numbered, *verify])), pieces))


def test_node_rows_that_nothing_was_said_of_go_the_other_way() -> None:
    node = {
        "kind": "node",
        "name": "kernel",
        "start_ns": 0,
        "dur_ns": 0,
        "node_type": "kernel",
        "graph_id": 0,
        "node": 0,
    }
    rows = [traces.phase("spec.verify", 0, 100), traces.kernel("fused_moe_kernel", 10, 20, 1)]
    assert compact(traces.events([*rows, node]), 2, nodes=False) is None
    assert compact(traces.events(rows), 2, nodes=False) is not None


@pytest.mark.parametrize("column", ["graph_id", "node"])
def test_ids_beyond_32_bits_go_the_other_way(column: str) -> None:
    rows = [traces.phase("spec.verify", 0, 100), traces.kernel("fused_moe_kernel", 10, 20, 1)]
    rows[1][column] = 2**31 - 1
    assert compact(traces.events(rows), 1) is not None
    rows[1][column] = 2**31
    assert compact(traces.events(rows), 1) is None


def test_ids_that_only_later_rows_carry() -> None:
    """The columns begin in the middle, and grow: rows before them and after them carry none."""
    node = {"kind": "node", "name": "kernel", "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel"}
    rows = [{**node, "graph_id": 0, "node": i, "module": "mlp.experts", "module_class": "FusedMoE"} for i in range(2)]
    rows.append(traces.phase("spec.verify", 0, 200_000))
    for i in range(6000):
        rows.append(traces.launch("cudaGraphLaunch", 30 * i, i))
        ids: dict[str, Any] = [{}, {"graph_id": 0}, {"graph_id": 0, "node": 1}][i * 3 // 6000]
        rows += [traces.kernel("unknown", 30 * i + 9 * k, 30 * i + 9 * k + 7, i, **ids) for k in (1, 2)]
    got, want = both(traces.events(rows), 5)
    assert_same(got, want)
    assert got.breakdown.node_map == {
        "placed": 6000,
        "by_id": 2000,
        "by_stream": 0,
        "unsure": 0,
        "other_count": 0,
        "other_names": 0,
    }


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_recordings_of_the_collector_are_summed_to_the_same(path: Path) -> None:
    trace = open_trace([path])
    for source in trace.sources:
        got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
        assert isinstance(got.communication, CompactTalk), "it was not read compactly"
        assert_same(got, want)
        assert got.breakdown.node_map["placed"] > 0


@pytest.mark.parametrize("name", ["tp1/e2_nodemap_m17_rank0", "tp2/e2_nccl_nodemap_m17_rank1"])
def test_a_node_map_beside_a_profiler_file_is_placed_compactly(name: str, reference: Path) -> None:
    trace = open_trace([reference / f"traces/sglang_h200/{name}.json.gz"])
    (source,) = trace.sources
    got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
    assert isinstance(got.communication, CompactTalk), "it was not read compactly"
    assert_same(got, want)
    assert got.breakdown.node_map["placed"] == want.breakdown.node_map["placed"] > 0


def test_a_node_map_that_the_user_names_stands_for_the_recording_s_own(tmp_path: Path) -> None:
    """And for its numbers of graphs, which are those of another capture; a cycle log takes the whole tables."""
    node = {"kind": "node", "name": "kernel", "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel", "rank": 0}
    rows = [{**node, "graph_id": 3, "node": i, "module": "model.norm", "module_class": "RMSNorm"} for i in range(2)]
    rows += [traces.phase("spec.verify", 0, 1000), traces.launch("cudaGraphLaunch", 1, 9)]
    rows += [traces.kernel("unknown", 10 * i, 10 * i + 5, 9, graph_id=3, node=i) for i in (1, 2)]
    path = tmp_path / "trace.parquet"
    events = traces.events(rows).with_columns(rank=pl.lit(0, dtype=pl.Int32))
    write_trace(Trace("made", (RankSource("0", "made", partial(RankTrace, "0", 0, "made", events)),)), path)
    named = tmp_path / "other.nodemap.json"
    named.write_text(json.dumps([{"nodes": 2, "kinds": [0, 0], "scopes": [["mlp.experts", "FusedMoE", 0, 2, 1]]}]))
    log = tmp_path / "other.cycles.json"
    log.write_text(json.dumps({}))
    trace = open_trace([path], node_map=named)
    (source,) = trace.sources
    got, want = rank_result(source, trace), rank_result(replace(source, compact=None), trace)
    assert isinstance(got.communication, CompactTalk), "it was not read compactly"
    assert_same(got, want)
    assert got.breakdown.node_map == {
        "placed": 1,
        "by_id": 0,
        "by_stream": 0,
        "unsure": 0,
        "other_count": 0,
        "other_names": 0,
    }
    assert got.breakdown.buckets_ns["verify"]["moe"] == 10
    assert open_trace([path], node_map=named, cycles=log).sources[0].compact is None
    assert break_down(open_trace([path])).ranks[0].node_map["by_id"] == 1


def of_two(tmp_path: Path, groups: list[list[int] | None]) -> Trace:
    """Two ranks with three replays of a graph of three all-reduces, whose nodes tell these groups."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    sources = []
    for number in range(2):
        rows: list[dict[str, Any]] = []
        for i, ranks in enumerate(groups):
            node = {"kind": "node", "name": name, "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel"}
            facts = {"op": "allreduce", "elements": 64 * i, "group": "tp:0", "group_ranks": ranks}
            rows.append({**node, "graph_id": 0, "node": i, "module": "model", "module_class": "Model", **facts})
        rows.append(traces.phase("spec.verify", 0, 10_000))
        for i in range(3):
            rows.append(traces.launch("cudaGraphLaunch", 10 + 100 * i, i + 1))
            for k in range(len(groups)):
                start = 1000 * (i + 1) + 100 * k + (17 * number if k else 0)
                rows.append(traces.kernel(name, start, 1000 * (i + 1) + 100 * k + 90, i + 1, graph_id=0))
        events = traces.events(rows).with_columns(rank=pl.lit(number, dtype=pl.Int32))
        sources.append(RankSource(str(number), "made", lambda n=number, e=events: RankTrace(str(n), n, "made", e)))  # type: ignore[misc]
    path = tmp_path / "trace.parquet"
    write_trace(Trace("made", tuple(sources)), path)
    return read_trace([path])


@pytest.mark.parametrize(
    ("groups", "by_sums"),
    [
        ([[0, 1]] * 3, True),
        ([[1, 0, 5]] * 3, True),  # one rank was not recorded
        ([None] * 3, True),
        ([[0, 1], None, [0]], True),  # a kernel that tells none: all count as those of all ranks
        ([[0, 1], [0], [0, 1]], False),
        ([[0]] * 3, False),
        ([[0, 1], [1, 0], [0, 1]], False),
    ],
)
def test_waiting_in_groups_that_nodes_tell(groups: list[list[int] | None], by_sums: bool, tmp_path: Path) -> None:
    opened = of_two(tmp_path, groups)
    got = break_down(opened)
    want = break_down(replace(opened, sources=tuple(replace(source, compact=None) for source in opened.sources)))
    assert all(isinstance(talk, CompactTalk) for talk in got.talk)
    for rank in ("0", "1"):
        assert got.waiting(rank, "verify").equals(want.waiting(rank, "verify"))
    assert ("waits" not in vars(got)) == by_sums
    assert got.waits is not None
    assert want.waits is not None
    assert got.waits.collectives.equals(want.waits.collectives)
    assert got.waits.unmatched == want.waits.unmatched
