"""Sweeps: the line through verify, predictions for steps nobody recorded, batch sizes within a recording, honest doubts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from story import environment, first_recording, sweep_recording, tuned_recording, verify_work

from specanalyze.answers.measured import measure_each
from specanalyze.answers.sweep import sweep, sweep_measured
from specanalyze.cli import run
from specanalyze.render.sweep import draw
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.errors import TraceError, UsageError


def joined(*traces: Trace) -> Trace:
    """One recording whose windows are those of several; cycles are renumbered so that none occurs twice."""
    frames = []
    for number, trace in enumerate(traces):
        events = next(iter(trace.ranks())).events
        shift = number * 10_000
        moved = {"cycle": shift, "correlation": shift * 100, "start_ns": number * 10**12}
        frames.append(
            events.with_columns(pl.col(c) + by for c, by in moved.items()).with_columns(pl.col("window") + number)
        )
    rank = RankTrace("0", 0, "joined.parquet", pl.concat(frames))
    return Trace("joined.parquet", (RankSource("0", rank.source, lambda: rank),), traces[0].metadata)


def test_fixed_and_slope_by_bucket() -> None:
    result = sweep([sweep_recording(n).trace() for n in (2, 3, 5)])
    fit = {r["bucket"]: r for r in result.fit.to_dicts()}
    assert round(fit["total"]["fixed_ns"]) == 22_500_000
    assert round(fit["total"]["slope_ns"], -1) == 1_033_330
    assert round(fit["allreduce"]["fixed_ns"]) == 10_400_000
    assert fit["allreduce"]["fixed_share"] == pytest.approx(10.4 / 22.5, rel=1e-6)
    assert fit["attention"]["slope_ns"] == pytest.approx(100_000)
    parts = [r for b, r in fit.items() if b != "total"]
    for column in ("fixed_ns", "slope_ns"):
        assert sum(r[column] for r in parts) == pytest.approx(fit["total"][column])
    assert result.fit_points == 3
    assert not any("two points" in line for line in result.warnings)


def test_the_two_ends_predict_the_middle() -> None:
    result = sweep([sweep_recording(n).trace() for n in (1, 5)])
    predicted = {r["draft_steps"]: r for r in result.predictions.to_dicts()}
    assert predicted[2]["predicted"] == pytest.approx(93.988, rel=2e-4)
    assert predicted[2]["measured"] is None
    assert predicted[5]["measured"] == pytest.approx(predicted[5]["predicted"], rel=1e-5)
    assert any(
        "2 draft steps are predicted to be best but were not recorded: record that, too" in line
        for line in result.warnings
    )


def test_a_margin_within_noise_is_said() -> None:
    twins = [sweep_recording(2, name="a"), sweep_recording(2, name="b", environment=environment(args={"chunk": 2}))]
    traces = [replace(t, environment=environment(args={"chunk": i})).trace() for i, t in enumerate(twins)]
    result = sweep(traces, over="chunk")
    assert (result.margin, result.clear) == (0.0, False)
    assert result.fit.height == 0
    assert any("all recordings verify 3 tokens" in line for line in result.warnings)


def test_any_server_argument_is_an_axis_and_a_missing_one_names_those_there_are() -> None:
    traces = [sweep_recording(2, environment=environment(args={"chunk": c})).trace() for c in (16, 2)]
    assert sweep(traces, over="chunk").points["x"].to_list() == ["2", "16"]
    with pytest.raises(TraceError, match=r"no server argument 'absent'; it has chunk, model_path"):
        sweep(traces, over="absent")


def test_values_stand_in_for_what_recordings_do_not_say() -> None:
    bare = [sweep_recording(n, environment={}).trace() for n in (2, 5)]
    assert sweep(bare, over="chunk", values=["8", "4"]).points["x"].to_list() == ["4", "8"]
    with pytest.raises(UsageError, match="1 value for 2 recordings"):
        sweep(bare, values=["2"])
    with pytest.raises(UsageError, match="draft steps are a number"):
        sweep(bare, values=["two", "five"])


def test_batch_sizes_within_a_recording() -> None:
    parts = []
    for batch in (1, 2, 4):
        work = {**sweep_recording(2).phases, "verify": verify_work(20_000_000 + 1_000_000 * 3 * batch, 3 * batch)}
        parts.append(replace(sweep_recording(2), phases=work, batch_size=batch, cycles=200).trace())
    result = sweep([joined(*parts)], over="batch_size")
    assert result.points["x"].to_list() == ["1", "2", "4"]
    assert result.points["tokens"].to_list() == [3.0, 6.0, 12.0]
    total = result.fit.row(0, named=True)
    assert total["fixed_ns"] == pytest.approx(20_000_000)
    assert total["slope_ns"] == pytest.approx(1_000_000)
    assert result.points["tokens_per_second"].is_sorted()
    assert result.predictions.height == 0


def test_recordings_of_other_settings_are_refused_and_named() -> None:
    traces = [sweep_recording(5).trace(), tuned_recording().trace()]
    with pytest.raises(
        TraceError, match=r"steps5\.parquet ran on another environment than tuned\.parquet: .*NCCL_PROTO"
    ):
        sweep(traces)
    with pytest.raises(TraceError, match="accept-differences"):
        sweep_measured(measure_each(traces))
    result = sweep(traces, accept_differences=True)
    assert any("in what matters, accepted" in line and "NCCL_PROTO" in line for line in result.warnings)


@pytest.mark.parametrize(
    "other",
    [
        {"server": "vllm"},
        {"server_version": "0.0.1"},
        {"gpu": "NVIDIA B200"},
        {"args": {"tp_size": 4}},
        {"model": {"name": "other", "config_digest": "00"}},
        {"driver": "590.1"},
    ],
)
def test_another_server_model_or_machine_is_no_point_of_a_sweep(
    other: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recordings = [
        replace(sweep_recording(2), environment=environment()),
        replace(sweep_recording(5), environment=environment(**other)),
    ]
    paths = [str(r.write(tmp_path)) for r in recordings]
    assert run(["sweep", *paths]) == 1
    assert "no sweep of one server" in capsys.readouterr().err
    assert run(["sweep", *paths, "--accept-differences"]) == 0
    assert "accepted" in capsys.readouterr().err


def test_two_that_differ_are_refused_behind_a_first_that_knows_nothing() -> None:
    unknown = replace(sweep_recording(1), environment={}).trace()
    others = [
        sweep_recording(2).trace(),
        replace(sweep_recording(5), environment=environment(gpu="NVIDIA B200")).trace(),
    ]
    with pytest.raises(TraceError, match=r"gpu\.model"):
        sweep([unknown, *others])
    assert any("cannot be checked" in line for line in sweep([unknown, others[0]]).warnings)


def test_the_setting_on_the_x_axis_may_differ_and_what_goes_with_it() -> None:
    recordings = [
        replace(sweep_recording(2), name=f"tp{n}", environment=environment(args={"tp_size": n}, gpu_count=n))
        for n in (2, 4)
    ]
    result = sweep([r.trace() for r in recordings], "tp_size")
    assert result.points["x"].to_list() == ["2", "4"]
    with pytest.raises(TraceError, match="tp_size"):
        sweep([r.trace() for r in recordings])


def test_one_clock_for_all_points() -> None:
    """A recording without untraced cycles used to lose against others by what observing added to it."""
    same = [replace(sweep_recording(n), observer_ns=9_000_000) for n in (2, 5)]
    controlled = sweep([r.trace() for r in same])
    mixed = sweep([same[0].trace(), replace(same[1], control=False).trace()])
    assert (controlled.clock, mixed.clock) == ("untraced", "traced")
    assert controlled.best == mixed.best
    for before, after in zip(controlled.points.to_dicts(), mixed.points.to_dicts(), strict=True):
        assert after["step_ns"] - before["step_ns"] == pytest.approx(9_000_000, rel=0.01)
    assert any("observed cycles" in line and same[1].name in line for line in mixed.warnings)


def test_observed_cycles_are_said_to_be_too_slow() -> None:
    result = sweep([sweep_recording(n, control=False).trace() for n in (2, 5)])
    assert any("fewer than 5 untraced control cycles" in line for line in result.warnings)


def test_one_recording_predicts_no_other_step_count() -> None:
    result = sweep([first_recording().trace()])
    assert result.predictions.height == 0
    assert (result.best, result.next_best, result.margin) == (None, None, None)
    assert any("one setting (draft steps 5) is no sweep" in line for line in result.warnings)


def test_the_best_is_better_than_another_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting recorded twice was called better than itself, and a setting alone the best."""
    draw(sweep([sweep_recording(2, name="a").trace(), sweep_recording(2, name="b").trace()]))
    assert "best" not in capsys.readouterr().out
    result = sweep([sweep_recording(n, name=name).trace() for n, name in ((2, "a"), (2, "b"), (5, "c"))])
    assert {result.best, result.next_best} == {"2", "5"}
    draw(result)
    assert f"best: draft steps {result.best}" in capsys.readouterr().out


def test_real_recordings_need_their_step_counts_and_refuse_simulated_acceptance(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reference / "traces" / "sglang_h200" / "tp2"
    files = [str(folder / f"{name}_m17_rank{rank}.json.gz") for name in ("e2", "e5") for rank in (0, 1)]
    assert run(["sweep", *files]) == 1
    assert "give --values 1,2,..." in capsys.readouterr().err
    assert run(["sweep", *files, "--values", "2,5"]) == 0
    out, err = capsys.readouterr()
    assert "acceptance is simulated" in err
    assert "make two points" in err
    assert "moe 0.857" in " ".join(out.split())


def test_a_printed_slope_lies_within_its_printed_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """770 ns a token stood as 0.000 ms beside 0.001 .. 0.001."""
    result = sweep([sweep_recording(n).trace() for n in (2, 3, 5)])
    row = {"slope_ns": 769.8, "slope_low_ns": 662.9, "slope_high_ns": 877.2}
    fit = result.fit.with_columns(pl.lit(v).alias(c) for c, v in row.items())
    draw(replace(result, fit=fit))
    out = " ".join(capsys.readouterr().out.split())
    assert "us a token" in out
    assert out.count("0.8 0.7 .. 0.9") == fit.height


def test_parallel_sizes_in_names_are_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``tp1.parquet`` and ``tp2.parquet`` were read as two ranks of one recording."""
    paths = []
    for size in (1, 2):
        recording = replace(sweep_recording(2), environment=environment(args={"tp_size": size}), name=f"run{size}")
        paths.append(str(recording.write(tmp_path).rename(tmp_path / f"tp{size}_steps2.parquet")))
    assert run(["sweep", *paths, "--over", "tp_size", "--json"]) == 0
    assert [point["x"] for point in json.loads(capsys.readouterr().out)["points"]] == ["1", "2"]
