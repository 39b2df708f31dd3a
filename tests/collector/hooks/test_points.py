"""The hook mechanism, on real modules written to a folder and imported by Python's own import system."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from speccollect.hooks.points import HookPoint, Installed, Wrapper, argument, capturing, install, phase

SERVER = """
calls = []

def sample(batch, temperature=1.0):
    calls.append(("sample", batch))
    return batch * 10

class Base:
    def stop(self):
        return "stopped"

class Worker(Base):
    def __init__(self):
        self.cycles = 0

    def cycle(self, batch, on_publish=None):
        calls.append(("cycle", batch))
        if batch < 0:
            raise ValueError("negative batch")
        self.cycles += 1
        return sample(batch)

    @staticmethod
    def plan(size):
        return size + 1
"""
USER = """
from tinyserver.worker import sample

def use(batch):
    return sample(batch)
"""


class Recorder:
    """Writes down what hooks tell it."""

    def __init__(self, armed: bool = True) -> None:
        self.armed = armed
        self.seen: list[Any] = []
        self.failures: list[tuple[str, str]] = []
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1

    def begin_phase(self, name: str) -> int:
        self.seen.append(f"+{name}")
        return len(self.seen)

    def end_phase(self, token: int) -> None:
        self.seen.append(f"-{token}")

    def fail(self, where: str, error: BaseException) -> None:
        self.armed = False
        self.failures.append((where, repr(error)))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package ``tinyserver`` on the path, not imported yet; gone again afterwards."""
    package = tmp_path / "tinyserver"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text(SERVER)
    (package / "user.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "tinyserver"]:
        del sys.modules[name]


@pytest.fixture
def put() -> Iterator[Callable[..., Installed]]:
    """``install`` that cleans up after the test."""
    done: list[Installed] = []

    def run(*points: HookPoint, recorder: Recorder, version: str | None = "1.0") -> Installed:
        done.append(install(points, recorder, version=version))
        return done[-1]

    yield run
    for installed in done:
        installed.remove()


VERIFY = phase("verify")


def point(qualname: str, wrapper: Callable[[Any], Wrapper] = VERIFY, **fields: Any) -> HookPoint:
    return HookPoint("tinyserver.worker", qualname, wrapper, **fields)


@pytest.mark.usefixtures("server")
def test_patches_modules_imported_before_and_after(put: Callable[..., Installed]) -> None:
    recorder = Recorder()
    late = put(point("Worker.cycle", parameters=("batch",)), recorder=recorder)
    assert (late.pending, late.patched) == (["tinyserver.worker.Worker.cycle"], [])
    assert "tinyserver.worker" not in sys.modules

    worker = importlib.import_module("tinyserver.worker")
    assert (late.pending, late.patched) == ([], ["tinyserver.worker.Worker.cycle"])
    early = put(point("sample", phase("sample")), recorder=recorder)
    assert early.patched == ["tinyserver.worker.sample"]

    assert worker.Worker().cycle(3) == 30
    assert recorder.seen == ["+verify", "+sample", "-2", "-1"]
    assert worker.calls == [("cycle", 3), ("sample", 3)]


@pytest.mark.usefixtures("server")
def test_reaches_functions_that_other_modules_have_imported_from(put: Callable[..., Installed]) -> None:
    user = importlib.import_module("tinyserver.user")
    original = user.sample
    recorder = Recorder()
    installed = put(point("sample", phase("sample")), recorder=recorder)
    assert user.use(2) == 20
    assert recorder.seen == ["+sample", "-1"]
    installed.remove()
    assert user.sample is original


@pytest.mark.usefixtures("server")
def test_remove_reaches_modules_that_bound_the_wrapper(put: Callable[..., Installed]) -> None:
    worker = importlib.import_module("tinyserver.worker")
    original = worker.sample
    installed = put(point("sample"), recorder=Recorder())
    user = importlib.import_module("tinyserver.user")  # imported while the wrapper was in place
    assert user.sample is not original
    installed.remove()
    assert (user.sample, worker.sample) == (original, original)


@pytest.mark.usefixtures("server")
def test_remove_puts_the_originals_back(put: Callable[..., Installed]) -> None:
    worker = importlib.import_module("tinyserver.worker")
    before = {name: dict(vars(owner)) for name, owner in [("module", worker), ("class", worker.Worker)]}
    recorder = Recorder()
    installed = put(
        point("Worker.cycle"),
        point("Worker.cycle"),
        point("Worker.plan"),
        point("Worker.stop"),
        point("sample"),
        recorder=recorder,
    )
    assert len(installed.patched) == 5
    assert worker.Worker.plan(1) == 2
    assert worker.Worker().stop() == "stopped"
    assert vars(worker.Worker) != before["class"]
    installed.remove()
    assert {name: dict(vars(owner)) for name, owner in [("module", worker), ("class", worker.Worker)]} == before


@pytest.mark.usefixtures("server")
def test_a_module_imported_after_remove_stays_as_it_is(put: Callable[..., Installed]) -> None:
    recorder = Recorder()
    put(point("sample"), recorder=recorder).remove()
    worker = importlib.import_module("tinyserver.worker")
    assert worker.sample(1) == 10
    assert not hasattr(worker.sample, "__wrapped__")
    assert recorder.seen == []


@pytest.mark.usefixtures("server")
def test_does_nothing_while_not_armed_but_polls_where_told(put: Callable[..., Installed]) -> None:
    recorder = Recorder(armed=False)
    worker = importlib.import_module("tinyserver.worker")
    put(point("Worker.cycle", polls=True), point("sample"), recorder=recorder)
    assert worker.Worker().cycle(1) == 10
    assert (recorder.seen, recorder.polls) == ([], 1)


def before(recorder: Recorder) -> Wrapper:
    def wrapper(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        raise RuntimeError("ours, before")

    return wrapper


def after(recorder: Recorder) -> Wrapper:
    def wrapper(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        raise RuntimeError("ours, after")

    return wrapper


def finally_(recorder: Recorder) -> Wrapper:
    def wrapper(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            raise RuntimeError("ours, in finally")

    return wrapper


def twice(recorder: Recorder) -> Wrapper:
    def wrapper(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        return wrapped(*args, **kwargs)

    return wrapper


def never(recorder: Recorder) -> Wrapper:
    return lambda wrapped, instance, args, kwargs: None


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("bug", "reported"),
    [
        (before, "RuntimeError('ours, before')"),
        (after, "RuntimeError('ours, after')"),
        (finally_, "RuntimeError('ours, in finally')"),
        (never, "RuntimeError('the wrapper did not call the original')"),
        (twice, None),
    ],
)
def test_a_bug_of_ours_never_reaches_the_server(
    put: Callable[..., Installed], bug: Callable[[Any], Wrapper], reported: str | None
) -> None:
    worker = importlib.import_module("tinyserver.worker")
    recorder = Recorder()
    put(point("Worker.cycle", bug), recorder=recorder)
    own = worker.Worker()
    assert own.cycle(4) == 40
    assert worker.calls == [("cycle", 4), ("sample", 4)]
    assert own.cycles == 1
    where = "tinyserver.worker.Worker.cycle"
    assert recorder.failures == ([] if reported is None else [(where, reported)])
    assert recorder.armed is (reported is None)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("bug", [phase("verify"), before, after, finally_, twice, never])
def test_the_servers_own_exception_passes_through_untouched(
    put: Callable[..., Installed], bug: Callable[[Any], Wrapper]
) -> None:
    worker = importlib.import_module("tinyserver.worker")
    recorder = Recorder()
    put(point("Worker.cycle", bug), recorder=recorder)
    with pytest.raises(ValueError, match=r"^negative batch$") as caught:
        worker.Worker().cycle(-1)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert worker.calls == [("cycle", -1)]
    if bug not in (before, finally_, never):  # these fail on their own account, the others have nothing to report
        assert recorder.failures == []


@pytest.mark.usefixtures("server")
def test_a_poll_that_fails_leaves_the_call_alone(put: Callable[..., Installed]) -> None:
    class Broken(Recorder):
        def poll(self) -> None:
            raise OSError("control file is gone")

    worker = importlib.import_module("tinyserver.worker")
    recorder = Broken()
    put(point("Worker.cycle", polls=True), recorder=recorder)
    assert worker.Worker().cycle(1) == 10
    assert recorder.failures == [("tinyserver.worker.Worker.cycle", "OSError('control file is gone')")]


@pytest.mark.usefixtures("server")
def test_releases_decide_what_is_expected(put: Callable[..., Installed], caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    points = (
        point("Worker.cycle", versions="<0.5.13", parameters=("batch",)),
        point("Worker.cycle", versions=">=0.5.13", parameters=("batch", "pp_proxy_tensors")),
        point("eagle_sample", versions=">=0.5.13"),
        point("Gone.method", versions=">=0.5.13", optional=True),
    )
    old = put(*points, recorder=recorder, version="0.5.12.post1")
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        new = put(*points, recorder=recorder, version="0.5.17")
        unknown = put(*points, recorder=recorder, version=None)
        importlib.import_module("tinyserver.worker")
    name = "tinyserver.worker."
    assert (old.patched, old.skipped) == (
        [f"{name}Worker.cycle"],
        [f"{name}Worker.cycle", f"{name}eagle_sample", f"{name}Gone.method"],
    )
    assert (new.patched, new.missing) == (
        [],
        [f"{name}Worker.cycle: no parameter pp_proxy_tensors", f"{name}eagle_sample: no eagle_sample"],
    )
    assert new.skipped == [f"{name}Worker.cycle", f"{name}Gone.method"]
    assert (unknown.patched, unknown.missing) == ([f"{name}Worker.cycle"], [])
    assert [record.getMessage() for record in caplog.records] == [
        "speccollect: tinyserver.worker.Worker.cycle can't be hooked: no parameter pp_proxy_tensors",
        "speccollect: tinyserver.worker.eagle_sample can't be hooked: no eagle_sample",
    ]


@pytest.mark.usefixtures("server")
def test_static_methods_and_inherited_methods_keep_their_kind(put: Callable[..., Installed]) -> None:
    worker = importlib.import_module("tinyserver.worker")
    recorder = Recorder()
    installed = put(point("Worker.plan", phase("draft")), point("Worker.stop", phase("idle")), recorder=recorder)
    assert (worker.Worker.plan(1), worker.Worker().plan(2), worker.Worker().stop()) == (2, 3, "stopped")
    assert worker.Base().stop() == "stopped"
    assert recorder.seen == ["+draft", "-1", "+draft", "-3", "+idle", "-5"]
    installed.remove()
    assert "stop" not in vars(worker.Worker)


def test_argument_by_keyword_or_position() -> None:
    assert argument("batch", 0, (7,), {}) == 7
    assert argument("batch", 0, (), {"batch": 8}) == 8
    with pytest.raises(LookupError, match="the caller passed no batch"):
        argument("batch", 0, (), {})


@pytest.mark.usefixtures("server")
def test_hooks_work_beside_a_torch_whose_cuda_never_started(put: Callable[..., Installed]) -> None:
    import torch

    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    assert not capturing()
    recorder = Recorder()
    put(point("sample"), recorder=recorder)
    assert importlib.import_module("tinyserver.worker").sample(1) == 10
    assert recorder.seen == ["+verify", "-1"]


@pytest.mark.usefixtures("server")
def test_a_raised_exception_is_not_kept_alive(put: Callable[..., Installed]) -> None:
    import gc
    import weakref

    worker = importlib.import_module("tinyserver.worker")
    put(point("Worker.cycle"), recorder=Recorder())
    own = worker.Worker()
    alive = weakref.ref(own)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="negative"):
            own.cycle(-1)
        del own
        assert alive() is None
    finally:
        gc.enable()
