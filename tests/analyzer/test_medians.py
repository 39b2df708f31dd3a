"""Resampled medians, held to their plain definition."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from specanalyze.answers.medians import resampled_medians


def plainly(values: NDArray[np.float64], seed: int, resamples: int) -> list[float]:
    n = len(values)
    block = max(1, round(n ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(0, n, size=(resamples, -(-n // block)))
    return [float(np.median([values[(at + i) % n] for at in row for i in range(block)][:n])) for row in starts]


@pytest.mark.parametrize("count", [1, 2, 3, 30, 151])
def test_ranks_give_the_medians_of_the_values(count: int) -> None:
    values = np.random.default_rng(count).gamma(3.0, 1e6, count)
    values[:: max(2, count // 4)] = values[0]  # equal values
    assert resampled_medians(values, seed=3, resamples=40).tolist() == plainly(values, 3, 40)


def test_more_values_than_two_bytes_can_rank() -> None:
    values = np.arange(70_000, dtype=np.float64)[::-1].copy()
    found = resampled_medians(values, seed=1, resamples=3)
    assert np.all(np.abs(found - 35_000) < 2_000)
    assert len(set(found.tolist())) == 3
