"""Acceptance by draft position."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.answers.positions import accept_length_by_steps, acceptance_by_position


def steps(*rows: tuple[int | None, int | None]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={"drafted": pl.Int64, "accepted": pl.Int64}, orient="row")


def test_conditional_is_of_the_reached_and_cumulative_of_the_proposed() -> None:
    found = acceptance_by_position(steps((4, 3), (4, 0), (4, 4), (4, 4)))
    assert found.rows() == [
        (1, 4, 4, 3, 0.75, 0.75),
        (2, 4, 3, 3, 1.0, 0.75),
        (3, 4, 3, 3, 1.0, 0.75),
        (4, 4, 3, 2, 2 / 3, 0.5),
    ]
    assert accept_length_by_steps(found).rows() == [(0, 1.0), (1, 1.75), (2, 2.5), (3, 3.25), (4, 3.75)]


def test_a_step_that_drafted_less_proposes_nothing_further_on() -> None:
    found = acceptance_by_position(steps((1, 1), (3, 1), (3, 3)))
    assert found.select("position", "proposed", "reached", "accepted").rows() == [
        (1, 3, 3, 3),
        (2, 2, 2, 1),
        (3, 2, 1, 1),
    ]


def test_a_position_never_reached_has_no_conditional_rate() -> None:
    assert acceptance_by_position(steps((2, 0))).rows() == [(1, 1, 1, 0, 0.0, 0.0), (2, 1, 0, 0, None, 0.0)]


def test_unknown_draft_lengths_end_at_the_longest_acceptance_seen() -> None:
    assert acceptance_by_position(steps((None, 1), (None, 2), (None, None))).select(
        "position", "proposed", "accepted"
    ).rows() == [(1, 2, 2), (2, 2, 1)]
    assert acceptance_by_position(steps((None, None))).height == 0
    assert acceptance_by_position(steps()).height == 0


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda p: (p[0], min(p))), min_size=1))
def test_against_counting_one_by_one(rows: list[tuple[int, int]]) -> None:
    for row in acceptance_by_position(steps(*rows)).to_dicts():
        k = row["position"]
        proposed = [a for d, a in rows if d >= k]
        assert row["proposed"] == len(proposed)
        assert row["reached"] == sum(a >= k - 1 for a in proposed)
        assert row["accepted"] == sum(a >= k for a in proposed)


@given(st.integers(1, 6), st.lists(st.integers(0, 6), min_size=1))
def test_the_length_at_the_full_draft_is_the_measured_one(drafted: int, accepted: list[int]) -> None:
    rows = [(drafted, min(a, drafted)) for a in accepted]
    lengths = accept_length_by_steps(acceptance_by_position(steps(*rows)))
    assert lengths["accept_length"][-1] == pytest.approx(1 + sum(a for _, a in rows) / len(rows))
