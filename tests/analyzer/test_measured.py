"""A recording reduced to its cycles: whole ones only, ranks averaged, untraced cycles as the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from story import baseline_recording, first_recording, sweep_recording, tuned_recording
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze.answers.measured import acceptance_of, measure
from specanalyze.formats.load import open_trace
from specschema.errors import TraceError


def test_phases_steps_and_tokens_of_a_recording() -> None:
    m = measure(first_recording().trace())
    assert m.phases == ("draft", "verify", "draft_extend")
    assert [round(m.phase_ns(p)) for p in m.phases] == [930_000, 26_070_000, 280_000]
    assert m.cycle_count == 20
    assert (m.draft_steps, m.verify_tokens, m.batch_size) == (5, 6.0, 1.0)
    assert m.accept_length == pytest.approx(1.937)
    assert m.tokens_per_second == pytest.approx(71.0, abs=0.01)


def test_the_clock_is_untraced_where_there_is_a_control() -> None:
    observed = measure(sweep_recording(2, observer_ns=3_000_000).trace())
    assert observed.controlled
    assert observed.step_ns == pytest.approx(26_248_000, rel=1e-4)
    assert np.median(observed.steps_ns(traced=True)) == 29_248_000
    # busy 25.708 ms; 0.54 ms of 3.54 ms idle is left untraced
    assert observed.idle_factor == pytest.approx(0.54 / 3.54, rel=1e-3)
    alone = measure(sweep_recording(2, observer_ns=3_000_000, control=False).trace())
    assert not alone.controlled
    assert alone.idle_factor is None
    assert alone.step_ns == pytest.approx(29_248_000, rel=1e-3)


def test_plain_decoding_commits_a_token_a_step() -> None:
    m = measure(baseline_recording(11_100_000, tuned=True).trace())
    assert (m.speculating, m.main_phase, m.verify_tokens, m.draft_steps) == (False, "decode", 1.0, None)
    assert m.tokens_per_second == pytest.approx(1e9 / 11_100_000, rel=1e-5)


def test_tensor_parallel_ranks_count_their_tokens_once() -> None:
    m = measure(tuned_recording(ranks=2, lag_ns={1: 20_000}).trace())
    assert m.counted == ("0",)
    assert m.tokens_per_cycle == pytest.approx(2.467)
    table = m.communication("verify")
    assert table is not None
    assert table["wait_ns"].mean() == pytest.approx(20_000 / 2)  # rank 0 waits, mean over both
    share = m.transfer_share("verify")
    assert share == pytest.approx(1 - 10_000 / (3_500_000 - 20_000 / 2), rel=1e-4)


def test_acceptance_by_position_over_recordings() -> None:
    both = [measure(sweep_recording(n, cycles=1000).trace()) for n in (1, 3)]
    assert acceptance_of(both).tolist() == pytest.approx([0.85, 0.617, 0.02])


def test_draft_steps_are_what_the_user_says_where_he_says_it() -> None:
    m = measure(sweep_recording(3).trace())
    assert replace(m, said_draft_steps=2).draft_steps == 2


def test_a_cycle_without_the_records_of_a_replay_does_not_count() -> None:
    rows = []
    for cycle in range(3):
        at = cycle * 1000
        rows += [phase("spec.verify", at, at + 900), launch("cudaGraphLaunch", at + 10, cycle + 1)]
        if cycle != 1:
            rows.append(kernel("fused_moe_kernel", at + 100, at + 800, cycle + 1))
    m = measure(trace(rank_trace(rows)))
    assert m.cycle_count == 2
    assert m.mean_ns()["verify"]["moe"] == 700


def test_no_whole_cycle_is_said_with_what_to_record() -> None:
    rows = [phase("spec.draft", 0, 900), launch("cudaGraphLaunch", 10, 1), kernel("fused_moe_kernel", 100, 800, 1)]
    with pytest.raises(TraceError, match=r"no whole decode cycle .* record a kernel window"):
        measure(trace(rank_trace(rows)))


def test_stalls_do_not_move_the_clock_but_are_said() -> None:
    steady = sweep_recording(2)
    m = measure(steady.trace())
    assert m.stalls() == []
    late = m.cycles.with_columns(
        pl.when(pl.col("cycle") % 100 == 0).then(pl.col("step_ns") * 60).otherwise(pl.col("step_ns")).alias("step_ns")
    )
    stalled = replace(m, cycles=late)
    assert stalled.step_ns == m.step_ns
    (line,) = stalled.stalls()
    assert "a few cycles stall" in line


def test_cycles_that_ranks_number_differently_are_the_same_cycles() -> None:
    """Rank 0 counts 63 to 102 in the first window, rank 1 62 to 101: 40 cycles a window, not 41."""
    sample = Path(__file__).resolve().parents[2] / "samples" / "sglang_tp2_eagle3_steps2.parquet"
    assert measure(open_trace([sample])).cycle_count == 120
