"""Ranks in real processes: killed, missing, damaged; what is whole is kept and what is not is named."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from speccollect.config import PHASES_ONLY, WindowSettings
from speccollect.control import word
from speccollect.control.status import read_statuses, write_status
from speccollect.control.wait import wait_for_ranks
from speccollect.rank.identity import find_identity
from speccollect.trace.merge import merge
from specschema.errors import TraceError, UsageError

WORKER = """
import os, sys, time
import torch
from speccollect.rank.recorder import get_recorder
torch.set_num_threads(1)
recorder = get_recorder()
matrix = torch.ones(8, 8)
cycles, seconds = int(sys.argv[1]), float(sys.argv[2])
for number in range(cycles):
    cycle = recorder.begin_cycle("prefill" if number == 0 else "speculative", 1, 2, ["a"])
    with recorder.phase("verify"):
        matrix @ matrix
    recorder.end_cycle(cycle)
    if number:
        recorder.accept(cycle, [2], [1])
    time.sleep(seconds)
recorder.request_finished("a", 5, 2 * (cycles - 1) + 1)
recorder.poll()
while os.path.exists(os.environ["SPECANALYZE_DIR"] + "/go"):
    recorder.poll()
    time.sleep(0.01)
"""


def start(folder: Path, rank: int, cycles: int, seconds: float = 0.0, world: int = 2) -> subprocess.Popen[bytes]:
    environment = {
        "SPECANALYZE_DIR": str(folder),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen([sys.executable, "-c", WORKER, str(cycles), str(seconds)], env=environment)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished files of two ranks, two windows each."""
    folder = tmp_path_factory.mktemp("ranks")
    word.arm(folder, WindowSettings(skip=4, warmup=1, record=3, repeat=2, gap=4))
    (folder / "go").touch()
    processes = [start(folder, rank, 30, 0.001) for rank in (0, 1)]
    deadline = time.monotonic() + 60
    while [s.cycles for s in read_statuses(folder)] != [30, 30] and time.monotonic() < deadline:
        time.sleep(0.05)
    command = word.disarm(folder)
    assert wait_for_ranks(folder, command.recording, 30) == []
    (folder / "go").unlink()
    assert [p.wait(30) for p in processes] == [0, 0]
    return folder


@pytest.fixture
def recorded(two_ranks: Path, tmp_path: Path) -> Path:
    """A copy of the two ranks' folder that a test may damage."""
    return shutil.copytree(two_ranks, tmp_path / "copy")


def test_two_ranks_become_one_trace(recorded: Path) -> None:
    merged = merge(recorded, recorded / "trace.parquet")
    assert (merged.ranks, merged.problems) == ([0, 1], [])
    file = pq.ParquetFile(merged.path)
    groups = [
        (group["rank"].unique().to_pylist(), group["window"].unique().to_pylist())
        for group in (file.read_row_group(i, ["rank", "window"]) for i in range(file.num_row_groups))
    ]
    assert groups == [([0], [0]), ([0], [1]), ([0], [None]), ([1], [0]), ([1], [1]), ([1], [None])]
    assert merged.recording["totals"]["0"] == {
        "committed_tokens": 58,
        "cycles_without_lengths": 0,
        "first_tokens": 1,
        "completion_tokens": 59,
        "told_by": "server",
        "compared_requests": 1,
        "difference": 0,
        "equal": True,
    }
    assert stat.S_IMODE(merged.path.stat().st_mode) == 0o600
    assert not list(recorded.glob(".trace*"))


def test_existing_trace_is_not_overwritten(recorded: Path) -> None:
    output = recorded / "trace.parquet"
    output.write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        merge(recorded, output)
    assert output.read_text() == "precious"
    assert merge(recorded, output, force=True).rows > 0


def test_missing_rank_is_named_and_the_rest_kept(recorded: Path) -> None:
    for path in (recorded / "recording000001").glob("rank00001.*"):
        path.unlink()
    merged = merge(recorded, recorded / "trace.parquet", expected_ranks=3)
    assert merged.ranks == [0]
    assert merged.recording["missing_ranks"] == [1, 2]
    assert merged.problems[0].startswith("rank 1 (process ")
    assert merged.problems[1] == "rank 2 of 3 never announced itself: it is missing"


def test_ranks_of_a_server_that_was_there_before_are_not_missing(recorded: Path) -> None:
    """A server of eight ranks has ended; one of two uses its folder."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    for rank, number in ((5, 0), (7, 1000)):
        status = find_identity(rank).status("idle", number)
        write_status(recorded, dataclasses.replace(status, pid=ended.pid, world_size=8))
    merged = merge(recorded, recorded / "trace.parquet")
    assert (merged.recording["missing_ranks"], merged.problems) == ([], [])


def test_ranks_of_two_servers_are_told_apart(tmp_path: Path) -> None:
    word.arm(tmp_path, PHASES_ONLY)
    (tmp_path / "go").touch()
    processes = [start(tmp_path, rank, 3, world=world) for rank, world in ((0, 1), (1, 2))]
    deadline = time.monotonic() + 60
    while [s.cycles for s in read_statuses(tmp_path)] != [3, 3] and time.monotonic() < deadline:
        time.sleep(0.05)
    wait_for_ranks(tmp_path, word.disarm(tmp_path).recording, 30)
    (tmp_path / "go").unlink()
    assert [p.wait(30) for p in processes] == [0, 0]
    merged = merge(tmp_path, tmp_path / "trace.parquet")
    assert merged.problems == [
        "the ranks don't agree how many they are (rank 0 says 1, rank 1 says 2): do two servers share the folder? "
        "Their cycles are not the same"
    ]


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_unreadable_file_is_named_and_the_rest_kept(recorded: Path, damage: str) -> None:
    path = recorded / "recording000001" / "rank00001.window000.parquet"
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) // 2], "noise": os.urandom(4096), "empty": b""}[damage])
    merged = merge(recorded, recorded / "trace.parquet")
    assert merged.ranks == [0, 1]
    assert any("rank00001.window000.parquet can't be read" in problem for problem in merged.problems)
    table = pq.read_table(merged.path)
    one = table.filter(pc.equal(table["rank"], 1))
    assert set(one["window"].unique().to_pylist()) == {1, None}


def test_damaged_body_of_a_file_is_named(recorded: Path) -> None:
    path = recorded / "recording000001" / "rank00001.window000.parquet"
    content = bytearray(path.read_bytes())
    body = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:body] = os.urandom(body - 4)
    path.write_bytes(content)
    merged = merge(recorded, recorded / "trace.parquet")
    assert any("rank00001.window000.parquet is damaged" in problem for problem in merged.problems)
    assert merged.ranks == [0, 1]


def test_damage_in_a_column_that_only_the_merge_reads_is_named(recorded: Path) -> None:
    path = recorded / "recording000001" / "rank00001.window000.parquet"
    group = pq.read_metadata(path).row_group(0)
    column = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "pid")
    begin = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[begin : begin + column.total_compressed_size] = os.urandom(column.total_compressed_size)
    path.write_bytes(content)
    merged = merge(recorded, recorded / "trace.parquet")
    assert any("rank00001.window000.parquet is damaged" in problem for problem in merged.problems)


def test_each_finished_file_is_a_trace_of_its_own(recorded: Path) -> None:
    for path in (recorded / "recording000001").glob("*.parquet"):
        metadata = pq.read_schema(path).metadata
        assert {
            b"specanalyze.recording",
            b"specanalyze.ranks",
            b"specanalyze.environment",
            b"specanalyze.clock",
        } <= set(metadata)


def test_killed_process_leaves_its_finished_windows(tmp_path: Path) -> None:
    word.arm(tmp_path, WindowSettings(skip=3, warmup=1, record=3, repeat=50, gap=3))
    process = start(tmp_path, 0, 10_000, 0.01, world=1)
    folder = tmp_path / "recording000001"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("rank00000.window*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    windows = len(list(folder.glob("rank00000.window*.parquet")))
    assert windows >= 3
    word.disarm(tmp_path)
    begun = time.monotonic()
    assert wait_for_ranks(tmp_path, 1, 30) == []
    assert time.monotonic() - begun < 5  # a dead process is not waited for
    merged = merge(tmp_path, tmp_path / "trace.parquet")
    assert any("rank 0 did not end its recording" in problem for problem in merged.problems)
    table = pq.read_table(merged.path).unify_dictionaries()
    whole = table.filter(pc.and_(pc.equal(table["kind"], "cycle"), pc.is_valid(table["window"])))
    assert whole.num_rows == 3 * windows
    assert whole["accept_lengths"].null_count == 0


def test_nothing_recorded_says_why(tmp_path: Path) -> None:
    word.arm(tmp_path, PHASES_ONLY)
    word.disarm(tmp_path)
    with pytest.raises(TraceError, match="no process of the server took part"):
        merge(tmp_path, tmp_path / "trace.parquet")
    shutil.rmtree(tmp_path / "recording000001")
    with pytest.raises(TraceError, match="does not exist"):
        merge(tmp_path, tmp_path / "trace.parquet")


def test_two_processes_with_one_rank_are_refused(tmp_path: Path) -> None:
    word.arm(tmp_path, PHASES_ONLY)
    (tmp_path / "go").touch()
    first = start(tmp_path, 0, 5)
    deadline = time.monotonic() + 30
    while not any(s.recording == 1 and s.cycles == 5 for s in read_statuses(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    second = subprocess.run(
        [sys.executable, "-c", WORKER.replace("while os.path.exists", "while False and os.path.exists"), "5", "0"],
        env={**os.environ, "SPECANALYZE_DIR": str(tmp_path), "RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    word.disarm(tmp_path)
    wait_for_ranks(tmp_path, 1, 10)
    (tmp_path / "go").unlink()
    assert first.wait(30) == 0
    assert second.returncode == 0
    assert "rank 0 is already recorded by process" in second.stderr
    assert merge(tmp_path, tmp_path / "trace.parquet").ranks == [0]
