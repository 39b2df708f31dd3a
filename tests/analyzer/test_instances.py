"""Which cycle a range belongs to, and what is told of each instance of a phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import traces

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.instances import cycle_numbers, graph_launch_time, instance_table
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.formats.load import open_trace


def numbered(*rows: tuple[str, int, int, int, int]) -> list[int]:
    """Cycle of each range; rows are phase, start, end, thread, own number (-1 for none)."""
    phase, start, end, thread, cycle = zip(*rows, strict=True)
    starts, ends, lanes, own = (np.array(values, dtype=np.int64) for values in (start, end, thread, cycle))
    codes = np.array([PHASE_CODE[name] for name in phase], dtype=np.int64)
    threads = tuple((1, number) for number in sorted(set(thread)))
    found: list[int] = cycle_numbers(Ranges(starts, ends, lanes, codes, own, threads, (), {})).tolist()
    return found


def test_a_range_takes_the_number_of_the_cycle_that_encloses_its_start() -> None:
    assert numbered(
        ("cycle", 10, 20, 0, 7),
        ("cycle", 30, 40, 0, 8),
        ("draft", 5, 9, 0, -1),  # before the first
        ("draft", 10, 12, 0, -1),  # at its very start
        ("verify", 19, 25, 0, -1),  # begins inside, ends behind
        ("verify", 20, 22, 0, -1),  # at its end: no more in it
        ("verify", 25, 27, 0, -1),  # between two
        ("draft", 31, 32, 1, -1),  # another thread
        ("verify", 33, 34, 0, 5),  # a number of its own
        ("verify", 50, 51, 0, -1),  # behind the last
    ) == [7, 8, -1, 7, 7, -1, -1, -1, 5, -1]


def test_cycles_without_numbers_are_counted_from_0_by_their_starts() -> None:
    assert numbered(("cycle", 30, 40, 0, -1), ("cycle", 10, 20, 0, -1), ("verify", 31, 32, 0, -1)) == [1, 0, 1]


def test_without_cycle_ranges_a_draft_or_a_verify_without_one_opens_a_cycle() -> None:
    assert numbered(
        ("draft", 0, 1, 0, -1),
        ("verify", 1, 2, 0, -1),
        ("draft_extend", 2, 3, 0, -1),
        ("verify", 4, 5, 0, -1),  # no draft since the last verify
        ("draft", 6, 7, 0, -1),
        ("verify", 7, 8, 0, -1),
        ("decode", 9, 10, 0, -1),
    ) == [0, 0, 0, 1, 2, 2, 3]


def test_numbers_of_their_own_stand_alone_without_cycle_ranges() -> None:
    assert numbered(("draft", 0, 1, 0, 4), ("verify", 1, 2, 0, -1)) == [4, -1]


def test_launch_time_of_graphs_is_told_from_that_of_other_calls(tmp_path: Path) -> None:
    """Times in microseconds; the graph's call is the first of the trace, its kernel starts 10 after it."""

    def row(category: str, name: str, start: int, length: int, correlation: int) -> dict[str, Any]:
        place = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 4, "tid": 4}
        common = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length}
        return {**common, **place, "args": {"correlation": correlation}}

    rows = [
        row("user_annotation", "spec.verify", 0, 100, 0),
        row("cuda_runtime", "cudaGraphLaunch", 10, 2, 1),
        row("kernel", "a", 20, 10, 1),
        row("cuda_runtime", "cudaLaunchKernel", 40, 2, 2),
        row("kernel", "b", 45, 5, 2),
        row("cuda_runtime", "cudaGraphLaunch", 60, 2, 3),  # its kernels were not recorded
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    (rank,) = break_down(open_trace([path])).ranks
    assert rank.buckets_ns["verify"] == {"other_compute": 15_000, "launch": 15_000, "host": 70_000}
    assert rank.graph_launch_ns["verify"] == 10_000
    assert rank.phase_instances.select("graph_launch", "launch", "replays", "lost_replays", "complete").rows() == [
        (10_000, 15_000, 2, 1, False)
    ]


def test_an_instance_has_its_own_time_and_nothing_of_what_lies_between() -> None:
    """The first instance replays a graph, the last one launches eagerly; time in no range belongs to neither."""
    rows = [
        traces.phase("spec.verify", 0, 50),
        traces.launch("cudaGraphLaunch", 10, 1),
        traces.kernel("fused_moe_kernel", 30, 40, 1),
        traces.kernel("fused_moe_kernel", 42, 80, 1),
        traces.launch("cudaGraphLaunch", 85, 4),  # in no range
        traces.kernel("fused_moe_kernel", 88, 95, 4),
        traces.phase("spec.draft", 100, 120),
        traces.launch("cudaLaunchKernel", 105, 2),
        traces.kernel("fused_moe_kernel", 111, 115, 2),
        traces.launch("cudaGraphLaunch", 117, 3),  # without records
    ]
    (window,) = analyse_rank(traces.rank_trace(rows)).windows
    columns = ("phase", "host", "launch", "graph_launch", "graph_gap", "moe", "replays", "lost_replays", "complete")
    assert instance_table(window).select(columns).rows() == [
        ("verify", 10, 20, 20, 2, 48, 1, 0, True),
        ("draft", 10, 6, 0, 0, 4, 1, 1, False),
    ]
    part = window.partition
    assert part is not None
    assert graph_launch_time(window).sum() == 2  # that of the verify, and the one in no range


def test_only_the_start_of_a_range_decides_its_cycle() -> None:
    assert numbered(
        ("cycle", 10, 20, 0, 7),
        ("cycle", 30, 40, 0, 8),
        ("verify", 19, 31, 0, -1),  # ends in the next cycle
        ("draft", 12, 14, 0, 0),  # has a number of its own
    ) == [7, 8, 7, 0]
    # cycles are counted only where none has a number
    assert numbered(("cycle", 10, 20, 0, 7), ("cycle", 30, 40, 0, -1), ("draft", 31, 32, 0, -1)) == [7, -1, -1]
    assert numbered(("cycle", 10, 20, 0, 0), ("cycle", 30, 40, 0, -1)) == [0, -1]


def test_where_no_range_has_a_number_steps_are_counted() -> None:
    assert numbered(("verify", 0, 5, 0, -1), ("verify", 10, 15, 0, -1)) == [0, 1]
    assert numbered(("prefill", 0, 5, 0, -1), ("verify", 10, 15, 0, -1)) == [0, 1]
    assert numbered(("draft", 0, 100, 0, -1), ("verify", 10, 20, 0, -1)) == [0, 0]  # by their starts, not their ends
    assert numbered(("draft", 0, 5, 0, 0), ("verify", 10, 15, 0, -1)) == [0, -1]


def test_nothing_is_graph_launch_time_without_launches() -> None:
    (window,) = analyse_rank(
        traces.rank_trace([traces.phase("spec.verify", 0, 50), traces.kernel("k", 10, 20, None)])
    ).windows
    part = window.partition
    assert part is not None
    assert graph_launch_time(window).tolist() == [False] * len(part.start)
    assert instance_table(window).select("start_ns", "end_ns", "graph_launch").rows() == [(0, 50, 0)]
    rows = [traces.phase("no phase", 0, 50), traces.launch("cudaGraphLaunch", 1, 1), traces.kernel("k", 10, 20, 1)]
    (without,) = analyse_rank(traces.rank_trace(rows)).windows
    assert without.partition is None
    assert graph_launch_time(without).tolist() == []
    assert instance_table(without).height == 0
