"""Matched collectives as JSON, and who came last."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from made_waits import waits_of

from specanalyze.attribution.wait_table import by_replay, last_to_arrive, wait_json
from specanalyze.attribution.waits import Waits

SCHEMA = {
    "collective": pl.Int64,
    "matched_by": pl.String,
    "phase": pl.String,
    "group": pl.String,
    "seq": pl.Int64,
    "replay": pl.Int64,
    "rank": pl.String,
    "dur_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "transfer_ns": pl.Int64,
    "complete": pl.Boolean,
    "voided": pl.Boolean,
}


def table(*rows: tuple[object, ...]) -> pl.DataFrame:
    """Columns but the last four, then durations of the ranks; waiting and transfer follow from these."""
    found = []
    for number, (way, phase, group, seq, replay, durations, complete, voided) in enumerate(rows):
        assert isinstance(durations, dict)
        least = min(durations.values())
        for rank, ns in durations.items():
            split = (None, None) if voided else (ns - least, least)
            found.append((number, way, phase, group, seq, replay, rank, ns, *split, complete, voided))
    return pl.DataFrame(found, schema=SCHEMA, orient="row")


def by_seq(group: str | None, seq: int, durations: dict[str, int], **more: bool) -> tuple[object, ...]:
    return ("seq", "prefill", group, seq, None, durations, more.get("complete", True), more.get("voided", False))


def in_replay(phase: str, replay: int, durations: dict[str, int], **more: bool) -> tuple[object, ...]:
    return ("replay", phase, None, None, replay, durations, more.get("complete", True), more.get("voided", False))


def test_the_json_of_collectives_matched_both_ways() -> None:
    rows = table(
        by_seq("tp", 7, {"0": 50, "1": 20}),
        in_replay("verify", 0, {"0": 10, "1": 25}),
        by_seq("tp", 8, {"0": 30, "1": 31}, voided=True),
        in_replay("draft", 0, {"0": 12, "1": 12}),
        in_replay("verify", 1, {"0": 40, "1": 44}, voided=True),
        in_replay("decode", 0, {"0": 9, "1": 8}),
        in_replay("draft_extend", 0, {"0": 6, "1": 5}),
    )
    assert wait_json(waits_of(rows, {"0": 3, "1": 0}, 2)) == {
        "matched_by": (
            "process group and Seq; n-th communication kernel of the n-th verify replay; "
            "n-th communication kernel of the n-th draft replay; n-th communication kernel of the n-th decode replay; "
            "n-th communication kernel of the n-th draft_extend replay"
        ),
        "complete": True,
        "voided": 2,
        "unmatched_kernels": {"0": 3, "1": 0},
        "per_collective_ns": [
            {"0": 30, "1": 0},
            {"0": 0, "1": 15},
            None,
            {"0": 0, "1": 0},
            None,
            {"0": 1, "1": 0},
            {"0": 1, "1": 0},
        ],
        "wait_ns": {"0": 32, "1": 15},
        "transfer_ns": {"0": 20 + 10 + 12 + 8 + 5, "1": 20 + 10 + 12 + 8 + 5},
        "last_to_arrive": ["1", "0", None, "0", None, "1", "1"],
        "collectives": {
            "7": {"complete": True, "wait_ns": {"0": 30, "1": 0}},
            "8": {"complete": True, "wait_ns": None},
        },
    }


def test_the_json_where_nothing_or_only_replays_are_matched() -> None:
    assert wait_json(waits_of(table(), {"0": 1, "1": 2}, 0)) == {
        "matched_by": None,
        "complete": None,
        "voided": 0,
        "unmatched_kernels": {"0": 1, "1": 2},
        "per_collective_ns": [],
        "wait_ns": {"0": 0, "1": 0},
        "transfer_ns": {"0": 0, "1": 0},
        "last_to_arrive": [],
    }
    found = wait_json(waits_of(table(in_replay("verify", 0, {"0": 10, "1": 25})), {"0": 0, "1": 0}, 0))
    assert found is not None
    assert found["matched_by"] == "n-th communication kernel of the n-th verify replay"
    assert "collectives" not in found


def test_a_collective_without_all_ranks_is_a_lower_bound() -> None:
    rows = table(
        by_seq("tp", 7, {"0": 50, "1": 20}, complete=False),
        by_seq("tp", 8, {"0": 30, "1": 35, "3": 36}, complete=False),
        by_seq("tp", 9, {"0": 30, "1": 35, "2": 35, "3": 36}),
    )
    missing = [("tp", 7, 3), ("tp", 7, 2), ("ep", 7, 9), ("tp", 8, 2), ("tp", 9, 9)]  # 9 in another group of that name
    found = wait_json(waits_of(rows, dict.fromkeys("0123", 0), 0, missing))
    assert found is not None
    assert found["complete"] is False
    assert found["collectives"] == {
        "7": {"complete": False, "missing_ranks": [2, 3], "lower_bound_ns": {"0": 30, "1": 0}},
        "8": {"complete": False, "missing_ranks": [2], "lower_bound_ns": {"0": 0, "1": 5, "3": 6}},
        "9": {"complete": True, "wait_ns": {"0": 0, "1": 5, "2": 5, "3": 6}},
    }


def test_numbers_that_several_groups_count_are_told_apart() -> None:
    """By the collective's place in per_collective_ns; and a rank is missed in its own group."""
    rows = table(
        by_seq("tp", 0, {"0": 50, "1": 20}),
        by_seq(None, 0, {"0": 30, "1": 35}, complete=False),
        by_seq("tp", 1, {"0": 10, "1": 10}),
    )
    found = wait_json(waits_of(rows, {"0": 0, "1": 0}, 0, [("", 0, 2)]))
    assert found is not None
    assert found["collectives"] == {
        "0#0": {"complete": True, "wait_ns": {"0": 30, "1": 0}},
        "0#1": {"complete": False, "missing_ranks": [2], "lower_bound_ns": {"0": 0, "1": 5}},
        "1": {"complete": True, "wait_ns": {"0": 0, "1": 0}},
    }


def test_the_last_to_arrive_is_the_first_rank_of_those_that_waited_least() -> None:
    """Over many collectives, so that neither their order nor that of their ranks is luck."""
    ranks = [str(rank) for rank in range(8)]
    expected, rows = [], []
    for number in range(64):
        late = number % 7
        expected.append(ranks[late])
        rows.append(in_replay("verify", number, {r: 20 if int(r) in (late, late + 1) else 30 for r in ranks}))
    assert last_to_arrive(table(*rows)) == expected


def test_sums_by_replay_are_of_one_rank_phase_and_what_is_not_void() -> None:
    rows = table(
        in_replay("verify", 3, {"0": 10, "1": 25}),
        in_replay("verify", 1, {"0": 40, "1": 44}),
        in_replay("verify", 1, {"0": 7, "1": 5}),
        in_replay("verify", 1, {"0": 6, "1": 9}),
        in_replay("verify", 2, {"0": 40, "1": 44}, voided=True),
        in_replay("draft", 1, {"0": 12, "1": 99}),
        by_seq("tp", 0, {"0": 50, "1": 20}),
    )
    waits = waits_of(rows, {"0": 0, "1": 0}, 1)
    assert by_replay(waits, "1", "verify").rows() == [(1, 7, 51), (3, 15, 10)]
    assert by_replay(waits, "0", "verify").rows() == [(1, 2, 51), (3, 0, 10)]
    assert by_replay(waits, "0", "prefill").rows() == [(None, 30, 20)]


@pytest.mark.parametrize("made", [lambda: None, lambda: waits_of(None, {"0": 0})])
def test_without_matches_there_are_no_sums(made: Callable[[], Waits | None]) -> None:
    found = by_replay(made(), "0", "verify")
    assert found.schema == dict.fromkeys(("replay", "wait_ns", "transfer_ns"), pl.Int64)
    assert not found.height
