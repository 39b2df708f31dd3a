"""Resampled medians, held to their plain definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from specanalyze.answers.medians import median_interval, ratio_interval, resampled_medians


def plainly(values: NDArray[np.float64], seed: int, resamples: int, block: int) -> list[float]:
    """Medians of blocks, further from the median of all by what Student's t of so many blocks asks for."""
    n = len(values)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, n, size=resamples * -(-n // block)).reshape(resamples, -1)
    drawn = [float(np.median([values[(at + i) % n] for at in row for i in range(block)][:n])) for row in starts]
    blocks = max(n / block, 1.5)
    factors = np.sqrt(blocks / generator.chisquare(blocks - 1, resamples))
    median = float(np.median(values))
    further = [median + (m - median) * f for m, f in zip(drawn, factors, strict=True)]
    return [min(max(m, float(values.min())), float(values.max())) for m in further]


@pytest.mark.parametrize(("count", "block"), [(1, 1), (2, 1), (3, 1), (8, 2), (30, 4), (151, 19)])
def test_ranks_give_the_medians_of_the_values(count: int, block: int) -> None:
    values = np.random.default_rng(count).gamma(3.0, 1e6, count)
    values[:: max(2, count // 4)] = values[0]  # equal values
    assert resampled_medians(values, seed=3, resamples=40).tolist() == pytest.approx(plainly(values, 3, 40, block))


def test_more_values_than_two_bytes_can_rank() -> None:
    values = np.random.default_rng(6).permutation(70_000).astype(np.float64)
    found = resampled_medians(values, seed=1, resamples=3)
    assert np.all(np.abs(found - 35_000) < 2_000)
    assert len(set(found.tolist())) == 3


def held(make: Callable[[np.random.Generator], NDArray[np.float64]], true: float, runs: int = 200) -> float:
    generator = np.random.default_rng(8)
    within = 0
    for _ in range(runs):
        found = median_interval(make(generator))
        assert found.low is not None
        assert found.high is not None
        within += found.low <= true <= found.high
    return within / runs


def wandering(generator: np.random.Generator, count: int, like: float) -> NDArray[np.float64]:
    shocks = generator.normal(0.0, math.sqrt(1 - like**2), count)
    for at in range(1, count):
        shocks[at] += like * shocks[at - 1]
    return shocks


@pytest.mark.parametrize("count", [8, 20, 100])
def test_bounds_of_independent_cycles_hold_the_median_as_often_as_they_say(count: int) -> None:
    assert held(lambda g: g.normal(5.0, 1.0, count), 5.0) >= 0.93


def test_bounds_hold_where_neighbours_resemble_each_other() -> None:
    """Blocks of n^(1/3) cycles held the median in 80 % of such recordings."""
    assert held(lambda g: wandering(g, 300, 0.8), 0.0) >= 0.9


def test_a_steady_trend_is_no_noise() -> None:
    generator = np.random.default_rng(9)
    values = generator.normal(1000.0, 10.0, 300) + 3.0 * np.arange(300)
    found = median_interval(values)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    # A few cycles decide the median: 20 or so; taken for noise, the trend of 900 would make it hundreds.
    assert found.high - found.low < 40


def test_four_values_have_no_bounds_and_five_none_outside_themselves() -> None:
    four, five = (median_interval(np.array([3.0, 9.0, 4.0, 5.0, 100.0][:n])) for n in (4, 5))
    assert (four.low, four.high) == (None, None)
    assert five.low is not None
    assert five.high is not None
    assert 3.0 <= five.low < 5.0 < five.high <= 100.0
    assert ratio_interval(np.ones(5), np.ones(4)).low is None
    assert ratio_interval(np.ones(5), np.ones(5)).low == 1.0
