"""A command that is ended, or whose disk is full, in the middle of what it writes: the old file stands, and nothing half is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "sglang_tp2_eagle3_steps2.parquet"
LONGEST_S = 120
COMMANDS = {
    "a.pftrace": ["export", "--to", "perfetto"],
    "a.nvtxt": ["export", "--to", "nsys"],
    "a.json": ["export", "--to", "chrome"],
    "a.json.gz": ["export", "--to", "chrome"],
    "import.parquet": ["import"],
    "redact.parquet": ["redact"],
}
"""Name of the output -> the command that writes it."""

_SLOW = """
import time
from specanalyze import __main__
from specanalyze.trace import RankSource
attribute = RankSource.__getattribute__
def wait():
    print("reading", flush=True)
    time.sleep(600)
def slowly(self, name):
    return wait if name == "read" and self.key == "1" else attribute(self, name)
RankSource.__getattribute__ = slowly
__main__.main()
"""
"""The command, which stops before its second rank, with the first one written, and waits."""


def started(words: list[str], output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _SLOW, words[0], str(SAMPLE), *words[1:], "-o", str(output), "--force"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_default_signals
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    return process


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def outputs(name: str, folder: Path) -> list[Path]:
    """What the command writes: Chrome's files of two ranks have names of their own."""
    stem, _, ending = name.partition(".")
    chrome = ending.startswith("json")
    return [folder / (f"{stem}.rank{rank}.{ending}" if chrome else name) for rank in (0, 1)][: 2 if chrome else 1]


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, signal.SIGTERM) for name in COMMANDS), ("a.json", signal.SIGINT), ("import.parquet", signal.SIGHUP)],
)
def test_a_signal_leaves_what_was_there(tmp_path: Path, name: str, number: signal.Signals) -> None:
    kept = outputs(name, tmp_path)
    for path in kept:
        path.write_text("old")
    process = started(COMMANDS[name], tmp_path / name)
    assert any(path.name.endswith((".tmp", ".nvtxt")) for path in tmp_path.iterdir()), "it is in the middle of it"
    process.send_signal(number)
    _, said = process.communicate(timeout=LONGEST_S)
    assert said == f"error: ended by {number.name} before it was done\n"
    assert process.returncode == 128 + number
    assert sorted(tmp_path.iterdir()) == kept
    assert {path.read_text() for path in kept} == {"old"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    """No file may grow beyond 20 kB, as if the disk were full there."""
    kept = outputs(name, tmp_path)
    for path in kept:
        path.write_text("old")
    words = COMMANDS[name]
    done = run([words[0], str(SAMPLE), *words[1:], "-o", str(tmp_path / name), "--force"], _little_room)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "can't be written: File too large" in done.stderr
    assert sorted(tmp_path.iterdir()) == kept
    assert {path.read_text() for path in kept} == {"old"}


def run(words: list[str], before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specanalyze", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False, preexec_fn=before)


def _little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_is_refused_and_stays_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    words = COMMANDS[name]
    done = run([words[0], str(SAMPLE), *words[1:], "-o", str(tmp_path / name), "--force"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no file on a disk" in done.stderr
    assert (tmp_path / name).is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/dev/null"])
def test_a_device_is_refused(tmp_path: Path, name: str) -> None:
    """Also where the shell leads it to a file, which would leave /dev without it."""
    with (tmp_path / "out").open("w") as out:
        command = [
            sys.executable,
            "-m",
            "specanalyze",
            "export",
            str(SAMPLE),
            "--to",
            "perfetto",
            "-o",
            name,
            "--force",
        ]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --output {name} is no file on a disk")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    code = "import signal; from specanalyze.interruption import listen; listen(); print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}"],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=True,
    )
    assert done.stdout == "True\n"
