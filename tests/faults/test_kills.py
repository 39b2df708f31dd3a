"""SIGKILL of ranks inside a window, a worker that is started again, and the end of the command that armed them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordered_rank import MAX_TOKENS, SETTINGS, Rank, Starter

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.control.status import read_statuses
from speccollect.control.wait import wait_for_ranks
from speccollect.trace.merge import merge

SERVER = Path(__file__).parents[1] / "support" / "streaming_server.py"

IN_WINDOW_1 = 9 + 1
"""A decode cycle inside the second window."""


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def window_file(folder: Path, rank: int, window: int) -> Path:
    return word.recording_folder(folder, 1) / f"rank{rank:05d}.window{window:03d}.parquet"


def stand_inside_the_second_window(ranks: list[Rank], folder: Path) -> None:
    word.arm(folder, SETTINGS)
    for rank in ranks:
        rank.send("serve", max_tokens=MAX_TOKENS, pause_at=IN_WINDOW_1)
    for number, rank in enumerate(ranks):
        assert rank.answer() == {"paused": IN_WINDOW_1}
        until(window_file(folder, number, 0).exists)


@pytest.mark.parametrize("killed", [[1], [0, 1]], ids=["one rank", "all ranks"])
def test_killed_ranks_lose_their_unfinished_window(start: Starter, tmp_path: Path, killed: list[int]) -> None:
    folder = tmp_path / "folder"
    ranks = start(folder, 2)
    stand_inside_the_second_window(ranks, folder)
    for number in killed:
        ranks[number].process.send_signal(signal.SIGKILL)
        ranks[number].process.wait()
    survivors = [rank for number, rank in enumerate(ranks) if number not in killed]
    for rank in survivors:
        # its collective with the dead rank fails: the engine ends as it would have, with its own error
        rank.send("go")
        assert rank.process.wait(timeout=60) == 1
        assert b"speccollect" not in (tmp_path / "rank0.log").read_bytes().splitlines()[-1]
    word.disarm(folder)
    assert wait_for_ranks(folder, 1, timeout=10) == []

    merged = merge(folder, tmp_path / "trace.parquet")
    assert merged.ranks == [0, 1]
    whole = [(w["rank"], w["window"]) for w in merged.recording["windows"] if w["cut"] is None]
    assert whole == [(0, 0), (1, 0)]
    assert merged.recording["incomplete_ranks"] == killed
    for number in killed:
        told = [p for p in merged.problems if f"rank {number} did not end its recording" in p]
        assert f"its process {ranks[number].process.pid} is gone" in told[0]
    rows = pq.read_table(merged.path, columns=["rank", "kind", "cycle", "window"]).to_pylist()
    for number in (0, 1):
        inside = [r["cycle"] for r in rows if (r["rank"], r["kind"], r["window"]) == (number, "cycle", 0)]
        assert inside == [4, 5, 6]  # the prefill was cycle 0


def test_a_worker_that_is_started_again_keeps_the_first_ones_windows(start: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (first,) = start(folder)
    stand_inside_the_second_window([first], folder)
    before = window_file(folder, 0, 0).read_bytes()
    first.process.kill()
    first.process.wait()
    (second,) = start(folder)
    tokens = second.ask("serve", max_tokens=MAX_TOKENS)["tokens"]
    assert len(tokens[0]) == MAX_TOKENS
    log = second.ask("log")
    assert not log["armed"]
    assert [line for line in log["log"] if "rank 0 was started again during recording 1" in line]
    assert window_file(folder, 0, 0).read_bytes() == before
    word.disarm(folder)
    merged = merge(folder, tmp_path / "first.parquet")
    assert [w["window"] for w in merged.recording["windows"]] == [0]
    assert any("rank 0 was started again" in problem for problem in merged.problems)
    # the next recording has the new process, in full
    word.arm(folder, SETTINGS)
    assert second.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == tokens
    word.disarm(folder)
    second.ask("poll")
    second.ask("close")
    again = merge(folder, tmp_path / "second.parquet")
    assert again.problems == []
    assert [w["window"] for w in again.recording["windows"]] == [0, 1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A small HTTP server with a real recorder behind it: its address and its folder."""
    folder, port_file = tmp_path / "collector", tmp_path / "port"
    environment = {**os.environ, "SPECANALYZE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(SERVER), str(port_file)], env=environment)
    try:
        until(port_file.exists)
        yield f"http://127.0.0.1:{port_file.read_text()}", folder
    finally:
        process.kill()
        process.wait()


def request(url: str, folder: Path, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "speccollect", "request", "--url", url, "--dir", str(folder), "--windows", "off"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [*command, "-o", str(output), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_the_command_ends_in_mid_request(server: tuple[str, Path], tmp_path: Path, number: signal.Signals) -> None:
    url, folder = server
    output = tmp_path / "trace.parquet"
    command = request(url, folder, output, "--max-tokens", "100000")
    until(lambda: any(s.cycles > 50 for s in read_statuses(folder)))
    command.send_signal(number)
    said, _ = command.communicate(timeout=60)
    assert not output.exists()
    if number is signal.SIGKILL:
        # nobody could tell the ranks: they go on with phases, and the next command says how to end it
        assert word.read_command(folder).armed
        second = request(url, folder, output, "--max-tokens", "5")
        said, _ = second.communicate(timeout=60)
        assert second.returncode == 1
        assert "is already recording (number 1): `speccollect disarm` first" in said
        word.disarm(folder)
    else:
        assert command.returncode == 128 + number
        assert "Traceback" not in said
    assert not word.read_command(folder).armed
    assert wait_for_ranks(folder, 1, timeout=20) == []
    merged = merge(folder, output)
    assert merged.recording["incomplete_ranks"] == []
    assert merged.rows > 100


def test_two_commands_cannot_arm_one_folder_at_once(tmp_path: Path) -> None:
    """Many at the same instant: exactly one gets it."""
    code = "import sys; from pathlib import Path; from speccollect.control import word; from speccollect.config import PHASES_ONLY\n"
    code += "sys.stdin.readline()\ntry:\n word.arm(Path(sys.argv[1]), PHASES_ONLY)\nexcept Exception as e:\n sys.exit(str(e))\n"
    word.prepare_folder(tmp_path / "folder")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "folder")],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(4)
    ]
    results = [process.communicate("\n") for process in commands]
    assert sorted(process.returncode for process in commands) == [0, 1, 1, 1]
    assert sum("is already recording (number 1)" in errors for _, errors in results) == 3
    assert word.read_command(tmp_path / "folder").recording == 1


def test_an_older_recordings_files_are_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert word.arm(folder, PHASES_ONLY).recording == 1
    word.disarm(folder)
    (folder / "control").unlink()
    # numbers start again with a new control file, the files of recording 1 are still there
    assert word.arm(folder, PHASES_ONLY).recording == 2
