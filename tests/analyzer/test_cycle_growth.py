"""Steady growth of cycles over a request."""

from __future__ import annotations

import numpy as np
import pytest

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.cycle_growth import Growth, growth_of
from specanalyze.answers.neighbours import NEIGHBOURS, neighbours

PLACES = np.arange(300.0)
NOISE = np.random.default_rng(3).normal(0.0, 20.0, 300)


def test_the_slope_and_the_ends() -> None:
    found = growth_of(PLACES * 2 + 64, 1000 + PLACES * 3 + NOISE, "context")
    assert found is not None
    assert found.slope.value == pytest.approx(1.5, rel=0.03)
    assert found.slope.low is not None
    assert found.slope.high is not None
    assert found.slope.low < 1.5 < found.slope.high
    assert found.first == pytest.approx((64 + 2 * 9, 1000 + 3 * 9), rel=0.02)
    assert found.last == pytest.approx((64 + 2 * 290, 1000 + 3 * 290), rel=0.02)
    assert found.share == pytest.approx(1870 / 1027 - 1, abs=0.04)


def test_shrinking_is_growth_downwards() -> None:
    found = growth_of(PLACES, 3000 - PLACES * 3 + NOISE, "context")
    assert found is not None
    assert found.slope.value == pytest.approx(-3, rel=0.03)
    assert found.share < 0


def test_a_curve_that_flattens_still_grows() -> None:
    assert growth_of(PLACES, 1000 + 60 * np.sqrt(PLACES) + NOISE, "context") is not None


@pytest.mark.parametrize(
    "cycles",
    [
        1000 + NOISE,
        np.where(PLACES < 150, 1000, 1300) + NOISE,  # a step: both halves are level
        1000 + np.abs(PLACES - 150) * 3 + NOISE,  # down and up again
        np.where(PLACES < 150, 1000 + PLACES * 3, 1450) + NOISE,  # grows, then no more
        1000 + PLACES * 0.1 + NOISE / 20,  # 3 % in all
        np.where(np.isin(PLACES, (290, 292, 294, 296, 298)), 90_000, 1000) + NOISE,  # stalls at the end
    ],
    ids=["level", "step", "valley", "half", "little", "stalls"],
)
def test_what_is_no_steady_growth(cycles: np.ndarray) -> None:
    assert growth_of(PLACES, cycles, "context") is None


def test_too_few_cycles_or_one_place_show_none() -> None:
    steep = 1000 + PLACES * 30
    assert growth_of(PLACES[:40], steep[:40], "context") is not None
    assert growth_of(PLACES[:39], steep[:39], "context") is None
    assert growth_of(np.full(300, 7.0), steep, "context") is None


def test_a_growth_in_words() -> None:
    growth = Growth("context", (85.0, 12_094_000.0), (1040.0, 23_057_000.0), Interval(11_490.0, 11_300.0, 11_700.0))
    assert growth.sentence("the cycle") == (
        "the cycle grows with the context: 12.09 ms at 85 tokens, 23.06 ms at 1040 tokens (+11.49 us a token)"
    )
    back = Growth("position", (10.0, 2_000_000.0), (490.0, 1_000_000.0), Interval(-2083.0, -2100.0, -2000.0))
    assert back.sentence("the step") == (
        "the step shrinks over the recording: 2.00 ms at cycle 10, 1.00 ms at cycle 490 (-2.08 us a cycle)"
    )
    assert back.to_json() == {
        "along": "position",
        "first": {"place": 10.0, "cycle_ns": 2_000_000.0},
        "last": {"place": 490.0, "cycle_ns": 1_000_000.0},
        "ns_per_place": -2083.0,
        "low_ns_per_place": -2100.0,
        "high_ns_per_place": -2000.0,
    }


def test_neighbours_on_both_sides_of_a_place() -> None:
    x = np.concatenate([np.arange(100.0), np.arange(140.0, 240.0)])
    near = neighbours(x, x * 10, 120.0)
    assert near is not None
    assert near.between
    assert near.cycles == (100 - NEIGHBOURS, 100 + NEIGHBOURS)
    assert near.x == (84.5, 154.5)
    assert near.typical(120.0) == pytest.approx(1200.0)
    assert near.at(np.array([100.0, 130.0])).tolist() == pytest.approx([1000.0, 1300.0])
    bounds = near.interval_at(120.0)
    assert bounds.low is not None
    assert bounds.high is not None
    assert bounds.low < 1200.0 < bounds.high


@pytest.mark.parametrize("flip", [1, -1])
def test_neighbours_of_one_side_in_two_halves(flip: int) -> None:
    x = np.sort(flip * np.arange(100.0))
    near = neighbours(x, x * 10, flip * 110.0)
    assert near is not None
    assert not near.between
    assert near.cycles == ((40, 100) if flip > 0 else (0, 60))
    assert near.typical(flip * 110.0) == pytest.approx(flip * 1100.0)
    # the halves stand at 54.5 and 84.5: 60 further than the nearer one is too far
    assert neighbours(x, x * 10, flip * 144.0) is not None
    assert neighbours(x, x * 10, flip * 145.0) is None


def test_fewer_than_five_in_a_group_are_no_neighbours() -> None:
    x = np.arange(10.0)
    assert neighbours(x, x, 4.5) is not None
    assert neighbours(x, x, 20.0) is None  # too far from both halves
    assert neighbours(x[:9], x[:9], 4.5) is None
    assert neighbours(np.zeros(20), np.ones(20), 0.0) is None
