"""What observing cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traces

from specanalyze.answers.medians import median_interval, ratio_interval
from specanalyze.answers.overhead import measure_overhead
from specanalyze.cli import run
from specanalyze.trace import RankTrace, Trace
from specschema.errors import TraceError

US = 1000


def stretches(*parts: tuple[int | None, int, int], rank: int = 0, **more: Any) -> RankTrace:
    """Parts of (window, cycles, step in us) one after the other; steps wobble by -2, 0, +2 us."""
    rows, at, number = [], 0, 0
    for window, count, step in parts:
        for n in range(count):
            cycle = traces.phase(
                "spec.cycle", at, at + 10 * US, cycle=number, window=window, mode="speculative", **more
            )
            rows.append(cycle)
            at += (step + 2 * (n % 3 - 1)) * US
            number += 1
    return traces.rank_trace(rows, rank=rank)


def recording(*parts: tuple[int | None, int, int], **more: Any) -> Trace:
    return traces.trace(stretches(*parts, **more))


def test_inside_against_outside_before_between_and_after() -> None:
    found = measure_overhead(recording((None, 31, 100), (0, 31, 150), (None, 31, 100), (1, 31, 150), (None, 31, 100)))
    assert found.table.select("stretch", "traced", "cycles", "median_ns").rows() == [
        ("before", False, 30, 100_000.0),
        ("window 0", True, 30, 150_000.0),
        ("between", False, 30, 100_000.0),
        ("window 1", True, 30, 150_000.0),
        ("after", False, 30, 100_000.0),
    ]
    assert found.effect is not None
    assert found.effect.value == pytest.approx(0.5)
    assert found.effect.low is not None
    assert found.effect.high is not None
    assert 0.45 < found.effect.low <= 0.5 <= found.effect.high < 0.55
    assert found.drift is not None
    assert found.drift.value == pytest.approx(0)
    assert not found.lasting


def test_a_slowdown_that_stays_after_the_windows_is_recognised() -> None:
    found = measure_overhead(recording((None, 41, 100), (0, 31, 150), (None, 41, 115)))
    assert found.lasting
    assert any("cycles stay 15.0 %" in note and "CUPTI left attached" in note for note in found.notes)
    slight = measure_overhead(recording((None, 41, 100), (0, 31, 150), (None, 41, 101)))
    assert not slight.lasting


def test_what_cannot_be_told_is_said() -> None:
    alone = measure_overhead(recording((0, 31, 150)))
    assert alone.effect is None
    assert any("no untraced cycle" in note for note in alone.notes)
    late = measure_overhead(recording((0, 31, 150), (None, 31, 100)))
    assert late.drift is None
    assert any("take the control before as well as after" in note for note in late.notes)
    with pytest.raises(TraceError, match="no profiled cycle with a known step"):
        measure_overhead(recording((None, 31, 100)))
    with pytest.raises(TraceError, match="no decode cycles"):
        measure_overhead(traces.trace(traces.rank_trace([traces.phase("other", 0, 1)])))


def test_the_control_of_another_run_shows_no_drift() -> None:
    inside = stretches((0, 31, 150)).events
    far = [
        traces.phase("spec.cycle", 10**10 + n * 100 * US, 10**10 + n * 100 * US + 5, cycle=n, mode="speculative")
        for n in range(20)
    ]
    found = measure_overhead(traces.trace(traces.rank_trace([*inside.to_dicts(), *far])))
    assert found.table["stretch"].to_list() == ["window 0", "control"]
    assert found.effect is not None
    assert found.effect.value == pytest.approx(0.5)
    assert any("another run" in note for note in found.notes)


def test_only_like_cycles_are_compared() -> None:
    small = stretches((None, 31, 100), (0, 31, 150), batch_size=1).events.to_dicts()
    start = small[-1]["start_ns"] + 1_000_000
    large = [
        traces.phase(
            "spec.cycle",
            start + n * 900 * US,
            start + n * 900 * US + 5,
            cycle=100 + n,
            mode="speculative",
            batch_size=8,
        )
        for n in range(60)
    ]
    found = measure_overhead(traces.trace(traces.rank_trace([*small, *large])))
    assert found.table["stretch"].to_list() == ["before", "window 0"]


def test_median_bounds_hold_the_truth_and_are_reproducible() -> None:
    values = np.random.default_rng(5).normal(100.0, 10.0, 400)
    found = median_interval(values)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 100 < found.high
    assert found.high - found.low < 5
    assert found == median_interval(values)
    assert median_interval(values[:1]).low is None
    assert ratio_interval(values * 2, values).value == 2


def test_a_real_recording(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "traces/sglang_h200/tp2"
    words = ["overhead", str(folder / "e2_m17_rank0.json.gz")]
    assert run([*words, "--cycles", str(folder / "e2_m15_rank0.cycles.json"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    medians = {row["stretch"]: row["median_ns"] / 1e6 for row in printed["stretches"]}
    assert medians == {"window 0": pytest.approx(9.998, abs=1e-3), "control": pytest.approx(4.715, abs=1e-3)}
    assert printed["lasting_slowdown"] is None
    assert run(words) == 0
    assert "Observing made a cycle 25.2 % slower" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("device", "teardown", "said"),
    [
        ("cpu", "1", "recorded on a CPU, where no GPU profiler stays attached"),
        ("cuda", "1", "TEARDOWN_CUPTI is 1, so CUPTI should have detached"),
        ("cuda", "0", "CUPTI left attached looks like this (TEARDOWN_CUPTI is 0;"),
        ("cuda", None, "CUPTI left attached looks like this (TEARDOWN_CUPTI is not recorded;"),
    ],
)
def test_cupti_is_blamed_only_where_it_may_be_attached(device: str, teardown: str | None, said: str) -> None:
    variables = {} if teardown is None else {"TEARDOWN_CUPTI": teardown}
    metadata = {"recording": {"device": device}, "environment": {"variables": variables}}
    found = measure_overhead(replace(recording((None, 41, 100), (0, 31, 150), (None, 41, 115)), metadata=metadata))
    (note,) = [n for n in found.notes if "cycles stay" in n]
    assert said in note
    assert ("CUPTI" in note) == (device != "cpu")
