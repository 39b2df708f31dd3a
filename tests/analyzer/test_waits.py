"""The table of matched collectives: by what they were matched, and the numbers of their match, the first one included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import traces

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.collective_match import match
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.wait_table import by_replay, last_to_arrive, wait_json
from specanalyze.attribution.waits import Communication, Waits, joined_waits, rank_communication
from specanalyze.formats.load import open_trace

CASES = Path(__file__).resolve().parents[1] / "cases"


def collectives(folder: Path) -> pl.DataFrame:
    waits = break_down(open_trace([folder])).waits
    assert waits is not None
    return waits.collectives


def test_sequence_numbers_may_begin_at_0(tmp_path: Path) -> None:
    """Case 08 counted from 0 instead of 10: the fourth rank's window starts late, so it lacks the first collective."""

    def renumbered(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v - 10 if k == "Seq" else renumbered(v) for k, v in value.items()}
        return [renumbered(v) for v in value] if isinstance(value, list) else value

    for path in (CASES / "08-seq-numbers-when-a-rank-starts-late").glob("*.pt.trace.json"):
        (tmp_path / path.name).write_text(json.dumps(renumbered(json.loads(path.read_bytes()))))
    table = collectives(tmp_path)
    assert table["matched_by"].unique().to_list() == ["seq"]
    assert table["seq"].to_list() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert table["wait_ns"].to_list() == [38000, 18000, 0, 52000, 50000, 0, 21000, 11000, 36000, 35000, 0]
    assert table.select("replay", "position").null_count().row(0) == (11, 11)


def test_replays_and_their_kernels_are_counted_from_0() -> None:
    table = collectives(CASES / "07-cross-rank-wait-custom-allreduce")
    assert table.select("matched_by", "seq", "replay", "position", "rank").rows() == [
        ("replay", None, 0, position, rank) for position in (0, 1, 2) for rank in ("0", "1")
    ]


ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"


def two_windows(late: int = 0, **facts: Any) -> list[dict[str, Any]]:
    """A rank that comes to each collective so many ns late; its collectives end when the others' do."""

    def talk(start: int, end: int, correlation: int, window: int) -> dict[str, Any]:
        return traces.kernel(ALLREDUCE, start + late, end, correlation, window=window, **facts)

    def graph(start: int, correlation: int, window: int) -> dict[str, Any]:
        return traces.launch("cudaGraphLaunch", start, correlation, window=window)

    return [
        traces.phase("spec.verify", 0, 100, window=0),
        graph(5, 1, 0),
        talk(10, 30, 1, 0),
        traces.kernel(GEMM, 30, 35, 1, window=0),
        talk(40, 60, 1, 0),
        graph(50, 2, 0),
        talk(70, 95, 2, 0),
        traces.phase("spec.draft", 110, 200, window=0),
        traces.launch("cudaLaunchKernel", 120, 3, window=0),
        talk(125, 150, 3, 0),
        graph(160, 4, 0),
        talk(165, 190, 4, 0),
        traces.phase("spec.verify", 1000, 1100, window=1),
        graph(1005, 11, 1),
        talk(1010, 1040, 11, 1),
        graph(1050, 12, 1),  # without records
        graph(1060, 13, 1),
        talk(1070, 1085, 13, 1),
    ]


def talk_of(rank: int, rows: list[dict[str, Any]], **more: Any) -> Communication:
    return rank_communication(analyse_rank(traces.rank_trace(rows, rank=rank, **more)))


VERIFY, DRAFT = PHASE_CODE["verify"], PHASE_CODE["draft"]


def test_replays_are_numbered_through_all_windows() -> None:
    found = talk_of(0, two_windows())
    assert found.kernels.select("window", "phase", "replay", "position", "start_ns", "end_ns").rows() == [
        (0, VERIFY, 0, 0, 10, 30),
        (0, VERIFY, 0, 1, 40, 60),
        (0, VERIFY, 1, 0, 70, 95),
        (0, DRAFT, -1, -1, 125, 150),
        (0, DRAFT, 0, 0, 165, 190),
        (1, VERIFY, 2, 0, 1010, 1040),
        (1, VERIFY, 4, 0, 1070, 1085),
    ]
    assert {code: sizes.tolist() for code, sizes in found.replays.items() if len(sizes)} == {
        VERIFY: [2, 1, 1, 0, 1],
        DRAFT: [1],
    }


def of_one_replay(name: str, window: int) -> Waits:
    rows = [
        traces.phase("spec.decode", 0, 100, window=window),
        traces.launch("cudaGraphLaunch", 5, 1, window=window),
        traces.kernel(name, 10, 30, 1, window=window),
    ]
    waits = match([talk_of(0, rows), talk_of(1, rows)])
    assert waits is not None
    return waits


def test_windows_that_were_matched_apart_keep_what_their_kernels_are() -> None:
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    both = joined_waits([of_one_replay(ALLREDUCE, 0), of_one_replay(gather, 1)], {"0": 3, "1": 4})
    assert both.table("window", "collective", "rank", "op", "name").rows() == [
        (0, 0, "0", "allreduce", ALLREDUCE),
        (0, 0, "1", "allreduce", ALLREDUCE),
        (1, 0, "0", "allgather", gather),
        (1, 0, "1", "allgather", gather),
    ]
    assert both.unmatched == {"0": 3, "1": 4}
    assert both.table("rank", of=both.of_rank("1") & both.in_phase("decode")).height == 2
    renamed = replace(both, phases=tuple("verify" if p == "decode" else p for p in both.phases))
    assert renamed.table("phase").to_series().unique().to_list() == ["verify"]
    assert renamed.table("phase", of=renamed.in_phase("verify")).height == 4
    assert renamed.table("phase", of=renamed.in_phase("decode")).height == 0


def test_waiting_is_what_a_rank_takes_longer_than_the_last_to_come() -> None:
    waits = match([talk_of(0, two_windows()), talk_of(1, two_windows(late=8))])
    assert waits is not None
    assert (waits.unmatched, waits.voided, waits.missing, waits.reasons) == ({"0": 1, "1": 1}, 0, [], [])
    columns = ("collective", "window", "phase", "replay", "position", "rank", "dur_ns", "wait_ns", "transfer_ns")
    assert waits.collectives.select(columns).rows() == [
        row
        for number, (window, phase, replay, position, dur) in enumerate(
            [
                (0, "verify", 0, 0, 20),
                (0, "verify", 0, 1, 20),
                (0, "verify", 1, 0, 25),
                (0, "draft", 0, 0, 25),
                (1, "verify", 2, 0, 30),
                (1, "verify", 4, 0, 15),
            ]
        )
        for row in (
            (number, window, phase, replay, position, "0", dur, 8, dur - 8),
            (number, window, phase, replay, position, "1", dur - 8, 0, dur - 8),
        )
    ]
    assert by_replay(waits, "0", "verify").rows() == [(0, 16, 24), (1, 8, 17), (2, 8, 22), (4, 8, 7)]
    assert last_to_arrive(waits.collectives) == ["1"] * 6


def test_a_match_is_void_where_ends_lie_further_apart_than_the_transfer() -> None:
    """Ends 12 apart after a transfer of 12 still agree; 13 apart they don't, and nothing is said of waiting."""

    def one(end: int, start: int = 0, **more: Any) -> list[dict[str, Any]]:
        facts = {"seq": 0, "group": "tp", "group_ranks": [0, 1], **more}
        return [
            traces.phase("spec.verify", 0, 100),
            traces.launch("cudaLaunchKernel", 1, 1),
            traces.kernel(ALLREDUCE, start, end, 1, **facts),
        ]

    for end, voided in ((52, False), (53, True)):
        waits = match([talk_of(0, one(40, 28)), talk_of(1, one(end, 20))])
        assert waits is not None
        assert waits.voided == int(voided)
        told = [(None, None)] * 2 if voided else [(0, 12), (20, 12)]
        assert waits.collectives.select("wait_ns", "transfer_ns").rows() == told
        assert last_to_arrive(waits.collectives) == [None if voided else "0"]
        table = by_replay(waits, "1", "verify").rows()
        assert table == ([] if voided else [(None, 20, 12)])
    apart = match([talk_of(0, one(40, 28), host="a"), talk_of(1, one(1053, 1020), host="b")])
    assert apart is not None
    assert (apart.voided, apart.offsets, apart.offset_spread) == (0, {"0": 0, "1": 1013}, {"0": 0, "1": 0})


def test_replays_that_differ_are_not_matched() -> None:
    whole = two_windows()
    fewer_calls = [row for row in whole if row.get("correlation") not in (12,)]
    waits = match([talk_of(0, whole), talk_of(1, fewer_calls)])
    assert waits is not None
    assert waits.reasons == ["replays of verify differ in number (rank 0: 5, rank 1: 4): none of them is matched"]
    assert waits.collectives["phase"].unique().to_list() == ["draft"]
    lost = [row for row in whole if row["start_ns"] != 40]  # one kernel of the first replay
    waits = match([talk_of(0, whole), talk_of(1, lost)])
    assert waits is not None
    assert waits.reasons == ["1 of 5 replays of verify differ in their communication kernels: not matched"]
    assert waits.collectives.filter(pl.col("phase") == "verify")["replay"].unique().sort().to_list() == [1, 2, 4]
    assert waits.unmatched == {"0": 3, "1": 2}


def test_ranks_without_collectives_have_none_matched() -> None:
    rows = [row for row in two_windows() if row["kind"] != "kernel" or row["name"] == GEMM]
    waits = match([talk_of(0, rows), talk_of(1, rows)])
    assert waits is not None
    assert waits.rows.height == 0
    some = match([talk_of(0, two_windows()), talk_of(1, two_windows())])
    assert some is not None
    assert waits.rows.schema == some.rows.schema
    assert (waits.voided, waits.missing, waits.reasons, waits.unmatched) == (0, [], [], {"0": 0, "1": 0})


def test_one_rank_knows_nothing_of_waiting() -> None:
    assert match([talk_of(0, two_windows())]) is None
    assert wait_json(None) is None
    assert by_replay(None, "0", "verify").height == 0


def test_replays_are_matched_where_each_window_has_as_many_on_all_ranks() -> None:
    """Three on both ranks, but two and one against one and two: no order says which is which."""
    rows = two_windows()
    moved = [{**row, "window": 1} if row.get("correlation") == 2 else row for row in rows]
    moved = [{**row, "start_ns": row["start_ns"] + 1000} if row.get("correlation") == 2 else row for row in moved]
    waits = match([talk_of(0, rows), talk_of(1, moved)])
    assert waits is not None
    assert waits.reasons == [
        "replays of verify differ in number in window 0 (rank 0: 2, rank 1: 1): none of them is matched"
    ]
    assert waits.collectives.select("phase", "rank").rows() == [("draft", "0"), ("draft", "1")]
    assert waits.unmatched == {"0": 6, "1": 6}
    absent = match([talk_of(0, rows), talk_of(1, [row for row in rows if row.get("window") == 0])])
    assert absent is not None
    assert absent.reasons == ["replays of verify differ in number (rank 0: 5, rank 1: 2): none of them is matched"]


def test_places_in_a_replay_follow_the_starts() -> None:
    """The first of two collectives on two streams ends last; what no row tells is -1."""
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaGraphLaunch", 5, 1),
        traces.kernel(ALLREDUCE, 20, 30, 1),
        traces.kernel(ALLREDUCE, 10, 60, 1, stream=13),
    ]
    found = talk_of(0, rows)
    assert found.kernels.select("start_ns", "position", "seq").rows() == [(20, 1, -1), (10, 0, -1)]


Collective = tuple[int, int, str | None, list[int] | None, int]
"""Start, end, group, its ranks, sequence number."""


def eager(*collectives: Collective) -> list[dict[str, Any]]:
    """Verify with collectives that one call launches."""
    rows = [traces.phase("spec.verify", 0, 100_000), traces.launch("cudaLaunchKernel", 1, 1)]
    return rows + [
        traces.kernel(ALLREDUCE, start, end, 1, group=group, group_ranks=ranks, seq=seq, stream=7 + number)
        for number, (start, end, group, ranks, seq) in enumerate(collectives)
    ]


def found_by_seq(*ranks: Sequence[Collective]) -> tuple[list[Any], list[Any], dict[str, int]]:
    """(group, seq, rank, wait, group_size, complete) of each match, who is missing, and kernels left unmatched."""
    waits = match([talk_of(number, eager(*rows)) for number, rows in enumerate(ranks)])
    assert waits is not None
    assert waits.collectives["matched_by"].unique().to_list() in ([], ["seq"])
    columns = ("group", "seq", "rank", "wait_ns", "group_size", "complete")
    return waits.collectives.select(columns).rows(), waits.missing, waits.unmatched


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    left, right = ("tp", [0, 1], 0), ("tp", [2, 3], 0)
    found = found_by_seq([(10, 50, *left)], [(20, 50, *left)], [(30, 60, *right)], [(35, 60, *right)])
    assert found == (
        [
            ("tp", 0, "0", 10, 2, True),
            ("tp", 0, "1", 0, 2, True),
            ("tp", 0, "2", 5, 2, True),
            ("tp", 0, "3", 0, 2, True),
        ],
        [],
        {"0": 0, "1": 0, "2": 0, "3": 0},
    )


def test_a_group_lacks_the_ranks_that_did_not_record() -> None:
    """Rank 9 is of the group and not of the recording; rank 2 stands outside and is not missed."""
    group = ("ep", [0, 1, 9], 4)
    found = found_by_seq([(10, 50, *group)], [(20, 50, *group)], [])
    assert found == (
        [("ep", 4, "0", 10, 3, False), ("ep", 4, "1", 0, 3, False)],
        [("ep", 4, 9)],
        {"0": 0, "1": 0, "2": 0},
    )


def test_a_group_known_by_name_only_holds_all_ranks() -> None:
    """Ten collectives without rank 1, one with all; a group without even a name is called by none."""
    some = [(100 * seq, 100 * seq + 50, "dp", None, seq) for seq in range(10)]
    whole = (2000, 2050, "dp", None, 10)
    found = found_by_seq([*some, whole], [whole], [*some, whole])
    assert found == (
        [
            *(("dp", seq, rank, 0, 2, False) for seq in range(10) for rank in ("0", "2")),
            *(("dp", 10, rank, 0, 3, True) for rank in ("0", "1", "2")),
        ],
        [("dp", seq, 1) for seq in range(10)],
        {"0": 0, "1": 0, "2": 0},
    )
    nameless = (10, 50, None, None, 3)
    assert found_by_seq([nameless], [nameless], [])[1] == [("", 3, 2)]


def test_a_group_whose_ranks_only_some_kernels_tell_is_one_group() -> None:
    """Rank 0 tells them once, rank 1 never; rank 2 is not of the group and not missed."""
    told, silent = ("tp", [0, 1], 0), ("tp", None)
    found = found_by_seq(
        [(10, 50, *told), (100, 150, *silent, 1), (200, 250, *silent, 2)],
        [(20, 50, *silent, 0), (105, 150, *silent, 1), (220, 250, *silent, 2)],
        [(700, 750, "dp", [2], 0)],
    )
    assert found == (
        [
            *(("tp", 0, "0", 10, 2, True), ("tp", 0, "1", 0, 2, True)),
            *(("tp", 1, "0", 5, 2, True), ("tp", 1, "1", 0, 2, True)),
            *(("tp", 2, "0", 20, 2, True), ("tp", 2, "1", 0, 2, True)),
        ],
        [],
        {"0": 0, "1": 0, "2": 1},
    )


def test_a_rank_that_is_not_of_the_group_that_others_tell_is_of_another_one_of_that_name() -> None:
    told, silent = ("tp", [0, 1], 0), ("tp", None, 0)
    found = found_by_seq([(10, 50, *told)], [(20, 50, *silent)], [(30, 60, *silent)], [(35, 60, *silent)])
    assert [(row[2], row[3], row[4]) for row in found[0]] == [("0", 10, 2), ("1", 0, 2), ("2", 5, 2), ("3", 0, 2)]
    assert found[2] == dict.fromkeys("0123", 0)


def test_a_name_that_is_told_of_two_groups_says_of_none_which_it_is() -> None:
    left, right, silent = ("tp", [0, 1], 0), ("tp", [2, 3], 0), ("tp", None, 0)
    found = found_by_seq([(10, 50, *left)], [(20, 50, *left)], [(30, 60, *right)], [(35, 60, *silent)])
    assert [row[2] for row in found[0]] == ["0", "1"]
    assert found[2] == {"0": 0, "1": 0, "2": 1, "3": 1}
    # A group of another name, or without one, is no other membership.
    pair = ("ep", [2, 3], 5)
    found = found_by_seq(
        [(10, 50, *left), (100, 150, None, [0, 9], 3)],
        [(20, 50, *silent)],
        [(30, 60, *pair)],
        [(35, 60, "ep", None, 5)],
    )
    assert [row[:3] for row in found[0]] == [("tp", 0, "0"), ("tp", 0, "1"), ("ep", 5, "2"), ("ep", 5, "3")]
    assert [row[4:] for row in found[0]] == [(2, True)] * 4
    assert found[2]["0"] == 1


def test_the_last_number_that_a_rank_tells_twice_is_not_matched() -> None:
    good, twice = ("tp", [0, 1], 1), ("tp", [0, 1], 9)
    ranks = [(10, 50, *good), (100, 150, *twice), (200, 250, *twice)]
    found = found_by_seq(ranks, ranks)
    assert [row[1] for row in found[0]] == [1, 1]
    assert found[2] == {"0": 2, "1": 2}


def test_a_transfer_of_no_time_is_one_where_the_ends_agree() -> None:
    def voided(end: int) -> list[bool]:
        waits = match([talk_of(0, eager((50, 50, "tp", [0, 1], 0))), talk_of(1, eager((40, end, "tp", [0, 1], 0)))])
        assert waits is not None
        return waits.collectives["voided"].to_list()

    assert voided(50) == [False, False]
    assert voided(51) == [True, True]


def test_what_one_rank_alone_tells_or_tells_twice_is_not_matched() -> None:
    twice, alone = ("tp", [0, 1], 1), ("tp", [0, 1], 2)
    good = (500, 550, "tp", [0, 1], 3)
    found = found_by_seq(
        [(10, 50, *twice), (100, 150, *twice), (200, 250, *alone), good],
        [(10, 50, *twice), good],
        [],
    )
    assert found == ([("tp", 3, "0", 0, 2, True), ("tp", 3, "1", 0, 2, True)], [], {"0": 3, "1": 1, "2": 0})


def test_kernels_of_a_replay_are_matched_by_their_place_whatever_number_they_tell() -> None:
    rows = [
        {**row, "seq": row["start_ns"], "group": "tp", "group_ranks": [0, 1]} if row["kind"] == "kernel" else row
        for row in two_windows()
    ]
    rows = [row for row in rows if row.get("correlation") != 3]
    waits = match([talk_of(0, rows), talk_of(1, rows)])
    assert waits is not None
    assert waits.collectives["matched_by"].unique().to_list() == ["replay"]
    assert waits.collectives.height == 12
    assert waits.unmatched == {"0": 0, "1": 0}


def replay_of(*kernels: tuple[str, list[int] | None], begin: int = 0, correlation: int = 1) -> list[dict[str, Any]]:
    """A graph launch inside verify and its collectives, each of 10 ns and of a group."""
    rows = [traces.launch("cudaGraphLaunch", begin + 1, correlation)]
    return rows + [
        traces.kernel(
            *(ALLREDUCE, begin + 20 * n + 10, begin + 20 * n + 20, correlation), group=group, group_ranks=ranks
        )
        for n, (group, ranks) in enumerate(kernels)
    ]


def grouped(*replays: list[tuple[str, list[int] | None]]) -> list[dict[str, Any]]:
    rows = [traces.phase("spec.verify", 0, 10_000)]
    for number, kernels in enumerate(replays):
        rows += replay_of(*kernels, begin=1000 * number, correlation=number + 1)
    return rows


def found_by_replay(*ranks: list[dict[str, Any]]) -> tuple[list[Any], list[str], dict[str, int]]:
    """(group, replay, position, rank, group_size, complete) of each match, reasons, and kernels left unmatched."""
    waits = match([talk_of(number, rows) for number, rows in enumerate(ranks)])
    assert waits is not None
    columns = ("group", "replay", "position", "rank", "group_size", "complete")
    return waits.collectives.select(columns).rows(), waits.reasons, waits.unmatched


def test_each_group_is_matched_among_its_own_ranks() -> None:
    """Rank 2 is alone in its group, the fourth of a group is not in the recording, and ranks 1 and 2 share none."""
    solo, pair, far = ("solo", [2]), ("tp", [0, 1]), ("ep", [0, 2, 8])
    found = found_by_replay(
        grouped([pair, far, pair], [pair]),
        grouped([pair, pair], [pair]),
        grouped([solo, far, solo], [solo]),
    )
    assert found == (
        [
            ("tp", 0, 0, "0", 2, True),
            ("tp", 0, 0, "1", 2, True),
            ("ep", 0, 0, "0", 3, False),
            ("ep", 0, 0, "2", 3, False),
            ("tp", 0, 1, "0", 2, True),
            ("tp", 0, 1, "1", 2, True),
            ("tp", 1, 0, "0", 2, True),
            ("tp", 1, 0, "1", 2, True),
        ],
        [],
        {"0": 0, "1": 0, "2": 3},
    )


def test_replays_in_which_a_group_differs_are_not_matched_for_it() -> None:
    """Replay 1 lacks a kernel of one pair, replay 3 of the other; a third of neither is not asked."""
    left, right, all_ranks = ("tp", [0, 1]), ("tp", [2, 3]), ("dp", [0, 1, 2, 3])
    found = found_by_replay(
        grouped([left], [left, all_ranks, left], [], [left], [left]),
        grouped([left], [left, all_ranks], [], [left], [left]),
        grouped([right], [right, all_ranks], [], [right], [right]),
        grouped([right], [right, all_ranks], [], [right, right], [right]),
    )
    assert found == (
        [
            *(("tp", 0, 0, rank, 2, True) for rank in ("0", "1")),
            *(("tp", 0, 0, rank, 2, True) for rank in ("2", "3")),
            *(("tp", 1, 0, rank, 2, True) for rank in ("2", "3")),
            *(("dp", 1, 0, rank, 4, True) for rank in ("0", "1", "2", "3")),
            *(("tp", 3, 0, rank, 2, True) for rank in ("0", "1")),
            *(("tp", 4, 0, rank, 2, True) for rank in ("0", "1")),
            *(("tp", 4, 0, rank, 2, True) for rank in ("2", "3")),
        ],
        ["2 of 5 replays of verify differ in their communication kernels: not matched"],
        {"0": 2, "1": 1, "2": 1, "3": 2},
    )


def test_kernels_that_do_not_all_tell_their_group_are_counted_together() -> None:
    one, other = grouped([("tp", [0, 1]), ("dp", None)]), grouped([("dp", None), ("tp", [0, 1])])
    positions = [(0, 0, "0"), (0, 0, "1"), (0, 1, "0"), (0, 1, "1")]
    assert [row[1:4] for row in found_by_replay(one, other)[0]] == positions


def test_kernels_of_a_group_are_counted_by_their_starts_whatever_their_order_in_the_file() -> None:
    """Forty in a replay; rank 1 comes to each a little later, and its rows are turned round."""

    def rank(late: int) -> list[dict[str, Any]]:
        kernels = [
            traces.kernel(ALLREDUCE, 100 * n + late * n, 100 * n + 90, 1, group="tp", group_ranks=[0, 1])
            for n in range(40)
        ]
        return [
            traces.phase("spec.verify", 0, 10_000),
            traces.launch("cudaGraphLaunch", 0, 1),
            *(kernels if not late else kernels[::-1]),
        ]

    waits = match([talk_of(0, rank(0)), talk_of(1, rank(1))])
    assert waits is not None
    found = waits.collectives.select("position", "rank", "dur_ns", "wait_ns", "voided").rows()
    assert found == [row for n in range(40) for row in ((n, "0", 90, n, False), (n, "1", 90 - n, 0, False))]


def test_a_phase_that_differs_leaves_the_phases_behind_it_matched() -> None:
    """Draft differs; verify has a replay without records on all ranks, and draft_extend none at all."""
    rows = two_windows()
    fewer = [row for row in rows if row.get("correlation") != 4]
    waits = match([talk_of(0, rows), talk_of(1, fewer), talk_of(2, rows)])
    assert waits is not None
    assert waits.reasons == [
        "replays of draft differ in number (rank 0: 1, rank 1: 0, rank 2: 1): none of them is matched"
    ]
    assert waits.collectives["phase"].unique().to_list() == ["verify"]
    assert waits.collectives.height == 15


def test_a_rank_without_a_match_has_no_row() -> None:
    """And the ends of one host void a match, whatever the other hosts' clocks say."""
    group = ("tp", [0, 1, 2], 0)
    times = [(20, 50), (25, 50), (1000, 1020)]
    ranks = [talk_of(i, eager((*times[i], *group)), host="a" if i < 2 else "b") for i in range(3)]
    waits = match([*ranks, talk_of(3, eager(), host="b")])
    assert waits is not None
    assert waits.collectives.select("rank", "wait_ns", "voided").rows() == [
        ("0", 10, False),
        ("1", 5, False),
        ("2", 0, False),
    ]
    late = talk_of(1, eager((40, 71, *group)), host="a")
    voided = match([ranks[0], late, ranks[2]])
    assert voided is not None
    assert voided.collectives.select("rank", "wait_ns", "voided").rows() == [(r, None, True) for r in ("0", "1", "2")]


def test_a_kernel_of_a_group_that_the_others_lack_is_not_matched() -> None:
    pair = ("tp", [0, 1])
    found = found_by_replay(grouped([pair, ("dp", [0, 1])], [pair]), grouped([pair], [pair]))
    assert found == (
        [("tp", replay, 0, rank, 2, True) for replay in (0, 1) for rank in ("0", "1")],
        ["1 of 2 replays of verify differ in their communication kernels: not matched"],
        {"0": 1, "1": 0},
    )


def test_collectives_are_numbered_by_the_first_ranks_starts() -> None:
    """Sixty-four groups that start together on rank 0, in another order on rank 1; one begins before them all."""
    names = [f"g{number}" for number in range(64)]
    first: Collective = (500, 600, "first", [0, 1], 0)
    one: list[Collective] = [(1000, 1100, name, [0, 1], 0) for name in names]
    other: list[Collective] = [(1000 + (n * 37) % 64, 1100, name, [0, 1], 0) for n, name in enumerate(names)]
    for late in (other, one[::-1]):
        rows = found_by_seq([*one, first], [*late, first])[0]
        assert [row[0] for row in rows[::2]] == ["first", *names]
        assert [row[2] for row in rows] == ["0", "1"] * 65


def test_collectives_that_start_together_are_numbered_as_they_come() -> None:
    """A thousand at seven instants, of groups whose names say nothing of their order; by number and in a replay."""
    order = [(n * 377) % 1000 for n in range(1000)]
    names = [f"g{number}" for number in order]
    come = [name for late in range(7) for name, n in zip(names, order, strict=True) if n % 7 == late]
    by_number: list[Collective] = [(1000 + n % 7, 2000, name, [0, 1], 0) for name, n in zip(names, order, strict=True)]
    rows = found_by_seq(by_number, by_number)[0]
    assert [row[0] for row in rows[::2]] == come
    launched = [traces.phase("spec.verify", 0, 10_000), traces.launch("cudaGraphLaunch", 1, 1)]
    launched += [
        traces.kernel(ALLREDUCE, start, end, 1, group=group, group_ranks=ranks, stream=7 + n)
        for n, (start, end, group, ranks, _) in enumerate(by_number)
    ]
    rows = found_by_replay(launched, launched)[0]
    assert [row[0] for row in rows[::2]] == come


def test_a_rank_missing_from_the_recording_makes_what_tells_no_group_a_lower_bound() -> None:
    """Rank 2 of three is absent: whoever tells a group of the two there is whole without it."""
    rows = [
        *eager((10, 50, "tp", [0, 1], 0), (60, 90, "dp", None, 1)),
        traces.phase("spec.draft", 200_000, 300_000),
        traces.launch("cudaGraphLaunch", 200_001, 2),
        traces.kernel(ALLREDUCE, 200_010, 200_020, 2),
    ]
    ranks = [talk_of(number, rows) for number in (0, 1)]
    whole, less = match(ranks), match(ranks, [2])
    assert whole is not None
    assert less is not None
    columns = ("matched_by", "group", "group_size", "complete")
    assert whole.collectives.select(columns).rows()[::2] == [
        ("seq", "tp", 2, True),
        ("seq", "dp", 2, True),
        ("replay", None, 2, True),
    ]
    assert less.collectives.select(columns).rows()[::2] == [
        ("seq", "tp", 2, True),
        ("seq", "dp", 2, False),
        ("replay", None, 2, False),
    ]
    assert (whole.missing, less.missing) == ([], [("dp", 1, 2)])
