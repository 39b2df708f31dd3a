"""Rows of a rank, taken apart piece by piece: what becomes of each, and which only the whole tables can judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces

from specanalyze.formats.compact_rank import Array, CompactRank, DeviceRows, OddRowsError
from specanalyze.formats.event_bounds import EARLIEST_NS, LATEST_NS, LONGEST_NS
from specanalyze.formats.frame_piece import FramePiece
from specanalyze.formats.rank_collector import Collector
from specanalyze.native import collect
from specanalyze.native.collect import NO_ID

COMPILED = collect.compiled()
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no C compiler on this machine, or switched off")
VERIFY = traces.phase("spec.verify", 0, 100)


def collector(
    *pieces: Sequence[dict[str, Any]], constant: Mapping[str, int] | None = None, nodes: bool = False
) -> Collector:
    """What has been given these rows, a piece each; columns that no row of a piece fills are not in it."""
    assert COMPILED is not None
    made = Collector(COMPILED, nodes=nodes)
    for rows in pieces:
        events = traces.events(rows)
        kept = [c for c in events.columns if events[c].null_count() < events.height and c not in (constant or {})]
        made.add(FramePiece(events.select(kept), constant or {}))
    return made


def collected(
    *pieces: Sequence[dict[str, Any]],
    base_ns: int = 0,
    constant: Mapping[str, int] | None = None,
    nodes: bool = False,
) -> CompactRank:
    return collector(*pieces, constant=constant, nodes=nodes).finished("0", 0, "made", base_ns=base_ns)


def told(device: DeviceRows) -> list[dict[str, Any]]:
    """What rows tell of collectives, without what is not known."""
    return [{k: v for k, v in row.items() if v is not None} for row in device.told.iter_rows(named=True)]


def host_rows(rank: CompactRank) -> list[tuple[Any, ...]]:
    """(kind, name, start, window) of the rows that are kept as they are."""
    return rank.events.filter(pl.col("start_ns").is_not_null()).select("kind", "name", "start_ns", "window").rows()


def kinds_seen(rank: CompactRank) -> set[tuple[str, int | None]]:
    """(kind, window) of the rows without a time."""
    return set(rank.events.filter(pl.col("start_ns").is_null()).select("kind", "window").rows())


def test_each_row_goes_where_its_kind_belongs() -> None:
    rank = collected(
        [
            VERIFY,
            traces.launch("cudaGraphLaunch", 5, 70, pid=3, tid=4),
            traces.launch("cudaLaunchKernel", 6, 69),
            {**traces.launch("cudaMemcpyAsync", 7, 0, pid=3, tid=4), "correlation": None},
            traces.kernel("a", 20, 30, 70, stream=9, device=1),
            traces.kernel("b", 10, 12, 69),
            traces.kernel("a", 40, 41, None, stream=9, device=1),
            traces.kernel("a", 40, 40, 1000),
            traces.kernel("c", 50, None, 70),
            traces.kernel("a", 60, 70, 70, kind="memset"),
            {"kind": "op", "name": "aten::mm", "pid": 1, "tid": 1, "start_ns": 3, "dur_ns": 4},
            {"kind": "mark", "name": "mark", "pid": 1, "tid": 1, "start_ns": 90, "dur_ns": None},
        ]
    )
    ((number, (device, calls)),) = rank.windows.items()
    assert number == 0
    assert rank.looks == [("a", "kernel", None), ("b", "kernel", None), ("a", "memset", None)]
    assert rank.streams == [9, 7]
    assert rank.threads == [(3, 4), (1, 1)]
    assert (device.start.tolist(), device.length.tolist()) == ([20, 10, 40, 40, 60], [10, 2, 1, 0, 10])
    assert (device.look.tolist(), device.stream.tolist()) == ([0, 1, 0, 0, 2], [0, 1, 0, 1, 1])
    assert device.id.tolist() == [0, -1, NO_ID, 930, 0]
    assert (device.invalid, len(device), device.told.height) == (1, 5, 0)
    assert (calls.start.tolist(), calls.id.tolist()) == ([5, 6, 7], [0, -1, NO_ID])
    assert (calls.thread.tolist(), calls.graph.tolist()) == ([0, 1, 0], [True, False, False])
    assert host_rows(rank) == [("phase", "spec.verify", 0, None)]
    assert kinds_seen(rank) == {(kind, None) for kind in ("launch", "kernel", "memset", "op", "mark")}
    assert (rank.key, rank.rank, rank.source, rank.host, rank.world_size) == ("0", 0, "made", None, None)


def test_pieces_follow_each_other() -> None:
    """The second piece has other names, one more stream and thread, and what it has in common keeps its number."""
    one = [VERIFY, traces.launch("cudaLaunchKernel", 1, 5), traces.kernel("a", 10, 20, 5)]
    other = [
        traces.kernel("b", 30, 40, 6),
        traces.kernel("a", 50, 60, 5, stream=8),
        traces.launch("cudaLaunchKernel", 24, 5),
        traces.launch("cudaGraphLaunch", 25, 6, tid=2),
        traces.phase("spec.draft", 70, 80),
        traces.kernel("a", 61, None, 5),
    ]
    made = collector(one, [], other)
    assert made.device_rows == 4
    rank = made.finished("3", 7, "a file", host="h", world_size=8)
    device, calls = rank.windows[0]
    assert [rank.looks[look][0] for look in device.look] == ["a", "b", "a"]
    assert device.start.tolist() == [10, 30, 50]
    assert device.stream.tolist() == [0, 0, 1]
    assert (calls.thread.tolist(), calls.graph.tolist()) == ([0, 0, 1], [False, False, True])
    assert (rank.streams, rank.threads) == ([7, 8], [(1, 1), (1, 2)])
    assert [row[1] for row in host_rows(rank)] == ["spec.verify", "spec.draft"]
    assert (rank.key, rank.rank, rank.source, rank.host, rank.world_size) == ("3", 7, "a file", "h", 8)
    assert not made.device_rows  # what was collected has been handed over


def test_windows_are_kept_apart_and_what_lies_in_none_is_left_out_beside_them() -> None:
    first = [
        traces.phase("spec.verify", 0, 9, window=2),
        traces.kernel("a", 1, 2, 1, window=2),
        traces.kernel("b", 3, 4, 1, window=0),
        traces.phase("spec.draft", 5, 6, window=0),
        traces.launch("cudaLaunchKernel", 5, 3),
        traces.launch("cudaLaunchKernel", 6, 1, window=0),
        traces.kernel("a", 7, 8, 1, window=2),
        {"kind": "op", "name": "aten::mm", "pid": 1, "tid": 1, "start_ns": 3, "dur_ns": 4},
    ]
    second = [traces.kernel("d", 9, 10, 1, window=2), traces.phase("spec.idle", 30, 31, window=2)]
    third = [traces.launch("cudaLaunchKernel", 11, 4), traces.phase("spec.decode", 40, 41)]
    rank = collected(first, second, third)
    names = {n: [rank.looks[look][0] for look in device.look] for n, (device, _) in rank.windows.items()}
    assert names == {0: ["b"], 2: ["a", "a", "d"]}
    assert list(names) == [0, 2]
    assert [calls.start.tolist() for _, calls in rank.windows.values()] == [[6], []]
    assert host_rows(rank) == [
        ("phase", "spec.verify", 0, 2),
        ("phase", "spec.draft", 5, 0),
        ("phase", "spec.idle", 30, 2),
        ("phase", "spec.decode", 40, None),
    ]
    assert kinds_seen(rank) == {("kernel", 2), ("kernel", 0), ("launch", None), ("launch", 0), ("op", None)}


@pytest.mark.parametrize("dur_ns", [1, None])
def test_device_work_in_no_window_of_a_rank_that_has_some_is_odd(dur_ns: int | None) -> None:
    """Left out, it would be time of which nobody knows what ran."""
    nowhere = traces.kernel("c", 5, 6, 1) | {"dur_ns": dur_ns}
    assert collected([nowhere], [nowhere]).windows.keys() == {0}
    with pytest.raises(OddRowsError):
        collected([traces.kernel("b", 3, 4, 1, window=0)], [nowhere])


def test_a_kind_that_nobody_knows_is_odd() -> None:
    with pytest.raises(OddRowsError):
        collected([traces.kernel("b", 3, 4, 1), traces.kernel("b", 5, 6, 1) | {"kind": "kernelx"}])


def test_a_kind_is_remembered_for_each_window() -> None:
    """All that the first window has is known from the piece before; what the second one has is not."""
    known = [traces.kernel("a", 1, 2, 1, window=0), traces.kernel("a", 1, 2, 1, window=0)]
    rank = collected(known, [*known, traces.kernel("a", 3, 4, 1, window=1)])
    assert kinds_seen(rank) == {("kernel", 0), ("kernel", 1)}
    rank = collected(known, [known[0], traces.launch("b", 5, 1, window=0), traces.phase("spec.verify", 0, 9, window=0)])
    assert kinds_seen(rank) == {("kernel", 0), ("launch", 0)}


def test_host_rows_of_two_windows_stay_in_the_order_of_the_file() -> None:
    rows = [
        traces.phase("spec.verify", 0, 9, window=1),
        traces.phase("spec.draft", 9, 10, window=0),
        traces.phase("spec.idle", 10, 11, window=1),
    ]
    assert [name for _, name, _, _ in host_rows(collected(rows))] == ["spec.verify", "spec.draft", "spec.idle"]


def test_a_piece_may_have_one_window_process_or_device_for_all_rows() -> None:
    rows = [
        traces.launch("cudaLaunchKernel", 1, 1),
        traces.kernel("a", 10, 20, 1),
        traces.kernel("a", 30, 40, 1, stream=7),
        traces.phase("spec.verify", 0, 100),
    ]
    rank = collected(rows, constant={"window": 4, "pid": 12, "device": 3})
    assert list(rank.windows) == [4]
    assert (rank.threads, rank.streams) == ([(12, 1)], [7])
    assert host_rows(rank) == [("phase", "spec.verify", 0, 4)]
    assert rank.events.filter(pl.col("start_ns").is_not_null())["pid"].to_list() == [12]
    # two devices are two streams of one number
    assert collected(rows, constant={"device": 3}).streams == [7]
    assert collected(rows, [traces.kernel("a", 50, 60, 1, device=1)]).streams == [7, 7]


def test_a_thread_stream_or_device_that_is_not_told() -> None:
    rank = collected(
        [
            {**traces.launch("cudaLaunchKernel", 1, 1), "pid": None},
            {**traces.launch("cudaLaunchKernel", 2, 2), "tid": None},
            traces.launch("cudaLaunchKernel", 2, 2, pid=0, tid=1),
            {**traces.kernel("a", 10, 20, 1), "stream": None},
            {**traces.kernel("a", 10, 20, 1), "device": None},
            traces.kernel("a", 10, 20, 1),
        ]
    )
    (device, calls) = rank.windows[0]
    assert (rank.threads, calls.thread.tolist()) == ([(0, 1), (1, 0)], [0, 1, 0])
    assert (rank.streams, device.stream.tolist()) == ([-1, 7], [0, 1, 1])
    bare = collected([{k: v for k, v in traces.kernel("a", 1, 2, 1).items() if k not in ("stream", "device", "pid")}])
    assert bare.streams == [-1]


def test_what_rows_tell_of_collectives_keeps_to_its_row() -> None:
    facts: dict[str, Any] = {"op": "allreduce", "elements": 512, "group_ranks": [0, 1], "seq": 3}
    first = [
        VERIFY,
        traces.kernel("a", 1, 2, 1),
        traces.kernel("b", 3, None, 1, op="lost with its row"),
        traces.kernel("b", 3, 4, 1, **facts),
        traces.kernel("a", 5, 6, 1, dtype="bf16"),
    ]
    second = [traces.kernel("a", 7, 8, 1), traces.kernel("b", 9, 10, 1, op="broadcast")]
    rank = collected(first, [traces.kernel("a", 6, 7, 1)], second)
    device, _ = rank.windows[0]
    assert told(device) == [{"row": 1, **facts}, {"row": 2, "dtype": "bf16"}, {"row": 5, "op": "broadcast"}]
    assert device.told.schema["row"] == pl.Int64
    assert [rank.looks[look] for look in device.look] == [
        ("a", "kernel", None),
        ("b", "kernel", "allreduce"),
        *[("a", "kernel", None)] * 3,
        ("b", "kernel", "broadcast"),
    ]


def test_what_rows_tell_is_counted_by_window() -> None:
    rows = [
        traces.kernel("a", 1, 2, 1, window=1),
        traces.kernel("a", 3, 4, 1, window=0, seq=5),
        traces.kernel("a", 5, 6, 1, window=1, seq=6),
    ]
    rank = collected(rows, rows)
    assert {n: told(device) for n, (device, _) in rank.windows.items()} == {
        0: [{"row": 0, "seq": 5}, {"row": 1, "seq": 5}],
        1: [{"row": 1, "seq": 6}, {"row": 3, "seq": 6}],
    }


def test_a_base_is_added_to_every_time() -> None:
    rank = collected([VERIFY, traces.launch("cudaLaunchKernel", 5, 1), traces.kernel("a", 7, 9, 1)], base_ns=1000)
    (device, calls) = rank.windows[0]
    assert (device.start.tolist(), device.length.tolist(), calls.start.tolist()) == ([1007], [2], [1005])
    assert host_rows(rank) == [("phase", "spec.verify", 1000, None)]
    # without host rows, too
    assert collected([traces.kernel("a", 7, 9, 1)], base_ns=1000).windows[0][0].start.tolist() == [1007]


@pytest.mark.parametrize(
    ("start", "base", "sound"),
    [
        (7, LATEST_NS - 7, True),
        (8, LATEST_NS - 7, False),
        (-7, EARLIEST_NS + 7, True),
        (-8, EARLIEST_NS + 7, False),
        (LATEST_NS, 0, True),
        (LATEST_NS + 1, 0, False),
    ],
)
def test_times_that_no_clock_gives_are_odd(start: int, base: int, sound: bool) -> None:
    rows = [traces.kernel("a", start, start, 1)]
    if sound:
        assert collected(rows, base_ns=base).windows[0][0].start.tolist() == [start + base]
    else:
        with pytest.raises(OddRowsError):
            collected(rows, base_ns=base)


@pytest.mark.parametrize(
    "row",
    [
        traces.kernel("a", 1, 0, 1),
        traces.kernel("a", 1, LONGEST_NS + 2, 1),
        {**traces.kernel("a", 1, 2, 1), "start_ns": None},
        traces.kernel("\x1b[31m", 1, 2, 1),
        traces.kernel("a", 1, 2, 1, op="\u202e"),
        traces.launch("\x07", 1, 1),
        traces.phase("\x07", 1, 2),
        traces.kernel("a", 1, 2, 1, device=2**40),
    ],
    ids=["negative", "long", "timeless", "escape", "direction", "bell", "host bell", "device"],
)
def test_rows_that_only_the_whole_tables_can_judge_are_odd(row: dict[str, Any]) -> None:
    fine = [VERIFY, traces.launch("cudaLaunchKernel", 5, 1), traces.kernel("a", 7, 9, 1)]
    assert len(collected(fine).windows[0][0]) == 1
    with pytest.raises(OddRowsError):
        collected([*fine, row])
    with pytest.raises(OddRowsError):
        collected(fine, [row])


def test_the_longest_duration_is_sound() -> None:
    assert collected([traces.kernel("a", 1, LONGEST_NS + 1, 1)]).windows[0][0].length.tolist() == [LONGEST_NS]


def test_rows_without_a_start_column_are_odd() -> None:
    assert COMPILED is not None
    events = traces.events([VERIFY])
    with pytest.raises(OddRowsError):
        Collector(COMPILED).add(FramePiece(events.drop("start_ns"), {}))


def test_a_number_that_its_column_cannot_hold_is_odd() -> None:
    assert COMPILED is not None
    made = Collector(COMPILED)
    rows = traces.events([VERIFY, traces.kernel("a", 1, 2, 1)])
    made.add(FramePiece(rows.with_columns(rank=pl.lit(2**40)), {}))
    with pytest.raises(OddRowsError):
        made.finished("0", 0, "made")


def test_a_host_row_without_a_name_has_an_empty_one() -> None:
    rows = [VERIFY, {**traces.phase("x", 5, 6), "name": None}, traces.kernel("a", 1, 2, 1), traces.launch("b", 1, 1)]
    rank = collected(rows)
    assert [name for _, name, _, _ in host_rows(rank)] == ["spec.verify", ""]
    assert rank.events.filter(pl.col("start_ns").is_null())["name"].to_list() == [None, None]
    call = {**traces.launch("cudaGraphLaunch", 1, 1), "name": None}
    assert collected([call, traces.launch("cudaGraphLaunch", 1, 1)]).windows[0][1].graph.tolist() == [False, True]
    nameless = collected([{**traces.kernel("a", 1, 2, 1), "name": None}, VERIFY])
    assert nameless.looks == [("", "kernel", None)]


def test_rows_of_the_host_alone_make_an_empty_window() -> None:
    made = collector([VERIFY])
    assert made.device_rows == 0
    rank = made.finished("0", 0, "made")
    ((number, (device, calls)),) = rank.windows.items()
    assert (number, len(device), len(calls), device.invalid) == (0, 0, 0, 0)
    nothing = collector([]).finished("0", 0, "made")
    assert list(nothing.windows) == [0]
    assert nothing.events.height == 0


@pytest.mark.parametrize("many", ["stream", "tid"])
def test_512_streams_and_threads_are_looked_up_and_no_more(many: str) -> None:
    rows = [
        traces.kernel("a", n, n + 1, 1, stream=n) if many == "stream" else traces.launch("b", n, 1, tid=n)
        for n in range(513)
    ]
    rank = collected(rows[:512])
    assert (len(rank.streams), len(rank.threads)) == ((512, 0) if many == "stream" else (0, 512))
    with pytest.raises(OddRowsError):
        collected(rows)


def test_16_bits_of_looks_are_numbered_and_no_more() -> None:
    rows = [traces.kernel(f"kernel {n}", n, n + 1, 1) for n in range(1 << 16)]
    made = collector(rows)
    more = traces.events([traces.kernel("one more", 0, 1, 1)])
    with pytest.raises(OddRowsError):
        made.add(FramePiece(more, {}))
    assert collector(rows).finished("0", 0, "made").windows[0][0].look.tolist() == list(range(1 << 16))


NODE = {
    "kind": "node",
    "name": "kernel",
    "pid": 1,
    "start_ns": 0,
    "dur_ns": 0,
    "node_type": "kernel",
    "graph_id": 4,
    "node": 2,
}


def test_nodes_of_captured_graphs_are_odd_unless_the_pieces_have_all_of_them() -> None:
    assert COMPILED is not None
    with pytest.raises(OddRowsError):
        Collector(COMPILED).add(FramePiece(traces.events([NODE]), {}))
    fine = [VERIFY, traces.kernel("a", 7, 9, 1)]
    for pieces in ([[NODE]], [[*fine, NODE]], [[NODE, *fine]], [fine, [NODE]]):
        with pytest.raises(OddRowsError):
            collected(*pieces)
        assert host_rows(collected(*pieces, nodes=True))[-1][:2] in (("node", "kernel"), ("phase", "spec.verify"))
    rank = collected([*fine, NODE], nodes=True)
    assert host_rows(rank) == [("phase", "spec.verify", 0, None), ("node", "kernel", 0, None)]
    assert rank.events.filter(pl.col("kind") == "node").select("graph_id", "node").rows() == [(4, 2)]


def test_rows_name_their_nodes_where_there_are_captured_graphs() -> None:
    first = [traces.kernel("a", 1, 2, 1), traces.kernel("a", 3, 4, 1, graph_id=4)]
    second = [traces.kernel("a", 5, 6, 1, graph_id=4, node=2), traces.kernel("a", 7, None, 1, node=9)]
    third = [traces.kernel("a", 9, 10, 1)]
    device, _ = collected(first, second, third, nodes=True).windows[0]
    assert (device.ran.tolist(), device.node.tolist()) == ([-1, 4, 4, -1], [-1, -1, 2, -1])
    device, _ = collected(first, second, third).windows[0]
    assert (len(device.ran), len(device.node)) == (0, 0)
    with pytest.raises(OddRowsError):
        collected([traces.kernel("a", 1, 2, 1, graph_id=2**31)], nodes=True)


def test_device_rows_name_no_nodes_unless_told() -> None:
    none = np.empty(0, dtype=np.int64)
    rows = DeviceRows(none, none, none, none, none, pl.DataFrame(), 0)
    assert (len(rows.ran), len(rows.node)) == (0, 0)


class OwnTexts(FramePiece):
    """Rows whose text columns are codes into lists that several pieces share, as those of a file's dictionary."""

    def __init__(self, rows: pl.DataFrame, texts: Mapping[str, list[str]]) -> None:
        super().__init__(rows, {})
        self._texts = texts

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        if name not in self._texts:
            return np.full(len(self), -1, dtype=np.int32), self._texts.setdefault(name, [])  # type: ignore[attr-defined]
        values = self._rows[name].cast(pl.String).to_list()
        return np.array([-1 if v is None else self._texts[name].index(v) for v in values], np.int32), self._texts[name]


def test_a_kind_that_no_row_has_is_not_odd() -> None:
    """A file's dictionary of kinds may hold ``node`` where this rank has none."""
    assert COMPILED is not None
    made = Collector(COMPILED)
    made.add(OwnTexts(traces.events([traces.kernel("a", 1, 2, 1)]), {"kind": ["node", "kernel"], "name": ["a"]}))
    assert len(made.finished("0", 0, "made").windows[0][0]) == 1


@pytest.mark.parametrize("changing", ["kind", "name", "op"])
def test_pieces_may_share_their_texts_or_have_others(changing: str) -> None:
    """The lists of the third piece are those of the ones before it but for one, in another order."""
    assert COMPILED is not None
    rows = [
        traces.kernel("a", 1, 2, 1, op="x"),
        traces.launch("cudaGraphLaunch", 3, 1),
        traces.kernel("b", 5, 6, 1, op="y"),
        traces.kernel("b", 7, 8, 1, kind="memset"),
        traces.launch("b", 9, 1),
    ]
    shared = {"kind": ["kernel", "launch", "memset"], "name": ["a", "b", "cudaGraphLaunch"], "op": ["x", "y"]}
    turned = shared | {changing: shared[changing][::-1]}
    events = traces.events(rows)
    made = Collector(COMPILED)
    for texts in (shared, shared, turned):
        made.add(OwnTexts(events, texts))
    rank = made.finished("0", 0, "made")
    device, calls = rank.windows[0]
    assert rank.looks == [("a", "kernel", "x"), ("b", "kernel", "y"), ("b", "memset", None)]
    assert device.look.tolist() == [0, 1, 2] * 3
    assert (
        calls.start.tolist() == [3] * 3 + [9] * 3
    )  # calls that have one id: by start, so that the outer one comes first
    assert calls.graph.tolist() == [True] * 3 + [False] * 3
