"""The small inputs with their right answers: every value of expected.json, through the command line as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specanalyze import cli
from specanalyze.formats import kineto_scan
from specanalyze.native import collect, timeline
from specanalyze.native.library import library

CASES = Path(__file__).resolve().parents[1] / "cases"
REPAIRED_OR_REFUSED = "either"


@pytest.fixture(autouse=True, params=["compiled passes", "whole tables"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums are made by compiled passes while a rank is read, or of its whole tables where there is no compiler: with equal answers."""
    if request.param == "whole tables":
        monkeypatch.setenv("SPECANALYZE_NATIVE", "0")
    caches = (library, timeline.compiled, collect.compiled, kineto_scan._declared)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path) -> Done:
    """The command line in this process: a new one for each of a hundred cases would mostly import polars."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(list(map(str, arguments)))
    return Done(code, out.getvalue(), err.getvalue())


def cases(*expect: str) -> list[Any]:
    found = []
    for folder in sorted(CASES.iterdir()):
        if (folder / "expected.json").exists():
            want = json.loads((folder / "expected.json").read_text())
            if want["expect"] in expect:
                found.append(pytest.param(folder, want, id=folder.name))
    return found


def inputs(folder: Path, want: dict[str, Any]) -> list[list[Path]]:
    """The command lines' traces: each file a run of its own, or all of the folder as one."""
    files = [folder / name for name in want["input"] if not name.endswith("steps.jsonl")]
    return [[f] for f in files] if want.get("separate_inputs") else [files]


def words(text: str, must: list[Any]) -> None:
    """Each entry of ``must`` (``a|b``: one of them; a list: all of them in one line) is in the text."""
    for entry in must:
        together = entry if isinstance(entry, list) else [entry]
        lines = text.splitlines() if isinstance(entry, list) else [text]
        assert any(
            all(any(word.lower() in line.lower() for word in part.split("|")) for part in together) for line in lines
        ), f"{entry} not in:\n{text}"


def options(folder: Path, want: dict[str, Any], tmp_path: Path) -> list[str]:
    if "phase_map" not in want:
        return []
    path = tmp_path / "phases.json"
    path.write_text(json.dumps(want["phase_map"]))
    return ["--phase-map", str(path)]


def check_ranks(got: dict[str, Any], want: dict[str, Any]) -> None:
    for key, rank in want.items():
        mine = got[key]
        assert mine["window_ns"] == rank["window_ns"]
        keys = ("instances", "total_ns", "gpu_busy_ns", "hidden_comm_ns", "buckets_ns")
        assert {p: {k: v[k] for k in keys} for p, v in mine["phases"].items()} == rank["phases"]
        for remainder in ("unattributed", "outside", "invalid"):
            assert mine.get(remainder) == rank.get(remainder)


def check_wait(got: dict[str, Any] | None, want: dict[str, Any]) -> None:
    if "wait" not in want:
        return
    if want["wait"] is None:
        assert got is None
        return
    assert got is not None
    for key, value in want["wait"].items():
        if key == "matched_by":
            assert got[key] == re.sub(r" \(.*\)$", "", value)
        else:
            assert got[key] == value, key


@pytest.mark.parametrize(("folder", "want"), cases("result", REPAIRED_OR_REFUSED))
def test_breakdown(folder: Path, want: dict[str, Any], tmp_path: Path) -> None:
    said = ""
    refused = False
    for traces in inputs(folder, want):
        done = run("breakdown", *traces, "--phase", "all", "--json", *options(folder, want, tmp_path))
        said += done.stderr
        if done.returncode and want["expect"] == REPAIRED_OR_REFUSED:
            check_refusal(done, traces, want)
            refused = True
            continue
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        expected = want["ranks"]
        if want.get("separate_inputs"):
            expected = {k: v for k, v in expected.items() if k in got["ranks"]}
            assert len(expected) == len(got["ranks"]) == 1
        check_ranks(got["ranks"], expected)
        for key in ("coverage", "verify_per_recorded_instance_ns", "graph_launches"):
            if key in want:
                assert got[key] == want[key]
        check_wait(got["wait"], want)
        if want["expect"] == REPAIRED_OR_REFUSED and "phase_map" not in want:
            assert got["warnings"], "a repaired file is never silent"
    if not refused:
        words(said, want.get("must_warn", []))


@pytest.mark.parametrize(("folder", "want"), cases("result"))
def test_ranks(folder: Path, want: dict[str, Any]) -> None:
    if "wait" not in want:
        pytest.skip("the case says nothing about waiting")
    done = run("ranks", *(folder / name for name in want["input"] if not name.endswith("steps.jsonl")), "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    check_wait(got["wait"], want)
    for key in ("hosts", "clock_offset_estimate_ns", "world_size"):
        if key in want:
            assert got[key] == want[key]
    words(done.stderr, want.get("must_warn", []))


def check_refusal(done: Done, traces: list[Path], want: dict[str, Any]) -> None:
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    words(done.stderr, want.get("must_mention", []))
    assert any(t.name in done.stderr for t in traces) or traces[0].parent.name in done.stderr


@pytest.mark.parametrize(("folder", "want"), cases("error"))
@pytest.mark.parametrize("command", ["breakdown", "kernels", "import"])
def test_refusals(folder: Path, want: dict[str, Any], command: str, tmp_path: Path) -> None:
    if command not in want.get("commands", [command]):
        pytest.skip("the case is of other commands")
    for traces in inputs(folder, want):
        given = [folder] if len(traces) > 1 else traces
        target = ["-o", str(tmp_path / "trace.parquet")] if command == "import" else ["--json"]
        done = run(command, *given, *target)
        check_refusal(done, traces, want)
        assert not list(tmp_path.iterdir())
        assert done.stdout == ""


@pytest.mark.parametrize(("folder", "want"), cases("accept_length"))
def test_accept(folder: Path, want: dict[str, Any]) -> None:
    done = run("accept", folder / "steps.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    for key in ("accept_length", "accepted_draft_tokens", "verify_steps", "committed_tokens", "draft_accept_rate"):
        assert got[key] == want[key]
    if "excluded" in want:
        assert got["excluded"] == want["excluded"]
    for mine, row in zip(got["by_batch"], want.get("by_batch", []), strict=False):
        assert {k: mine[k] for k in row} == row


def test_accept_leaves_idle_steps_of_data_parallel_ranks_out() -> None:
    folder = CASES / "49-dp-attention-idle-cycles"
    want = json.loads((folder / "expected.json").read_text())
    for given in (folder / "steps.jsonl", folder):
        done = run("accept", given, "--json")
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        for key in ("accept_length", "accepted_draft_tokens", "verify_steps", "committed_tokens", "excluded"):
            assert got[key] == want[key]


def test_salvage_reads_the_whole_files_of_a_damaged_folder() -> None:
    folder = CASES / "43-parquet-truncated"
    done = run("kernels", folder, "--salvage", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["kernels"]
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["bucket"]] = sums.get(row["bucket"], 0) + row["sum_ns"]
    assert sum(row["count"] for row in rows) == 400
    assert sums == {"moe": 10_000_000, "allreduce": 4_000_000}
    words(done.stderr, ["rank1", "rank2", "rank3"])
