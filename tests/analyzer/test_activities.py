"""The join of device activities with their launch calls: classes, corrupt durations, and which call counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.attribution.activities import (
    Activities,
    class_of_look,
    communication_code,
    compute_code,
    cut_impossible,
    join_activities,
)
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.collectives import group_ranks
from specschema.phases import BUCKETS, PHASE_KEYS, WHOLE_REPLAY

MOE, GEMM = "fused_moe_kernel", "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"


def joined(*rows: dict[str, Any]) -> Activities:
    events = traces.events(rows)
    return join_activities(events, recognised_ranges(events))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 2)), max_size=14))
def test_a_duration_is_cut_at_the_first_of_three_later_starts_of_its_stream(rows: list[tuple[int, int, int]]) -> None:
    start, length, stream = np.array(rows or [(0, 0, 0)][:0], dtype=np.int64).reshape(-1, 3).T
    want = start + length
    for at, (begin, end, own) in enumerate(zip(start, start + length, stream, strict=True)):
        later = sorted(s for s, q in zip(start, stream, strict=True) if q == own and begin < s < end)
        if len(later) >= 3:
            want[at] = later[0]
    given_ends = start + length
    ends, cut = cut_impossible(start, given_ends, stream)
    assert ends.tolist() == want.tolist()
    assert cut == (want != start + length).sum()
    assert given_ends.tolist() == (start + length).tolist()  # what was given stays as it was


def test_a_start_at_the_very_end_of_a_duration_is_not_overlapped() -> None:
    """The third later start is the end of the first duration, which starts together with another one."""
    start = np.array([0, 0, 1, 2, 5], dtype=np.int64)
    end = np.array([5, 1, 2, 3, 6], dtype=np.int64)
    stream = np.zeros(5, dtype=np.int64)
    ends, cut = cut_impossible(start, end, stream)
    assert (ends.tolist(), cut) == ([5, 1, 2, 3, 6], 0)
    end[0] = 6
    ends, cut = cut_impossible(start, end, stream)
    assert (ends.tolist(), cut) == ([1, 1, 2, 3, 6], 1)


def test_streams_beyond_16_bits_are_told_apart() -> None:
    """The first of 33000 streams has a duration that is cut, each other one a single activity."""
    stream = np.concatenate([np.arange(33_000), np.zeros(3, dtype=np.int64)])
    start = np.concatenate([np.zeros(33_000, dtype=np.int64), np.array([1, 2, 3])])
    ends, cut = cut_impossible(start, start + 9, stream)
    assert (int(ends[0]), cut) == (1, 1)
    assert ends[1:].tolist() == (start + 9)[1:].tolist()


def test_no_activity_is_nothing_to_cut() -> None:
    nothing = np.empty(0, dtype=np.int64)
    ends, cut = cut_impossible(nothing, nothing, nothing)
    assert (len(ends), cut) == (0, 0)


def test_streams_of_two_devices_are_not_one() -> None:
    """Three later starts cut a duration, on its own stream of its own device."""
    rows = [
        traces.kernel(MOE, 0, 100, 1, device=0),
        *(traces.kernel(MOE, 10 * n, 10 * n + 5, 1, device=1) for n in (1, 2, 3)),
    ]
    assert joined(*rows).cut == 0
    assert joined(*({**row, "device": 0} for row in rows)).cut == 1
    # a device that is not told is the first one
    assert joined(rows[0], *({**row, "device": None} for row in rows[1:])).cut == 1


def test_a_stream_is_that_of_its_device() -> None:
    """The second stream of the first device and the first stream of the second one hold two activities each."""
    rows = [
        traces.kernel(MOE, 0, 100, 1, device=0, stream=8),
        traces.kernel(MOE, 10, 11, 1, device=0, stream=8),
        traces.kernel(MOE, 20, 21, 1, device=1, stream=7),
        traces.kernel(MOE, 30, 31, 1, device=1, stream=7),
        traces.kernel(MOE, 200, 201, 1, device=0, stream=7),
        traces.kernel(MOE, 200, 201, 1, device=1, stream=8),
    ]
    assert joined(*rows).cut == 0


def test_an_activity_of_no_length_is_valid() -> None:
    found = joined(
        traces.phase("spec.verify", 0, 9), traces.launch("cudaLaunchKernel", 1, 1), traces.kernel(MOE, 5, 5, 1)
    )
    assert (len(found), found.invalid) == (1, 0)


@pytest.mark.parametrize("order", [1, -1])
def test_classes_by_kind_name_and_operation(order: int) -> None:
    """One name is of several classes where the framework tells which operation it ran."""
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    table = [
        (traces.kernel(MOE, 0, 1, 1), ("moe", True)),
        (traces.kernel(GEMM, 2, 3, 1), ("gemm", True)),
        (traces.kernel("no_rule_knows_this", 4, 5, 1), ("other_compute", False)),
        (traces.kernel(generic, 6, 7, 1, op="allreduce"), ("allreduce", True)),
        (traces.kernel(generic, 8, 9, 1, op="_allgather_base"), ("other_comm", True)),
        (traces.kernel(MOE, 10, 11, 1, op="allreduce"), ("allreduce", True)),
        (traces.kernel(WHOLE_REPLAY, 12, 13, 1), ("graph_unresolved", True)),
        (traces.kernel("Memcpy DtoD", 14, 15, 1, kind="memcpy"), ("memcpy", True)),
        (traces.kernel(MOE, 16, 17, 1, kind="memset"), ("memcpy", True)),
    ][::order]
    found = joined(*(row for row, _ in table))
    told = [(BUCKETS[b], bool(known)) for b, known in zip(found.bucket, found.classified, strict=True)]
    assert told == [want for _, want in table]
    assert not found.by_map.any()  # there is no node map
    looks = [class_of_look(row["name"], row["kind"], row.get("op")) for row, _ in table]
    assert [(bucket, known) for bucket, _, known in looks] == told
    subclass = [found.subclasses[code] for code in found.subclass]
    assert subclass == [finer for _, finer, _ in looks]
    assert [subclass[at] for at, (row, _) in enumerate(table) if row["kind"] != "kernel"] == ["copy", "copy"]


def test_of_two_calls_with_one_id_the_one_that_started_first_counts() -> None:
    """Whatever the order of rows: a runtime call has the driver's call inside it."""
    rows = (
        traces.phase("spec.verify", 0, 50),
        traces.phase("spec.draft", 60, 90),
        traces.launch("cudaLaunchKernel", 70, 5),
        traces.launch("cudaGraphLaunch", 10, 5),
        traces.launch("cudaLaunchKernel", 20, 6),  # without an activity
        traces.launch("cudaLaunchKernel", 30, 7),
        {**traces.launch("cudaLaunchKernel", 35, 0), "correlation": None},
        traces.kernel(MOE, 75, 80, 5),
        traces.kernel(MOE, 71, 72, 5),
        traces.kernel(MOE, 40, 41, 7),
        traces.kernel(MOE, 45, 46, 8),  # its call was not recorded
        traces.kernel(MOE, 47, 48, None),
        traces.kernel(MOE, 49, None, 7),  # no usable time
        traces.kernel(MOE, 50, 49, 7),
    )
    found = joined(*rows)
    assert [PHASE_KEYS[p] for p in found.phase] == ["verify", "verify", "verify", "unattributed", "unattributed"]
    assert found.launch.tolist() == [0, 0, 1, -1, -1]
    assert (found.invalid, found.cut) == (2, 0)
    calls = found.launches
    assert (calls.start.tolist(), calls.first.tolist(), calls.last.tolist()) == ([10, 30], [71, 40], [80, 41])
    assert calls.graph.tolist() == [True, False]
    assert found.graph_call_start.tolist() == [10]  # replays are counted by their calls, with or without records


def test_a_call_of_another_thread_is_outside_every_range() -> None:
    rows = (
        traces.phase("spec.verify", 0, 50, tid=1),
        traces.launch("cudaLaunchKernel", 10, 1, tid=1),
        traces.launch("cudaLaunchKernel", 20, 2, tid=2),
        traces.launch("cudaLaunchKernel", 30, 3, tid=1, pid=9),
        traces.launch("cudaLaunchKernel", 50, 4, tid=1),  # at the end of the range: behind it
        traces.launch("cudaLaunchKernel", 0, 5, tid=1),
        *(traces.kernel(MOE, 60 + 10 * n, 65 + 10 * n, n) for n in (1, 2, 3, 4, 5)),
    )
    assert [PHASE_KEYS[p] for p in joined(*rows).phase] == ["verify", "outside", "outside", "outside", "verify"]


def graph_node(ordinal: int, module: str, module_class: str, node_type: str = "kernel") -> dict[str, Any]:
    row = {"kind": "node", "name": node_type, "start_ns": 0, "dur_ns": 0, "graph_id": 0, "node": ordinal}
    return {**row, "node_type": node_type, "module": module, "module_class": module_class}


def test_the_node_map_decides_where_it_knows_the_node() -> None:
    """A replay of five nodes, with eager kernels of the same names beside it, which the map says nothing of."""
    attention, logits = ("model.layers.0.self_attn.attn", "RadixAttention"), ("logits_processor", "LogitsProcessor")
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    table = [
        (
            traces.kernel(nccl, 0, 1, 1),
            graph_node(0, "model.layers.0", "DecoderLayer"),
            ("allreduce", "allreduce", True),
        ),
        (traces.kernel("plain_kernel", 2, 3, 1), graph_node(1, *attention), ("attention", "attention_core", True)),
        (traces.kernel(GEMM, 4, 5, 1), graph_node(2, *logits), ("gemm", "lm_head", True)),
        (traces.kernel(MOE, 6, 7, 1), graph_node(3, "model", "Model"), ("moe", "experts", False)),
        (traces.kernel("m", 8, 9, 1, kind="memcpy"), graph_node(4, *attention, "memcpy"), ("memcpy", "copy", True)),
        (traces.kernel(GEMM, 20, 21, 2), None, ("gemm", "cublas", False)),
        (traces.kernel("plain_kernel", 22, 23, 2), None, ("other_compute", "unclassified", False)),
        (traces.kernel(nccl, 24, 25, None), None, ("allreduce", "allreduce", False)),
    ]
    found = joined(
        traces.phase("spec.verify", 0, 50),
        traces.launch("cudaGraphLaunch", 0, 1),
        traces.launch("cudaLaunchKernel", 1, 2),
        *(row for row, _, _ in table),
        *(row for _, row, _ in table if row),
    )
    told = [
        (BUCKETS[b], found.subclasses[s], bool(m))
        for b, s, m in zip(found.bucket, found.subclass, found.by_map, strict=True)
    ]
    assert told == [want for _, _, want in table]
    assert found.classified.tolist() == [True] * 6 + [False, True]


def test_tiers_of_buckets() -> None:
    codes = np.arange(len(BUCKETS))
    compute = [BUCKETS[code] for code in codes[compute_code(codes)]]
    assert compute == ["attention", "moe", "gemm", "other_compute", "graph_unresolved"]
    assert [BUCKETS[code] for code in codes[communication_code(codes)]] == ["allreduce", "other_comm"]


def test_activities_are_placed_only_where_graphs_were_captured() -> None:
    row = traces.kernel("plain_kernel", 2, 3, 1)
    assert joined(row).placement is None
    placement = joined(row, graph_node(0, "norm", "RMSNorm")).placement
    assert placement is not None
    assert placement.node_row.tolist() == [-1]


def test_a_replay_of_a_single_node_is_decided_by_the_map() -> None:
    found = joined(
        traces.launch("cudaGraphLaunch", 0, 1), traces.kernel("plain_kernel", 2, 3, 1), graph_node(0, "norm", "RMSNorm")
    )
    assert found.by_map.tolist() == [True]
    assert [found.subclasses[code] for code in found.subclass] == ["norm"]


def test_a_graph_launch_that_is_written_twice_is_one() -> None:
    """Calls without an id are each one of their own, as are eager calls with the id of a graph launch."""
    unknown = {**traces.launch("cudaGraphLaunch", 7, 1), "correlation": None}
    found = joined(
        traces.launch("cudaLaunchKernel", 0, 2),
        traces.launch("cudaGraphLaunch", 1, 2),
        traces.launch("cudaGraphLaunch", 3, 5),
        traces.launch("cuGraphLaunch", 4, 5),
        traces.launch("cudaGraphLaunch", 5, 6),
        unknown,
        {**unknown, "start_ns": 8},
        traces.kernel(MOE, 9, 10, 5),
    )
    assert found.graph_call_start.tolist() == [1, 3, 5, 7, 8]
    assert found.launches.graph.tolist() == [True]


def test_a_launch_call_without_a_name_is_no_graph_launch() -> None:
    found = joined(
        {**traces.launch("cudaGraphLaunch", 0, 1), "name": None},
        traces.launch("cudaGraphLaunch_v10000", 1, 2),
        traces.kernel(MOE, 5, 6, 1),
    )
    assert found.graph_call_start.tolist() == [1]
    assert found.launches.graph.tolist() == [False]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("[0, 1, 2]", [0, 1, 2]),
        ("[]", None),
        ("[0]", [0]),
        ("[0, 1, ..., 7]", None),
        ("", None),
        ("[999999999]", [999999999]),
        ("[0, 1000000000]", None),
    ],
)
def test_ranks_of_a_group(text: str, ranks: list[int] | None) -> None:
    assert group_ranks(text) == ranks
