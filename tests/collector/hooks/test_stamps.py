"""Hooks that stamp by themselves, around real methods and with the real recorder."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.control.status import read_statuses
from speccollect.cycles import recording, segment
from speccollect.cycles.phase_codes import CODES
from speccollect.hooks.points import HookPoint, Installed, install
from speccollect.hooks.stamps import OpenCycle, Weave, stamped, within
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import merge

SERVER = """
import functools

class Worker:
    def __init__(self): self.calls = []
    def step(self, batch, factor=10):
        self.calls.append(batch)
        if batch < 0:
            raise ValueError("negative batch")
        return batch * factor
    twice = functools.partialmethod(step, factor=20)

def sample(batch): return -batch
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "stampserver.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import stampserver  # type: ignore[import-not-found, unused-ignore]  # written just now

    yield stampserver
    del sys.modules["stampserver"]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "folder")
    recorder.poll()
    word.arm(tmp_path / "folder", PHASES_ONLY)
    yield recorder
    recorder.close()


def hook(cycle: OpenCycle, recorder: Recorder, *names: str, weave: Callable[..., Weave] = stamped) -> Installed:
    points = [HookPoint("stampserver", name, lambda _: weave(cycle, "sample")) for name in names]
    installed = install(points, recorder, version=None)
    assert len(installed.patched) == len(names)
    return installed


def begin(cycle: OpenCycle, recorder: Recorder) -> int:
    number = recorder.begin_cycle("speculative", 1, 2, ["a"])
    cycle.open(number, CODES["verify"])
    return number


def end(cycle: OpenCycle, recorder: Recorder) -> None:
    cycle.leave()
    cycle.armed = False
    recorder.end_cycle(cycle.number)
    recorder.accept(cycle.number, (1,), (0,))


def phases(recorder: Recorder) -> list[tuple[str, int]]:
    """Name and cycle of each phase in the merged trace, in the order of their begins."""
    assert recorder.folder is not None
    word.disarm(recorder.folder)
    recorder.poll()
    recorder.close()
    trace = recorder.folder.parent / "trace.parquet"
    merge(recorder.folder, trace)
    table = pq.read_table(trace)
    rows = table.filter(pc.equal(table["kind"], "phase")).sort_by([("start_ns", "ascending"), ("dur_ns", "descending")])
    return [(row["name"], row["cycle"]) for row in rows.select(["name", "cycle"]).to_pylist()]


@pytest.mark.parametrize("weave", [stamped, within])
def test_a_method_a_function_and_what_binds_itself(
    server: Any, recorder: Recorder, weave: Callable[..., Weave]
) -> None:
    cycle = OpenCycle(recorder)
    installed = hook(cycle, recorder, "Worker.step", "Worker.twice", "sample", weave=weave)
    worker = server.Worker()
    assert worker.step(1) == 10  # no cycle is open
    begin(cycle, recorder)
    assert (worker.step(2, factor=3), worker.twice(2), server.sample(3)) == (6, 40, -3)
    with pytest.raises(ValueError, match="negative batch"):
        worker.step(-1)
    end(cycle, recorder)
    assert worker.calls == [1, 2, 2, -1]  # each ran once
    installed.remove()
    assert phases(recorder) == [("spec.verify", 0), *[("spec.sample", 0)] * 4]


def test_on_another_thread_and_while_a_graph_is_captured_nothing_is_stamped(server: Any, recorder: Recorder) -> None:
    cycle = OpenCycle(recorder)
    installed = hook(cycle, recorder, "Worker.step")
    worker = server.Worker()
    begin(cycle, recorder)
    thread = threading.Thread(target=worker.step, args=(1,))
    thread.start()
    thread.join()
    cycle.capturing = lambda: True
    worker.step(2)
    end(cycle, recorder)
    assert worker.calls == [1, 2]
    installed.remove()
    assert phases(recorder) == [("spec.verify", 0)]


def test_within_a_cycle_a_capture_keeps_ranges_away_and_no_stamp(server: Any, recorder: Recorder) -> None:
    cycle = OpenCycle(recorder)
    installed = hook(cycle, recorder, "Worker.step", weave=within)
    worker = server.Worker()
    begin(cycle, recorder)
    cycle.capturing = lambda: True
    worker.step(1)
    thread = threading.Thread(target=worker.step, args=(2,))
    thread.start()
    thread.join()
    cycle.watched = True
    worker.step(3)
    cycle.watched = False
    end(cycle, recorder)
    assert worker.calls == [1, 2, 3]
    installed.remove()
    assert phases(recorder) == [("spec.verify", 0), ("spec.sample", 0)]


def test_a_phase_that_closes_after_the_recording_ended_reaches_no_other(server: Any, recorder: Recorder) -> None:
    """The control word says stop and start again while a step is under way."""
    assert recorder.folder is not None
    cycle = OpenCycle(recorder)
    begin(cycle, recorder)
    place = cycle.begin(CODES["sample"])
    word.disarm(recorder.folder)
    recorder.poll()
    word.arm(recorder.folder, PHASES_ONLY)
    begun = begin(OpenCycle(recorder), recorder)
    cycle.end(place)
    cycle.leave()
    assert begun == 0
    assert phases(recorder) == []  # the second recording's verify never ended


def test_without_a_free_buffer_stamps_are_dropped_and_counted(recorder: Recorder) -> None:
    cycle = OpenCycle(recorder)
    begin(cycle, recorder)
    end(cycle, recorder)
    current = recorder._recording
    assert current is not None
    current.free.clear()
    current.rotate()
    for _ in range(3):
        begin(cycle, recorder)
        cycle.end(cycle.begin(CODES["sample"]))
        late = OpenCycle(recorder)
        late.open(cycle.number, CODES["draft"])
        end(cycle, recorder)
    recorder.close()
    late.leave()  # of a list that has been counted
    assert phases(recorder) == [("spec.verify", 0)]
    assert recorder.folder is not None
    # three cycles with three phases each, and what was told of them
    assert (current.lost.cycles, current.lost.phases, current.lost.late_accepts) == (3, 9, 3)
    assert read_statuses(recorder.folder)[0].lost == 15


def test_a_window_without_room_drops_what_does_not_fit(recorder: Recorder) -> None:
    cycle = OpenCycle(recorder)
    begin(cycle, recorder)
    end(cycle, recorder)
    current = recorder._recording
    assert current is not None
    assert current.segment is not None
    current.segment.window = 0
    stamps = current.segment.stamps
    stamps += [1, 2, 0, CODES["sample"]] * (recording._ROOM // segment.PHASE_COLUMNS)
    begin(cycle, recorder)
    end(cycle, recorder)
    current.segment.window = None
    assert len(phases(recorder)) == len(stamps) // segment.PHASE_COLUMNS
    assert (current.lost.cycles, current.lost.phases) == (0, 1)


@pytest.mark.parametrize("weave", [stamped, within])
@pytest.mark.parametrize("broken", ["enter", "leave"])
def test_a_range_that_raises_switches_the_recorder_off_and_leaves_the_call_alone(
    server: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, broken: str, weave: Callable[..., Weave]
) -> None:
    def raises(*arguments: Any) -> None:
        raise RuntimeError("no ranges")

    cycle = OpenCycle(recorder)
    installed = hook(cycle, recorder, "Worker.step", weave=weave)
    begin(cycle, recorder)
    assert recorder._recording is not None
    recorder._recording.ranges = cycle.watched = True
    monkeypatch.setattr(recording.Recording, broken, raises)
    worker = server.Worker()
    assert (worker.step(1), worker.step(2)) == (10, 20)
    assert worker.calls == [1, 2]
    assert not recorder.armed
    installed.remove()
