"""Bounds of means: they hold the truth as often as they say, and repeat to the last bit."""

from __future__ import annotations

import numpy as np

from specanalyze.answers.bootstrap import difference_intervals, mean_intervals, resampled_means


def test_bounds_hold_the_true_mean_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        (interval,) = mean_intervals(generator.normal(5, 1, (60, 1)), level=0.95)
        assert interval.low is not None
        assert interval.high is not None
        held += interval.low < 5 < interval.high
    assert 0.87 <= held / 200 <= 0.98


def test_neighbours_that_resemble_each_other_widen_the_bounds() -> None:
    generator = np.random.default_rng(1)
    single = generator.normal(0, 1, (400, 1))
    runs = np.repeat(generator.normal(0, 1, (40, 1)), 10, axis=0)
    assert resampled_means(runs).std() > 1.5 * resampled_means(single).std()


def test_resampled_means_are_means_of_resampled_cycles() -> None:
    drawn = resampled_means(np.full((7, 2), 3.0))
    assert np.allclose(drawn, 3.0)
    values = np.arange(30.0)[:, None]
    assert abs(resampled_means(values).mean() - 14.5) < 0.2


def test_very_many_cycles_have_the_bounds_of_their_mean() -> None:
    values = np.random.default_rng(4).normal(5, 1, (40_001, 1))
    spread = resampled_means(values).std()
    assert 0.8 / 200 < spread < 1.2 / 200  # 1 / sqrt(40,000)


def test_the_same_values_give_the_same_bounds() -> None:
    values = np.random.default_rng(2).normal(size=(50, 3))
    assert mean_intervals(values) == mean_intervals(values)


def test_no_bounds_from_one_cycle() -> None:
    (interval,) = mean_intervals(np.array([[4.0]]))
    assert (interval.value, interval.low, interval.high) == (4.0, None, None)
    (interval,) = difference_intervals(np.array([[4.0]]), np.array([[6.0], [7.0]]))
    assert interval.low is None
    assert not interval.excludes_zero


def test_a_difference_is_after_minus_before() -> None:
    generator = np.random.default_rng(5)
    before, after = generator.normal(10, 1, (80, 1)), generator.normal(8, 1, (90, 1))
    (interval,) = difference_intervals(before, after)
    assert interval.value < 0
    assert interval.excludes_zero
    (same,) = difference_intervals(before, generator.normal(10, 1, (90, 1)))
    assert not same.excludes_zero
