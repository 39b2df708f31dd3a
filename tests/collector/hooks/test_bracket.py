"""Brackets around real methods: the original runs once whatever our code does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wrapt

from speccollect.hooks.bracket import Bracket
from speccollect.hooks.points import HookPoint, Installed, install

SERVER = """
class Worker:
    def __init__(self): self.calls = []
    def step(self, batch, factor=10):
        self.calls.append(batch)
        if batch < 0:
            raise ValueError("negative batch")
        return batch * factor

def sample(batch): return -batch
"""


class Recorder:
    def __init__(self) -> None:
        self.armed = True
        self.polls = 0
        self.arms = False
        self.failures: list[tuple[str, str]] = []

    def poll(self) -> None:
        self.polls += 1
        self.armed |= self.arms

    def fail(self, where: str, error: BaseException) -> None:
        self.armed = False
        self.failures.append((where, str(error)))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "bracketserver.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import bracketserver  # type: ignore[import-not-found, unused-ignore]  # written just now

    yield bracketserver
    del sys.modules["bracketserver"]


def hook(recorder: Recorder, bracket: Bracket, qualname: str = "Worker.step", polls: bool = False) -> Installed:
    installed = install([HookPoint("bracketserver", qualname, lambda _: bracket, polls=polls)], recorder, version=None)
    assert installed.patched == [f"bracketserver.{qualname}"]
    return installed


def test_sees_arguments_result_and_failure(worker: Any) -> None:
    seen: list[Any] = []
    recorder = Recorder()

    def before(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        seen.append((type(instance).__name__, args, kwargs))
        return "state"

    bracket = Bracket(before, lambda state, result, failed: seen.append((state, result, failed)))
    installed = hook(recorder, bracket)
    server = worker.Worker()
    assert server.step(2, factor=3) == 6
    with pytest.raises(ValueError, match="negative batch"):
        server.step(-1)
    assert server.calls == [2, -1]
    assert seen == [
        ("Worker", (2,), {"factor": 3}),
        ("state", 6, False),
        ("Worker", (-1,), {}),
        ("state", None, True),
    ]
    installed.remove()
    assert worker.Worker().step(1) == 10
    assert len(seen) == 4
    hook(recorder, bracket, "sample")
    assert worker.sample(3) == -3
    assert seen[4:] == [("NoneType", (3,), {}), ("state", -3, False)]


@pytest.mark.parametrize("qualname", ["Worker.step", "sample"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_its_own_exceptions_reach_the_recorder_alone(worker: Any, where: str, qualname: str) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("ours")

    recorder = Recorder()
    bracket = Bracket(fails, fails) if where == "before" else Bracket(lambda *_: 1, fails)
    hook(recorder, bracket, qualname)
    server = worker.Worker()
    call, expected = (server.step, 20) if qualname == "Worker.step" else (worker.sample, -2)
    assert call(2) == expected
    assert recorder.failures == [(f"bracketserver.{qualname}", "'ours'")]
    assert call(2) == expected  # disarmed: not asked again
    assert len(recorder.failures) == 1
    if qualname == "Worker.step":
        recorder.armed = True
        with pytest.raises(ValueError, match="negative batch"):  # the server's own exception, not ours
            server.step(-1)
        assert server.calls == [2, 2, -1]


def test_nothing_is_done_after_a_call_that_began_nothing(worker: Any) -> None:
    ended: list[Any] = []
    hook(Recorder(), Bracket(lambda *_: None, lambda *_: ended.append(1)))
    assert worker.Worker().step(2) == 20
    assert ended == []


def test_a_gate_is_narrower_than_the_recorder(worker: Any) -> None:
    seen: list[int] = []
    gate = SimpleNamespace(armed=False)
    bracket = Bracket(lambda *_: seen.append(1), lambda *_: None, gate)
    hook(Recorder(), bracket)
    server = worker.Worker()
    server.step(1)
    gate.armed = True
    server.step(1)
    assert seen == [1]
    # the same where somebody else has wrapped the method, which makes it no plain function
    worker.Worker.step = wrapt.FunctionWrapper(worker.Worker.step, lambda w, i, a, k: w(*a, **k))
    hook(Recorder(), bracket)
    gate.armed = False
    assert server.step(1) == 10
    assert seen == [1]


def test_polls_while_idle_and_runs_from_the_call_that_arms(worker: Any) -> None:
    seen: list[int] = []
    recorder = Recorder()
    recorder.armed = False
    hook(recorder, Bracket(lambda *_: seen.append(1), lambda *_: None), polls=True)
    server = worker.Worker()
    server.step(1)
    assert (recorder.polls, seen) == (1, [])
    recorder.arms = True
    server.step(1)
    assert (recorder.polls, seen) == (2, [1])
    server.step(1)
    assert (recorder.polls, seen) == (2, [1, 1])  # armed: whoever begins a cycle polls
