"""The partition against a slow, independent reading of the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import partition_oracle
import pytest
import traces
from hypothesis import given, settings
from timelines import KERNELS, some_rows

from specanalyze.attribution.activities import join_activities
from specanalyze.attribution.partition import Partition, partition
from specanalyze.attribution.ranges import recognised_ranges
from specschema.phases import BUCKETS, PHASE_KEYS


def run(rows: list[dict[str, Any]]) -> Partition | None:
    events = traces.events(rows)
    ranges = recognised_ranges(events)
    return partition(ranges, join_activities(events, ranges))


def tables(result: Partition) -> dict[str, dict[str, int]]:
    totals = result.totals()
    return {
        PHASE_KEYS[p]: {BUCKETS[b]: int(totals[p, b]) for b in np.flatnonzero(totals[p])}
        for p in np.flatnonzero(totals.any(axis=1))
    }


@settings(max_examples=600, deadline=None)
@given(some_rows)
def test_partition_equals_the_oracle(rows: list[dict[str, Any]]) -> None:
    want = partition_oracle.partition(rows, KERNELS)
    got = run(rows)
    if want is None:
        assert got is None
        return
    assert got is not None
    assert got.window_ns == want.window_ns
    assert tables(got) == want.buckets
    assert sum(ns for buckets in tables(got).values() for ns in buckets.values()) == got.window_ns
    assert {PHASE_KEYS[p]: int(ns) for p, ns in enumerate(got.gpu_busy) if ns} == want.busy
    assert {PHASE_KEYS[p]: int(ns) for p, ns in enumerate(got.hidden_communication) if ns} == {
        p: ns for p, ns in want.hidden.items() if ns
    }


def test_a_replay_belongs_to_the_phase_of_its_one_launch_call() -> None:
    rows = [
        traces.phase("spec.verify", 0, 50),
        traces.launch("cudaGraphLaunch", 10, 1),
        traces.kernel("nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT", 30, 40, 1),
        traces.kernel("fused_moe_kernel", 42, 80, 1),
    ]
    result = run(rows)
    assert result is not None
    assert tables(result) == {"verify": {"host": 10, "launch": 20, "gemm": 10, "graph_gap": 2, "moe": 38}}


def test_each_stretch_names_its_range_activity_and_launch_call() -> None:
    """And -1 where it has none: the host's own time no call, a gap no activity, what lies outside no range."""
    rows = [
        traces.phase("spec.verify", 0, 50),
        traces.launch("cudaGraphLaunch", 10, 1),
        traces.kernel("nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT", 30, 40, 1),
        traces.kernel("fused_moe_kernel", 42, 45, 1),
        traces.kernel("fused_moe_kernel", 60, 70, None),
        traces.phase("spec.draft", 80, 90),
    ]
    result = run(rows)
    assert result is not None
    columns = (result.start, result.end, result.phase, result.bucket, result.range, result.activity, result.launch)
    found = [
        (start, end, PHASE_KEYS[phase], BUCKETS[bucket], *owner)
        for start, end, phase, bucket, *owner in zip(*(column.tolist() for column in columns), strict=True)
    ]
    assert found == [
        (0, 10, "verify", "host", 0, -1, -1),
        (10, 30, "verify", "launch", 0, -1, 0),
        (30, 40, "verify", "gemm", 0, 0, 0),
        (40, 42, "verify", "graph_gap", 0, -1, 0),
        (42, 45, "verify", "moe", 0, 1, 0),
        (45, 50, "verify", "host", 0, -1, -1),
        (50, 60, "between", "host", -1, -1, -1),
        (60, 70, "unattributed", "moe", -1, 2, -1),
        (70, 80, "between", "host", -1, -1, -1),
        (80, 90, "draft", "host", 1, -1, -1),
    ]


def test_of_two_kernels_that_run_at_once_the_first_to_start_has_the_time() -> None:
    rows = [
        traces.phase("spec.verify", 0, 70),
        traces.launch("cudaLaunchKernel", 10, 1),
        traces.kernel("fused_moe_kernel", 20, 60, 1),
        traces.kernel("nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT", 30, 40, 1, stream=13),
    ]
    result = run(rows)
    assert result is not None
    assert tables(result) == {"verify": {"host": 20, "launch": 10, "moe": 40}}


def test_without_a_recognised_range_there_is_no_window() -> None:
    assert run([traces.launch("cudaLaunchKernel", 0, 1), traces.kernel("fused_moe_kernel", 5, 9, 1)]) is None


@pytest.mark.parametrize("later", [2, 3])
def test_a_duration_past_three_later_starts_is_cut(later: int) -> None:
    rows = [traces.phase("spec.verify", 0, 10), traces.launch("cudaLaunchKernel", 1, 1)]
    rows.append(traces.kernel("fused_moe_kernel", 20, 100, 1))
    rows += [traces.kernel("fused_moe_kernel", 30 + 10 * i, 35 + 10 * i, 1) for i in range(later)]
    events = traces.events(rows)
    activities = join_activities(events, recognised_ranges(events))
    assert activities.cut == (1 if later == 3 else 0)
    assert activities.end[0] == (30 if later == 3 else 100)


def test_between_two_kernels_of_one_eager_launch_the_host_is_waited_for() -> None:
    """Launch time ends with the first activity of a call; only a replay has gaps."""
    rows = [
        traces.phase("spec.verify", 0, 50),
        traces.launch("cudaLaunchKernel", 10, 1),
        traces.kernel("fused_moe_kernel", 15, 20, 1),
        traces.kernel("fused_moe_kernel", 30, 40, 1),
    ]
    result = run(rows)
    assert result is not None
    assert tables(result) == {"verify": {"host": 30, "launch": 5, "moe": 15}}


@pytest.mark.parametrize("broken", ["hole", "short", "late"])
def test_a_partition_that_does_not_tile_its_window_is_a_bug(broken: str) -> None:
    part = run(
        [
            traces.phase("spec.verify", 0, 50),
            traces.launch("cudaLaunchKernel", 10, 1),
            traces.kernel("fused_moe_kernel", 15, 20, 1),
        ]
    )
    assert part is not None
    part.check()
    changed = {
        "hole": {"start": part.start + np.array([0, 1, *[0] * (len(part.start) - 2)])},
        "short": {"window_end": part.window_end + 1},
        "late": {"window_start": part.window_start - 1},
    }[broken]
    with pytest.raises(AssertionError, match="does not tile the window"):
        dataclasses.replace(part, **changed).check()
