"""Profiler windows over real cycles with torch's real profiler, on a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.kineto.events import events_of
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import Merged, merge
from speccollect.windows import window
from speccollect.windows.clock_marks import MARK, ClockMarks, rows_of

SETTINGS = WindowSettings(skip=5, warmup=2, record=4, repeat=2, gap=3)
"""Cycles 0-4 control, 5-6 warm-up, 7-10 window 0, 11-13 control, 14-15 warm-up, 16-19 window 1, from 20 on control."""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path)
    yield made
    made.close()


MATRIX = torch.ones(16, 16)


def cycle(recorder: Recorder, mode: str = "speculative") -> int:
    number = recorder.begin_cycle(mode, 1, 2, ["a"], 10)
    with recorder.phase("draft"):
        MATRIX @ MATRIX
    with recorder.phase("verify"), recorder.phase("sample"):
        MATRIX + MATRIX
    recorder.end_cycle(number)
    recorder.accept(number - 1, [2], [1])
    return number


def collect(recorder: Recorder, count: int, settings: WindowSettings = SETTINGS) -> tuple[pa.Table, Merged]:
    assert recorder.folder is not None
    word.arm(recorder.folder, settings)
    for _ in range(count):
        cycle(recorder)
    return finish(recorder)


def finish(recorder: Recorder) -> tuple[pa.Table, Merged]:
    assert recorder.folder is not None
    word.disarm(recorder.folder)
    recorder.poll()
    recorder.close()
    merged = merge(recorder.folder, recorder.folder / "trace.parquet")
    return pq.read_table(merged.path).unify_dictionaries(), merged


def of_kind(table: pa.Table, kind: str) -> pa.Table:
    return table.filter(pc.equal(table["kind"], kind)).sort_by("start_ns")


def test_windows_lie_where_they_were_asked_for(recorder: Recorder) -> None:
    table, merged = collect(recorder, 25)
    cycles = of_kind(table, "cycle")
    assert cycles["cycle"].to_pylist() == list(range(25))
    expected: list[int | None] = [None] * 25
    expected[7:11] = [0] * 4
    expected[16:20] = [1] * 4
    assert cycles["window"].to_pylist() == expected
    # each cycle's facts are joined to the profiler's own range; the last one's result never came
    assert cycles["accept_lengths"].to_pylist() == [[2]] * 24 + [None]
    assert [(w["first_cycle"], w["cycles"], w["cut"]) for w in merged.recording["windows"]] == [
        (7, 4, None),
        (16, 4, None),
    ]
    assert [w["warmup"] for w in merged.recording["warmups"]] == [[5, 7], [14, 16]]
    assert merged.recording["device"] == "cpu"
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


@pytest.fixture
def with_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows as on a GPU: the profiler stays on for two cycles more."""
    monkeypatch.setattr(window, "tail_cycles", lambda device: 2)


@pytest.mark.usefixtures("with_tail")
@pytest.mark.parametrize("ranges", [False, True])
def test_the_profiler_outlasts_a_window_and_keeps_nothing_of_it(recorder: Recorder, ranges: bool) -> None:
    table, merged = collect(recorder, 25, replace(SETTINGS, ranges=ranges))
    cycles = of_kind(table, "cycle")
    assert cycles["cycle"].to_pylist() == list(range(25))
    expected: list[int | None] = [None] * 25
    expected[7:11] = [0] * 4  # then two of the tail, three of control, two of warm-up
    expected[18:22] = [1] * 4
    assert cycles["window"].to_pylist() == expected
    assert cycles["accept_lengths"].to_pylist() == [[2]] * 24 + [None]
    windows = merged.recording["windows"]
    assert [(w["first_cycle"], w["cycles"], w["cut"]) for w in windows] == [(7, 4, None), (18, 4, None)]
    assert [w["warmup"] for w in merged.recording["warmups"]] == [[5, 7], [11, 13], [16, 18], [22, 24]]
    in_window = table.filter(pc.is_valid(table["window"]))
    for number, told in enumerate(windows):
        starts = in_window.filter(pc.equal(in_window["window"], number))["start_ns"].to_pylist()
        assert max(starts) < told["end_ns"]
    counts = of_kind(table, "phase").group_by("name").aggregate([("start_ns", "count")])
    assert set(counts["start_ns_count"].to_pylist()) == {25}
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("with_tail")
@pytest.mark.parametrize("count", [11, 12])
def test_recording_that_ends_after_a_window_has_the_whole_window(recorder: Recorder, count: int) -> None:
    table, merged = collect(recorder, count)
    assert [(w["cycles"], w["cut"]) for w in merged.recording["windows"]][:1] == [
        (4, "the recording ended" if count == 11 else None)
    ]
    assert len(of_kind(table, "cycle")) == count


@pytest.mark.usefixtures("with_tail")
def test_cycles_of_a_window_outlive_a_failure_in_its_tail(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, SETTINGS)
    for _ in range(12):
        cycle(recorder)
    recorder.fail("a hook", RuntimeError("broken"))
    for writer in recorder._writers:
        writer.join(timeout=10)
    merged = merge(recorder.folder, recorder.folder / "trace.parquet")
    assert sorted(of_kind(pq.read_table(merged.path).unify_dictionaries(), "cycle")["cycle"].to_pylist()) == list(
        range(12)
    )
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def test_phases_of_a_window_come_from_the_profiler_once(recorder: Recorder) -> None:
    table, _ = collect(recorder, 25)
    phases = of_kind(table, "phase")
    counts = phases.group_by(["name"]).aggregate([("start_ns", "count")])
    assert dict(zip(*(counts[c].to_pylist() for c in ("name", "start_ns_count")), strict=True)) == {
        "spec.draft": 25,
        "spec.verify": 25,
        "spec.sample": 25,
    }
    for name in ("spec.draft", "spec.verify", "spec.sample"):
        assert sorted(phases.filter(pc.equal(phases["name"], name))["cycle"].to_pylist()) == list(range(25))


def test_ranges_of_the_profiler_are_phases_where_they_are_asked_for(recorder: Recorder) -> None:
    settings = replace(SETTINGS, ranges=True)
    table, merged = collect(recorder, 25, settings)
    phases = of_kind(table, "phase")
    for name in ("spec.draft", "spec.verify", "spec.sample"):
        assert sorted(phases.filter(pc.equal(phases["name"], name))["cycle"].to_pylist()) == list(range(25))
    assert of_kind(table, "cycle")["cycle"].to_pylist() == list(range(25))
    assert merged.recording["settings"]["ranges"] is True


@pytest.mark.parametrize("ranges", [False, True])
def test_marks_measure_the_profilers_clock_and_leave_no_row(recorder: Recorder, ranges: bool) -> None:
    table, merged = collect(recorder, 25, replace(SETTINGS, ranges=ranges))
    for told in merged.recording["windows"]:
        assert 0 < told["clock_error_ns"] < 1_000_000
        assert len(told["clock_offset_ns"]) == 2
    assert MARK not in table["name"].to_pylist()


def test_events_of_a_profiler_whose_clock_is_off_are_put_on_the_hosts() -> None:
    marks = ClockMarks()
    value = torch.ones(4)
    stamps = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        marks.begin()
        for _ in range(50):
            before = time.time_ns()
            value.add(value)
            stamps.append((before, time.time_ns()))
        marks.end()
    columns = events_of(profile.profiler.kineto_results).columns(pause=None)
    ahead = 3_000_000
    columns.start = columns.start + ahead
    fit = marks.fit(columns)
    assert fit is not None
    assert abs(fit.begin[1] + ahead) <= fit.begin[2]
    moved = np.sort(fit.unix_ns(columns.start)[columns.name_mask(lambda name: name == "aten::add")])
    error = fit.begin[2] + fit.end[2]
    assert [b - error <= at <= a + error for at, (b, a) in zip(moved.tolist(), stamps, strict=True)] == [True] * 50
    columns.start[rows_of(columns)[0]] = 0
    columns.name[rows_of(columns)[0]] = 0 if columns.names[0] != MARK else 1
    assert marks.fit(columns) is None


def test_operators_of_the_worker_stand_inside_their_phases(recorder: Recorder) -> None:
    table, _ = collect(recorder, 12)
    window = table.filter(pc.equal(table["window"], 0))
    phases, ops = of_kind(window, "phase"), of_kind(window, "op")
    for phase, operator in (("spec.draft", "aten::mm"), ("spec.sample", "aten::add")):
        around = phases.filter(pc.equal(phases["name"], phase))
        inner = ops.filter(pc.equal(ops["name"], operator))
        assert inner.num_rows == around.num_rows == 4
        begin, start = around["start_ns"].to_numpy(), inner["start_ns"].to_numpy()
        assert np.all(begin <= start)
        assert np.all(start + inner["dur_ns"].to_numpy() <= begin + around["dur_ns"].to_numpy())
        assert inner["tid"].to_pylist() == around["tid"].to_pylist()


def test_one_row_group_per_window(recorder: Recorder) -> None:
    _, merged = collect(recorder, 25)
    file = pq.ParquetFile(merged.path)
    windows = [
        set(pc.unique(file.read_row_group(i, ["window"])["window"]).to_pylist()) for i in range(file.num_row_groups)
    ]
    assert windows == [{0}, {1}, {None}]


def test_prefill_and_idle_steps_are_not_counted(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, WindowSettings(skip=1, warmup=0, record=2, repeat=1))
    for mode in ("prefill", "idle", "speculative", "prefill", "speculative", "idle", "speculative", "speculative"):
        cycle(recorder, mode)
    table, _ = finish(recorder)
    cycles = of_kind(table, "cycle")
    assert cycles["mode"].to_pylist()[3:] == ["prefill", "speculative", "idle", "speculative", "speculative"]
    assert cycles["window"].to_pylist() == [None, None, None, None, 0, 0, 0, None]


def test_recording_that_ends_inside_a_window_keeps_it_and_says_so(recorder: Recorder) -> None:
    table, merged = collect(recorder, 9)
    assert [(w["cycles"], w["cut"]) for w in merged.recording["windows"]] == [(2, "the recording ended")]
    assert of_kind(table, "cycle")["window"].to_pylist()[-2:] == [0, 0]
    assert merged.recording["messages"] == [{"rank": 0, "message": "window 0 is cut: the recording ended"}]


def test_another_profiler_keeps_the_window_shut_and_the_phases_going(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, SETTINGS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        for _ in range(8):
            cycle(recorder)
    for _ in range(17):
        cycle(recorder)
    table, merged = finish(recorder)
    assert any(event.name == "aten::mm" for event in theirs.events())
    assert "another torch profiler is running" in merged.recording["messages"][0]["message"]
    assert [w["window"] for w in merged.recording["windows"]] == [1]
    assert of_kind(table, "cycle")["cycle"].to_pylist() == list(range(25))


def test_profiler_that_the_server_starts_inside_a_window_gets_its_way(recorder: Recorder) -> None:
    assert recorder.folder is not None
    from torch.autograd import profiler as autograd_profiler

    original = autograd_profiler._enable_profiler  # type: ignore[attr-defined]
    word.arm(recorder.folder, SETTINGS)
    for _ in range(9):
        cycle(recorder)
    assert autograd_profiler._enable_profiler is not original  # type: ignore[attr-defined]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        cycle(recorder)
    for _ in range(15):
        cycle(recorder)
    _, merged = finish(recorder)
    assert any(event.name == "aten::mm" for event in theirs.events())
    assert [(w["window"], w["cycles"], w["cut"]) for w in merged.recording["windows"]] == [
        (0, 2, "another torch profiler was started"),
        (1, 4, None),
    ]
    assert autograd_profiler._enable_profiler is original  # type: ignore[attr-defined]


def test_window_with_too_many_events_is_cut_in_time(recorder: Recorder) -> None:
    settings = WindowSettings(skip=1, warmup=0, record=10, repeat=1, max_events=60)
    table, merged = collect(recorder, 13, settings)
    (window,) = merged.recording["windows"]
    kept = table.filter(pc.equal(table["window"], 0))
    ops = of_kind(kept, "op")
    assert window["events"] > 60
    assert "more than 60 events" in window["cut"]
    assert 0 < ops.num_rows < 60
    assert max(ops["start_ns"].to_pylist()) < window["cut_ns"]
    # cycles stay whole in number: their facts do not come from the profiler
    assert of_kind(table, "cycle")["cycle"].to_pylist() == list(range(13))


def test_slow_window_is_closed_early(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from speccollect.windows import window

    clock = [0]

    class Clock:
        perf_counter_ns = staticmethod(time.perf_counter_ns)

        time_ns = staticmethod(time.time_ns)

        @staticmethod
        def monotonic_ns() -> int:
            clock[0] += 2_000_000_000
            return clock[0]

    monkeypatch.setattr(window, "time", Clock)
    _, merged = collect(recorder, 12, WindowSettings(skip=1, warmup=0, record=8, repeat=1, max_seconds=5))
    assert [(w["cycles"], w["cut"]) for w in merged.recording["windows"]] == [(3, "longer than 5 s")]


def test_server_that_goes_idle_inside_a_window_is_finished_without_it(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, SETTINGS)
    for _ in range(9):
        cycle(recorder)
    word.disarm(recorder.folder)
    # nobody polls: the writer thread takes over, but only this thread can stop the profiler it started
    assert wait_for_ranks(recorder.folder, 1, 20) == []
    assert torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    merged = merge(recorder.folder, recorder.folder / "trace.parquet")
    assert merged.recording["windows"] == []
    assert merged.recording["lost"]["0"]["windows"] == 1
    cycles = of_kind(pq.read_table(merged.path).unify_dictionaries(), "cycle")
    assert cycles["cycle"].to_pylist() == list(range(9))
    recorder.poll()
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


@pytest.mark.parametrize("variable", ["NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH"])
def test_nsight_owns_the_device(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/opt/nsys/libToolsInjection64.so")
    table, merged = collect(recorder, 25)
    assert merged.recording["windows"] == []
    assert merged.recording["tiers"] == ["phases"]
    messages = [m["message"] for m in merged.recording["messages"]]
    assert messages == [
        f"another profiler owns the device in this process ({variable} is set): phases and NVTX ranges only"
    ]
    assert set(of_kind(table, "cycle")["window"].to_pylist()) == {None}


def test_tensor_results_are_the_same_with_and_without(recorder: Recorder) -> None:
    def run() -> Any:
        value = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        for _ in range(25):
            number = recorder.begin_cycle("speculative", 1, 2, ["a"])
            with recorder.phase("verify"):
                value = torch.tanh(value @ value.T / 100)
            recorder.end_cycle(number)
        return value

    plain = run()
    assert recorder.folder is not None
    word.arm(recorder.folder, SETTINGS)
    recorded = run()
    assert torch.equal(plain, recorded)
