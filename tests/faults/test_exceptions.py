"""An exception inside every hook, every method of the recorder and everything behind them: the engine does not notice.

The rank is a real process with the real engine; one function in it is replaced by one that raises. Where it raises from its
second or third call on, what was finished before must be readable.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordered_rank import MAX_TOKENS, SETTINGS, Rank

from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.trace.merge import merge
from specschema.errors import TraceError

RECORDER = "speccollect.rank.recorder:Recorder."
RECORDING = "speccollect.cycles.recording:Recording."
WINDOWS = "speccollect.windows.window:Windows."
PROFILER = "speccollect.windows.window:Profiler."
WRITER = "speccollect.rank.writer:"

OFF = [
    # the methods that hooks call, as if their own guard had failed
    *((RECORDER + name, 0) for name in ("begin_cycle", "end_cycle", "enter_range", "leave_range", "accept")),
    *((RECORDER + name, 0) for name in ("request_finished", "poll")),
    *((RECORDER + name, 10) for name in ("begin_cycle", "end_cycle", "enter_range", "leave_range", "accept")),
    # a hook before it calls the original, and after
    *(("speccollect.engines.embedded:" + name, 0) for name in ("argument", "_begin", "_end")),
    *(("speccollect.engines.embedded:" + name, 10) for name in ("_begin", "_end")),
    # what stands behind the methods
    *((RECORDING + name, 0) for name in ("begin_cycle", "end_cycle", "accept")),
    *((RECORDING + name, 8) for name in ("begin_cycle", "end_cycle", "accept")),
    (RECORDING + "request_finished", 0),
    (RECORDING + "rotate", 2),
    (RECORDING + "enter", 10),
    (RECORDING + "leave", 10),
    (RECORDING + "close", 0),
    (WINDOWS + "__init__", 0),
    (WINDOWS + "step", 6),
    (WINDOWS + "close", 1),
    # the control word and arming
    ("speccollect.control.word:ControlReader.read", 0),
    ("speccollect.rank.arming:find_identity", 0),
    ("speccollect.rank.arming:NvtxRanges.__init__", 0),
    ("speccollect.rank.arming:Writer.__init__", 0),
    ("speccollect.rank.arming:Writer.start", 0),
    # the writer thread
    *((WRITER + name, 0) for name in ("environment", "window_table", "cycle_rows", "phase_rows", "write_part")),
    *((WRITER + name, 1) for name in ("window_table", "cycle_rows", "write_part")),
    (WRITER + "Writer._write_requests", 0),
]
"""(what raises, calls that still work): the collector switches itself off and the log says what raised."""

WINDOW_ONLY = [
    (PROFILER + "prepare", 0),
    (PROFILER + "prepare", 1),
    (PROFILER + "start", 1),
    (PROFILER + "stop", 1),
    ("speccollect.kineto.profiler:events_of", 1),
    (WRITER + "read_window", 1),
]
"""The profiler fails: its window is lost and the phases go on."""


def broken(rank: Rank, targets: list[str], after: int) -> tuple[list[list[int]], str, Path]:
    """Arm, break, serve, disarm; the engine's tokens, what was logged, and the rank's folder."""
    word.arm(rank.folder, replace(SETTINGS, ranges=True))  # everything that can break is there
    rank.ask("break", targets=targets, after=after)
    tokens = rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"]
    word.disarm(rank.folder)
    rank.ask("poll")
    rank.ask("close")
    log = "\n".join(rank.ask("log")["log"])
    rank.ask("heal")
    assert wait_for_ranks(rank.folder, 1, timeout=10) == []
    return tokens, log, rank.folder


def windows_of(folder: Path) -> int:
    """Finished windows of a recording; each file is read to its last row."""
    finished = sorted(word.recording_folder(folder, 1).glob("rank*.parquet"))
    return sum("window" in path.name for path in finished if pq.read_table(path).num_rows >= 0)


@pytest.mark.parametrize(("target", "after"), OFF)
def test_a_broken_collector_switches_itself_off_and_changes_no_token(
    rank: Rank, expected_tokens: list[list[int]], target: str, after: int
) -> None:
    tokens, log, folder = broken(rank, [target], after)
    assert tokens == expected_tokens
    assert f"injected into {target.partition(':')[2]}" in log
    assert not list(folder.rglob(".rank*.parquet.tmp"))
    windows_of(folder)
    try:
        merged = merge(folder, folder / "trace.parquet")
    except TraceError as error:  # nothing was finished before it
        assert "no rank has written a file" in str(error)  # noqa: PT017
    else:
        assert pq.read_table(merged.path).num_rows == merged.rows


def test_a_recorder_that_cannot_even_fail_changes_no_token(rank: Rank, expected_tokens: list[list[int]]) -> None:
    tokens, log, _ = broken(rank, [RECORDER + "fail", RECORDER + "end_cycle"], 0)
    assert tokens == expected_tokens
    assert "could not switch itself off in order after" in log
    assert "injected into Recorder.end_cycle" in log


@pytest.mark.parametrize(("target", "after"), WINDOW_ONLY)
def test_a_broken_profiler_costs_its_window_and_no_phase(
    rank: Rank, expected_tokens: list[list[int]], target: str, after: int
) -> None:
    tokens, log, folder = broken(rank, [target], after)
    assert tokens == expected_tokens
    assert "window" in log
    assert f"injected into {target.partition(':')[2]}" in log
    assert windows_of(folder) == after
    merged = merge(folder, folder / "trace.parquet")
    table = pq.read_table(merged.path)
    cycles = sorted(r["cycle"] for r in table.select(["kind", "cycle"]).to_pylist() if r["kind"] == "cycle")
    assert cycles == list(range(len(cycles)))
    assert merged.recording["totals"]["0"]["equal"] is True
    assert merged.recording["incomplete_ranks"] == []
    assert any("injected" in m["message"] for m in merged.recording["messages"])


def test_the_first_windows_are_whole_when_the_writer_breaks_at_the_second(
    rank: Rank, expected_tokens: list[list[int]]
) -> None:
    tokens, _, folder = broken(rank, [WRITER + "window_table"], 1)
    assert tokens == expected_tokens
    assert windows_of(folder) == 1
    merged = merge(folder, folder / "trace.parquet")
    assert [w["window"] for w in merged.recording["windows"]] == [0]
    assert [p for p in merged.problems if "did not end its recording" in p and "injected into window_table" in p]


def test_the_shared_rank_still_records_in_full(rank: Rank, expected_tokens: list[list[int]]) -> None:
    """Guards the tests above: without a fault there are two windows and nothing is logged."""
    tokens, log, folder = broken(rank, [], 0)
    assert (tokens, log, windows_of(folder)) == (expected_tokens, "", 2)
    assert merge(folder, folder / "trace.parquet").problems == []
