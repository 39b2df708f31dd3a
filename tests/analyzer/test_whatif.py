"""Predictions: exact where the story is linear, bounded where something is assumed, refused where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from story import (
    MOE,
    Recording,
    Work,
    baseline_recording,
    draft_work,
    environment,
    first_recording,
    sweep_recording,
    tuned_recording,
)

from specanalyze.cli import run
from specanalyze.load import open_trace
from specanalyze.measured import Measured, measure
from specanalyze.whatif import Changes, predict, scale_of, target_of, what_if
from specschema.errors import TraceError, UsageError
from specschema.phases import COMMUNICATION_BUCKETS, DEVICE_BUCKETS


def test_scaling_allreduce_predicts_the_tuned_recording() -> None:
    result = what_if(sweep_recording(2).trace(), Changes(scale=((None, "allreduce", 3.5 / 10.4),)))
    tuned = measure(tuned_recording().trace())
    assert result.predicted_ns == pytest.approx(tuned.step_ns, rel=1e-5)
    assert result.tokens_per_second[1] == pytest.approx(tuned.tokens_per_second, rel=1e-5)
    assert "upper bound" in result.assumptions[0]


def test_waiting_is_not_scaled_with_transfer() -> None:
    late = sweep_recording(2, ranks=2, lag_ns={1: 80_000})
    result = what_if(late.trace(), Changes(scale=((None, "allreduce", 0.0),)))
    (left,) = result.table.filter(pl.col("phase") == "verify", pl.col("bucket") == "allreduce")["predicted_ns"]
    assert left == pytest.approx(40_000, rel=0.01)  # rank 0 waits 0.08 ms, rank 1 not at all
    assert "waiting for late ranks stays" in result.assumptions[0]


def test_another_step_count_with_a_second_recording() -> None:
    result = what_if(sweep_recording(5).trace(), Changes(steps=2), other=sweep_recording(3).trace())
    measured = measure(sweep_recording(2).trace())
    assert result.predicted_ns == pytest.approx(measured.step_ns, rel=1e-3)
    assert result.accept_length[1] == pytest.approx(2.467)
    assert result.tokens_per_second[1] == pytest.approx(measured.tokens_per_second, rel=1e-3)


def test_without_a_second_recording_the_truth_lies_within_the_bounds() -> None:
    for now, then in ((2, 5), (5, 2)):
        result = what_if(sweep_recording(now).trace(), Changes(steps=then))
        truth = measure(sweep_recording(then).trace()).step_ns
        assert result.low_ns <= truth * 1.001
        assert truth <= result.high_ns * 1.001
        assert any("reads the same weights" in line for line in result.assumptions)


def test_plain_decoding_as_second_recording_only_bounds() -> None:
    plain = baseline_recording(15_900_000, tuned=False).trace()
    result = what_if(sweep_recording(2).trace(), Changes(steps=5), other=plain)
    assert result.predicted_ns < 27_000_000 < result.high_ns
    assert any("plain decoding runs other kernels" in line for line in result.assumptions)


def test_a_line_that_falls_or_is_within_noise_is_taken_as_flat() -> None:
    verify = sweep_recording(5).phases["verify"]
    quicker = {**verify.kernels, MOE: (61, verify.kernels[MOE][1] - 9_000_000)}
    odd = replace(sweep_recording(5), phases={**sweep_recording(5).phases, "verify": replace(verify, kernels=quicker)})
    result = what_if(sweep_recording(2).trace(), Changes(steps=8), other=odd.trace())
    moe = result.table.filter(pl.col("phase") == "verify", pl.col("bucket") == "moe")
    assert moe["change_ns"].to_list() == [0.0]
    assert any("taken as flat" in line for line in result.assumptions)


def sharded(allreduce_ns: int) -> Recording:
    base = sweep_recording(2, environment=environment(args={"tp_size": 2}))
    draft = draft_work(300_000 + allreduce_ns, 2, allreduce_ns)
    return replace(base, phases={**base.phases, "draft": draft})


def test_the_draft_on_one_gpu() -> None:
    result = what_if(sharded(700_000).trace(), Changes(draft_tp=1))
    table = result.table.filter(pl.col("phase") == "draft")
    after = dict(zip(table["bucket"], table["predicted_ns"], strict=True))
    before = dict(zip(table["bucket"], table["now_ns"], strict=True))
    assert after["allreduce"] == 0
    assert after["gemm"] == 2 * before["gemm"]
    assert after["other_compute"] == before["other_compute"]
    extend = result.table.filter(pl.col("phase") == "draft_extend")["change_ns"].sum()
    assert result.predicted_ns - result.now_ns == pytest.approx(
        -700_000 + before["gemm"] + before["attention"] + extend
    )


def test_a_draft_without_collectives_is_on_one_gpu_already() -> None:
    with pytest.raises(TraceError, match="no collective"):
        what_if(sweep_recording(2).trace(), Changes(draft_tp=1))


def test_removing_gaps_uses_the_untraced_clock_and_warns_without_one() -> None:
    observed = sweep_recording(2, observer_ns=3_000_000)
    result = what_if(observed.trace(), Changes(scale=((None, "graph_gap", 0.0),)))
    # 0.5 ms of gaps in a traced window whose idle time was 3.54 ms and is 0.54 ms untraced
    assert result.now_ns - result.predicted_ns == pytest.approx(500_000 * 0.54 / 3.54, rel=1e-2)
    alone = what_if(replace(observed, control=False).trace(), Changes(scale=((None, "graph_gap", 0.0),)))
    assert any("no ground for a decision" in line for line in alone.warnings)


def test_where_the_host_may_be_slower_the_bounds_reach_no_change() -> None:
    base = sweep_recording(2)
    verify = base.phases["verify"]
    slow_host = replace(base, phases={**base.phases, "verify": replace(verify, tail_ns=10_000_000)})
    result = what_if(slow_host.trace(), Changes(scale=((None, "allreduce", 0.5),)))
    assert result.predicted_ns == pytest.approx(result.now_ns - 5_200_000)
    assert result.high_ns == pytest.approx(result.now_ns)
    assert any("host is the slower one" in line for line in result.assumptions)


def test_a_tree_is_bounded_by_its_chain() -> None:
    result = what_if(sweep_recording(2).trace(), Changes(tree=2))
    assert result.accept_bounds == pytest.approx((2.467, 1 + 0.9775 * (1 + 1 - (1 - 0.617 / 0.85) ** 2)), rel=1e-3)


def test_acceptance_that_is_not_recorded_leaves_the_cycle() -> None:
    m = measure(sweep_recording(2).trace())
    silent = replace(
        m,
        cycles=m.cycles.with_columns(
            pl.lit(None, m.cycles.schema[c]).alias(c) for c in ("accept_lengths", "accepted_draft_tokens", "tokens")
        ),
    )
    result = predict(silent, Changes(steps=3))
    assert result.tokens_per_second == (None, None)
    assert any("tok/s is unknown" in line for line in result.warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to change"),
        ({"draft_tp": 2}, "only 1"),
        ({"steps": 0}, "at least 1"),
        ({"tree": 1}, "at least 2"),
    ],
)
def test_changes_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Changes(**changes)


def test_targets() -> None:
    assert scale_of("allreduce=0.7") == (None, "allreduce", 0.7)
    assert scale_of("draft_extend.gemm=2") == ("draft_extend", "gemm", 2.0)
    assert target_of("graph_gap") == (None, "graph_gap")
    for wrong in ("nccl=0.7", "allreduce", "allreduce=fast", "allreduce=-1", "prologue.moe=1"):
        with pytest.raises(UsageError):
            scale_of(wrong)


def test_a_bucket_without_time_is_refused() -> None:
    with pytest.raises(TraceError, match="no other_comm time"):
        what_if(sweep_recording(2).trace(), Changes(scale=((None, "other_comm", 0.5),)))


def test_forwards_of_an_eager_draft_grow_its_launches_too() -> None:
    base = first_recording()
    draft: Work = replace(base.phases["draft"], graph=False)
    eager = replace(base, phases={**base.phases, "draft": draft})
    result = what_if(eager.trace(), Changes(steps=10))
    now = result.table.filter(pl.col("phase") == "draft", pl.col("bucket").is_in(["launch", "gemm"]))
    ratios = (now["predicted_ns"] / now["now_ns"]).to_list()
    assert ratios == pytest.approx([2.0] * now.height)


SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def test_cycles_of_the_samples_predict_each_other() -> None:
    """The errors printed in docs/decisions.md."""
    two, five = (measure(open_trace([SAMPLES / f"sglang_tp2_eagle3_steps{n}.parquet"])) for n in (2, 5))
    up, down = predict(two, Changes(steps=5)), predict(five, Changes(steps=2))
    assert up.predicted_ns / five.step_ns - 1 == pytest.approx(0.025, abs=0.002)
    assert down.predicted_ns / two.step_ns - 1 == pytest.approx(-0.006, abs=0.002)
    assert five.tokens_per_second == pytest.approx(356.5, abs=0.1)
    assert up.tokens_per_second[1] == pytest.approx(347.8, abs=0.1)
    assert up.low_ns < five.step_ns < up.high_ns
    assert down.low_ns < two.step_ns < down.high_ns


def real(folder: Path, name: str, steps: int | None) -> Measured:
    files = sorted(folder.glob(f"{name}_m17_rank?.json.gz"))
    return replace(measure(open_trace(files)), said_draft_steps=steps)


def device_ns(m: Measured, phase: str) -> float:
    """Device time of a phase without waiting for other ranks, ns a cycle."""
    share = m.transfer_share(phase)
    row = m.mean_ns()[phase]
    return sum(
        ns * (share or 1.0 if b in COMMUNICATION_BUCKETS else 1.0) for b, ns in row.items() if b in DEVICE_BUCKETS
    )


def predicted_device_ns(m: Measured, changes: Changes, phase: str) -> float:
    table = predict(m, changes).table.filter(pl.col("phase") == phase, pl.col("bucket").is_in(DEVICE_BUCKETS))
    return device_ns(m, phase) + float(table["change_ns"].sum())


def test_five_steps_predicted_from_two_on_real_recordings(reference: Path) -> None:
    """The errors printed in docs/decisions.md."""
    folder = reference / "traces" / "sglang_h200" / "tp2"
    two, five = real(folder, "e2", 2), real(folder, "e5", 5)
    assert predicted_device_ns(two, Changes(steps=5), "verify") / device_ns(five, "verify") - 1 == pytest.approx(
        -0.016, abs=0.002
    )
    assert predicted_device_ns(two, Changes(steps=5), "draft") / device_ns(five, "draft") - 1 == pytest.approx(
        0.106, abs=0.002
    )


def test_nccl_predicted_from_custom_allreduce_on_real_recordings(reference: Path) -> None:
    """The errors printed in docs/decisions.md; 7.1 and 2.65 us are the medians of one all-reduce, measured apart."""
    folder = reference / "traces" / "sglang_h200" / "tp2"
    custom, nccl = real(folder, "e2", 2), real(folder, "e2_nccl", 2)
    changes = Changes(scale=((None, "allreduce", 7.1 / 2.65),))
    assert predicted_device_ns(custom, changes, "verify") / device_ns(nccl, "verify") - 1 == pytest.approx(
        -0.012, abs=0.003
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(sweep_recording(2).write(tmp_path))
    other = str(sweep_recording(5).write(tmp_path))
    assert run(["whatif", path, "--steps", "5", "--with", other, "--remove", "verify.graph_gap"]) == 0
    out, err = capsys.readouterr()
    assert "assumptions" in out
    assert "graph_gap takes 0 of its time in verify" in out
    assert err == ""
    assert run(["whatif", path]) == 2
    assert run(["whatif", path, "--remove", "draft.allreduce"]) == 1
