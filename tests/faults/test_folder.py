"""The folder fails under a running recording: full, read-only, removed, its control file damaged or truncated."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordered_rank import MAX_TOKENS, SETTINGS, Rank

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.control.status import read_statuses
from speccollect.control.wait import wait_for_ranks
from speccollect.trace.merge import merge
from specschema.errors import TraceError

IN_WINDOW_1 = 10


def attach(rank: Rank, folder: Path) -> None:
    rank.folder = folder
    rank.ask("attach", folder=str(folder))


def serve_and(rank: Rank, pause_at: int = IN_WINDOW_1) -> None:
    """Start a request that stands still inside its second window, with the first one written."""
    rank.send("serve", max_tokens=MAX_TOKENS, pause_at=pause_at)
    assert rank.answer() == {"paused": pause_at}


def go_on(rank: Rank) -> list[list[int]]:
    rank.send("go")
    tokens: list[list[int]] = rank.answer()["tokens"]
    return tokens


def finished(folder: Path, names: str = "rank*.window*.parquet") -> list[str]:
    """Finished files, each read to its last row."""
    files = sorted(word.recording_folder(folder, 1).glob(names))
    return [path.name for path in files if pq.read_table(path).num_rows > 0]


def wait_until_written(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not finished(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_failed(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while read_statuses(folder)[0].state != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def remount(place: Path, mode: str) -> None:
    """Refused for as long as the writer thread has a file open."""
    deadline = time.monotonic() + 10
    while subprocess.run(["mount", "-o", f"remount,{mode}", str(place)], capture_output=True).returncode != 0:
        assert time.monotonic() < deadline
        time.sleep(0.03)


def fill(place: Path) -> None:
    """Take every block that is left."""
    with open(place / "ballast", "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_full_disk(rank: Rank, expected_tokens: list[list[int]], small_disk: Path) -> None:
    folder = small_disk / "folder"
    attach(rank, folder)
    word.arm(folder, SETTINGS)
    serve_and(rank)
    wait_until_written(folder)
    before = finished(folder, "*.parquet")
    fill(small_disk)
    assert go_on(rank) == expected_tokens
    wait_until_failed(folder)  # else the disarm may come before the writer thread has tried
    word.disarm(folder)  # in place: needs no room
    rank.ask("poll")
    assert wait_for_ranks(folder, 1, timeout=10) == []
    (status,) = read_statuses(folder)
    assert status.state == "failed"
    assert "No space left on device" in (status.message or "")
    log = rank.ask("log")
    assert not log["armed"]
    assert len([line for line in log["log"] if "switched itself off, the server is not affected" in line]) == 1
    assert set(finished(folder, "*.parquet")) >= set(before)
    assert not [p for p in folder.rglob("*.tmp") if p.is_file()]

    with pytest.raises(TraceError, match=r"No space left on device.*the ranks' files are in .*make room"):
        merge(folder, small_disk / "trace.parquet")

    (small_disk / "ballast").unlink()
    merged = merge(folder, small_disk / "trace.parquet")
    assert [w["window"] for w in merged.recording["windows"]] == [0]
    assert any("No space left on device" in problem for problem in merged.problems)
    # with room again the same process records again
    word.arm(folder, PHASES_ONLY)
    assert rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == expected_tokens
    word.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    assert merge(folder, small_disk / "again.parquet").problems == []


def test_folder_becomes_read_only(rank: Rank, expected_tokens: list[list[int]], small_disk: Path) -> None:
    folder = small_disk / "folder"
    attach(rank, folder)
    word.arm(folder, SETTINGS)
    serve_and(rank)
    wait_until_written(folder)
    remount(small_disk, "ro")
    try:
        assert go_on(rank) == expected_tokens
        with pytest.raises(TraceError, match=r"can't be used \(Read-only file system"):
            word.disarm(folder)
        rank.ask("close")
        log = rank.ask("log")
        assert not log["armed"]
        assert any("Read-only file system" in line for line in log["log"])
        assert finished(folder) == ["rank00000.window000.parquet"]
    finally:
        remount(small_disk, "rw")
    assert [w["window"] for w in merge(folder, small_disk / "trace.parquet").recording["windows"]] == [0]


def test_folder_is_removed_and_used_again(rank: Rank, expected_tokens: list[list[int]]) -> None:
    folder = rank.folder
    word.arm(folder, SETTINGS)
    serve_and(rank)
    wait_until_written(folder)
    shutil.rmtree(folder)
    assert go_on(rank) == expected_tokens
    rank.ask("poll", times=2048)
    log = rank.ask("log")
    assert not log["armed"]
    assert any("control was removed; a new one is made" in line for line in log["log"])
    # the same process answers in the folder that was made anew
    word.arm(folder, PHASES_ONLY)
    assert rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == expected_tokens
    word.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    assert merge(folder, folder / "trace.parquet").problems == []


@pytest.mark.parametrize("size", [0, 8, 14, 40])
def test_control_file_is_truncated(rank: Rank, expected_tokens: list[list[int]], size: int) -> None:
    """A mapped page of a truncated file would end the process with SIGBUS."""
    folder = rank.folder
    word.arm(folder, SETTINGS)
    serve_and(rank)
    wait_until_written(folder)
    content = (folder / "control").read_bytes()
    os.truncate(folder / "control", size)
    assert go_on(rank) == expected_tokens
    rank.ask("poll", times=3000)
    rank.ask("close")
    log = rank.ask("log")["log"]
    if size < 16:  # the generation itself is gone
        assert len([line for line in log if "control was truncated" in line]) == 1
        assert read_statuses(folder)[0].state == "failed"
    with pytest.raises(TraceError, match="delete it and restart the server"):
        word.disarm(folder)
    assert "rank00000.window000.parquet" in finished(folder)
    # put back, it is obeyed again
    (folder / "control").write_bytes(content)
    word.disarm(folder)
    word.arm(folder, PHASES_ONLY)
    assert rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == expected_tokens
    word.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    assert merge(folder, folder / "trace.parquet").problems == []


def test_control_file_is_overwritten_with_something_else(rank: Rank, expected_tokens: list[list[int]]) -> None:
    folder = rank.folder
    word.arm(folder, SETTINGS)
    serve_and(rank)
    wait_until_written(folder)
    with open(folder / "control", "r+b") as file:
        file.write(os.urandom(4096))
    assert go_on(rank) == expected_tokens
    rank.ask("close")
    log = rank.ask("log")
    assert not log["armed"]
    assert any("control" in line and "this rank stays disarmed" in line for line in log["log"])
    assert "rank00000.window000.parquet" in finished(folder)
    # the finished files are merged from their own folder: the control file is not needed
    merged = merge(word.recording_folder(folder, 1), folder / "trace.parquet")
    assert merged.recording["windows"][0]["cut"] is None


def test_everything_is_private_and_whole_when_it_has_its_name(rank: Rank) -> None:
    folder = rank.folder
    old = os.umask(0)
    try:
        word.arm(folder, SETTINGS)
        rank.ask("serve", max_tokens=MAX_TOKENS)
        word.disarm(folder)
        rank.ask("poll")
        rank.ask("close")
        merge(folder, folder / "trace.parquet")
    finally:
        os.umask(old)
    modes = {p.relative_to(folder).as_posix(): oct(p.stat().st_mode & 0o777) for p in [folder, *folder.rglob("*")]}
    wrong = {name: mode for name, mode in modes.items() if mode != ("0o700" if (folder / name).is_dir() else "0o600")}
    assert len(modes) > 8
    assert wrong == {}
    assert not [name for name in modes if name.endswith(".tmp")]


def test_an_existing_trace_stays_unless_force_is_given(rank: Rank) -> None:
    folder = rank.folder
    word.arm(folder, PHASES_ONLY)
    rank.ask("serve", max_tokens=MAX_TOKENS)
    word.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    output = folder / "trace.parquet"
    output.write_text("mine")
    command = [sys.executable, "-m", "speccollect", "merge", "--dir", str(folder), "-o", str(output)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, output.read_text()) == (2, "mine")
    assert done.stderr.count("\n") == 1
    assert "--force" in done.stderr
    done = subprocess.run([*command, "--force"], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, pq.read_table(output).num_rows > 20) == (0, True)


def test_a_trace_that_appears_while_merging_stays(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    from speccollect.trace.rank_files import facts
    from specschema.errors import UsageError

    folder = rank.folder
    word.arm(folder, PHASES_ONLY)
    rank.ask("serve", max_tokens=MAX_TOKENS)
    word.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    output = folder / "trace.parquet"

    def meanwhile(*arguments: object) -> object:
        output.write_text("theirs")
        return facts(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("speccollect.trace.merge.facts", meanwhile)
    with pytest.raises(UsageError, match="--force"):
        merge(folder, output)
    assert output.read_text() == "theirs"
    assert not list(folder.glob(".trace*"))
