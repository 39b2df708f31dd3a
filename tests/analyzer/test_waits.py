"""The table of matched collectives: by what they were matched, and the numbers of their match, the first one included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import traces

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.analysis import analyse_rank
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.wait_table import by_replay, last_to_arrive, wait_json
from specanalyze.attribution.waits import Communication, match, rank_communication
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
