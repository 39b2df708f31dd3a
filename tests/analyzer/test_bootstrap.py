"""Bounds of means: they hold the truth as often as they say, and repeat to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from specanalyze.answers.bootstrap import block_length, difference_intervals, mean_intervals, resampled_means


def test_bounds_hold_the_true_mean_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        (interval,) = mean_intervals(generator.normal(5, 1, (60, 1)), level=0.95)
        assert interval.low is not None
        assert interval.high is not None
        held += interval.low < 5 < interval.high
    assert 0.93 <= held / 200 <= 0.99


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


def test_few_cycles_have_the_bounds_of_students_t() -> None:
    """Resamples of six alone would hold the mean in 86 %."""
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(300):
        (interval,) = mean_intervals(generator.normal(5, 1, (6, 1)), level=0.95)
        held += (interval.low or 0.0) < 5 < (interval.high or 0.0)
    assert 0.92 <= held / 300 <= 0.99


def test_blocks_are_an_eighth_of_the_cycles_or_longer() -> None:
    assert [block_length(n) for n in (1, 2, 5, 8, 12, 20, 40, 80, 400, 2000)] == [1, 1, 1, 2, 2, 3, 5, 10, 50, 250]


def test_a_steady_trend_of_one_figure_is_no_noise_and_leaves_the_others() -> None:
    values = np.random.default_rng(5).normal(0, 1, (200, 2))
    steep = values + np.arange(200)[:, None] * np.array([1.0, 0.0])
    assert resampled_means(steep).mean(axis=0) == pytest.approx(steep.mean(axis=0), abs=0.02)
    assert resampled_means(steep)[:, 0].std() < 1.5 * resampled_means(values)[:, 0].std()
    assert np.array_equal(resampled_means(steep)[:, 1], resampled_means(values)[:, 1])


def test_very_many_cycles_have_the_bounds_of_their_mean() -> None:
    values = np.random.default_rng(4).normal(5, 1, (40_001, 1))
    low, high = np.quantile(resampled_means(values)[:, 0], [0.1587, 0.8413])
    assert 0.8 / 200 < (high - low) / 2 < 1.4 / 200  # 1 / sqrt(40,000), and what eight blocks know of it


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
