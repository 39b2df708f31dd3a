"""Which module runs when: hooks on real torch modules, only while a window is recorded."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_torch

import speccollect
from speccollect.config import WindowSettings, parse_windows
from speccollect.control.word import Command, pack, unpack
from speccollect.cycles.rows import Origin
from speccollect.nodemap.module_paths import path_of, paths_below
from speccollect.rank.recorder import get_recorder
from speccollect.windows.module_ranges import ModuleRanges

ORIGIN = Origin(3, 11, 12)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


class Model(nn.Module):
    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp(), Mlp()])
        self.head = head or nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.head(x)
        return y


class Draft(Model):
    """A draft model that has its target's head."""


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    yield
    assert not hooks_of_torch._global_forward_pre_hooks
    assert not hooks_of_torch._global_forward_hooks


def noted(ranges: ModuleRanges) -> list[dict[str, Any]]:
    rows = ranges.rows(ORIGIN, 0).select(["kind", "name", "module", "module_class", "start_ns", "dur_ns", "tid"])
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def recorded(ranges: ModuleRanges, work: Any) -> list[dict[str, Any]]:
    ranges.start()
    try:
        work()
    finally:
        ranges.stop()
    return noted(ranges)


def test_each_call_has_its_range_path_and_class() -> None:
    clock = itertools.count(100, 10)
    model, x = Model(), torch.ones(1, 4)
    model(x)  # outside: leaves nothing
    rows = recorded(ModuleRanges(clock=lambda: next(clock)), lambda: model(x))
    assert [(r["module"], r["module_class"], r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in rows] == [
        ("Model", "Model", 100, 250),
        ("Model.layers.0", "Mlp", 110, 160),
        ("Model.layers.0.up", "Linear", 120, 130),
        ("Model.layers.0.down", "Linear", 140, 150),
        ("Model.layers.1", "Mlp", 170, 220),
        ("Model.layers.1.up", "Linear", 180, 190),
        ("Model.layers.1.down", "Linear", 200, 210),
        ("Model.head", "Linear", 230, 240),
    ]
    assert {r["kind"] for r in rows} == {"phase"}
    assert rows[2]["name"] == "spec.module Model.layers.0.up"
    assert rows[2]["tid"] == 12


def test_a_module_of_two_models_is_named_after_the_one_it_runs_in() -> None:
    target = Model()
    draft = Draft(target.head)
    rows = recorded(ModuleRanges(), lambda: [m(torch.ones(1, 4)) for m in (draft, target, draft)])
    assert [r["module"] for r in rows if r["module"].endswith("head")] == ["Draft.head", "Model.head", "Draft.head"]
    assert path_of([target, target.head], paths_below([draft, target])) == "Model.head"
    assert path_of([draft, target.head], paths_below([draft, target])) == "Draft.head"


def test_a_module_that_raises_ends_and_its_callers_too() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(4, 4), Broken())

    def work() -> None:
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(1, 4))
        Mlp()(torch.ones(1, 4))

    rows = recorded(ModuleRanges(), work)
    assert [r["module"] for r in rows] == ["Sequential", "Sequential.0", "Sequential.1", "Mlp", "Mlp.up", "Mlp.down"]


def test_other_threads_are_left_alone() -> None:
    ranges, model = ModuleRanges(), Model()
    ranges.start()
    thread = threading.Thread(target=lambda: model(torch.ones(1, 4)))
    thread.start()
    thread.join()
    ranges.stop()
    assert ranges.count == 0


def test_calls_without_room_are_counted_and_the_rest_stays_whole() -> None:
    model = Model()
    ranges = ModuleRanges(capacity=3)
    rows = recorded(ranges, lambda: model(torch.ones(1, 4)))
    assert [r["module"] for r in rows] == ["Model", "Model.layers.0", "Model.layers.0.up"]
    assert ranges.lost == 5


def test_a_call_that_is_open_when_the_window_ends_is_left_out() -> None:
    ranges = ModuleRanges()

    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ranges.stop()
            return x

    rows = recorded(ranges, lambda: nn.Sequential(nn.Linear(4, 4), Closing())(torch.ones(1, 4)))
    assert [r["module"] for r in rows] == ["Sequential.0"]


COMPILED = """
import sys
import torch
from torch import nn
from speccollect.windows.module_ranges import ModuleRanges, compiled_calls
from speccollect.cycles.rows import Origin

compiles = []
def backend(graph, inputs):
    compiles.append(1)
    return graph.forward

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(self, x):
        return self.inner(x)

model, x = Model(), torch.ones(1, 4)
model.inner.forward = torch.compile(model.inner.forward, backend=backend, fullgraph=True)
class Late(Model):
    def forward(self, x):
        return self.inner(x) + 1

late_model = Late()
late = torch.compile(late_model.forward, backend=backend, fullgraph=True)
model(x)
ranges = ModuleRanges()
assert ranges.start() is None
before = len(compiles)
model(x)  # compiled before: not again
assert len(compiles) == before
assert torch.equal(late(x), late_model.forward(x))  # compiled now, whole: nothing of the hooks is in it
ranges.stop()
before = len(compiles)
model(x)
assert len(compiles) == before
paths = {row["module"] for row in ranges.rows(Origin(0, 1, 1), 0).to_pylist()}
# nothing inside compiled code; the last three ran eagerly, for comparison
assert paths == {"Model", "Model.inner", "Sequential", "Sequential.0", "Sequential.1"}, paths

own = Model()
own.compile(backend=backend)
own(x)
assert compiled_calls()
refused = ModuleRanges()
print(refused.start())
before = len(compiles)
own(x)
assert len(compiles) == before
"""


def test_compiled_code_is_not_compiled_again_and_not_looked_into() -> None:
    """In a process of its own: what Dynamo has seen stays seen."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "a module here is compiled by its own compile(), and hooks would compile it again"


def test_the_setting_travels_to_the_ranks() -> None:
    settings = parse_windows("record=8,modules")
    assert settings.modules
    command = Command(generation=1, armed=True, recording=1, windows=settings)
    assert unpack(pack(command), "control") == command
    assert not WindowSettings().modules


def test_a_window_has_them_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECANALYZE_DIR", raising=False)
    model, x = Model(), torch.ones(1, 4)

    def work() -> None:
        recorder = get_recorder()
        for _ in range(12):
            cycle = recorder.begin_cycle("decode", 1, 0, ["a"])
            with recorder.phase("decode"), torch.no_grad():
                model(x)
            recorder.end_cycle(cycle)
            recorder.accept(cycle, [1], None)

    counts = {}
    for name, windows in (
        ("with", "skip=2,warmup=1,record=4,repeat=1,modules"),
        ("without", "skip=2,warmup=1,record=4,repeat=1"),
    ):
        with speccollect.record(tmp_path / f"{name}.parquet", windows=windows) as merged:
            work()
        rows = pq.read_table(merged[0].path, columns=["kind", "name", "module", "window"]).to_pylist()
        counts[name] = [r["module"] for r in rows if r["kind"] == "phase" and r["module"] is not None]
        assert all(r["window"] == 0 for r in rows if r["module"] is not None)
    assert counts["without"] == []
    assert len(counts["with"]) == 4 * 8
