"""Somebody else's profiler, a window that is too large, and a clock that is set while cycles run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow.parquet as pq
import pytest
from ordered_rank import MAX_TOKENS, SETTINGS, Rank

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.trace.merge import Merged, merge


def collect(rank: Rank) -> tuple[Merged, list[dict[str, Any]]]:
    """Disarm and merge; the trace's cycles and phases in order of time."""
    word.disarm(rank.folder)
    rank.ask("poll")
    rank.ask("close")
    merged = merge(rank.folder, rank.folder / "trace.parquet")
    rows = pq.read_table(merged.path, columns=["kind", "cycle", "name", "window", "start_ns", "dur_ns"]).to_pylist()
    return merged, [row for row in rows if row["kind"] in ("cycle", "phase")]


@pytest.mark.parametrize(
    ("cycles", "windows", "told"),
    [
        ((1, 3), [(1, None)], "window 0 was not recorded: another torch profiler is running (stop it, phases go on)"),
        (
            (4, 5),
            [(0, "another torch profiler was started"), (1, None)],
            "window 0 is cut: another torch profiler was started",
        ),
    ],
    ids=["before a window", "inside a window"],
)
def test_the_engines_own_profiler_comes_first(
    rank: Rank,
    expected_tokens: list[list[int]],
    cycles: tuple[int, int],
    windows: list[tuple[int, str | None]],
    told: str,
) -> None:
    word.arm(rank.folder, SETTINGS)
    served = rank.ask("serve", max_tokens=MAX_TOKENS, profile=cycles)
    assert served["tokens"] == expected_tokens
    assert served["their_events"] > 100  # the engine's own profile is whole
    merged, rows = collect(rank)
    assert [(w["window"], w["cut"]) for w in merged.recording["windows"]] == windows
    assert {"rank": 0, "message": told} in merged.recording["messages"]
    count = len(served["accept_lengths"][0]) + 1
    assert sorted(row["cycle"] for row in rows if row["kind"] == "cycle") == list(range(count))
    assert len([row for row in rows if row["name"] == "spec.verify"]) == count - 1


def test_a_window_with_too_many_events_is_cut_and_says_so(rank: Rank, expected_tokens: list[list[int]]) -> None:
    word.arm(rank.folder, dataclasses.replace(SETTINGS, max_events=500))
    assert rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == expected_tokens
    merged, _ = collect(rank)
    assert [w["cut"].split(":")[0] for w in merged.recording["windows"]] == ["more than 500 events"] * 2
    rows = pq.read_table(merged.path, columns=["kind", "window", "start_ns"]).to_pylist()
    for window in merged.recording["windows"]:
        kept = [row["start_ns"] for row in rows if row["window"] == window["window"] and row["kind"] == "op"]
        assert 0 < len(kept) <= 500
        assert max(kept) < window["cut_ns"]


def test_more_phases_than_a_windows_buffer_holds_are_counted(rank: Rank, expected_tokens: list[list[int]]) -> None:
    """What a window may hold is bounded by its buffer: 2048 cycles are refused where they are asked for."""
    from specschema.errors import UsageError

    with pytest.raises(UsageError, match="at most 2048 cycles in one window"):
        WindowSettings(record=2049)
    word.arm(rank.folder, dataclasses.replace(SETTINGS, record=2048, repeat=1))
    assert rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"] == expected_tokens
    merged, _ = collect(rank)
    assert [w["cut"] for w in merged.recording["windows"]] == ["the recording ended"]


@pytest.mark.parametrize("by_s", [-3600, 3600], ids=["back", "forward"])
def test_the_clock_is_set_while_cycles_run(rank: Rank, expected_tokens: list[list[int]], by_s: int) -> None:
    word.arm(rank.folder, SETTINGS)
    rank.send("serve", max_tokens=MAX_TOKENS, pause_at=1)
    assert rank.answer() == {"paused": 1}
    rank.ask("step_clock", by_ns=by_s * 1_000_000_000)
    rank.send("go")
    assert rank.answer()["tokens"] == expected_tokens
    log = rank.ask("log")["log"]
    merged, rows = collect(rank)
    told = f"the host's clock was set {'back' if by_s < 0 else 'forward'} by 3600.0"
    assert len([line for line in log if line.startswith(told) or told[:-2] in line]) == 1
    assert any(told[:-2] in m["message"] for m in merged.recording["messages"])
    assert all(row["dur_ns"] >= 0 for row in rows)
    assert [w["cut"] for w in merged.recording["windows"]] == [None, None]
    if by_s < 0:
        # the cycle and the phase across the step have no length: left out and counted
        assert merged.recording["lost"]["0"]["unclosed"] == 2
    assert merged.recording["totals"]["0"]["cycles_without_lengths"] == 0
