"""The finding about cycles that grow with the context."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import story

from specanalyze.answers.measured import measure
from specanalyze.answers.sweep import sweep
from specanalyze.answers.whatif import Changes, predict
from specanalyze.answers.window_context import unlike_contexts
from specanalyze.diagnosis.diagnose import examine

SETTINGS: dict[str, Any] = {"cycles": 200, "traced": 20, "windows": (40, 80)}
GROWN = replace(story.sweep_recording(2, **SETTINGS), grows_ns=100_000)
"""The windows' cycles are the 40th to 59th and the 80th to 99th, 60 after the first stretch's middle (the fifth)."""


def plain(grows_ns: int, **more: Any) -> story.Recording:
    settings = {**SETTINGS, "grows_ns": grows_ns, **more}
    return story.baseline_recording(15_900_000, tuned=False, **settings)


def finding(recording: story.Recording, baseline: story.Recording | None = None) -> dict[str, Any] | None:
    result = examine(measure(recording.trace()), None if baseline is None else measure(baseline.trace()))
    rows = result.findings.filter(result.findings["rule"] == "context_growth").to_dicts()
    if "context_growth" in result.not_checked:
        return {"not_checked": result.not_checked["context_growth"]}
    return rows[0] if rows else None


def test_without_a_baseline_all_of_the_growth_is_the_upper_bound() -> None:
    found = finding(GROWN)
    assert found is not None
    assert found["confidence"] == "low"
    assert found["win_ns_per_cycle"] == pytest.approx(100_000 * (69.5 - 4.5), rel=0.02)
    assert "--baseline tells" in " ".join(found["evidence"])
    assert "longest kernel of it: flash_fwd_splitkv_mla_kernel" in found["evidence"]


def test_what_plain_decoding_grows_is_no_win() -> None:
    found = finding(GROWN, plain(20_000))
    assert found is not None
    assert found["confidence"] == "high"
    assert found["win_ns_per_cycle"] == pytest.approx(80_000 * (69.5 - 4.5), rel=0.02)
    assert any(
        line.startswith("plain decoding's") and "step grows with the context" in line for line in found["evidence"]
    )
    level = finding(GROWN, plain(0))
    assert level is not None
    assert any(
        line.startswith("plain decoding's") and line.endswith("step does not grow") for line in level["evidence"]
    )


def over_the_recording(found: dict[str, Any] | None) -> tuple[float, float, float]:
    """ms a token, and bounds, that the evidence tells of the whole recording."""
    assert found is not None
    (line,) = (line for line in found["evidence"] if "over the whole recording" in line)
    match = re.search(r"up to ([\d.]+) ms a token \(95 % bounds ([\d.]+) to ([\d.]+)\)", line)
    assert match is not None
    return float(match[1]), float(match[2]), float(match[3])


def test_what_is_won_over_the_recording_is_told_beside_the_windows() -> None:
    # untraced cycles with a step: 0..38, 60..78 and 100..198, 115.16 on average; two thirds further than the windows
    mean = sum((*range(39), *range(60, 79), *range(100, 199))) / (39 + 19 + 99)
    tokens = measure(GROWN.trace()).tokens_per_cycle
    assert tokens is not None
    told, low, high = over_the_recording(finding(GROWN))
    assert told == pytest.approx(0.1 * (mean - 4.5) / tokens, rel=0.02)
    assert low < told < high
    beside, low, high = over_the_recording(finding(GROWN, plain(20_000)))
    assert beside == pytest.approx(0.8 * told, rel=0.02)
    assert low < beside < high


def test_a_verify_that_grows_as_plain_decoding_does_is_no_fault() -> None:
    assert finding(GROWN, plain(90_000)) is None


def test_one_window_tells_by_its_halves() -> None:
    found = finding(replace(GROWN, windows=(40,)))
    assert found is not None
    assert found["win_ns_per_cycle"] == pytest.approx(100_000 * (49.5 - 4.5), rel=0.03)
    assert "verify attention 6.25 ms at 1044 tokens, 7.25 ms at 1054 tokens" in " ".join(found["evidence"])


def test_a_few_traced_cycles_cannot_tell_what_grows() -> None:
    found = finding(replace(GROWN, windows=(40,), traced=9))
    assert found is not None
    assert "but 9 traced cycles cannot show which device work does" in found["not_checked"]


def test_few_untraced_cycles_cannot_tell() -> None:
    found = finding(replace(GROWN, cycles=60, windows=(20, 40), traced=15))
    assert found is not None
    assert "fewer than 40 untraced cycles" in found["not_checked"]


def test_growth_that_is_not_the_devices_is_not_its_finding() -> None:
    slow_host = replace(story.sweep_recording(2, **SETTINGS), host_grows_ns=100_000)
    m = measure(slow_host.trace())
    assert m.growth is not None
    assert m.grown.height == 0
    assert finding(slow_host) is None


def test_a_prediction_leaves_what_other_contexts_cost() -> None:
    m = measure(GROWN.trace())
    told = predict(m, Changes(scale=(("verify", "moe", 0.5),)))
    parts = {(p, b): (now, then) for p, b, now, then, _ in told.table.iter_rows()}
    now, then = parts["elsewhere", "place"]
    assert now == then == pytest.approx(m.step_ns - m.window_step_ns)
    assert now > 2_000_000
    assert told.now_ns == pytest.approx(m.step_ns)
    assert told.table["now_ns"].sum() == pytest.approx(told.now_ns)
    assert told.table["predicted_ns"].sum() == pytest.approx(told.predicted_ns)
    assert parts["rest", "host"][0] == pytest.approx(0, abs=0.005 * m.step_ns)
    assert any("at the place of the windows" in line for line in told.warnings)


def test_windows_at_other_contexts_are_told_beside_a_comparison() -> None:
    later = replace(GROWN, name="later", windows=(140, 160))
    told = unlike_contexts(measure(GROWN.trace()), measure(later.trace()))
    # contexts begin at 1000: 1069.5 against 1159.5 is less than a tenth
    assert told == []
    short = replace(GROWN, name="short", first_context=64)
    told = unlike_contexts(measure(short.trace()), measure(replace(later, first_context=64).trace()))
    assert told == [
        "the windows lie at 134 tokens of context in short.parquet and at 224 in later.parquet, and cycles grow with it: "
        "a part of what verify attention differs by is that"
    ]
    level = replace(short, grows_ns=0)
    assert unlike_contexts(measure(level.trace()), measure(replace(level, windows=(140, 160)).trace())) == []


def test_a_sweep_and_a_prediction_say_when_windows_lie_at_other_contexts() -> None:
    early = replace(GROWN, name="early", first_context=64)
    late = replace(
        story.sweep_recording(3, **SETTINGS), name="late", grows_ns=100_000, windows=(140, 160), first_context=64
    )
    said = "the windows lie at 134 tokens of context in early.parquet and at 224 in late.parquet"
    assert any(line.startswith(said) for line in sweep([early.trace(), late.trace()]).warnings)
    told = predict(measure(early.trace()), Changes(steps=3), truth=measure(late.trace()))
    assert told.against is not None
    assert any(line.startswith(said) for line in told.against.warnings)
