"""Rows of a time line: nothing on one row may cross."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from traces import kernel, launch, phase, rank_trace

from specanalyze.exports.export_events import exported_rank
from specanalyze.exports.tracks import lanes, nests, tracks

INTERVALS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 9)), max_size=9)


@given(INTERVALS)
def test_nests_says_whether_any_two_cross(intervals: list[tuple[int, int]]) -> None:
    pairs = [(s, s + length) for s, length in intervals]
    crossing = any(a < c < b < d for a, b in pairs for c, d in pairs)
    start, end = (np.array([p[i] for p in pairs], dtype=np.int64) for i in (0, 1))
    assert nests(start, end) == (not crossing)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 9)), max_size=9))
def test_no_two_intervals_of_one_lane_overlap(intervals: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in intervals], dtype=np.int64)
    end = start + np.array([length for _, length in intervals], dtype=np.int64)
    lane = lanes(start, end)
    for i in range(len(start)):
        for j in range(i):
            if lane[i] == lane[j]:
                assert end[i] <= start[j] or end[j] <= start[i]


def test_kernels_that_start_early_alternate_between_two_lanes() -> None:
    start = np.arange(0, 60, 10, dtype=np.int64)
    assert lanes(start, start + 12).tolist() == [0, 1, 0, 1, 0, 1]


def test_rows_of_a_rank() -> None:
    rank = rank_trace(
        [
            phase(
                "spec.cycle", 0, 100, cycle=3, batch_size=2, mode="speculative", accept_lengths=[3, 1], draft_tokens=3
            ),
            phase("spec.verify", 10, 90),
            phase("spec.draft", 0, 5, tid=2),
            launch("cudaGraphLaunch", 12, 7),
            kernel("flash_fwd_kernel", 30, 60, 7),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50, 70, 7),
            kernel("flash_fwd_kernel", 70, 75, 7, stream=8),
            kernel("flash_fwd_kernel", 71, None, 7),
        ]
    )
    found = {t.name: t for t in tracks(exported_rank(0, rank))}
    assert {name: t.slices.height for name, t in found.items()} == {
        "thread 1 (worker)": 2,
        "thread 2": 1,
        "launches, thread 1 (worker)": 1,
        "GPU 0 stream 7": 1,
        "GPU 0 stream 7, overlapping 1": 1,
        "GPU 0 stream 8": 1,
        "partition: what each instant is given to": found["partition: what each instant is given to"].slices.height,
    }
    assert found["thread 1 (worker)"].slices["detail"].to_list() == [
        "cycle 3 speculative batch 2 draft 3 accept 3,1",
        "",
    ]
    assert found["GPU 0 stream 7, overlapping 1"].slices["detail"].to_list() == ["verify allreduce"]
    arrows = pl.concat([t.slices for t in found.values()])
    assert arrows["flow_out"].drop_nulls().to_list() == [7]
    assert arrows.filter(pl.col("flow_in") == 7)["start_ns"].to_list() == [30]
    parts = found["partition: what each instant is given to"].slices
    assert parts["dur_ns"].sum() == 100
    assert parts.filter(pl.col("name") == "verify: allreduce")["dur_ns"].to_list() == [10]
