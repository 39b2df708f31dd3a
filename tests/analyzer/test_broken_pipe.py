"""A reader of the output that goes away, as ``| head -2`` does, is no failure of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from story import sweep_recording


def test_a_reader_that_leaves_early_is_no_error_however_the_race_ends(tmp_path: Path) -> None:
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    command = [sys.executable, "-m", "specanalyze", "kernels", str(trace), "--top", "100"]
    for turn in range(20):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(turn % 3):  # 0: gone before anything is written; 1, 2: after some lines
                process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
            assert (process.wait(), "BrokenPipe" in said, "Traceback" in said) == (0, False, False)


@pytest.mark.parametrize("together", [False, True], ids=["stdout", "stdout and stderr in one pipe"])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_verdict_survives_the_reader_that_leaves(tmp_path: Path, more: list[str], together: bool) -> None:
    """``compare --fail-above 5% ... | head`` in a pipeline of CI: slower is slower, whoever reads how much."""
    before = sweep_recording(1, cycles=20, traced=5).write(tmp_path)
    after = sweep_recording(5, cycles=20, traced=5).write(tmp_path)
    command = [sys.executable, "-m", "specanalyze", "compare", "--fail-above", "5%", str(before), str(after), *more]
    for lines in (0, 1):
        errors = subprocess.STDOUT if together else subprocess.PIPE
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read() if process.stderr is not None else ""
            assert (process.wait(), "Traceback" in said) == (1, False)
            assert together or "slower by" in said


def test_an_error_that_nobody_reads_keeps_its_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specanalyze", "breakdown", str(tmp_path / "absent.parquet")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 2


@pytest.mark.parametrize("more", [["--top", "200"], ["--json"], ["--top", "1"]])
def test_a_full_disk_is_said_and_fails(tmp_path: Path, more: list[str]) -> None:
    """However much is printed: a little is written when the command ends, much while it prints."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    command = [sys.executable, "-m", "specanalyze", "kernels", str(trace), *more]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output could not be written: No space left on device\n"


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    line = f'"{sys.executable}" -m specanalyze breakdown "{trace}" >&-'
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_our_signs_shows_others(tmp_path: Path, encoding: str) -> None:
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for more, holds in ([], b"verify"), (["--json"], b'"verify"'):
        command = [sys.executable, "-m", "specanalyze", "breakdown", str(trace), *more]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert (done.returncode, b"Traceback" in done.stderr, holds in done.stdout) == (0, False, True)
        done.stdout.decode(encoding)
