"""Both readers of Kineto's events on torch's real profiler: equal columns, equal rows, and the Python one where the compiled one fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.profiler import ProfilerActivity, record_function

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.kineto import events as kineto_events
from speccollect.kineto.events import CompiledEvents, PythonEvents, events_of, load_reader
from speccollect.native import build
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import merge

COLUMNS = ("start", "duration", "correlation", "device", "resource", "name", "type")


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The compiled reader; made once for this torch."""
    if next(build.compilers(), None) is None:
        pytest.skip("no C++ compiler")
    build.build()
    assert load_reader()
    module = kineto_events._module
    assert module is not None
    return module


@pytest.fixture
def python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.NATIVE_VARIABLE, "0")


def profiled(work: Any, **options: Any) -> Any:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], **options) as profile:
        work()
    return profile.profiler.kineto_results


def busy() -> None:
    value = torch.ones(8, 8)
    for number in range(300):
        with record_function(f"spec.verify {number % 7} " + "x" * (number % 300)):
            value.add(value).mul(value)
        with record_function("é \u2713 kernel<float, 4>"):
            value @ value


def test_both_readers_give_equal_columns(reader: ModuleType) -> None:
    results = profiled(busy)
    ours, theirs = CompiledEvents(results, reader), PythonEvents(results)
    compiled, plain = ours.columns(pause=None), theirs.columns(pause=None)
    assert len(ours) == len(theirs) == len(compiled) > 1500
    for name in COLUMNS:
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name
    assert compiled.names == plain.names
    assert compiled.types == plain.types


def test_types_are_guessed_alike_where_torch_tells_none(reader: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A real event as torch 2.11 shows it."""

        def __init__(self, event: Any) -> None:
            self.name, self.device_type = event.name, event.device_type
            self.is_user_annotation = event.is_user_annotation

    results = profiled(busy)
    told = CompiledEvents(results, reader).columns(pause=None)
    events = CompiledEvents(results, reader)
    monkeypatch.setattr(events, "_event", lambda row: Silent(reader.event(results, row)))
    guessed = events.columns(pause=None)
    assert [guessed.types[i] for i in guessed.type] == [told.types[i] for i in told.type]


def test_texts_of_rows_are_the_profilers_own(reader: ModuleType) -> None:
    config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
    results = profiled(busy, experimental_config=config)
    rows = [5, 0, 1200, 17]
    assert list(CompiledEvents(results, reader).texts(rows)) == list(PythonEvents(results).texts(rows))


def test_released_events_are_gone_and_nothing_else(reader: ModuleType) -> None:
    results, others = profiled(busy), profiled(busy)
    events = CompiledEvents(results, reader)
    events.release()
    events.release()
    assert len(events) == 0
    assert results.events() == []
    assert len(CompiledEvents(others, reader)) > 1500


def test_columns_of_another_length_are_refused(reader: ModuleType) -> None:
    results = profiled(busy)
    short = [np.empty(3, dtype=np.int64) for _ in range(5)] + [np.empty(3, dtype=np.int32) for _ in range(2)]
    with pytest.raises(ValueError, match="another length"):
        reader.read(results, *short)


def test_the_interpreter_runs_on_while_events_are_read(reader: ModuleType) -> None:
    """A thread that only counts gets on while the reader works, however long the interpreter would let it wait."""
    value = torch.zeros(4)
    results = profiled(lambda: [value.add(value) for _ in range(60_000)])
    counted, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)  # hands the lock over

    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(30)  # nobody takes the lock from its holder
    try:
        thread.start()
        events = CompiledEvents(results, reader)
        start = counted[0]
        events.columns(pause=None)
        events.release()
        seen = counted[0] - start
    finally:
        done.set()
        sys.setswitchinterval(before)
        thread.join()
    assert seen > 0


# ---- in windows


SETTINGS = WindowSettings(skip=2, warmup=1, record=6, repeat=2, gap=2)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path)
    yield made
    made.close()


def recorded(recorder: Recorder) -> tuple[list[dict[str, Any]], Any]:
    """Rows of the second window (times left out) and the merged recording."""
    assert recorder.folder is not None
    word.arm(recorder.folder, SETTINGS)
    matrix = torch.ones(16, 16)
    for _ in range(24):
        number = recorder.begin_cycle("speculative", 1, 2, ["a"], 10)
        with recorder.phase("draft"):
            matrix @ matrix
        with recorder.phase("verify"):
            matrix + matrix
        recorder.end_cycle(number)
        recorder.accept(number, [2], [1])
    word.disarm(recorder.folder)
    recorder.poll()
    recorder.close()
    merged = merge(recorder.folder, recorder.folder / "trace.parquet")
    table = pq.read_table(merged.path).unify_dictionaries()
    rows = table.filter(table["window"].to_numpy() == 1).sort_by("start_ns").to_pylist()
    kept = ("kind", "name", "cycle", "window", "tid", "accept_lengths")
    rows = [{name: row[name] for name in kept} for row in sorted(rows, key=lambda row: str(row["kind"]))]
    return rows, merged.recording


def test_windows_of_both_readers_hold_equal_rows(
    reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name in ("compiled", "python"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv(build.NATIVE_VARIABLE, "0" if name == "python" else "1")
        made = Recorder(folder)
        found[name], recording = recorded(made)
        windows = recording["windows"]
        assert [w["reader"] for w in windows] == [name, name]
        assert all(w["held_ns"] >= w["stop_cost_ns"] > 0 for w in windows)
        assert [w.get("read_by") for w in windows] == (["writer"] * 2 if name == "compiled" else [None] * 2)
    assert len(found["compiled"]) > 6 * 5
    assert found["compiled"] == found["python"]


def test_python_reads_what_the_compiled_reader_cannot(
    reader: ModuleType, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: CompiledEvents, *, pause: Any) -> Any:
        raise MemoryError("injected")

    monkeypatch.setattr(CompiledEvents, "columns", broken)
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        rows, recording = recorded(recorder)
    assert "the Python reader is used" in caplog.text
    assert [w["reader"] for w in recording["windows"]] == ["python", "python"]
    assert sum(row["kind"] == "cycle" for row in rows) == 6
    assert sum(row["name"] == "aten::mm" for row in rows) == 6


# ---- building


def test_switched_off_there_is_no_reader(reader: ModuleType, python_only: None) -> None:
    assert isinstance(events_of(profiled(busy)), PythonEvents)
    with pytest.raises(build.NotBuilt, match="SPECANALYZE_NATIVE=0"):
        build.build()
    said: list[str] = []
    build.ensure(said.append)
    assert said == []


def test_without_a_compiler_the_reason_is_one_line_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    failing = tmp_path / "c++"
    failing.write_text("#!/bin/sh\necho 'error: Python.h: No such file' >&2\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    build.ensure(said.append)
    assert len(said) == 2
    assert "Python.h: No such file" in said[1]
    build.ensure(said.append)
    assert len(said) == 2
    assert not list((tmp_path / "specanalyze").glob("*.so"))


def test_a_file_that_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    path = folder / "kineto_reader-0.so"
    path.write_bytes(b"")
    path.chmod(0o600)
    assert build.is_ours(path)
    path.chmod(0o666)
    assert not build.is_ours(path)
    path.chmod(0o600)
    folder.chmod(0o777)
    assert not build.is_ours(path)


def test_the_command_says_where_the_reader_is(reader: ModuleType) -> None:
    command = [sys.executable, "-m", "speccollect", "build"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name.rsplit("-", 1)[0] for path in paths] == ["kineto_reader", "cupti_buffers"]
    assert all(path.is_file() and path.stat().st_mode & 0o077 == 0 for path in paths)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, build.NATIVE_VARIABLE: "0"}
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "recording works without it" in done.stderr
