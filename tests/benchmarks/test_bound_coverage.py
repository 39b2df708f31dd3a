"""The benchmark of bounds: its recordings are what it says they are, and it counts what holds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import story

from specanalyze.attribution.cycles import cycle_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.bound_coverage")


def still(_: np.random.Generator, count: int) -> np.ndarray:
    return np.zeros(count)


@pytest.mark.parametrize("grows_ns", [0, 100_000])
def test_what_is_true_of_a_recording_without_noise_is_what_it_shows(bounds: Any, grows_ns: int) -> None:
    noise = bounds.Noise(still, "none", cycles=60, traced=10, window=20, grows_ns=grows_ns)
    one = bounds.made(story.sweep_recording(2), noise, np.random.default_rng(1), noise.typical())
    cycles = cycle_table(one.trace).filter(pl.col("step_ns") > 0)
    untraced = cycles.filter("control").get_column("step_ns")
    assert untraced.median() == one.step_ns(place=one.untraced_place)
    window = cycles.filter(pl.col("window").is_not_null()).get_column("step_ns")
    assert window.mean() == one.step_ns(place=one.window_place) + bounds.OBSERVER_NS


def test_the_typical_noise_is_that_of_its_cycles(bounds: Any) -> None:
    median, mean = bounds.NOISES["stalling"].typical()
    assert mean == pytest.approx(0.03 * 2000, abs=1)
    assert 0 <= median <= 3
    assert bounds.Noise(bounds.independent, "").typical() == pytest.approx((0, 0), abs=0.2)


def test_a_run_counts_every_claim(bounds: Any) -> None:
    found = bounds.cover(bounds.NOISES["few"], 2)
    (header, _, *rows) = bounds.lines({"few": found})
    assert header == "| bounds of | stated | few |"
    assert len(rows) == len(found.claims) > 12
    assert all(tally.held <= tally.runs <= 2 * 3 for tally in found.claims.values())


def test_bounds_that_miss_the_truth_are_counted_and_missing_ones_are_not(bounds: Any) -> None:
    found = bounds.Coverage()
    for truth, low, high in ((1.0, 0.0, 2.0), (3.0, 0.0, 2.0), (1.0, None, None)):
        found.add("a figure", 0.95, truth, low, high)
    tally = found.claims["a figure"]
    assert (tally.held, tally.runs) == (1, 2)
    assert list(bounds.lines({"x": found}))[2] == "| a figure | 95 | 50 |"
