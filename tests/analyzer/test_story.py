"""The story of the tool, digit for digit, as its commands print it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from story import NCCL_VARIABLES, baseline_recording, first_recording, sweep_recording, tuned_recording

from specanalyze.cli import run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recordings of the story, each in a folder of its own name."""
    folder = tmp_path_factory.mktemp("story")
    for steps in range(1, 11):
        sweep_recording(steps).write(folder)
    for recording in (
        first_recording(),
        tuned_recording(),
        baseline_recording(11_100_000, tuned=True, name="base90"),
        baseline_recording(15_900_000, tuned=False, name="base62"),
        baseline_recording(11_260_000, tuned=True, name="base88"),
        # Break-even of the story is 29.9 / 11.1: both of one environment, so that the baseline is no stale one.
        sweep_recording(5, name="tuned5", environment=tuned_recording().environment),
    ):
        recording.write(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], folder: Path, command: str, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command run in the folder."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert run(command.split()) == code
    finally:
        os.chdir(here)
    out, err = capsys.readouterr()
    return " ".join(out.split()), err


def test_phases_are_those_of_the_story(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, recorded, "phases eagle")
    assert "draft 0.930 3.4 %" in out
    assert "verify 26.070 95.6 %" in out
    assert "draft extend 0.280 1.0 %" in out
    assert "cycle 27.280 100.0 %" in out
    assert "71.0" in out  # tok/s, where synchronised phases had said 31


def test_accept_length_is_the_servers(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, recorded, "accept eagle --json")
    assert json.loads(out)["accept_length"] == pytest.approx(1.937, abs=1e-9)
    assert json.loads(out)["accepted_draft_tokens"] == pytest.approx(0.937, abs=1e-9)


def test_break_even_is_cycle_over_step(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, recorded, "breakeven tuned5 --baseline base90")
    assert "2.69" in out
    assert "29.900" in out
    assert "11.100" in out


def test_the_stale_baseline_is_refused_by_name(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("breakeven steps5 --baseline base90", "compare base90 steps5", "diagnose steps5 --baseline base90"):
        _, err = said(capsys, recorded, command, code=1)
        assert "stale baseline" in err
        assert all(name in err for name in NCCL_VARIABLES)
    _, err = said(capsys, recorded, "compare base90 steps5", code=1)
    assert "90.1 tok/s" in err
    said(capsys, recorded, "compare base90 steps5 --accept-differences")


def test_the_true_baselines(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, with_, speed in (("base62", "steps2", "62.9"), ("base88", "tuned", "88.8")):
        out, _ = said(capsys, recorded, f"compare {name} {with_}")
        assert f"{speed} -> " in out


def test_verify_is_fixed_cost_through_three_and_six_tokens(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, recorded, "sweep steps2 steps5 --json")
    document = json.loads(out)
    total = document["verify_fit"][0]
    assert [p["tokens"] for p in document["points"]] == [3, 6]
    assert [round(p["verify_ns"]) for p in document["points"]] == [25_600_000, 28_700_000]
    assert total["bucket"] == "total"
    assert round(total["fixed_ns"]) == 22_500_000
    assert round(total["slope_ns"]) == 1_033_333
    assert "make two points" in err


def test_compare_says_27_percent_and_names_the_variables_first(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, recorded, "compare steps2 tuned")
    assert out.startswith(
        "environment ! NCCL_ALGO: unset -> Ring ! NCCL_P2P_LEVEL: unset -> SYS ! NCCL_PROTO: unset -> LL"
    )
    assert "verify 25.600 18.700 -6.900" in out
    assert "-27 % faster" in out


def test_the_sweep_finds_two(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, recorded, "sweep " + " ".join(f"steps{n}" for n in range(1, 11)))
    assert "best: draft steps 2, 94.0 tok/s" in out
    assert "beyond noise" in out
    assert "5 6 0.920 28.700 0.280 29.900" in out  # five steps: 29.9 ms a cycle


def test_diagnosis_puts_the_allreduce_first_and_clears_the_draft(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, recorded, "diagnose eagle")
    assert out.index("all-reduce is latency-bound: 122 calls of 85 us") < out.index("verify is 95.6 %")
    assert "the draft model cannot win more than 1.210 ms of their 27.280 ms" in out
    assert "NCCL_PROTO and NCCL_ALGO are not set" in out


def test_whatif_predicts_the_tuned_verify(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, recorded, f"whatif steps2 --scale verify.allreduce={3.5 / 10.4} --json")
    document = json.loads(out)
    assert document["cycle_ns"]["now"] == pytest.approx(26_248_000, rel=1e-5)
    assert document["cycle_ns"]["predicted"] == pytest.approx(19_348_000, rel=1e-5)
