"""The phases of a comparison and what is beside them add up to the cycle, by whatever clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from story import Recording, baseline_recording, environment, sweep_recording, tuned_recording

from specanalyze.answers.compare import Comparison, compare
from specanalyze.answers.cycle_account import (
    BETWEEN,
    ELSEWHERE,
    OBSERVING,
    PHASES,
    REST,
    TRACED,
    TYPICAL,
    UNTRACED,
    account,
    common_clock,
)
from specanalyze.answers.measured import measure
from specanalyze.formats.load import open_trace

SAMPLES = Path(__file__).parents[2] / "samples"
SIDES = ("before_ns", "after_ns", "change_ns")


def adds_up(result: Comparison) -> None:
    """Phases and the rest sum to the cycle, buckets to their phase."""
    cycle = result.table.filter(pl.col("scope") == "cycle")
    parts = result.table.filter(pl.col("scope").is_in(["phase", "rest"]))
    for side in SIDES:
        assert parts[side].sum() == pytest.approx(cycle[side].item(), abs=1e-3)
    buckets = (
        result.table.filter(pl.col("scope") == "bucket").group_by("phase").agg(pl.col(side).sum() for side in SIDES)
    )
    both = result.table.filter(pl.col("scope") == "phase").join(buckets, on="phase", suffix="_buckets")
    assert both.height
    for side in SIDES:
        assert both.select((pl.col(side) - pl.col(f"{side}_buckets")).abs().max()).item() < 1e-3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vllm_tp1_plain", "vllm_tp1_eagle3_steps2"),
        ("sglang_tp4_mla61_plain", "sglang_tp4_mla61_eagle3_steps2"),
        ("sglang_tp2_eagle3_steps2", "sglang_tp2_eagle3_steps5"),
        ("sglang_tp2_eagle3_steps5", "sglang_tp2_eagle3_steps2"),
        ("embedded_tp2", "sglang_v1_tp1_eagle3_steps2"),
    ],
)
def test_real_recordings(before: str, after: str) -> None:
    one, other = (open_trace([SAMPLES / f"{name}.parquet"]) for name in (before, after))
    adds_up(compare(one, other, accept_differences=True))


def test_each_reason_has_its_own_part() -> None:
    """Phases follow each other without a gap, all cycles are alike, and observing adds 2 ms to a phase of each traced one."""
    plain = sweep_recording(2)
    slow = replace(plain, observer_ns=2_000_000)
    m = measure(slow.trace())
    found = account(m, UNTRACED)
    assert found.parts[OBSERVING] == -2_000_000
    assert abs(found.parts[BETWEEN]) < 1_000
    assert abs(found.parts[TYPICAL]) < 1_000
    assert ELSEWHERE not in found.parts
    result = compare(plain.trace(), slow.trace())
    adds_up(result)
    rest = {r["phase"]: r for r in result.table.filter(pl.col("scope") == "rest").to_dicts()}
    assert rest[OBSERVING]["change_ns"] == pytest.approx(-2_000_000)
    assert rest[OBSERVING]["verdict"] == "unknown"  # known for the recording as a whole, not cycle by cycle
    assert result.table.filter(pl.col("scope") == "cycle")["change_ns"].item() == 0.0


def test_a_request_that_grows_away_from_its_windows_says_so() -> None:
    growing = replace(sweep_recording(2), grows_ns=12_000, windows=(100,), traced=40)
    m = measure(growing.trace())
    found = account(m, UNTRACED)
    assert found.parts[ELSEWHERE] == pytest.approx(m.step_ns - m.window_step_ns)
    assert found.parts[ELSEWHERE] > 3_000_000
    adds_up(compare(sweep_recording(2).trace(), growing.trace()))


def test_one_clock_for_both() -> None:
    """tok/s of an untraced recording used to stand beside that of a traced one."""
    controlled = sweep_recording(2).trace()
    traced = replace(sweep_recording(2, control=False), observer_ns=5_000_000).trace()
    assert common_clock((measure(controlled), measure(traced))) == TRACED
    for pair in ((controlled, traced), (traced, controlled)):
        result = compare(*pair)
        adds_up(result)
        assert result.clock == TRACED
        cycle = result.table.filter(pl.col("scope") == "cycle").row(0, named=True)
        for trace, speed, side in zip(pair, result.tokens_per_second, SIDES, strict=False):
            tokens = measure(trace).tokens_per_cycle
            assert tokens is not None
            assert speed == pytest.approx(tokens / cycle[side] * 1e9)


def test_cycles_without_a_successor_are_clocked_by_their_phases() -> None:
    """Windows of one cycle: no start-to-start time is known."""
    alone = replace(sweep_recording(2, control=False), traced=1, windows=(10, 20, 30))
    m = measure(alone.trace())
    assert common_clock((m, m)) == PHASES
    result = compare(alone.trace(), sweep_recording(2).trace())
    assert result.clock == PHASES
    adds_up(result)
    controlled = replace(sweep_recording(2), traced=1, windows=(10, 20, 30))
    assert set(account(measure(controlled.trace()), UNTRACED).parts) == {REST}
    adds_up(compare(controlled.trace(), sweep_recording(2).trace()))


def test_plain_decoding_beside_speculation() -> None:
    base: Recording = replace(baseline_recording(11_100_000, tuned=True), observer_ns=300_000)
    adds_up(compare(base.trace(), tuned_recording().trace()))
    assert environment()  # the same one in both, or the baseline would be refused
