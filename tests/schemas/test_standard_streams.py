"""stdout that is full, closed, read in part or of another encoding: both command lines, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELP = [
    ["specanalyze", "--help"],
    ["specanalyze", "--version"],
    ["speccollect", "--help"],
    ["speccollect", "--version"],
]


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", *words]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_a_full_disk_is_one_line_and_a_failure(words: list[str]) -> None:
    """speccollect ended in a traceback, or in Python's own complaint and exit code 120."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(words), stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.endswith("the output could not be written: No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_a_reader_that_is_gone_and_a_closed_stdout_are_no_failure(words: list[str]) -> None:
    with subprocess.Popen(command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command(words)], capture_output=True, text=True, timeout=120
    )
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")


def test_names_that_no_encoding_has_are_printed(tmp_path: Path) -> None:
    """A folder whose name is not UTF-8, in a locale that has letters of ASCII only."""
    for number, locale in enumerate(
        ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    ):
        folder = os.fsencode(tmp_path) + b"/caf\xe9-\xff%d" % number
        done = subprocess.run(
            [*command(["speccollect", "arm", "--windows", "off", "--dir"]), folder],
            env=os.environ | locale,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 1, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"is armed in " in done.stdout
