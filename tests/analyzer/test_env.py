"""What ``env`` shows, what it folds, and that units stand beside figures."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from specanalyze.answers.request_figures import requests_cover
from specanalyze.cli import run
from specanalyze.commands.env import flat
from specanalyze.render.env import LONGEST, cut, draw, in_words, shown

SAMPLE = Path(__file__).parents[2] / "samples" / "sglang_tp2_eagle3_steps2.parquet"


def test_long_lists_are_cut_between_items() -> None:
    archs = ",".join(f"model{n}" for n in range(100))
    assert len(cut(archs)) < LONGEST + 40
    kept, _, more = cut(archs).partition(" … and ")
    assert more == f"{100 - len(kept.split(','))} more items (--all)"
    assert archs.startswith(f"{kept},")
    assert cut("x" * 300) == "x" * LONGEST + "… (300 characters; --all)"
    assert cut("--a b") == "--a b"


def test_what_was_typed_is_whole_and_what_it_resolved_to_is_folded() -> None:
    typed = ("environment.command_line", "--flag " * 100)
    pairs = [
        typed,
        ("environment.server_args.tp_size", "2"),
        ("ranks[0].process_groups[0].name", "0"),
        ("ranks[0].rank", "0"),
    ]
    assert shown(pairs) == (
        [typed, ("ranks[0].rank", "0")],
        ["not shown: 1 resolved server argument, 1 fact of process groups; --all, --json and --output have them"],
    )
    assert shown(pairs[1:2]) == (pairs[1:2], [])  # all there is to see of the server


def test_figures_have_units() -> None:
    assert in_words("gpus[0].power_limit", "700000") == "700000 mW"
    assert in_words("gpus[1].clock_sm_max", "1980") == "1980 MHz"
    assert in_words("gpus[1].clock_sm_max", "–") == "–"
    assert in_words("gpu_count", "2") == "2"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gpus[0].ecc", "1 1", "on"),
        ("gpus[11].mig", "0 0", "off"),
        ("gpus[0].ecc", "1 0", "on, off after the next reset"),
        ("gpus[0].ecc", "–", "–"),
        ("gpus[0].nvlinks", "18", "18 active links"),
        ("links[0].gpus", "0 1", "GPU 0 and GPU 1"),
        ("links[0].gpus", "²", "²"),
        ("cuda_runtime", "12090", "12090, CUDA 12.9"),
        ("cuda_driver", "9" * 5000, "9" * 5000),
        ("hip_driver", "70051831", "70051831, HIP 7.0.51831"),
        ("settings.gap", "60", "60 cycles"),
        ("settings.repeat", "1", "1 window"),
        ("[0].row_groups", "3 1", "1 row group from number 3"),
        ("windows[0].read_ns", "5 9", "from 5 to 9"),
        ("warmups[1].warmup", "61 63", "cycles 61 to 62"),
        ("windows[1].cupti.clock_offset_ns", "16 38", "16 at its begin, 38 at its end"),
    ],
)
def test_bare_numbers_are_said_in_words(name: str, value: str, words: str) -> None:
    """``ecc 1 1`` told nobody that error correction is on."""
    assert in_words(name, value) == words


@pytest.mark.parametrize("path", sorted(SAMPLE.parent.rglob("*.parquet")), ids=lambda p: p.stem)
def test_no_line_is_a_list_of_bare_numbers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", str(path), "--all"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    bare = [words for words in lines if len(words) > 2 and all(word.isdecimal() for word in words[1:])]
    servers_own = "server_args."
    assert [words for words in bare if not words[0].startswith(servers_own)] == []
    assert "gpus[N] and GPU N: as NVML numbers them" in shown or "gpus[" not in shown
    assert "lost.N, totals.N and ranks.N: of rank N" in shown or "lost.0." not in shown


def test_names_in_lists_are_told_apart() -> None:
    assert flat({"unknown": ["accept lengths", "node map"], "gpus": [0, 1]}) == [
        ("unknown", "accept lengths, node map"),
        ("gpus", "0 1"),
    ]


def test_all_shows_everything_and_json_stays_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", str(SAMPLE)]) == 0
    short = capsys.readouterr().out
    assert "more items (--all)" in short
    assert "server_args.tp_size" not in short
    assert "read from metadata alone" in short
    assert run(["env", str(SAMPLE), "--all"]) == 0
    whole = capsys.readouterr().out
    assert "server_args.tp_size" in whole
    assert "(--all)" not in whole
    document = {}
    for more in ([], ["--all"]):
        assert run(["env", str(SAMPLE), "--json", *more]) == 0
        document[len(more)] = json.loads(capsys.readouterr().out)
    assert document[0] == document[1]
    archs = document[0]["environment"]["variables"]["SGLANG_DISABLED_MODEL_ARCHS"]
    assert len(archs) == 2208
    assert run(["env", str(SAMPLE), "-o", str(tmp_path / "env.csv")]) == 0
    assert archs in pl.read_csv(tmp_path / "env.csv")["value"].to_list()
    assert "".join(archs.split()) in "".join(whole.split())


def test_events_that_are_cut_are_not_seen_and_that_is_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes((reference / "traces/sglang_h200/tp2/e2_m17_rank0.json.gz").read_bytes()[:20_000])
    assert run(["env", str(path)]) == 0
    assert "whether the events behind it are whole, `specanalyze validate` tells" in capsys.readouterr().out
    assert run(["validate", str(path)]) == 1
    assert "ends early" in capsys.readouterr().err


def test_an_empty_list_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    draw(
        "a.parquet", {"environment": {"command_line": []}}, flat({"environment": {"command_line": []}}), everything=True
    )
    assert ["command_line", "none"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_what_a_client_measured_says_that_the_windows_slowed_it(capsys: pytest.CaptureFixture[str]) -> None:
    """``decode_tokens_per_second`` read 239 where the untraced server made 372."""
    path = str(SAMPLE)
    assert run(["env", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recording"]["requests"]["decode_tokens_per_second"] == pytest.approx(238.9, abs=0.1)
    covers = document["covers"]["recording.requests"]
    assert "3 profiler windows inside made all of it slower" in covers
    assert "decode_tokens_per_second the mean over requests, from the first chunk to the last" in covers
    assert run(["env", path]) == 0
    assert "requests: as the client saw it" in capsys.readouterr().out


def test_figures_of_a_client_without_windows_and_no_figures() -> None:
    told = requests_cover({"recording": {"requests": {"requests": 1}, "windows": []}})
    assert told is not None
    assert "slower" not in told
    for metadata in ({}, {"recording": {"requests": None}}, {"recording": None}):
        assert requests_cover(metadata) is None
