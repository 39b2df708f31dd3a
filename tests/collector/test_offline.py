"""`with speccollect.record(...)` around an engine in this process, and around child ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import speccollect
from speccollect.rank.recorder import get_recorder
from specschema.errors import TraceError, UsageError


def work(cycles: int) -> None:
    recorder = get_recorder()
    for _ in range(cycles):
        cycle = recorder.begin_cycle("decode", 1, 0, ["a"])
        with recorder.phase("decode"):
            pass
        recorder.end_cycle(cycle)
        recorder.accept(cycle, [1], None)


@pytest.fixture(autouse=True)
def switched_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECANALYZE_DIR", raising=False)
    monkeypatch.delenv("SPECANALYZE", raising=False)


def test_block_is_recorded_and_nothing_else(tmp_path: Path) -> None:
    work(5)
    with speccollect.record(tmp_path / "t.parquet", windows="off") as merged:
        work(7)
        assert merged == []
    work(5)
    assert merged[0].path == tmp_path / "t.parquet"
    assert pq.read_table(merged[0].path).num_rows == 14
    assert get_recorder().folder is None
    assert not get_recorder().armed
    assert "SPECANALYZE_DIR" not in os.environ


def test_two_blocks_one_after_the_other(tmp_path: Path) -> None:
    for name, cycles in (("a", 3), ("b", 4)):
        with speccollect.record(tmp_path / name, windows="off") as merged:
            work(cycles)
        assert merged[0].rows == 2 * cycles


def test_exception_in_the_block_passes_through_and_ends_the_recording(tmp_path: Path) -> None:
    def broken() -> None:
        with speccollect.record(tmp_path / "t.parquet", windows="off"):
            work(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert not get_recorder().armed
    assert not (tmp_path / "t.parquet").exists()


def test_existing_output_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("precious")
    with pytest.raises(UsageError, match="force=True"), speccollect.record(tmp_path / "t.parquet"):
        raise AssertionError("the block must not run")


def test_block_without_cycles_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(TraceError, match="no rank has written a file"),
        speccollect.record(tmp_path / "t.parquet", windows="off"),
    ):
        pass


def test_child_rank_started_inside_the_block_is_recorded(tmp_path: Path) -> None:
    child = """
from speccollect.rank.recorder import get_recorder
recorder = get_recorder()
for _ in range(9):
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["child"]))
"""
    with speccollect.record(tmp_path / "t.parquet", windows="off") as merged:
        environment = {**os.environ, "RANK": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", child], env=environment, check=True, timeout=60)
    assert (merged[0].ranks, merged[0].rows) == ([3], 9)
