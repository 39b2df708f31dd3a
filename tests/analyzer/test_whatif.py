"""Predictions: exact where the story is linear, bounded where something is assumed, refused where nothing is known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces
from story import (
    GEMM,
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
from traces import kernel, launch, phase, rank_trace

from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.whatif import Changes, predict, scale_of, target_of, what_if, what_if_json
from specanalyze.cli import run
from specanalyze.formats.load import open_trace
from specanalyze.render.whatif import draw
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.phases import COMMUNICATION_BUCKETS, DEVICE_BUCKETS

ALLGATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
INDEX = "generate_draft_decode_kv_indices"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


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


def test_each_kind_of_communication_has_its_own_share_of_transfer() -> None:
    late = sweep_recording(2, ranks=2, lag_ns={1: 80_000})
    verify = late.phases["verify"]
    gathering = replace(verify, kernels={**verify.kernels, ALLGATHER: (1, 500_000)})
    both = replace(late, phases={**late.phases, "verify": gathering})
    m = measure(both.trace())
    assert m.transfer_share("verify", "other_comm") == 1.0
    assert m.transfer_share("verify", "allreduce") == pytest.approx(1 - 40_000 / 10_360_000, rel=1e-3)
    cells = predict(m, Changes(scale=((None, "allreduce", 0.0),))).table.filter(pl.col("phase") == "verify")
    after = dict(zip(cells["bucket"], cells["predicted_ns"], strict=True))
    assert after["allreduce"] == pytest.approx(40_000, rel=0.01)
    assert after["other_comm"] == 500_000


def draft_in_one_graph(replays: int = 1) -> Trace:
    """A draft phase: cache slots (eager), then a graph: an index table, a forward, its top-k; the tree (eager)."""
    rows: list[dict[str, Any]] = []
    for cycle in range(3):
        at, number = cycle * 1000, cycle * 10
        rows += [phase("spec.draft", at, at + 400, cycle=cycle), launch("cudaLaunchKernel", at + 1, number)]
        rows.append(kernel("assign_draft_cache_locs", at + 10, at + 20, number))
        for replay in range(replays):
            rows.append(launch("cudaGraphLaunch", at + 30 + 100 * replay, number + 1 + replay))
            for place, (name, ns) in enumerate(((INDEX, 7), (GEMM, 50), (ADD, 3))):
                begin = at + 40 + 100 * replay + 20 * place if place < 2 else at + 115 + 100 * replay
                rows.append(kernel(name, begin, begin + ns, number + 1 + replay))
        rows += [
            launch("cudaLaunchKernel", at + 330, number + 9),
            kernel("build_tree_efficient", at + 340, at + 350, number + 9),
        ]
        rows += [
            phase("spec.draft_extend", at + 400, at + 500, cycle=cycle),
            launch("cudaGraphLaunch", at + 401, number + 8),
        ]
        rows.append(kernel(GEMM, at + 410, at + 450, number + 8))
        rows += [phase("spec.verify", at + 500, at + 900, cycle=cycle), launch("cudaGraphLaunch", at + 501, number + 7)]
        rows.append(kernel(MOE, at + 510, at + 890, number + 7))
    modules = (None, "Llama.layers.0.mlp.up_proj", None)
    for ordinal, (name, module) in enumerate(zip((INDEX, GEMM, ADD), modules, strict=True)):
        node = {"kind": "node", "node_type": "kernel", "graph_id": 0, "node": ordinal, "module": module}
        rows.append({**node, "name": name, "pid": 1, "start_ns": 0, "dur_ns": 0, "module_class": module and "Linear"})
    return traces.trace(rank_trace(rows))


def test_what_the_draft_does_once_a_cycle_is_not_repeated_with_its_forwards() -> None:
    m = measure(draft_in_one_graph())
    once = {bucket: round(share * m.mean_ns()["draft"].get(bucket, 1), 6) for bucket, share in m.draft_once.items()}
    assert once["gemm"] == 0
    # cache slots 10, index table 7 and tree 10 come once; the elementwise kernel after the module with each forward
    assert sum(ns for bucket, ns in once.items() if bucket != "graph_gap") == 27
    assert m.draft_once["graph_gap"] == pytest.approx(1 / 3)


def test_a_draft_of_one_replay_a_forward_tells_nothing_apart() -> None:
    assert measure(draft_in_one_graph(replays=2)).draft_once == {}


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
    assert result.now_ns <= result.high_ns < 1.0002 * result.now_ns  # no change, and the noise of the cycles
    assert any("host is the slower one" in line for line in result.assumptions)


def test_bounds_hold_the_noise_of_the_cycles() -> None:
    off = tuple(int(v) for v in np.random.default_rng(4).integers(-90, 91, 1000))
    steady, noisy = (replace(sweep_recording(2), jitter=jitter) for jitter in ((0,), off))
    change = Changes(scale=((None, "allreduce", 0.5),))  # the kernel that varies
    still, moving = (what_if(r.trace(), change) for r in (steady, noisy))
    assert (still.low_ns, still.high_ns) == pytest.approx((still.predicted_ns, still.predicted_ns))
    assert moving.low_ns < moving.predicted_ns < moving.high_ns


def test_a_prediction_says_which_cycles_its_figures_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    recording = sweep_recording(2)
    change = Changes(scale=((None, "allreduce", 0.5),))
    for control, clock in ((True, "untraced"), (False, "traced")):
        result = what_if(replace(recording, control=control).trace(), change)
        told = what_if_json(result)
        assert told["clock"] == clock
        assert "traced and untraced" in told["covers"]["tokens_per_second"]
        draw(result)
        assert f"median of {clock} cycles" in " ".join(capsys.readouterr().out.split())


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
    assert up.predicted_ns / five.step_ns - 1 == pytest.approx(0.014, abs=0.002)
    assert down.predicted_ns / two.step_ns - 1 == pytest.approx(-0.0156, abs=0.002)
    assert five.tokens_per_second == pytest.approx(356.5, abs=0.1)
    assert up.tokens_per_second[1] == pytest.approx(351.6, abs=0.1)
    assert up.low_ns < five.step_ns < up.high_ns
    assert down.low_ns < two.step_ns < down.high_ns


PAIRS = {
    "more steps": ("sglang_tp2_eagle3_steps2", "sglang_tp2_eagle3_steps5", Changes(steps=5)),
    "story, 3 steps": ("story/eagle3_steps2", "story/eagle3_steps3", Changes(steps=3)),
    "story, 5 steps": ("story/eagle3_steps2", "story/eagle3_steps5", Changes(steps=5)),
    "story, fewer steps": ("story/eagle3_steps5", "story/eagle3_steps2", Changes(steps=2)),
    "no forward": ("story/eagle3_steps2", "story/eagle3_steps1", Changes(steps=1)),
    "first forward": ("story/eagle3_steps1", "story/eagle3_steps2", Changes(steps=2)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_device_work_of_other_steps_is_predicted_on_real_pairs(pair: str) -> None:
    start, truth, changes = PAIRS[pair]
    check = predict(*(_sample(start), changes), truth=_sample(truth)).against
    assert check is not None
    kinds = {row["kind"]: row for row in check.by_kind().iter_rows(named=True)}
    for kind, within in (("device", 0.02), ("transfer", 0.05)):
        assert abs(kinds[kind]["error_ns"]) < within * kinds[kind]["measured_ns"], (pair, kinds[kind])


def test_errors_of_a_prediction_add_up_to_that_of_the_cycle() -> None:
    start, truth = _sample("sglang_tp2_eagle3_steps2"), _sample("sglang_tp2_eagle3_steps2_nccl")
    told = predict(start, Changes(scale=(("verify", "allreduce", 3.0),)), truth=truth)
    assert told.against is not None
    table = told.against.table
    assert table["predicted_ns"].sum() == pytest.approx(told.predicted_ns)
    assert table["measured_ns"].sum() == pytest.approx(truth.step_ns)
    assert table["error_ns"].sum() == pytest.approx(told.predicted_ns - truth.step_ns)
    # the all-gather was NCCL's before, and is no all-reduce: predicted and measured agree in it
    gather = table.filter(pl.col("bucket") == "other_comm", pl.col("kind") == "transfer")
    assert gather.select(pl.col("error_ns").abs().max()).item() < 300


def test_a_plain_recording_is_no_proof_of_a_change_of_speculation() -> None:
    with pytest.raises(TraceError, match="decodes plainly"):
        predict(
            measure(sweep_recording(2).trace()),
            Changes(steps=3),
            truth=measure(baseline_recording(11_100_000, tuned=True).trace()),
        )


def test_a_recording_of_another_change_is_said() -> None:
    two, five = _sample("sglang_tp2_eagle3_steps2"), _sample("sglang_tp2_eagle3_steps5")
    right = predict(two, Changes(steps=5), truth=five)
    assert right.against is not None
    assert not any("no recording of this change" in line for line in right.warnings)
    assert "server.args.speculative_num_steps: 2 -> 5" in right.against.differences
    wrong = predict(two, Changes(steps=3), truth=five)
    assert any(
        "has 5 draft steps, the prediction 3: it is no recording of this change" in line for line in wrong.warnings
    )
    batch = sweep_recording(2, batch_size=4, graph_batch_size=4)
    other = predict(measure(sweep_recording(2).trace()), Changes(steps=3), truth=measure(batch.trace()))
    assert any(
        "mean batch 1.00 in steps2.parquet, 4.00 in steps2.parquet: not the same work" in line
        for line in other.warnings
    )


def test_simulated_acceptance_leaves_the_accept_length() -> None:
    told = predict(_sample("story/eagle3_steps1"), Changes(steps=2))
    assert told.accept_length[0] == told.accept_length[1] == pytest.approx(2.0, abs=0.01)
    assert any("accept length is left as it is: SGLANG_SIMULATE_ACC_LEN=2.0" in line for line in told.assumptions)


@cache
def _sample(name: str) -> Measured:
    return measure(open_trace([SAMPLES / f"{name}.parquet"]))


def real(folder: Path, name: str, steps: int | None) -> Measured:
    files = sorted(folder.glob(f"{name}_m17_rank?.json.gz"))
    return replace(measure(open_trace(files)), said_draft_steps=steps)


def device_ns(m: Measured, phase: str) -> float:
    """Device time of a phase without waiting for other ranks, ns a cycle."""
    row = m.mean_ns()[phase]
    return sum(
        ns * ((m.transfer_share(phase, b) or 1.0) if b in COMMUNICATION_BUCKETS else 1.0)
        for b, ns in row.items()
        if b in DEVICE_BUCKETS
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
        0.010, abs=0.002
    )


def test_nccl_predicted_from_custom_allreduce_on_real_recordings(reference: Path) -> None:
    """The errors printed in docs/decisions.md; 7.1 and 2.65 us are the medians of one all-reduce, measured apart."""
    folder = reference / "traces" / "sglang_h200" / "tp2"
    custom, nccl = real(folder, "e2", 2), real(folder, "e2_nccl", 2)
    changes = Changes(scale=((None, "allreduce", 7.1 / 2.65),))
    assert predicted_device_ns(custom, changes, "verify") / device_ns(nccl, "verify") - 1 == pytest.approx(
        -0.012, abs=0.003
    )


def test_the_command_against_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    two, five = (str(SAMPLES / f"sglang_tp2_eagle3_steps{n}.parquet") for n in (2, 5))
    assert run(["whatif", two, "--steps", "5", "--against", five]) == 0
    out = capsys.readouterr().out
    assert "waiting for other ranks" in out
    assert "where they differ by 0.5 % of the cycle or more" in out
    assert run(["whatif", two, "--steps", "5", "--against", five, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["against"]["cycle_ns"] == pytest.approx(5_603_811)
    kinds = {row["kind"] for row in document["against"]["by_kind"]}
    assert kinds == {"device", "transfer", "waiting", "idle"}
    assert run(["whatif", two, "--steps", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["against"] is None


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
