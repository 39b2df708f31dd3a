"""One window of a compact rank: which call each row has, what its durations are cut to, and what it all sums up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces

from specanalyze.attribution.activities import BUCKET_CODE
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_window import JoinedWindow, Looks, WindowSums, for_talk, joined_window, window_sums
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.formats.compact_rank import Calls, CompactRank, DeviceRows
from specanalyze.native import timeline
from specanalyze.native.collect import NO_ID
from specschema.phases import BUCKETS, PHASE_KEYS

COMPILED = timeline.compiled()
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no C compiler on this machine, or switched off")
LOOKS: list[tuple[str, str, str | None]] = [
    ("fused_moe_kernel", "kernel", None),
    ("ncclDevKernel_AllReduce_x", "kernel", None),
    ("m", "memcpy", None),
]
SLICE = 1 << 17
"""Rows that are looked at together."""


def device(start: Sequence[int], length: Sequence[int], ids: Sequence[int], **more: Any) -> DeviceRows:
    """Rows on stream 0 with the first look, where nothing else is said."""
    rows = len(start)
    return DeviceRows(
        np.array(start, dtype=np.int64),
        np.array(length, dtype=more.get("wide", np.uint32)),
        np.array(more.get("stream", [0] * rows), dtype=np.uint16),
        np.array(more.get("look", [0] * rows), dtype=np.uint16),
        np.array(ids, dtype=np.int32),
        more.get("told", pl.DataFrame(schema={"row": pl.Int64})),
        more.get("invalid", 0),
        np.array(more.get("ran", []), dtype=np.int32),
        np.array(more.get("node", []), dtype=np.int32),
    )


def calls(
    start: Sequence[int], ids: Sequence[int], graph: Sequence[bool] | None = None, thread: Sequence[int] | None = None
) -> Calls:
    """Eager calls on thread 0, where nothing else is said."""
    return Calls(
        np.array(start, dtype=np.int64),
        np.array(ids, dtype=np.int32),
        np.array(thread or [0] * len(start), dtype=np.uint16),
        np.array(graph or [False] * len(start), dtype=bool),
    )


def joined(
    rows: DeviceRows,
    made: Calls,
    ranges: Sequence[dict[str, Any]] = (),
    streams: Sequence[int] = (7,),
    threads: Sequence[tuple[int, int]] = ((1, 1),),
) -> JoinedWindow:
    assert COMPILED is not None
    rank = CompactRank("0", 0, "made", None, None, pl.DataFrame(), LOOKS, [*streams], [*threads], {3: (rows, made)})
    window = joined_window(COMPILED, rank, 3, recognised_ranges(traces.events(ranges)), Looks(LOOKS))
    assert not rank.windows
    return window


def summed(window: JoinedWindow, streams: Sequence[int] = (7,)) -> WindowSums:
    return window_sums(window, list(streams), len(LOOKS))


def parted(sums: WindowSums) -> dict[str, dict[str, int]]:
    """Phase -> bucket -> ns."""
    assert sums.partition is not None
    return {
        phase: {bucket: int(ns) for bucket, ns in zip(BUCKETS, row, strict=True) if ns}
        for phase, row in zip(PHASE_KEYS, sums.partition.totals, strict=True)
        if row.any()
    }


def test_looks_have_the_class_of_their_names() -> None:
    looks = Looks([*LOOKS, ("no_rule_knows_this", "kernel", None)])
    assert [BUCKETS[code] for code in looks.bucket] == ["moe", "allreduce", "memcpy", "other_compute"]
    assert looks.subclass[2] == "copy"
    assert looks.classified.tolist() == [True, True, True, False]


def test_rows_and_calls_are_joined_by_their_ids() -> None:
    window = joined(
        device(
            [20, 22, 40, 50, 60, 70, 80],
            [1, 7, 5, 5, 5, 5, 5],
            [-2, -2, 5, NO_ID, 9, -3, 7],
            look=[1, 0, 2, 0, 0, 0, 0],
        ),
        calls([1, 2, 3, 4, 5, 6], [5, 9, 5, NO_ID, -2, 8], [False, True, True, True, True, False]),
        [traces.phase("spec.verify", 0, 5), traces.phase("spec.draft", 5, 10)],
    )
    assert window.number == 3
    assert window.call.tolist() == [4, 4, 0, -1, 1, -1, -1]
    assert [BUCKETS[code] for code in window.bucket] == ["allreduce", "moe", "memcpy", "moe", "moe", "moe", "moe"]
    assert window.count.tolist() == [1, 1, 0, 0, 2, 0]
    assert window.first[[0, 1, 4]].tolist() == [40, 60, 20]
    assert window.call_range.tolist() == [0, 0, 0, 0, 1, 1]
    assert window.wait.tolist() == [0, 1, 4]
    assert (window.replay.tolist(), window.replay_end.tolist()) == ([1, 4], [65, 29])
    assert (window.begin, window.end, window.cut) == (0, 65, 0)
    assert (len(window.device.id), len(window.calls.id), len(window.calls.thread)) == (0, 0, 0)


@pytest.mark.parametrize("far", [3, 70_000])
def test_ids_may_lie_close_together_or_far_apart(far: int) -> None:
    """Two calls have the id 0: the earlier one counts. Ids between, below and above those of calls have none."""
    window = joined(
        device([*range(10, 80, 10)], [1] * 7, [far, 0, -far, 1, -far - 1, far + 1, NO_ID]),
        calls([9, 8, 7, 6, 5], [0, far, NO_ID, 0, -far]),
    )
    assert window.call.tolist() == [1, 0, 4, -1, -1, -1, -1]
    assert window.wait.tolist() == [4, 1, 0]  # by start


@pytest.mark.parametrize("ids", [[], [NO_ID, NO_ID]])
def test_without_ids_no_row_has_a_call(ids: list[int]) -> None:
    window = joined(device([1, 2, 3], [1, 1, 1], [0, NO_ID, 1]), calls([0] * len(ids), ids, [True] * len(ids)))
    assert window.call.tolist() == [-1, -1, -1]
    assert (window.wait.tolist(), window.replay.tolist()) == ([], [])


def test_a_single_id_is_joined() -> None:
    assert joined(device([1, 2], [1, 1], [4, 5]), calls([0], [4])).call.tolist() == [0, -1]


@pytest.mark.parametrize("apart", [1, 60], ids=["close", "far apart"])
def test_millions_of_ids_are_joined_in_slices(apart: int) -> None:
    """The last calls of the second slice have the ids of the first ones: the earlier ones count."""
    many = SLICE + 100
    ids = np.arange(many, dtype=np.int64) * apart
    ids[-50:] = ids[:50]
    start = np.arange(many, dtype=np.int64)
    asked = np.concatenate([ids[::-1], [many * apart, -1]])
    window = joined(device([*range(many + 2)], [1] * (many + 2), asked.tolist()), calls(start.tolist(), ids.tolist()))
    want = np.arange(many)
    want[-50:] = np.arange(50)
    assert window.call.tolist() == [*want[::-1].tolist(), -1, -1]
    assert window.count[:51].tolist() == [2] * 50 + [1]
    assert not window.count[-50:].any()
    assert window.wait.tolist() == list(range(many - 50))


def test_calls_of_the_next_slice_may_be_earlier() -> None:
    """Starts ascend within each slice, and the second slice begins before the first one ends."""
    start = np.concatenate([np.arange(SLICE) + 10, np.arange(5)])
    ids = np.arange(SLICE + 5)
    window = joined(device([*range(SLICE + 5)], [1] * (SLICE + 5), ids.tolist()), calls(start.tolist(), ids.tolist()))
    assert window.wait[:7].tolist() == [SLICE, SLICE + 1, SLICE + 2, SLICE + 3, SLICE + 4, 0, 1]
    # a call that starts together with the last one of the slice before it is in order
    level = np.concatenate([np.arange(SLICE), [SLICE - 1, SLICE]])
    ids = np.arange(SLICE + 2)
    window = joined(device([*range(SLICE + 2)], [1] * (SLICE + 2), ids.tolist()), calls(level.tolist(), ids.tolist()))
    assert window.wait.tolist() == list(range(SLICE + 2))


def test_calls_wait_in_order_of_start_and_of_the_file() -> None:
    starts = [5, 9, 5, 1, 9, 5] * 10
    window = joined(device([100 + n for n in range(60)], [1] * 60, [*range(60)]), calls(starts, [*range(60)]))
    assert window.wait.tolist() == sorted(range(60), key=lambda n: starts[n])


@pytest.mark.parametrize("facts", [False, True])
@pytest.mark.parametrize("rows", [4, 300])
def test_rows_come_into_order_of_start_with_all_that_belongs_to_them(rows: int, facts: bool) -> None:
    """Three hundred rows from the last to the first are too far out of order to be settled in place. Pairs start together."""
    start = [100 - n // 2 for n in range(rows)]
    order = sorted(range(rows), key=lambda n: start[n])
    more: dict[str, Any] = {"told": pl.DataFrame({"row": [1, 2], "seq": [11, 12]})} if facts else {}
    window = joined(
        device(
            *(start, [n + 1 for n in range(rows)], [*range(rows)]),
            stream=[n % 3 for n in range(rows)],
            look=[n % 2 for n in range(rows)],
            invalid=5,
            wide=np.int64,
            **more,
        ),
        calls([*range(rows)], [*range(rows)]),
        streams=(7, 8, 9),
    )
    assert window.device.start.tolist() == [start[n] for n in order]
    assert window.call.tolist() == order
    assert window.device.stream.tolist() == [n % 3 for n in order]
    assert window.device.look.tolist() == [n % 2 for n in order]
    assert window.bucket.tolist() == [BUCKET_CODE[("moe", "allreduce")[n % 2]] for n in order]
    assert window.device.invalid == 5
    if facts:
        assert window.device.told.rows() == [(order.index(1), 11), (order.index(2), 12)]
    if rows == 4:
        assert window.device.length.tolist() == [n + 1 for n in order]


@pytest.mark.parametrize("at_once", [2, 16, 17, 30])
def test_durations_are_cut_at_the_first_of_three_later_starts(at_once: int) -> None:
    """More than sixteen rows of a stream that run at once are judged by sorting. Another stream's starts don't count."""
    start = [0] * at_once + [10, 20, 20, 30, 40]
    length = [99] * at_once + [5, 5, 5, 5, 5]
    window = joined(
        device(start, length, [NO_ID] * len(start), stream=[0] * at_once + [0, 0, 0, 0, 1]),
        calls([], []),
        streams=(7, 8),
    )
    assert window.cut == at_once
    assert window.device.length.tolist() == [10] * at_once + [5] * 5
    assert window.passes.length is window.device.length


def test_what_two_passes_cut_is_counted_together() -> None:
    """A duration is cut before seventeen rows run at once; those are cut by the second pass."""
    start = [0, 1, 2, 3] + [50] * 17 + [60, 61, 62]
    length = [40, 1, 1, 1] + [99] * 17 + [1, 1, 1]
    window = joined(device(start, length, [NO_ID] * len(start)), calls([], []))
    assert window.cut == 18
    assert window.device.length.tolist() == [1, 1, 1, 1] + [10] * 17 + [1, 1, 1]


def test_a_call_is_in_the_innermost_range_of_its_own_thread() -> None:
    """Two threads have ranges; a call's thread is known by its pair, not by its number."""
    ranges = [
        traces.phase("spec.cycle", 0, 100, tid=2),
        traces.phase("spec.verify", 10, 50, tid=2),
        traces.phase("spec.draft", 20, 30, tid=2),
        traces.phase("spec.decode", 0, 40, tid=1),
    ]
    made = calls([5, 10, 25, 30, 50, 100, 25, 25, 45], [NO_ID] * 9, thread=[1, 1, 1, 1, 1, 1, 2, 0, 2])
    window = joined(device([], [], []), made, ranges, threads=[(9, 9), (1, 2), (1, 1)])
    assert window.call_range.tolist() == [0, 1, 2, 1, 0, -1, 3, -1, -1]
    assert (window.begin, window.end) == (0, 100)


def test_the_window_reaches_to_the_last_row_that_was_launched_in_a_range() -> None:
    ranges = [traces.phase("spec.draft", 20, 40), traces.phase("spec.verify", 10, 30)]
    rows = device([25, 35, 90], [5, 25, 10], [1, 2, 3])
    assert joined(rows, calls([12, 13, 50], [1, 2, 3]), ranges).end == 60
    rows = device([25, 35, 90], [5, 25, 10], [1, 2, 3])
    inside = joined(rows, calls([12, 50, 51], [1, 2, 3]), ranges)
    assert (inside.begin, inside.end) == (10, 40)
    nowhere = joined(device([5], [5], [1]), calls([1], [1]))
    assert (nowhere.begin, nowhere.end) == (0, 0)
    assert summed(nowhere).partition is None
    assert summed(nowhere).window_ns == 0


RANGES = [traces.phase("spec.verify", 0, 50), traces.phase("spec.draft", 60, 100)]


def example() -> JoinedWindow:
    """Two replays, one of them without rows; two eager calls, one between the ranges; and a row without a call."""
    return joined(
        device(
            *([20, 25, 40, 57, 75, 95], [10, 10, 5, 2, 5, 2], [1, 1, 1, 4, 3, NO_ID]),
            look=[0, 1, 0, 0, 2, 0],
            invalid=2,
        ),
        calls([10, 62, 70, 55], [1, 2, 3, 4], [True, True, False, False]),
        RANGES,
    )


def test_a_window_is_parted_and_summed_up() -> None:
    sums = summed(example())
    assert (sums.number, sums.window_ns, sums.invalid, sums.cut) == (3, 100, 2, 0)
    assert parted(sums) == {
        "verify": {"moe": 15, "allreduce": 5, "graph_gap": 5, "launch": 10, "host": 15},
        "draft": {"memcpy": 5, "launch": 5, "host": 28},
        "between": {"host": 6},
        "outside": {"moe": 2, "launch": 2},
        "unattributed": {"moe": 2},
    }
    assert sums.partition is not None
    assert sums.partition.totals.sum() == 100
    assert sums.partition.by_range.sum(axis=1).tolist() == [50, 38]
    assert sums.partition.graph_range.tolist() == [10, 0]
    assert sums.rows.look_ns.tolist() == [[19, 10, 5], [0, 0, 0]]
    assert sums.rows.look_count.tolist() == [[4, 1, 1], [0, 0, 0]]
    by_phase = {
        phase: values
        for phase, *values in zip(
            PHASE_KEYS, *(c.tolist() for c in (sums.rows.busy, sums.rows.talking, sums.rows.count)), strict=True
        )
        if any(values)
    }
    assert by_phase == {
        "verify": [20, 10, 3],
        "draft": [5, 0, 1],
        "outside": [2, 0, 1],
        "unattributed": [2, 0, 1],
    }
    assert sums.rows.lead == -2
    assert (sums.replays.tolist(), sums.lost.tolist()) == ([1, 1], [0, 1])
    assert sums.ranges.start.tolist() == [0, 60]


@pytest.mark.parametrize("order", [1, -1])
def test_a_gap_of_two_replays_is_that_of_the_call_that_started_first(order: int) -> None:
    """The replay of verify runs from 10 to 32, that of draft from 15 to 42; the calls are listed either way."""
    window = joined(
        device([10, 15, 30, 40], [2, 2, 2, 2], [1, 2, 1, 2]),
        calls([1, 2][::order], [1, 2][::order], [True, True]),
        [traces.phase("spec.verify", 0, 2), traces.phase("spec.draft", 2, 50)],
    )
    assert window.replay_end.tolist() == [32, 42]
    assert parted(summed(window)) == {
        "verify": {"moe": 4, "graph_gap": 16, "launch": 9, "host": 1},
        "draft": {"moe": 4, "graph_gap": 8, "host": 8},
    }


def test_replays_without_a_range_are_not_those_of_the_last_one() -> None:
    window = joined(
        device([10], [1], [1]), calls([5, 70, 71], [1, 2, 3], [True, True, True]), [traces.phase("spec.verify", 0, 50)]
    )
    assert (summed(window).replays.tolist(), summed(window).lost.tolist()) == ([1], [0])


def test_a_graph_launch_that_is_written_twice_is_one_replay() -> None:
    made = calls([5, 6, 7, 8, 9, 10], [1, 1, 2, NO_ID, NO_ID, 2], [True, True, True, True, True, False])
    window = joined(device([20, 30], [1, 1], [1, 2]), made, [traces.phase("spec.verify", 0, 50)])
    assert (summed(window).replays.tolist(), summed(window).lost.tolist()) == ([4], [2])


@pytest.mark.parametrize("streams", [(7, 9), (9, 7)])
def test_rows_that_start_together_are_in_order_of_their_stream_id(streams: tuple[int, int]) -> None:
    """Two rows of one tier at once: the instant belongs to that of the lower stream id, whichever was listed first."""
    ranges = [traces.phase("spec.verify", 0, 5), traces.phase("spec.draft", 5, 50)]

    def moe(start: list[int]) -> tuple[int, int]:
        window = joined(
            device(start, [10] * len(start), [1, 2] * (len(start) // 2), stream=[0, 1] * (len(start) // 2)),
            calls([1, 6], [1, 2]),
            ranges,
            streams,
        )
        found = parted(summed(window, streams))
        return found.get("verify", {}).get("moe", 0), found.get("draft", {}).get("moe", 0)

    first, second = (10, 0) if streams == (7, 9) else (0, 10)
    assert moe([20, 20]) == (first, second)
    assert moe([20, 20, 31, 31]) == (2 * first, 2 * second)
    assert moe([20, 21]) == (10, 1)


def test_one_pair_out_of_its_streams_order_is_enough() -> None:
    """Streams 7 and 9; calls of verify and draft. Of two pairs that start together only the second lies the wrong way."""
    ranges = [traces.phase("spec.verify", 0, 5), traces.phase("spec.draft", 5, 90)]
    for start, stream, ids, want in (
        ([20, 20, 40, 40], [0, 1, 1, 0], [1, 2, 2, 1], {"verify": 20}),
        ([20, 20, 40], [1, 0, 1], [1, 2, 1], {"verify": 10, "draft": 10}),
        ([10, 40, 40], [0, 1, 0], [1, 1, 2], {"verify": 10, "draft": 10}),
    ):
        window = joined(
            device(start, [10] * len(start), ids, stream=stream), calls([1, 6], [1, 2]), ranges, streams=(7, 9)
        )
        found = {phase: buckets["moe"] for phase, buckets in parted(summed(window, (7, 9))).items() if "moe" in buckets}
        assert found == want, start


def test_ties_of_the_next_slice_are_seen() -> None:
    """The only two rows that start together are the last of a slice and the one behind it; then those behind both."""
    ranges = [traces.phase("spec.verify", 0, 5), traces.phase("spec.draft", 5, 10 * SLICE)]
    for tie in (SLICE - 1, SLICE):
        start = np.arange(SLICE + 2) * 4 + 10
        start[tie + 1] = start[tie]
        stream = np.zeros(SLICE + 2, dtype=np.int64)
        ids = np.full(SLICE + 2, NO_ID)
        stream[tie], ids[tie], ids[tie + 1] = 1, 1, 2
        window = joined(
            device(start.tolist(), [1] * (SLICE + 2), ids.tolist(), stream=stream.tolist()),
            calls([1, 6], [1, 2]),
            ranges,
            (7, 9),
        )
        found = parted(summed(window, (7, 9)))
        assert ("moe" in found.get("verify", {}), found["draft"].get("moe")) == (False, 1), tie


def test_a_window_without_rows_or_looks_is_summed_up() -> None:
    hosts = joined(device([], [], []), calls([], []), [traces.phase("spec.verify", 3, 9)])
    assert summed(hosts, ()).window_ns == 6
    assert parted(summed(hosts, ())) == {"verify": {"host": 6}}
    assert COMPILED is not None
    window = {0: (device([], [], []), calls([], []))}
    rank = CompactRank("0", 0, "made", None, None, pl.DataFrame(), [], [], [], window)
    empty = joined_window(COMPILED, rank, 0, recognised_ranges(traces.events([])), Looks([]))
    assert window_sums(empty, [], 0).rows.look_ns.tolist() == [[0], [0]]


def test_rows_of_captured_graphs_are_placed_and_have_the_buckets_of_their_modules() -> None:
    """The first replay names its nodes, in another order than they were captured in; the second is placed by order."""
    shown = {"kind": "node", "name": "kernel", "start_ns": 0, "dur_ns": 0, "node_type": "kernel", "graph_id": 4}
    modules = [("model.layers.0.self_attn.attn", "RadixAttention"), ("model", "Model")]
    maps = [shown | {"node": i, "module": path, "module_class": cls} for i, (path, cls) in enumerate(modules)]
    looks: list[tuple[str, str, str | None]] = [("plain_kernel", "kernel", None)]
    nodes = RankNodes.of(traces.events(maps), looks)
    assert COMPILED is not None
    named = {"ran": [4, 4, -1, -1, -1], "node": [1, 0, -1, -1, -1]}
    rows = device([20, 30, 40, 50, 60], [5] * 5, [1, 1, 2, 2, 3], **named)
    made = calls([1, 2, 3], [1, 2, 3], [True, True, False])
    rank = CompactRank("0", 0, "made", None, None, pl.DataFrame(), looks, [7], [(1, 1)], {0: (rows, made)})
    ranges = recognised_ranges(traces.events([traces.phase("spec.verify", 0, 100)]))
    window = joined_window(COMPILED, rank, 0, ranges, Looks(looks), nodes)
    assert window.placed is not None
    assert window.placed.node.tolist() == [1, 0, 0, 1, -1]
    assert window.by_map is not None
    assert window.by_map.tolist() == [False, True, True, False, False]
    assert [BUCKETS[code] for code in window.bucket] == [
        *("other_compute", "attention", "attention", "other_compute", "other_compute")
    ]
    assert (len(window.device.node), len(window.device.ran)) == (0, 0)
    sums = window_sums(window, [7], 1)
    assert sums.node_map == {"placed": 2, "by_id": 1, "by_stream": 0, "unsure": 0, "other_count": 0, "other_names": 0}
    assert sums.rows.look_ns.tolist() == [[15], [10]]
    assert for_talk(window).by_map is None
    assert summed(example()).node_map == {}


def test_what_waiting_needs_is_kept_of_a_summed_window() -> None:
    window, kept = example(), for_talk(example())
    assert kept.call.tolist() == window.call.tolist()
    assert kept.device.start.tolist() == window.device.start.tolist()
    assert kept.replay_end.tolist() == window.replay_end.tolist()
    assert [len(a) for a in (kept.device.stream, kept.bucket, kept.first, kept.count, kept.wait)] == [0] * 5
