"""Everything of torch that the collector leans on is there, with the parameters it gives; a failure names what moved."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from packaging.version import Version

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.kineto import profiler, torch_surface
from speccollect.kineto.torch_surface import Part, moved
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import Merged, merge

RELEASE = Version(torch.__version__).release


@pytest.mark.parametrize("group", ["PROFILER", "SCOPES", "EVENTS", "TEXT", "WRAPPED"])
def test_torch_has_what_is_used(group: str) -> None:
    assert moved(getattr(torch_surface, group), RELEASE) == []


@pytest.mark.parametrize("group", ["CUDA", "NODE_IDS"])
def test_cuda_bindings_have_what_is_used(group: str) -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("no cuda-bindings")
    from cuda import bindings

    if group == "NODE_IDS" and Version(bindings.__version__) < Version("13.1"):
        pytest.skip("cuda-bindings before 13.1")
    assert moved(getattr(torch_surface, group), RELEASE) == []


def test_methods_that_are_wrapped_are_torchs_own_and_not_inherited() -> None:
    """A wrapper is set on the class, and taken off by putting the class's own method back."""
    graph_class = torch.cuda.graphs.CUDAGraph
    assert {"capture_begin", "capture_end", "replay"} <= set(vars(graph_class))


def test_what_moved_is_named() -> None:
    parts = (
        Part("torch.autograd._prepare_profilers"),
        Part("torch.autograd._disable_profiler", 2),
        Part("torch.autograd.profiler.profile", named=("use_kineto", "use_kinetic")),
        Part("torch._C._autograd._KinetoEvent.start_ps"),
        Part("torch.nowhere.to_be.found"),
        Part("torch.autograd._gone_tomorrow", since=(99, 0)),
        Part("no_such_library.member"),
    )
    assert moved(parts, RELEASE) == [
        "torch.autograd has no _prepare_profilers",
        "torch.autograd._disable_profiler takes 0 arguments, not 2",
        "torch.autograd.profiler.profile has no parameter use_kinetic",
        "torch._C._autograd._KinetoEvent has no start_ps",
        "torch has no nowhere",
        "no module no_such_library",
    ]
    assert moved(parts)[5] == "torch.autograd has no _gone_tomorrow"


# ---- without a part, one line and the rest goes on


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    profiler._moved.cache_clear()
    made = Recorder(tmp_path)
    yield made
    made.close()
    profiler._moved.cache_clear()


def recorded(recorder: Recorder) -> tuple[list[dict[str, Any]], Merged]:
    """Rows of a recording of two windows of three cycles."""
    assert recorder.folder is not None
    word.arm(recorder.folder, WindowSettings(skip=2, warmup=1, record=3, repeat=2, gap=2))
    matrix = torch.ones(8, 8)
    for _ in range(16):
        number = recorder.begin_cycle("decode", 1, 0, ["a"], 10)
        with recorder.phase("decode"):
            matrix @ matrix
        recorder.end_cycle(number)
    word.disarm(recorder.folder)
    recorder.poll()
    recorder.close()
    merged = merge(recorder.folder, recorder.folder / "trace.parquet")
    return pq.read_table(merged.path).to_pylist(), merged


@pytest.mark.parametrize("name", ["_prepare_profiler", "_enable_profiler", "_disable_profiler", "_profiler_enabled"])
def test_without_a_private_function_torch_profiler_itself_records(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(torch.autograd, name)  # torch.profiler has imported its own long since
    rows, merged = recorded(recorder)
    line = f"torch {torch.__version__}: torch.autograd has no {name}: windows use torch.profiler itself,"
    assert [said["message"] for said in merged.recording["messages"]] == [
        f"{line} which waits for the device as it stops"
    ]
    assert [window["profiler"] for window in merged.recording["windows"]] == [profiler.PLAIN] * 2
    assert sum(row["name"] == "aten::mm" for row in rows) == 6
    assert sum(row["kind"] == "cycle" for row in rows) == 16


def test_without_text_the_events_are_read_all_the_same(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._profiler, "_ExperimentalConfig", raising=True)
    monkeypatch.setattr(torch_surface, "PROFILER", ())
    probe = profiler.Profiler(cuda=False, cpu_ops=False, stamps=False, details=False)
    assert not probe.metadata
    assert probe.lacking == (
        f"torch {torch.__version__}: torch._C._profiler has no _ExperimentalConfig:"
        " no launch shapes, sizes of copies or eager collectives"
    )
