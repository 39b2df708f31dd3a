"""What keeps figures of waiting from being whole, one line each."""

from __future__ import annotations

from made_waits import waits_of

from specanalyze.attribution.wait_warnings import absent_ranks, wait_warnings


def said(
    absent: list[int] | None = None,
    *,
    voided: int = 0,
    missing: list[tuple[str, int, int]] | None = None,
    unmatched: dict[str, int] | None = None,
    reasons: list[str] | None = None,
) -> list[str]:
    waits = waits_of(None, unmatched or {"0": 0, "1": 0}, voided, missing or [], reasons or [])
    return wait_warnings(waits, absent or [])


def test_nothing_is_said_of_whole_figures() -> None:
    assert said() == []


def test_void_matches_are_counted() -> None:
    (one,) = said(voided=1)
    assert one.startswith("1 matched collective was void and not used: ")
    (two,) = said(voided=2)
    assert two.startswith("2 matched collectives were void and not used: ")


def test_five_collectives_without_all_ranks_are_named_and_the_others_counted() -> None:
    missing = [("tp", seq, rank) for seq in range(5) for rank in (3, 2)]
    named = [f"collective Seq {seq}: no record of rank 2, rank 3; its waits are lower bounds" for seq in range(5)]
    assert said(missing=missing) == named
    one, two = [*missing, ("tp", 5, 2)], [*missing, ("tp", 5, 2), ("tp", 6, 2)]
    assert said(missing=one) == [*named, "1 more collective without all ranks; their waits are lower bounds"]
    assert said(missing=two) == [*named, "2 more collectives without all ranks; their waits are lower bounds"]


def test_eight_missing_ranks_are_named_and_the_others_counted() -> None:
    (eight,) = said(list(range(8)))
    names = ", ".join(f"rank {n}" for n in range(8))
    assert eight.startswith(f"{names} missing from this recording: ")
    (ten,) = said([9, 8, *range(8)])
    assert ten.startswith(f"{names} and 2 more missing from this recording: ")


def test_kernels_left_unmatched_are_told_of_each_rank() -> None:
    assert said(unmatched={"0": 0, "1": 2}) == [
        "communication kernels not matched with the other ranks' (rank 0: 0, rank 1: 2): their waiting is unknown"
    ]


def test_reasons_come_first_and_the_waits_stay_as_they_are() -> None:
    reasons = ["replays differ"]
    found = said([1], voided=1, missing=[("tp", 0, 1)], unmatched={"0": 1}, reasons=reasons)
    assert [line.split()[0] for line in found] == ["replays", "1", "collective", "rank", "communication"]
    assert reasons == ["replays differ"]


def test_absent_ranks_are_those_below_the_world_that_did_not_record() -> None:
    assert absent_ranks([2, 0], 4) == [1, 3]
    assert absent_ranks([0, 1], 2) == []
    assert absent_ranks([5], None) == []
