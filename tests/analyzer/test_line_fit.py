"""Lines by least squares: through two points exactly, through more with the residual in the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from specanalyze.answers.line_fit import fit_lines


def cycles(mean: float, noise: float = 0.0, count: int = 40) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    values = mean + noise * np.resize([1.0, -1.0], count)
    return values[:, None]


def test_two_points_are_on_the_line() -> None:
    (line,) = fit_lines(np.array([3.0, 6.0]), [cycles(25.6), cycles(28.7)])
    assert line.fixed.value == pytest.approx(22.5)
    assert line.slope.value == pytest.approx(3.1 / 3)


def test_bounds_grow_with_the_noise_of_cycles() -> None:
    def width(noise: float) -> float:
        (line,) = fit_lines(np.array([3.0, 6.0]), [cycles(25.6, noise), cycles(28.7, noise)])
        assert line.slope.high is not None
        assert line.slope.low is not None
        return line.slope.high - line.slope.low

    assert width(0.0) == pytest.approx(0.0, abs=1e-9)
    assert width(1.0) > 0.05


def test_points_off_the_line_widen_the_bounds_though_cycles_are_quiet() -> None:
    (straight,) = fit_lines(np.array([1.0, 2.0, 3.0]), [cycles(1.0), cycles(2.0), cycles(3.0)])
    (bent,) = fit_lines(np.array([1.0, 2.0, 3.0]), [cycles(1.0), cycles(2.6), cycles(3.0)])
    assert straight.slope.low == pytest.approx(1.0)
    assert bent.slope.low is not None
    assert bent.slope.low < 0  # three points this far from a line prove no slope at 99 %


def test_lines_of_parts_sum_to_the_line_of_the_whole() -> None:
    x = np.array([2.0, 3.0, 6.0, 11.0])
    parts = [np.concatenate([cycles(v), cycles(2 * v + 1), cycles(3 * v + 1)], axis=1) for v in (4.0, 5.0, 9.0, 10.0)]
    first, second, both = fit_lines(x, parts)
    assert first.fixed.value + second.fixed.value == pytest.approx(both.fixed.value)
    assert first.slope.value + second.slope.value == pytest.approx(both.slope.value)


def test_single_cycles_give_no_bounds() -> None:
    (line,) = fit_lines(np.array([1.0, 2.0]), [cycles(1.0, count=1), cycles(2.0, count=1)])
    assert line.slope.low is None
