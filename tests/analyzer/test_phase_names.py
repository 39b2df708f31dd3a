"""Ranges that look like phases and are none: said, with the phase map that would make them phases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import traces

from specanalyze.answers.breakdown import break_down
from specanalyze.answers.phases_report import phase_report
from specanalyze.attribution.carry_nodes import with_nodes
from specanalyze.formats.trace_files import write_trace
from specanalyze.phase_names import recognise, resembled, resembling
from specanalyze.trace import Trace

ROWS = [
    traces.phase("spec.cycle", 0, 200, cycle=0, mode="speculative"),
    traces.phase("verify", 0, 100),
    traces.phase("draft", 100, 150),
    traces.launch("cudaLaunchKernel", 1, 7),
    traces.kernel("k", 10, 50, 7),
]
MAP = {"^verify$": "verify", "^draft$": "draft"}
SAID = 'are not used: verify; to use them, give the commands --phase-map FILE, a file that holds {"^verify$": "verify"}'


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["verify", "forward"], ["verify"]),
        (["my verify step", "Draft.0", "decode_batch"], ["my verify step", "Draft.0", "decode_batch"]),
        (["overdraft", "verification", "idle", "extend", "nccl:all_reduce", "ProfilerStep#3"], []),
        (["spec.draft_extend_prefill", "spec.prefill_cycle"], []),  # sub-phases of ours
        (["draft", "step[DECODE bs=1]", "gpu_model_runner: draft"], []),  # a server's, left aside where ours are (D10)
    ],
)
def test_what_looks_like_a_phase(names: list[str], expected: list[str]) -> None:
    assert resembling(names) == expected


@pytest.mark.parametrize(
    ("name", "phase"),
    [("verify", "verify"), ("my_draft_extend", "draft_extend"), ("Draft 2", "draft"), ("decode", "decode")],
)
def test_the_phase_it_looks_like(name: str, phase: str) -> None:
    assert resembled(name) == phase


def test_breakdown_phases_and_import_say_it(tmp_path: Path) -> None:
    def recording() -> Trace:
        return traces.trace(traces.rank_trace(ROWS))

    assert [line for line in break_down(recording()).warnings if SAID in line] != []
    assert [line for line in phase_report(recording()).warnings if SAID in line] != []
    imported = recording()
    write_trace(with_nodes(imported), tmp_path / "trace.parquet")
    assert [line for line in imported.warnings if SAID in line] != []


def test_with_the_phase_map_nothing_is_left_to_say() -> None:
    result = break_down(traces.trace(traces.rank_trace(ROWS)), MAP)
    assert result.ranks[0].instances["verify"] == 1
    assert [line for line in result.warnings if "phase-map" in line] == []


def test_the_advised_map_works_as_it_is_printed(tmp_path: Path) -> None:
    """The object in the message is what --phase-map takes, a name with regular-expression signs included."""
    name = "verify (step) [1]"
    rows = [{**row, "name": name} if row["name"] == "verify" else row for row in ROWS]
    write_trace(traces.trace(traces.rank_trace(rows)), tmp_path / "trace.parquet")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specanalyze", "breakdown", "trace.parquet", "--json", *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    said = run().stderr
    printed = said[said.index("{") : said.rindex("}") + 1]
    (tmp_path / "map.json").write_text(printed)
    assert recognise([name], json.loads(printed)) == ["verify"]
    done = run("--phase-map", "map.json")
    assert (done.returncode, "phase-map" in done.stderr) == (0, False)
    assert json.loads(done.stdout)["ranks"]["0"]["phases"]["verify"]["instances"] == 1
