"""Steady growth of cycles over a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pytest

from specanalyze.answers.bootstrap import SEED, Interval
from specanalyze.answers.cycle_growth import Growth, growth_of, growth_of_cycles
from specanalyze.answers.medians import bounded, resampled_medians
from specanalyze.answers.neighbours import NEIGHBOURS, neighbours
from specanalyze.attribution.cycles import CYCLE_SCHEMA

PLACES = np.arange(300.0)
NOISE = np.random.default_rng(3).normal(0.0, 20.0, 300)


def test_the_slope_and_the_ends() -> None:
    found = growth_of(PLACES * 2 + 64, 1000 + PLACES * 3 + NOISE, "context")
    assert found is not None
    assert found.slope.value == pytest.approx(1.5, rel=0.03)
    assert found.slope.low is not None
    assert found.slope.high is not None
    assert found.slope.low < 1.5 < found.slope.high
    assert found.mean_place == 64 + 2 * 149.5
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


@pytest.mark.parametrize(("cycles", "stretches"), [(40, 8), (89, 8), (90, 9), (100, 10), (169, 16), (400, 16)])
def test_stretches_are_of_ten_cycles_but_eight_to_sixteen_of_them(cycles: int, stretches: int) -> None:
    found = growth_of(np.arange(float(cycles)), 1000 + 30 * np.arange(float(cycles)), "context")
    assert found is not None
    parts = np.array_split(np.arange(float(cycles)), stretches)
    assert found.first == (np.median(parts[0]), 1000 + 30 * np.median(parts[0]))
    assert found.last == (np.median(parts[-1]), 1000 + 30 * np.median(parts[-1]))
    assert found.kind == "context"


@pytest.mark.parametrize(("base", "grows"), [(1795.5, True), (1796.5, False), (-1804.5, True), (-1805.5, False)])
def test_growth_is_told_from_five_per_cent(base: float, grows: bool) -> None:
    """The first and the last of ten stretches lie at 4.5 and 94.5: 1800 and 1890, or, shrinking, 1800 and 1710."""
    found = growth_of(PLACES[:100], np.abs(base + PLACES[:100]), "context")
    assert (found is not None) == grows


def test_the_line_is_the_median_of_slopes_between_stretches_with_what_chance_makes_of_it() -> None:
    cycles = 1000 + 0.02 * PLACES**2 + NOISE
    found = growth_of(PLACES, cycles, "context")
    assert found is not None
    at = [PLACES[part] for part in np.array_split(np.arange(300), 16)]
    of = [cycles[part] for part in np.array_split(np.arange(300), 16)]
    drawn = [resampled_medians(part, SEED + i) for i, part in enumerate(of)]
    pairs = list(combinations(range(16), 2))
    apart = [np.median(at[j]) - np.median(at[i]) for i, j in pairs]
    slopes = [(np.median(of[j]) - np.median(of[i])) / d for (i, j), d in zip(pairs, apart, strict=True)]
    spun = np.median([(drawn[j] - drawn[i]) / d for (i, j), d in zip(pairs, apart, strict=True)], axis=0)
    want = bounded(float(np.median(slopes)), spun)
    assert (found.slope.value, found.slope.low, found.slope.high) == pytest.approx((want.value, want.low, want.high))


def test_stretches_at_one_place_have_no_slope_between_them() -> None:
    steps = np.floor(PLACES[:100] / 20)
    found = growth_of(steps, 1000 + 100 * steps, "context")
    assert found is not None
    assert found.slope.value == pytest.approx(100.0)
    # The first half of the cycles is at one place, or the second.
    assert growth_of(np.maximum(steps, 3), 1000 + 100 * steps, "context") is None
    assert growth_of(np.minimum(steps, 2), 1000 + 100 * steps, "context") is None


@pytest.mark.parametrize(
    "stretches",
    [
        (1000, 990, 980, 970, 960, 1500, 1510, 1520, 1530, 1540),  # falls first
        (1000, 1010, 1020, 1030, 1040, 1540, 1530, 1520, 1510, 1500),  # falls later
        (1000, 1500, 2000, 2500, 3000, 100, 200, 300, 400, 500),  # falls in between
        (2000, 1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800),  # ends lower than it began
        (1000, 1010, 1020, 600, 500, 2000, 2010, 2020, 2030, 2040),  # rises in both outer thirds
        (1000, 1010, 1020, 1030, 1040, 2540, 2440, 2020, 2030, 2040),
    ],
    ids=["first half", "second half", "whole", "ends", "first third", "last third"],
)
def test_both_halves_the_whole_and_the_ends_have_to_agree(stretches: tuple[int, ...]) -> None:
    up = np.repeat(np.array(stretches, dtype=np.float64), 10)
    assert growth_of(PLACES[:100], up, "context") is None
    assert growth_of(PLACES[:100], 5000 - up, "context") is None


def cycles_of(steps: Sequence[int | None], contexts: Sequence[int | None] | None = None, **more: Any) -> pl.DataFrame:
    rows = [
        {
            "rank": "0",
            "cycle": n,
            "mode": "decode",
            "start_ns": 10 * n,
            "step_ns": step,
            "control": True,
            "context_tokens": None if contexts is None else contexts[n],
            **more,
        }
        for n, step in enumerate(steps)
    ]
    return pl.DataFrame(rows, schema=CYCLE_SCHEMA)


def test_cycles_are_taken_by_their_contexts_or_by_their_positions() -> None:
    contexts = [(37 * n) % 100 for n in range(100)]
    steps = [10_000 + 100 * context for context in contexts]
    found = growth_of_cycles(cycles_of(steps, contexts))
    assert found is not None
    assert (found.kind, found.first, found.last) == ("context", (4.5, 10_450.0), (94.5, 19_450.0))
    assert found.slope.value == pytest.approx(100.0)
    assert growth_of_cycles(cycles_of(steps)) is None
    by_position = growth_of_cycles(cycles_of(sorted(steps)))
    assert by_position is not None
    assert (by_position.kind, by_position.first, by_position.last) == ("position", (4.5, 10_450.0), (94.5, 19_450.0))


def test_only_untraced_cycles_with_a_step_count() -> None:
    steps: list[int | None] = [10_000 + 100 * n for n in range(41)]
    contexts = list(range(41))
    for lost in (None, 0):
        assert growth_of_cycles(cycles_of([*steps[:40], lost], contexts)) is not None
        assert growth_of_cycles(cycles_of([*steps[:39], lost], contexts)) is None
    assert growth_of_cycles(cycles_of(range(1, 41), contexts)) is not None
    assert growth_of_cycles(cycles_of(range(40), contexts)) is None
    traced = pl.concat([cycles_of(steps[:39], contexts), cycles_of(steps[39:], contexts, control=False, window=0)])
    assert growth_of_cycles(traced) is None


def test_cycles_that_do_not_decode_or_have_no_place_show_no_growth() -> None:
    steps = [10_000 + 100 * n for n in range(100)]
    assert growth_of_cycles(cycles_of(steps, mode="prefill")) is None
    assert growth_of_cycles(cycles_of([])) is None
    # Untraced cycles of another run, two seconds before, which tell no context.
    windows = cycles_of(steps, control=False, window=0).with_columns(pl.col("start_ns") + 2_000_000_000)
    assert growth_of_cycles(cycles_of(steps)) is not None
    assert growth_of_cycles(pl.concat([cycles_of(steps), windows])) is None


def test_a_growth_in_words() -> None:
    growth = Growth("context", (85.0, 12_094_000.0), (1040.0, 23_057_000.0), Interval(11_490.0, 11_300.0, 11_700.0))
    assert growth.sentence("the cycle") == (
        "the cycle grows with the context: 12.09 ms at 85 tokens, 23.06 ms at 1040 tokens (+11.49 us a token)"
    )
    back = Growth("position", (10.0, 2_000_000.0), (490.0, 1_000_000.0), Interval(-2083.0, -2100.0, -2000.0))
    assert back.sentence("the step") == (
        "the step shrinks over the recording: 2.00 ms at cycle 10, 1.00 ms at cycle 490 (-2.08 us a cycle)"
    )
    for kind, slope in (("context", back), ("position", growth)):
        assert " over the recording: " in replace(slope, kind=kind).sentence("the step")
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
