"""The recorder as hooks use it, through to the files it leaves. Real threads, real files, the real control word."""

from __future__ import annotations

import atexit
import logging
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.control.status import read_statuses
from speccollect.cycles import recording, segment
from speccollect.rank.arming import LOOK_AROUND
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import merge
from specschema import metadata
from specschema.events import EVENT_SCHEMA


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "folder")
    yield made
    made.close()


def finish(recorder: Recorder) -> pa.Table:
    """Disarm, merge, and read the trace."""
    assert recorder.folder is not None
    word.disarm(recorder.folder)
    recorder.poll()
    recorder.close()
    output = recorder.folder / "trace.parquet"
    merge(recorder.folder, output)
    return pq.read_table(output).unify_dictionaries()


def rows(table: pa.Table, kind: str, *columns: str) -> list[dict[str, Any]]:
    chosen: list[dict[str, Any]] = table.filter(pc.equal(table["kind"], kind)).select(columns).to_pylist()
    return chosen


def test_nothing_happens_until_armed(recorder: Recorder) -> None:
    recorder.poll()
    assert not recorder.armed
    cycle = recorder.begin_cycle("speculative", 1, 2, ["a"])
    token = recorder.begin_phase("verify")
    recorder.end_phase(token)
    recorder.end_cycle(cycle)
    recorder.accept(cycle, [1], [0])
    assert (cycle, token) == (-1, -1)
    assert recorder.folder is not None
    assert sorted(p.name for p in recorder.folder.iterdir()) == ["control", "rank00000.status.json"]


def test_unconfigured_recorder_is_inert(tmp_path: Path) -> None:
    recorder = Recorder(None)
    recorder.poll()
    assert recorder.begin_cycle("decode", 1, 0, ["a"]) == -1
    assert not recorder.armed


def test_cycles_phases_and_facts_reach_the_trace(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    before = time.time_ns()
    first = recorder.begin_cycle("speculative", 2, 3, ["a", "b"], 100)
    with recorder.phase("draft"):
        pass
    with recorder.phase("verify"), recorder.phase("sample"):
        pass
    recorder.end_cycle(first, graph_batch_size=4)
    second = recorder.begin_cycle("decode", 1, None, ["a"])
    # overlap scheduling: the first cycle's result comes while the second runs
    recorder.accept(first, [2, None], [1, 0])
    recorder.end_cycle(second)
    recorder.accept(second, [1], None)
    recorder.request_finished("a", 10, 3)
    table = finish(recorder)
    after = time.time_ns()

    assert table.schema.equals(EVENT_SCHEMA)
    assert (first, second) == (0, 1)
    facts = (
        "cycle",
        "name",
        "mode",
        "batch_size",
        "draft_tokens",
        "request_ids",
        "accept_lengths",
        "accepted_draft_tokens",
        "graph_batch_size",
        "context_tokens",
        "window",
    )
    assert [tuple(row.values()) for row in rows(table, "cycle", *facts)] == [
        (0, "spec.cycle", "speculative", 2, 3, ["a", "b"], [2, None], [1, 0], 4, 100, None),
        (1, "spec.cycle", "decode", 1, None, ["a"], [1], None, None, None, None),
    ]
    assert [tuple(row.values()) for row in rows(table, "phase", "name", "cycle")] == [
        ("spec.draft", 0),
        ("spec.verify", 0),
        ("spec.sample", 0),
    ]
    assert [
        tuple(row.values()) for row in rows(table, "request", "request_ids", "prompt_tokens", "completion_tokens")
    ] == [(["a"], 10, 3)]
    timed = rows(table, "phase", "start_ns", "dur_ns", "tid", "pid")
    assert all(before <= row["start_ns"] <= after and 0 <= row["dur_ns"] < after - before for row in timed)
    assert {row["tid"] for row in timed} == {threading.get_native_id()}
    verify, sample = timed[1], timed[2]
    assert verify["start_ns"] <= sample["start_ns"]
    assert sample["start_ns"] + sample["dur_ns"] <= verify["start_ns"] + verify["dur_ns"]


def test_long_recording_loses_nothing(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    cycles = 3 * segment.CYCLE_CAPACITY + 17
    for number in range(cycles):
        assert recorder.begin_cycle("speculative", 1, 2, ["a"]) == number
        with recorder.phase("verify"):
            pass
        recorder.end_cycle(number)
        recorder.accept(number, [number % 3 + 1], [number % 3])
        if number % 512 == 0:
            time.sleep(0.02)  # a real cycle takes milliseconds: the writer thread gets its turn
    table = finish(recorder)
    found = table.filter(pc.equal(table["kind"], "cycle")).sort_by("cycle")
    assert found["cycle"].to_pylist() == list(range(cycles))
    assert np.array_equal(pc.list_flatten(found["accept_lengths"]).to_numpy(), np.arange(cycles) % 3 + 1)
    assert len(rows(table, "phase", "cycle")) == cycles


def test_slow_disk_drops_rows_and_counts_them(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorder.folder is not None
    from speccollect.parts import part_file
    from speccollect.rank import writer

    write = part_file.write_part
    served = threading.Event()

    def slow(*arguments: Any) -> int:
        assert served.wait(120)
        return write(*arguments)

    monkeypatch.setattr(writer, "write_part", slow)
    word.arm(recorder.folder, PHASES_ONLY)
    cycles = (recording.SEGMENTS + 3) * segment.CYCLE_CAPACITY
    for _ in range(cycles):
        number = recorder.begin_cycle("idle", 0, 0, [])
        recorder.end_cycle(number)
    served.set()
    table = finish(recorder)
    kept = len(rows(table, "cycle", "cycle"))
    lost = read_statuses(recorder.folder)[0].lost
    assert lost > 0
    assert kept + lost == cycles


def test_exception_in_the_server_leaves_its_cycle_out_and_the_next_ones_in(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    recorder.begin_cycle("speculative", 1, 2, ["a"])
    recorder.begin_phase("verify")  # never ended
    good = recorder.begin_cycle("speculative", 1, 2, ["a"])
    with recorder.phase("verify"):
        pass
    recorder.end_cycle(good)
    table = finish(recorder)
    assert [row["cycle"] for row in rows(table, "cycle", "cycle")] == [1]
    assert [row["cycle"] for row in rows(table, "phase", "cycle")] == [1]
    assert read_statuses(recorder.folder)[0].lost == 2


def test_tensor_is_refused_and_the_collector_switches_itself_off(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch")
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    cycle = recorder.begin_cycle("speculative", 1, 2, ["a"])
    recorder.end_cycle(cycle)
    with caplog.at_level(logging.ERROR, logger="speccollect"):
        recorder.accept(cycle, torch.tensor([1]), None)
        assert recorder.begin_cycle("speculative", 1, 2, ["a"]) == -1
        recorder.fail("again", ValueError("x"))
    assert not recorder.armed
    assert len(caplog.records) == 1
    assert "host values" in caplog.text
    recorder.close()
    assert [(s.state, s.recording) for s in read_statuses(recorder.folder)] == [("failed", 1)]


@pytest.mark.parametrize(
    "broken", ["begin_cycle", "end_cycle", "begin_phase", "end_phase", "accept", "request_finished"]
)
def test_no_method_raises(recorder: Recorder, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorder.folder is not None

    def explode(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug of ours")

    word.arm(recorder.folder, PHASES_ONLY)
    monkeypatch.setattr(recording.Recording, broken, explode)
    cycle = recorder.begin_cycle("speculative", 1, 2, ["a"])
    recorder.end_phase(recorder.begin_phase("verify"))
    recorder.end_cycle(cycle)
    recorder.accept(cycle, [1], [0])
    recorder.request_finished("a", 1, 1)
    assert not recorder.armed


def test_second_thread_is_left_out_and_counted(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(recorder.begin_cycle("decode", 1, 0, ["b"])))
    thread.start()
    thread.join()
    table = finish(recorder)
    assert numbers == [-1]
    assert len(rows(table, "cycle", "cycle")) == 1
    assert read_statuses(recorder.folder)[0].lost == 1


def test_idle_server_is_disarmed_by_the_writer_thread(recorder: Recorder) -> None:
    assert recorder.folder is not None
    word.arm(recorder.folder, PHASES_ONLY)
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    word.disarm(recorder.folder)
    # nobody polls any more, as in a server without requests
    deadline = time.monotonic() + 10
    while read_statuses(recorder.folder)[0].state != "done" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_statuses(recorder.folder)[0].state == "done"
    assert not recorder.armed
    output = recorder.folder / "trace.parquet"
    assert merge(recorder.folder, output).rows == 1


def test_two_recordings_do_not_mix(recorder: Recorder) -> None:
    assert recorder.folder is not None
    for request in ("first", "second"):
        word.arm(recorder.folder, PHASES_ONLY)
        cycle = recorder.begin_cycle("decode", 1, 0, [request])
        recorder.end_cycle(cycle)
        assert cycle == 0
        word.disarm(recorder.folder)
        recorder.poll()
    recorder.close()
    for number, request in ((1, "first"), (2, "second")):
        output = recorder.folder / f"{request}.parquet"
        merge(recorder.folder, output, recording=number)
        assert [r["request_ids"] for r in rows(pq.read_table(output), "cycle", "request_ids")] == [[request]]


def test_the_end_of_a_recording_does_not_hide_the_next_one(recorder: Recorder) -> None:
    """The first one's thread still looks at its environment when the second one begins."""
    assert recorder.folder is not None
    ended = []
    for _ in range(2):
        number = word.arm(recorder.folder, PHASES_ONLY).recording
        recorder.poll()
        ended.append(recorder._writers[-1])
        assert [s.recording for s in read_statuses(recorder.folder)] == [number]
        if len(ended) == 1:
            word.disarm(recorder.folder)
    ended[0].join(timeout=60)
    assert not ended[0].is_alive()
    (status,) = read_statuses(recorder.folder)
    assert (status.recording, status.state) == (number, "armed")


def test_a_recording_that_cannot_be_finished_leaves_the_next_one_alone(recorder: Recorder) -> None:
    assert recorder.folder is not None
    first = word.arm(recorder.folder, PHASES_ONLY).recording
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    writer = recorder._writers[-1]
    files = word.recording_folder(recorder.folder, first)
    shutil.rmtree(files)
    files.write_text("in the way")
    word.disarm(recorder.folder)
    word.arm(recorder.folder, PHASES_ONLY)
    recorder.poll()
    writer.join(timeout=60)
    assert writer._failed
    assert recorder.armed
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    assert len(rows(finish(recorder), "cycle", "cycle")) == 1


def test_node_map_is_kept_from_load_on_and_written_once(recorder: Recorder) -> None:
    assert recorder.folder is not None
    recorder.note_graph(
        3, {"node_type": ["kernel", "memcpy"], "module": ["layers.0.mlp", None], "module_class": ["MLP", None]}
    )
    word.arm(recorder.folder, PHASES_ONLY)
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    table = finish(recorder)
    assert rows(table, "node", "graph_id", "node", "node_type", "module", "start_ns", "dur_ns") == [
        {"graph_id": 3, "node": 0, "node_type": "kernel", "module": "layers.0.mlp", "start_ns": 0, "dur_ns": 0},
        {"graph_id": 3, "node": 1, "node_type": "memcpy", "module": None, "start_ns": 0, "dur_ns": 0},
    ]


def test_a_kept_node_map_is_none_of_the_containers_that_the_servers_garbage_collector_looks_through(
    recorder: Recorder,
) -> None:
    class Column(list[Any]):
        """A list that can be referred to weakly."""

    columns = {"node_type": Column(["kernel"]), "module": Column(["layers.0"]), "group_ranks": Column([[0, 1]])}
    alive = [weakref.ref(column) for column in columns.values()]
    recorder.note_graph(3, dict(columns))
    columns.clear()
    assert [one() for one in alive] == [None, None, None]


def test_forked_child_is_a_rank_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from speccollect.control import word
from speccollect.config import PHASES_ONLY
from speccollect.rank.recorder import get_recorder
folder = Path(os.environ["SPECANALYZE_DIR"])
recorder = get_recorder()
recorder.poll()
word.arm(folder, PHASES_ONLY)
os.environ["RANK"] = "1"
pid = os.fork()
if pid == 0:
    os.environ["RANK"] = "0"
for _ in range(20):
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["child" if pid == 0 else "parent"]))
recorder.close()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""
    environment = {"SPECANALYZE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment, timeout=60)
    output = tmp_path / "trace.parquet"
    merged = merge(tmp_path, output)
    assert merged.ranks == [0, 1]
    table = pq.read_table(output)
    found = {(r["rank"], r["request_ids"][0]) for r in rows(table, "cycle", "rank", "request_ids")}
    assert found == {(0, "child"), (1, "parent")}


FORKED_IN_A_WINDOW = """
import os, sys
from pathlib import Path
import torch
from torch.autograd import profiler
from speccollect.control import word
from speccollect.config import WindowSettings
from speccollect.rank.recorder import get_recorder
torch.set_num_threads(1)
originals = (profiler._prepare_profiler, profiler._enable_profiler)
folder = Path(os.environ["SPECANALYZE_DIR"])
recorder = get_recorder()
word.arm(folder, WindowSettings(skip=1, warmup=1, record=6, repeat=1))
def cycles(count):
    for _ in range(count):
        cycle = recorder.begin_cycle("decode", 1, 0, ["a"])
        torch.ones(4).add(1)
        recorder.end_cycle(cycle)
        recorder.accept(cycle, [1], None)
cycles(4)
assert recorder._recording.window == 0
assert (profiler._prepare_profiler, profiler._enable_profiler) != originals
pid = os.fork()
if pid == 0:
    os._exit(0 if (profiler._prepare_profiler, profiler._enable_profiler) == originals else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
cycles(8)
word.disarm(folder)
recorder.poll()
recorder.close()
"""


def test_a_child_forked_in_a_window_keeps_nothing_of_it_and_the_window_goes_on(tmp_path: Path) -> None:
    environment = {"SPECANALYZE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED_IN_A_WINDOW], check=True, env=environment, timeout=120)
    merged = merge(tmp_path, tmp_path / "trace.parquet")
    assert merged.problems == []
    (window,) = merged.recording["windows"]
    assert (window["cycles"], window["cut"]) == (6, None)


ENDING = """
import os, signal, sys, time
from pathlib import Path
import torch
from speccollect.control import word
from speccollect.config import WindowSettings
from speccollect.rank.recorder import get_recorder
torch.set_num_threads(1)
recorder = get_recorder()
word.arm(Path(os.environ["SPECANALYZE_DIR"]), WindowSettings(skip=1, warmup=1, record=1000, repeat=1))
for _ in range(20):
    cycle = recorder.begin_cycle("decode", 1, 0, ["a"])
    torch.ones(4).add(1)
    recorder.end_cycle(cycle)
    recorder.accept(cycle, [1], None)
assert recorder._recording.window == 0
if sys.argv[1] == "exception":
    raise RuntimeError("the server has died")
if sys.argv[1] == "signal":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.parametrize(("way", "code"), [("end", 0), ("exception", 1), ("signal", 9)])
def test_what_was_recorded_is_whole_when_the_interpreter_ends_in_a_window(tmp_path: Path, way: str, code: int) -> None:
    environment = {"SPECANALYZE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", ENDING, way], env=environment, timeout=180, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert ("the server has died" in done.stderr) == (way == "exception")
    merged = merge(tmp_path, tmp_path / "trace.parquet")
    assert merged.problems == []
    (window,) = merged.recording["windows"]
    assert (window["cycles"], window["cut"]) == (18, "the recording ended")


def test_turning_to_other_folders_leaves_nothing_behind_at_exit(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "first")
    recorder.poll()
    before = (atexit._ncallbacks(), len(util._finalizer_registry))  # type: ignore[attr-defined]
    for turn in range(3):
        recorder.attach_to(tmp_path / str(turn))
        recorder.poll()
    assert (atexit._ncallbacks(), len(util._finalizer_registry)) == before  # type: ignore[attr-defined]
    recorder.attach_to(None)
    assert (atexit._ncallbacks(), len(util._finalizer_registry)) == (before[0], before[1] - 1)  # type: ignore[attr-defined]


def test_what_an_engine_told_once_holds_in_every_folder(tmp_path: Path) -> None:
    recorder = Recorder(None)
    recorder.identify(rank=3, coordinates={"tensor": 3}, server="bench", server_args={"steps": 2})
    for name in ("first", "second"):
        recorder.attach_to(tmp_path / name)
        word.arm(tmp_path / name, PHASES_ONLY)
        recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
        told = metadata.decode(finish(recorder).schema.metadata, name)
        assert (told["environment"]["server"], told["environment"]["server_args"]) == ("bench", {"steps": 2})
        assert (told["ranks"][0]["rank"], told["ranks"][0]["tensor"]) == (3, 3)


def test_a_folder_that_was_moved_is_left_for_the_one_that_has_its_name(recorder: Recorder) -> None:
    folder = recorder.folder
    assert folder is not None
    recorder.poll()
    folder.rename(folder.with_name("moved"))
    for _ in range(LOOK_AROUND + 1):
        recorder.poll()
    word.arm(folder, PHASES_ONLY)
    recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
    assert len(rows(finish(recorder), "cycle", "cycle")) == 1


def test_server_process_imports_neither_typer_nor_rich_nor_polars_nor_torch(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from speccollect import plugin
from speccollect.control import word
from speccollect.config import PHASES_ONLY
from speccollect.rank.recorder import get_recorder
recorder = get_recorder()
recorder.poll()
word.arm(Path(sys.argv[1]), PHASES_ONLY)
recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
word.disarm(Path(sys.argv[1]))
recorder.poll()
recorder.close()
print(sorted({"typer", "rich", "polars", "torch", "click"} & set(sys.modules)))
"""
    environment = {"SPECANALYZE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        env=environment,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert (tmp_path / "recording000001").is_dir()
