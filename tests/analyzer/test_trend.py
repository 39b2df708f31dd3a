"""Steady trends, told from noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from specanalyze.answers.trend import FEWEST, trends

COUNT = 160
NOISE = np.random.default_rng(2).normal(0.0, 2.0, COUNT)
AT = np.arange(COUNT)


def slope(values: NDArray[np.float64]) -> float:
    found = trends(values[:, None])[:, 0]
    assert abs(found.sum()) < 1e-6 * max(1.0, np.abs(found).sum())  # around 0
    return float(found[1] - found[0])


@pytest.mark.parametrize("rises", [0.5, -0.5])
def test_a_line_is_its_own_trend(rises: float) -> None:
    assert slope(100 + rises * AT + NOISE) == pytest.approx(rises, rel=0.03)


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        np.where(AT < 80, 0.0, 30.0) + NOISE,
        np.abs(AT - 80) + NOISE,
        10 * np.sin(AT / 8) + NOISE,
        np.where(AT % 40 == 39, 500.0, 0.0) + NOISE,
    ],
    ids=["level", "step", "valley", "waves", "stalls"],
)
def test_what_comes_back_or_steps_once_is_none(values: NDArray[np.float64]) -> None:
    assert slope(values) == 0.0


def test_stalls_do_not_bend_it() -> None:
    assert slope(0.5 * AT + NOISE + np.where(AT > 155, 900.0, 0.0)) == pytest.approx(0.5, rel=0.05)


def test_figures_are_told_apart_and_few_cycles_show_none() -> None:
    both = np.stack([AT * 1.0, NOISE], axis=1)
    found = trends(both)
    assert found.shape == both.shape
    assert found[:, 0] == pytest.approx(AT - AT.mean())
    assert not found[:, 1].any()
    assert not trends(both[: FEWEST - 1]).any()
    assert trends(both[:FEWEST]).any()
