"""Comparisons: verdicts only beyond noise, kernels that came and went, and failing a CI run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from story import (
    ALLREDUCE,
    Recording,
    Work,
    baseline_recording,
    environment,
    first_recording,
    sweep_recording,
    tuned_recording,
)

from specanalyze.answers.compare import Comparison, compare
from specanalyze.answers.regressions import regressions, share_of
from specanalyze.cli import run
from specanalyze.render.compare import draw
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError


def row(result: Comparison, scope: str, phase: str | None = None, bucket: str | None = None) -> dict[str, object]:
    found = result.table.filter(
        pl.col("scope") == scope, pl.col("phase").eq_missing(pl.lit(phase)), pl.col("bucket").eq_missing(pl.lit(bucket))
    )
    return found.row(0, named=True)


def renamed(recording: Recording, old: str, new: str) -> Recording:
    def works() -> dict[str, Work]:
        return {
            p: replace(w, kernels={new if k == old else k: v for k, v in w.kernels.items()})
            for p, w in recording.phases.items()
        }

    return replace(recording, phases=works())


def test_what_moved_is_found_in_its_bucket() -> None:
    result = compare(sweep_recording(2).trace(), tuned_recording().trace())
    assert row(result, "phase", "verify")["change_share"] == pytest.approx(-6.9 / 25.6)
    allreduce = row(result, "bucket", "verify", "allreduce")
    assert (allreduce["before_ns"], allreduce["after_ns"]) == (10_400_000, 3_500_000)
    assert allreduce["verdict"] == "faster"
    assert row(result, "bucket", "verify", "moe")["verdict"] == "within noise"
    assert row(result, "cycle")["verdict"] == "faster"
    assert result.cycle_change == pytest.approx(-6.9 / 26.248, rel=1e-4)
    assert result.clock == "untraced"


def test_a_recording_against_itself_moves_nothing() -> None:
    result = compare(sweep_recording(2).trace(), sweep_recording(2).trace())
    assert result.differences == []
    assert set(result.table["verdict"]) == {"within noise", "unknown"}
    assert set(result.table.filter(pl.col("verdict") == "unknown")["scope"]) == {"rest"}
    assert any("is given twice: nothing differs" in line for line in result.warnings)
    assert result.kernels.height == 0
    assert result.cycle_change is None


def test_a_change_inside_the_noise_is_no_verdict_and_a_tiny_one_is_small() -> None:
    noisy = (0, 300, -300, 100, -100)
    longer = Recording(sweep_recording(2).phases, environment=environment(), jitter=noisy)
    phases = dict(longer.phases)
    verify = phases["verify"]
    phases["verify"] = replace(verify, gap_ns=verify.gap_ns + 100_000)
    result = compare(longer.trace(), replace(longer, phases=phases).trace())
    assert row(result, "phase", "verify")["verdict"] == "within noise"
    assert row(result, "bucket", "verify", "graph_gap")["verdict"] == "small"  # surely moved, by 0.4 % of the cycle


def test_kernels_that_appeared_vanished_or_changed() -> None:
    before = sweep_recording(2)
    custom = "void cross_device_reduce_1stage<__nv_bfloat16, 8>"
    result = compare(before.trace(), renamed(before, ALLREDUCE, custom).trace())
    found = {(k["name"], k["status"], k["calls_before"], k["calls_after"]) for k in result.kernels.to_dicts()}
    assert found == {(custom, "appeared", 0.0, 122.0), (ALLREDUCE, "vanished", 122.0, 0.0)}
    changed = compare(before.trace(), tuned_recording().trace()).kernels.to_dicts()
    assert [(k["name"], k["status"], k["change_ns"]) for k in changed] == [(ALLREDUCE, "changed", -6_900_000)]


def test_waiting_is_told_apart_from_transfer() -> None:
    even = compare(tuned_recording(ranks=2).trace(), tuned_recording(ranks=2, lag_ns={1: 25_000}).trace())
    assert row(even, "part", "verify", "wait")["change_ns"] == pytest.approx(12_500)
    assert row(even, "part", "verify", "transfer")["change_ns"] == pytest.approx(-25_000)


def test_plain_decoding_is_set_beside_verify() -> None:
    result = compare(baseline_recording(15_900_000, tuned=False).trace(), sweep_recording(2).trace())
    assert row(result, "bucket", "verify", "gemm")["verdict"] == "within noise"
    assert row(result, "bucket", "verify", "moe")["verdict"] == "slower"
    assert row(result, "phase", "draft")["verdict"] == "only in one"
    assert any("target's forward" in line for line in result.warnings)


def test_a_plain_recording_beside_a_speculating_one_is_a_baseline() -> None:
    stale, now = baseline_recording(11_100_000, tuned=True).trace(), first_recording().trace()
    with pytest.raises(TraceError, match="stale baseline"):
        compare(stale, now)
    assert compare(stale, now, accept_differences=True).differences


def test_two_speculating_recordings_are_compared_whatever_differs_unless_one_is_the_baseline() -> None:
    with pytest.raises(TraceError, match="NCCL_PROTO"):
        compare(sweep_recording(2).trace(), tuned_recording().trace(), baseline=True)


def test_traced_cycles_are_said_to_be_no_ground_for_a_decision() -> None:
    result = compare(sweep_recording(2, control=False).trace(), sweep_recording(2, control=False).trace())
    assert result.clock == "traced"
    assert any("record untraced control cycles" in line for line in result.warnings)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), (" 12.5 % ", 0.125), ("0", 0.0)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["five", "150%", "-1%", "5"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        share_of(text)


def test_regressions_name_the_cycle_and_busy_buckets_only() -> None:
    slow = compare(tuned_recording().trace(), sweep_recording(2, environment=tuned_recording().environment).trace())
    lines = regressions(slow, 0.05)
    assert [line.split(" is ")[0] for line in lines] == ["the cycle", "verify allreduce"]
    assert regressions(slow, 0.5) == []
    assert regressions(compare(sweep_recording(2).trace(), tuned_recording().trace()), 0.05) == []


def test_fail_above_exits_1_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = tuned_recording().write(tmp_path)
    slow = sweep_recording(2, environment=tuned_recording().environment).write(tmp_path)
    assert run(["compare", str(fast), str(slow), "--fail-above", "5%"]) == 1
    assert "the cycle is slower by 6.900 ms" in capsys.readouterr().err
    assert run(["compare", str(slow), str(fast), "--fail-above", "5%"]) == 0
    assert run(["compare", str(fast), str(slow), "--fail-above", "much"]) == 2


def test_output_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = sweep_recording(2).write(tmp_path), tuned_recording().write(tmp_path)
    assert run(["compare", str(a), str(b), "-o", str(tmp_path / "c.csv")]) == 0
    assert pl.read_csv(tmp_path / "c.csv").filter(pl.col("scope") == "cycle")["verdict"].to_list() == ["faster"]
    capsys.readouterr()
    assert run(["compare", str(a), str(b), "--json"]) == 0
    assert '"NCCL_PROTO"' in capsys.readouterr().out


def test_real_recordings_of_custom_and_nccl_allreduce(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "traces" / "sglang_h200" / "tp2"
    patterns = [str(folder / f"{name}_m17_rank?.json.gz") for name in ("e2", "e2_nccl")]
    assert run(["compare", *patterns]) == 0
    capsys.readouterr()
    assert run(["compare", *patterns, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    transfer = next(r for r in document["table"] if (r["phase"], r["bucket"]) == ("verify", "transfer"))
    assert (round(transfer["before_ns"], -3), round(transfer["after_ns"], -3)) == (118_000, 344_000)
    assert {k["status"] for k in document["kernels"]} == {"appeared", "vanished"}
    assert "not recorded in both" in err


def recorded(settings: dict[str, object]) -> Trace:
    trace = sweep_recording(2).trace()
    return replace(trace, metadata={**trace.metadata, "recording": {"settings": settings}})


def test_recordings_made_in_different_ways_say_so_first() -> None:
    one = recorded({"record": 40, "repeat": 3, "stamps": False, "cupti": False})
    other = recorded({"record": 20, "repeat": 3, "cpu_ops": True, "cupti": True})
    assert str(compare(one, other).differences[0]) == ("recorder: torch.profiler, record 40 -> cupti-python, record 20")
    assert compare(one, one).differences == []


def test_what_leads_from_traced_phases_to_an_untraced_cycle_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    draw(compare(sweep_recording(2).trace(), tuned_recording().trace()))
    said = " ".join(capsys.readouterr().out.split())
    assert "the phases and the rows below them add up to the cycle" in said
    assert (
        "cycle: median of untraced cycles, start to start; phases, buckets and kernels: mean over whole traced" in said
    )
    assert "less observing: the untraced cycle less the traced one" in said


def test_ranks_batches_and_devices_that_differ_are_said() -> None:
    one = replace(sweep_recording(2), name="story")
    two = compare(one.trace(), replace(one, ranks=2, name="two").trace())
    assert any(line.startswith("1 rank in story.parquet, 2 in two.parquet") for line in two.warnings)
    batch = compare(one.trace(), replace(one, batch_size=4, name="four").trace())
    assert any("batch sizes differ: 1 in story.parquet, 4 in four.parquet" in line for line in batch.warnings)


def test_a_warning_says_whose_it_is() -> None:
    """Both recordings' ``rank 0: ...`` used to be one line that named neither."""
    one, other = (replace(sweep_recording(n), name=f"steps{n}").trace() for n in (2, 5))
    for trace in (one, other):
        trace.warnings.append("rank 0: something was lost")
    lines = [line for line in compare(one, other).warnings if "something was lost" in line]
    assert lines == ["steps2.parquet: rank 0: something was lost", "steps5.parquet: rank 0: something was lost"]


def test_arguments_of_another_server_are_no_unset_ones() -> None:
    vllm = environment(variables={"VLLM_USE_V1": "1", "NCCL_DEBUG": "INFO"}) | {
        "server": "vllm",
        "server_args": {"tensor_parallel_size": 4, "enforce_eager": False},
    }
    result = compare(sweep_recording(2).trace(), replace(sweep_recording(2), environment=vllm).trace())
    names = [d.name for d in result.differences]
    assert "server.name" in names
    assert "server.args.tp_size" in names
    assert "NCCL_DEBUG" in names
    assert not any("VLLM" in name or "enforce_eager" in name or "tensor_parallel" in name for name in names)
    assert any("have arguments of their own" in line for line in result.warnings)


CPU = str(Path(__file__).parents[1] / "cases" / "27-cpu-only-trace")


def test_a_run_on_a_cpu_is_no_comparison_for_one_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = str(sweep_recording(2).write(tmp_path))
    assert run(["sweep", gpu, CPU, "--values", "2,3", "--device", "cpu"]) == 1
    capsys.readouterr()
    for pair in ([CPU, gpu], [gpu, CPU]):
        assert run(["compare", *pair, "--device", "cpu"]) == 1
        assert "their times are of different things; give recordings of one kind" in capsys.readouterr().err
    assert run(["compare", CPU, gpu, "--device", "cpu", "--accept-differences"]) == 0
    said = capsys.readouterr()
    assert "their times are of different things, accepted" in said.err


def test_cycles_of_other_token_counts_are_not_judged_by_their_length() -> None:
    result = compare(sweep_recording(1).trace(), sweep_recording(5).trace())
    assert any("a cycle commits 1.85 tokens in" in line and "judge by tok/s" in line for line in result.warnings)
    assert not any(
        "a cycle commits" in line for line in compare(sweep_recording(2).trace(), tuned_recording().trace()).warnings
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_a_plain_recording_is_the_baseline_whichever_comes_first(swapped: bool) -> None:
    plain, now = baseline_recording(11_100_000, tuned=True).trace(), first_recording().trace()
    pair = (now, plain) if swapped else (plain, now)
    with pytest.raises(TraceError, match="stale baseline: " + plain.name):
        compare(*pair)
    result = compare(*pair, accept_differences=True)
    assert row(result, "phase", "verify")["verdict"] == ("faster" if swapped else "slower")
    assert not result.table.filter(pl.col("phase") == "decode").height


def test_an_imported_file_is_another_recorder() -> None:
    imported = replace(
        sweep_recording(2).trace(),
        metadata={"recording": {"source": "import", "format": "torch.profiler", "device": "cuda"}},
    )
    (first,) = compare(imported, recorded({"record": 40, "cupti": False})).differences
    assert str(first) == "recorder: torch.profiler, imported -> torch.profiler"


def test_long_values_are_cut_unless_all_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ",".join(f"model{n}" for n in range(100))
    other = replace(sweep_recording(5), environment=environment(variables={"SGLANG_DISABLED_MODEL_ARCHS": models}))
    paths = [str(r.write(tmp_path)) for r in (sweep_recording(2), other)]
    assert run(["compare", *paths]) == 0
    assert "more items (--all)" in capsys.readouterr().out
    assert run(["compare", *paths, "--all"]) == 0
    assert "model99" in "".join(capsys.readouterr().out.split())


def test_a_cycle_that_is_not_judged_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an untraced control a slower cycle passed ``--fail-above`` without a word."""
    one, two = (replace(sweep_recording(2, control=False), name=name).write(tmp_path) for name in ("one", "two"))
    assert run(["compare", str(one), str(two), "--fail-above", "5%"]) == 0
    assert "--fail-above judges the busy time of phases alone here" in capsys.readouterr().err
    assert run(["compare", str(one), str(two)]) == 0
    assert "--fail-above" not in capsys.readouterr().err
