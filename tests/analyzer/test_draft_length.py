"""Accept length of other draft shapes: known up to the recorded depth, bounded beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from specanalyze.answers.draft_length import conditional, tree_lengths, with_steps

ACCEPTANCE = np.array([0.8, 0.4, 0.1])


def test_fewer_steps_are_known_exactly() -> None:
    lengths, _ = with_steps(ACCEPTANCE, 2)
    assert (lengths.low, lengths.value, lengths.high) == pytest.approx((2.2, 2.2, 2.2))


def test_more_steps_go_on_as_the_last_and_are_bounded_by_never_and_always() -> None:
    lengths, said = with_steps(ACCEPTANCE, 5)
    assert lengths.low == pytest.approx(2.3)
    assert lengths.value == pytest.approx(2.3 + 0.1 * 0.25 + 0.1 * 0.25**2)
    assert lengths.high == pytest.approx(2.3 + 0.1 + 0.1)
    assert "25 % once reached" in said[0]


def test_conditional_acceptance_of_what_is_never_reached_is_zero() -> None:
    assert conditional(np.array([0.5, 0.0, 0.0])).tolist() == [0.5, 0.0, 0.0]


def test_a_tree_lies_between_its_chain_and_independent_branches() -> None:
    lengths, _ = tree_lengths(ACCEPTANCE, 3, 2)
    first, second, third = 1 - 0.2**2, 1 - 0.5**2, 1 - 0.75**2
    assert lengths.low == pytest.approx(2.3)
    assert lengths.high == pytest.approx(1 + first + first * second + first * second * third)
    assert lengths.value == lengths.high


def test_one_branch_is_the_chain() -> None:
    lengths, _ = tree_lengths(ACCEPTANCE, 3, 1)
    assert lengths.high == pytest.approx(with_steps(ACCEPTANCE, 3)[0].value)
