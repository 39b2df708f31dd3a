"""Whole files with hardly anything in them, through every command: an answer, or one line that says why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import traces

from specanalyze.cli import run
from specanalyze.formats.trace_writer import write_trace
from specschema import metadata
from specschema.events import EVENT_SCHEMA

MS = 1_000_000
BEGIN = 1_790_000_000_000_000_000
GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
PHASES = ("spec.draft", "spec.verify", "spec.draft_extend")


def cycle(
    number: int,
    *,
    window: int | None = 0,
    accept: int = 2,
    phases: tuple[str, ...] = PHASES,
    ms: int = MS,
    kernel: str = GEMM,
) -> list[dict[str, Any]]:
    """A cycle every 10 ms whose phases take two thirds of it and work the device for one."""
    at = BEGIN + number * 10 * MS
    tells = {"mode": "speculative", "request_ids": ["a"], "batch_size": 1, "draft_tokens": 2}
    tells |= {"accept_lengths": [accept], "accepted_draft_tokens": [max(accept - 1, 0)]}
    rows = [{**traces.phase("spec.cycle", at, at + 9 * ms, cycle=number, window=window), **tells}]
    for place, name in enumerate(phases):
        begin = at + 3 * place * ms
        rows.append(traces.phase(name, begin, begin + 2 * ms, cycle=number, window=window))
        if window is not None:
            rows.append(traces.launch("cudaGraphLaunch", begin, 10 * number + place, window=window))
            rows.append(traces.kernel(kernel, begin, begin + ms, 10 * number + place, window=window))
    return rows


def many(n: int = 8, **more: Any) -> list[dict[str, Any]]:
    return [row for number in range(n) for row in cycle(number, **more)]


RECORDINGS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "one cycle": lambda: cycle(0),
    "two cycles": lambda: many(2),
    "no verify": lambda: many(phases=("spec.draft",)),
    "no phase": lambda: many(phases=()),
    "no length": lambda: many(ms=0),
    "nothing accepted": lambda: many(accept=0),
    "no window": lambda: many(window=None),
    "a name of another script": lambda: many(kernel="核_\u202e\x1b[31mred\x07_" + "x" * 3000 + "\U0001f600"),
}
COMMANDS: list[list[str]] = [
    ["breakdown"],
    ["breakdown", "--by", "cycle"],
    ["phases"],
    ["phases", "--by", "cycle"],
    ["phases", "--by", "request"],
    ["layers"],
    ["kernels"],
    ["ranks"],
    ["diagnose"],
    ["accept"],
    ["accept", "--by", "request"],
    ["compare"],
    ["breakeven"],
    ["sweep"],
    ["sweep", "--over", "batch_size"],
    ["whatif", "--scale", "gemm=0.5"],
    ["whatif", "--steps", "4"],
    ["overhead"],
    ["validate"],
    ["env"],
]
SECOND = {"compare": [], "breakeven": ["--baseline"]}


@pytest.fixture(params=RECORDINGS)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd.parquet"
    write_trace(traces.trace(traces.rank_trace(RECORDINGS[request.param]())), path)
    return path


@pytest.mark.parametrize("json_wanted", [False, True], ids=["drawn", "json"])
def test_an_answer_or_one_line(
    recording: Path, json_wanted: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for command, *more in COMMANDS:
        second = [*SECOND[command], str(recording)] if command in SECOND else []
        code = run([command, str(recording), *second, *more, *(["--json"] if json_wanted else [])])
        shown = capsys.readouterr()
        assert code in (0, 1), (command, more, shown.err)
        if code:
            assert shown.out == ""
            assert (shown.err.count("\n"), shown.err.startswith("error: ")) == (1, True), (command, more, shown.err)
        elif json_wanted:
            json.loads(shown.out)
        assert "\x1b" not in shown.out + shown.err
        assert "\x07" not in shown.out + shown.err


def test_a_file_without_a_rank_says_so_in_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kernels blamed a missing window, accept a missing request, and import wrote an empty trace."""
    path, output = tmp_path / "empty.parquet", tmp_path / "out"
    sections = metadata.encode({"recording": {"source": "collector"}})
    pq.write_table(EVENT_SCHEMA.empty_table().replace_schema_metadata(sections), path)
    writing = [
        ["import", "-o", f"{output}.parquet"],
        ["redact", "-o", f"{output}.parquet"],
        ["export", "--to", "chrome", "-o", f"{output}.json"],
        ["export", "--to", "perfetto", "-o", f"{output}.pftrace"],
    ]
    for command, *more in [*COMMANDS, *writing]:
        second = [*SECOND[command], str(path)] if command in SECOND else []
        if command == "env":
            continue  # what ran is told all the same
        assert run([command, str(path), *second, *more]) == 1, command
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == (
            "",
            f"error: {path} holds no rank: no event was recorded into it, or none is left\n",
        )
    assert [p.name for p in tmp_path.iterdir()] == ["empty.parquet"]


def test_a_folder_of_folders_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a", "notes"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "trace.parquet").touch()
    assert run(["breakdown", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} holds no trace: no .json, .json.gz or .parquet file in it, but in a, b: give the one you mean\n"
    )


def test_requests_that_are_not_timed_are_none_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ended in a traceback of polars."""
    path = tmp_path / "odd.parquet"
    write_trace(traces.trace(traces.rank_trace(cycle(0))), path)
    assert run(["phases", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == []
    assert run(["phases", str(path), "--by", "request"]) == 1
    assert "has no step of a request whose length is known" in capsys.readouterr().err
