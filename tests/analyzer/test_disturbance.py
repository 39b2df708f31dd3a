"""Untraced cycles that the profiler disturbed are no control."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import traces

from specanalyze.answers.overhead import measure_overhead
from specanalyze.attribution.cycles import cycle_table
from specanalyze.trace import Trace

# Ten untraced cycles, two of warm-up, ten traced, three while the window is read, ten untraced.
STEPS = [(None, 100)] * 10 + [(None, 140)] * 2 + [(0, 150)] * 10 + [(None, 190)] * 3 + [(None, 100)] * 10


def recording(recorded: dict[str, Any]) -> Trace:
    rows, at = [], 0
    for number, (window, step) in enumerate(STEPS):
        rows.append(traces.phase("spec.cycle", at, at + 90, cycle=number, window=window, mode="speculative"))
        at += step
    return dataclasses.replace(traces.trace(traces.rank_trace(rows)), metadata={"recording": recorded})


# the window ends at 1000 + 280 + 1500 and its events had been read 500 later
END = 2780
MERGED = {
    "windows": [{"rank": 0, "window": 0, "end_ns": END, "read_ns": [END + 9, END + 500]}],
    "warmups": [{"rank": 0, "warmup": [10, 12]}],
}
ONE_FILE = {"windows": [{"warmup": [10, 12]}, {"window": 0, "end_ns": END, "read_ns": [END + 9, END + 500]}]}


@pytest.mark.parametrize("recorded", [MERGED, ONE_FILE])
def test_warm_up_and_reading_are_told_apart(recorded: dict[str, Any]) -> None:
    table = cycle_table(recording(recorded))
    expected = [None] * 10 + ["warm-up"] * 2 + [None] * 10 + ["reading"] * 3 + [None] * 10
    assert table["disturbed"].to_list() == expected
    assert table["control"].to_list() == [d is None and w is None for d, (w, _) in zip(expected, STEPS, strict=True)]
    # no step reaches into the warm-up, out of it, or across the window's edges
    assert [n for n, step in enumerate(table["step_ns"]) if step is None] == [9, 11, 21, 34]


def test_the_observer_effect_is_against_undisturbed_cycles() -> None:
    found = measure_overhead(recording(MERGED))
    assert found.effect is not None
    assert found.effect.value == pytest.approx(0.5)
    assert found.table.select("stretch", "cycles", "median_ns").rows() == [
        ("before", 9, 100),
        ("warm-up", 1, 140),
        ("window 0", 9, 150),
        ("reading", 3, 190),
        ("after", 9, 100),
    ]


def test_without_the_collectors_word_every_untraced_cycle_is_control() -> None:
    for recorded in (
        {},
        {"windows": [{"window": 0}]},
        {"windows": None},
        {"warmups": [{"rank": 1, "warmup": [10, 12]}]},
    ):
        table = cycle_table(recording(recorded))
        assert table["disturbed"].null_count() == table.height
        assert table.filter("control").height == 25
