"""Kineto's graph and node ids, from torch's own events and JSON to the node map: real profiles, without a GPU.

Only what CUPTI would deliver is given (tests/support/device_activities.cpp); events, text and JSON are torch's own.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
import traces
from device_activities import DeviceActivities, Given

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.rank_result import rank_result
from specanalyze.formats.kineto import read_events
from specanalyze.formats.load import open_trace
from speccollect.config import WindowSettings
from speccollect.cycles.rows import Origin
from speccollect.cycles.segment import Segment
from speccollect.kineto.details import NODE_IDS, node_ids
from speccollect.kineto.events import CompiledEvents, Events, PythonEvents, load_reader
from speccollect.native import build
from speccollect.nodemap import capture as nodemap
from speccollect.nodemap.cuda_graph import _type_number, instantiated_id
from speccollect.nodemap.replays import ReplayStamps
from speccollect.nodemap.rows import graph_table, node_table
from speccollect.windows.result import WindowResult
from speccollect.windows.rows import read_window, window_table
from specschema.node_types import node_type

EXECUTABLE = 9
"""The profiler's number of the graph that is replayed; the node map calls it 4."""
NUMBER = 4
NODES = [
    ("kernel", "nvjet_tst_64x8_64x16_1x4_h_bz_TNN", "Model.layers.0.mlp.gate", "Linear"),
    ("event_record", "event_record", None, None),
    ("kernel", "_fwd_kernel", "Model.layers.0.self_attn.attn", "RadixAttention"),
    ("memcpy", "memcpy", "Model.layers.0.self_attn.attn", "RadixAttention"),
    ("kernel", "fused_moe_kernel", "Model.layers.0.mlp.experts", "FusedMoE"),
]
THREAD = 7777


@pytest.fixture(params=["compiled", "python"])
def reader(request: pytest.FixtureRequest) -> Any:
    """Makes the events of a result readable, one way or the other."""
    if request.param == "python":
        return PythonEvents
    build.build()
    assert load_reader()
    from speccollect.kineto import events as kineto_events

    return lambda result: CompiledEvents(result, kineto_events._module)  # type: ignore[arg-type]


def replay(begin: int, correlation: int, *, copies: bool = True) -> list[Given]:
    """A replay on two streams, whose nodes start in another order than they were captured in, and a kernel beside it."""
    shown = [(i, kind, name) for i, (kind, name, *_) in enumerate(NODES) if kind in ("kernel", "memcpy")]
    given = [Given("call", "cudaGraphLaunch", begin + 100, 50, THREAD, correlation)]
    for place, (ordinal, kind, name) in enumerate(reversed(shown)):
        text = "Memcpy DtoD (Device -> Device)" if kind == "memcpy" else name
        ids = (EXECUTABLE, ordinal) if kind == "kernel" or copies else (0, 0)
        given.append(Given(kind, text, begin + 200 + 20 * place, 10, 7 + place % 2, correlation, *ids, bytes=64))
    given.append(Given("call", "cudaLaunchKernel", begin + 400, 5, THREAD, correlation + 1))
    given.append(Given("kernel", "eager_kernel", begin + 450, 10, 7, correlation + 1))
    return given


def segment_of(events: Events, replays: ReplayStamps | None, *, ids_only: bool) -> Segment:
    segment = Segment()
    segment.reset(0, 0, 0, 1)
    segment.profile = WindowResult(
        events, None, {"window": 0, "end_ns": 1 << 62}, metadata=True, ids_only=ids_only, replays=replays, clock=None
    )
    read_window(segment.profile)
    return segment


def rows_of(events: Events, replays: ReplayStamps | None = None, *, ids_only: bool = True) -> pa.Table:
    table, _, _ = window_table(
        segment_of(events, replays, ids_only=ids_only), [], Origin(0, 1, THREAD), WindowSettings()
    )
    return table.unify_dictionaries()


def device_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = [r for r in table.sort_by("start_ns").to_pylist() if r["kind"] in ("kernel", "memcpy")]
    return [(r["name"].split()[0], *map(r.get, ("graph_id", "node", "grid"))) for r in rows]


def test_both_readers_give_the_numbers_in_the_text(device: DeviceActivities, reader: Any) -> None:
    profile = device.profile(replay(time.time_ns(), 50))
    events = reader(profile.profiler.kineto_results)
    columns = events.columns(pause=None)
    rows = [i for i, kind in enumerate(columns.types[t] for t in columns.type) if kind in ("kernel", "gpu_memcpy")]
    keys = (*NODE_IDS, "bytes", "no such key")
    graph, node, size, absent = events.numbers(rows, keys, pause=None)
    copy = (
        [EXECUTABLE, (EXECUTABLE << 32) + 3] if device.typed else [-1, -1]
    )  # Kineto of torch 2.12 and 2.13: kernels alone
    assert list(zip(graph.tolist(), node.tolist(), strict=True)) == [
        (EXECUTABLE, (EXECUTABLE << 32) + 4),
        tuple(copy),
        (EXECUTABLE, (EXECUTABLE << 32) + 2),
        (EXECUTABLE, EXECUTABLE << 32),
        (0, 0),
    ]
    assert size.tolist() == [-1, 64, -1, -1, -1]
    assert absent.tolist() == [-1] * 5
    found = [column.tolist() for column in node_ids(graph, node)]
    assert found == [[EXECUTABLE, copy[0], EXECUTABLE, EXECUTABLE, -1], [4, 3 if device.typed else -1, 2, 0, -1]]


@pytest.mark.parametrize("ids_only", [True, False])
def test_rows_carry_the_maps_graph_and_the_node(
    device: DeviceActivities, reader: Any, monkeypatch: pytest.MonkeyPatch, ids_only: bool
) -> None:
    monkeypatch.setitem(nodemap.INSTANTIATED, EXECUTABLE, NUMBER)
    profile = device.profile(replay(time.time_ns(), 50))
    grid = None if ids_only else "4x1x1"
    copy = (NUMBER, 3) if device.typed else (None, None)
    assert device_rows(rows_of(reader(profile.profiler.kineto_results), ids_only=ids_only)) == [
        ("fused_moe_kernel", NUMBER, 4, grid),
        ("Memcpy", *copy, None),
        ("_fwd_kernel", NUMBER, 2, grid),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_TNN", NUMBER, 0, grid),
        ("eager_kernel", None, None, grid),
    ]


class Replayed:
    """What ReplayStamps asks of torch's CUDAGraph."""


def stamps(begin: int, end: int, number: int) -> ReplayStamps:
    """Stamps around one replay of a captured graph."""
    times = iter((begin, end))
    made = ReplayStamps(4, clock=lambda: next(times))
    graph = Replayed()
    setattr(graph, nodemap.ID_ATTRIBUTE, number)
    made._stamped(lambda: None, graph, (), {})
    return made


def test_a_graph_that_only_stamps_can_name_is_the_maps(device: DeviceActivities, reader: Any) -> None:
    """An older driver tells no id of an executable graph, and the profiler's number must not pass for the map's."""
    begin = time.time_ns()
    profile = device.profile(replay(begin, 50))
    named = device_rows(rows_of(reader(profile.profiler.kineto_results), stamps(begin + 90, begin + 160, NUMBER)))
    assert [graph for _, graph, *_ in named] == [NUMBER] * 4 + [None]  # the copy, too, whose text may lack ids
    profile = device.profile(replay(time.time_ns(), 50))
    unnamed = device_rows(rows_of(reader(profile.profiler.kineto_results)))
    assert [(graph, node) for _, graph, node, _ in unnamed] == [
        (None, 4),
        (None, 3 if device.typed else None),
        (None, 2),
        (None, 0),
        (None, None),
    ]


def test_text_without_ids_makes_no_columns(device: DeviceActivities, reader: Any) -> None:
    profile = device.profile(replay(time.time_ns(), 50), ids=False)
    assert {(graph, node) for _, graph, node, _ in device_rows(rows_of(reader(profile.profiler.kineto_results)))} == {
        (None, None)
    }


def test_node_ids_place_replays_whose_order_says_something_else(
    device: DeviceActivities, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From torch's events to the breakdown: every kernel finds its module by its id, though it started out of order. The copy is
    the node that is left where its text has no id (before torch 2.14)."""
    monkeypatch.setitem(nodemap.INSTANTIATED, EXECUTABLE, NUMBER)
    begin = time.time_ns()
    profile = device.profile([one for i in range(3) for one in replay(begin + 1000 * i, 50 + 10 * i)])
    table = rows_of(reader(profile.profiler.kineto_results))
    nodes: dict[str, list[Any]] = {
        "node": list(range(len(NODES))),
        "node_type": [kind for kind, *_ in NODES],
        "name": [name for _, name, *_ in NODES],
        "module": [module for *_, module, _ in NODES],
        "module_class": [kind for *_, kind in NODES],
    }
    origin = Origin(0, 1, THREAD)
    wanted = ("launch", "kernel", "memcpy", "node")
    rows = [r for r in table.to_pylist() if r["kind"] in wanted]
    for row in rows:
        if row["kind"] == "launch":
            row |= {"pid": 1, "tid": THREAD}
    rows += node_table([graph_table(graph, nodes) for graph in (NUMBER, NUMBER + 1)], origin).to_pylist()
    rows.append(traces.phase("spec.verify", begin, begin + 3000, tid=THREAD, window=0))
    (rank,) = break_down(traces.trace(traces.rank_trace(rows))).ranks
    assert (rank.node_map["placed"], rank.node_map["by_id"]) == (3, 3)
    assert not rank.node_map["other_count"] + rank.node_map["other_names"]
    found = rank.buckets_ns["verify"]
    assert (found["moe"], found["attention"]) == (60, 30)  # gate and experts
    assert rank.decided_ns["map"] == 120


def test_an_exported_trace_has_the_same_ids(device: DeviceActivities, tmp_path: Path) -> None:
    profile = device.profile(replay(time.time_ns(), 50))
    path = tmp_path / "rank0.json"
    profile.export_chrome_trace(str(path))
    events, warnings = read_events(path, 0)
    assert warnings == []
    found = events.filter(events["kind"].is_in(["kernel", "memcpy"])).sort("start_ns").select("graph_id", "node").rows()
    copy = (EXECUTABLE, 3) if device.typed else (None, None)
    assert found == [(EXECUTABLE, 4), copy, (EXECUTABLE, 2), (EXECUTABLE, 0), (None, None)]


@pytest.mark.parametrize("sessions", [1, 2])
def test_an_exported_trace_is_joined_to_the_map_beside_it_by_its_ids(
    device: DeviceActivities, tmp_path: Path, sessions: int
) -> None:
    """torch's own export, and what a tool beside it noted at capture: graphs in another count, of another model too."""
    captured = [
        {
            "nodes": len(nodes),
            "kinds": [{"kernel": 0, "memcpy": 1, "event_record": 7}[kind] for kind, *_ in nodes],
            "scopes": [[module, kind, i, i + 1, 1] for i, (_, _, module, kind) in enumerate(nodes) if module],
        }
        for nodes in (NODES[:3], NODES)
    ]
    for session in range(sessions):
        begin = time.time_ns()
        profile = device.profile([one for i in range(3) for one in replay(begin + 1000 * i, 50 + 10 * i)])
        path = tmp_path / f"session{session}_rank0.json"
        profile.export_chrome_trace(str(path))
        path.with_name(f"{path.stem}.nodemap.json").write_text(json.dumps(captured))
        trace = open_trace([path])
        found = rank_result(trace.sources[0], trace).breakdown
        assert (found.node_map["placed"], found.node_map["by_id"]) == (3, 3)
        assert found.decided_ns["map"] == 120


def test_annotations_baked_into_a_trace_change_no_id(device: DeviceActivities, tmp_path: Path) -> None:
    """torch itself writes the names of torch.cuda.graph_annotations into an exported trace, matched by these ids."""
    profile = device.profile(replay(time.time_ns(), 50))
    path = tmp_path / "rank0.json"
    marked = {EXECUTABLE << 32 | 4: [{"name": "experts of layer 0"}]}
    if "cuda_graph_annotations" in inspect.signature(profile.export_chrome_trace).parameters:
        profile.export_chrome_trace(str(path), cuda_graph_annotations=marked)
    else:
        tool = pytest.importorskip("torch.cuda._annotate_cuda_graph_trace", reason="this torch has no annotations")
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
        assert tool.annotate_trace(trace, marked) == 1
        path.write_text(json.dumps(trace))
    assert "experts of layer 0" in path.read_text()
    events, _ = read_events(path, 0)
    kernels = events.filter(events["kind"] == "kernel").sort("start_ns")
    assert kernels.select("graph_id", "node").rows() == [
        (EXECUTABLE, 4),
        (EXECUTABLE, 2),
        (EXECUTABLE, 0),
        (None, None),
    ]
    assert kernels["name"].to_list()[0] == "fused_moe_kernel"


def test_this_torch_is_known_to_write_ids_or_not() -> None:
    from packaging.version import Version

    from speccollect.kineto.profiler import tells_nodes

    assert tells_nodes() == (Version(torch.__version__).release >= (2, 12))


# ---- the executable graph of a capture, as the CUDA runtime tells it


class CapturedGraph:
    """Stands where torch's CUDAGraph does: captures nothing, and is executable once its capture has ended."""

    def __init__(self, executable: int = 77) -> None:
        self._executable, self._ended = executable, False

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None:
        self._ended = True

    def raw_cuda_graph_exec(self) -> int:
        if not self._ended:
            raise RuntimeError("instantiate() has not been called")
        return self._executable


class NoNodes:
    def count(self) -> int:
        return 0

    def nodes(self) -> list[Any]:
        return []


def runtime_of(monkeypatch: pytest.MonkeyPatch, **calls: Any) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", SimpleNamespace(**calls))


def test_an_executable_graph_is_noted_when_its_capture_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_of(monkeypatch, cudaGraphExecGetId=lambda executable: (0, executable + 1))
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", CapturedGraph)
    monkeypatch.setattr(nodemap, "INSTANTIATED", {})
    original = vars(CapturedGraph)["capture_end"]
    watching = nodemap.NodeMap(lambda number, rows: None, NoNodes).install()
    try:
        for executable in (77, 90):
            graph = CapturedGraph(executable)
            graph.capture_begin()
            graph.capture_end()
    finally:
        watching.remove()
    assert nodemap.INSTANTIATED == {78: 0, 91: 1}
    assert vars(CapturedGraph)["capture_end"] is original


def test_what_tells_no_executable_graph_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = CapturedGraph()
    ended.capture_end()
    runtime_of(monkeypatch, cudaGraphExecGetId=lambda executable: (36, 0))  # cudaErrorCallRequiresNewerDriver
    assert instantiated_id(ended) is None
    runtime_of(monkeypatch, cudaGraphExecGetId=lambda executable: (0, 5))
    assert instantiated_id(ended) == 5
    assert instantiated_id(CapturedGraph()) is None  # keep_graph=True: made at its first replay
    assert instantiated_id(object()) is None
    runtime_of(monkeypatch)  # cuda-bindings before 13.1
    assert instantiated_id(ended) is None
    monkeypatch.delitem(sys.modules, "cuda.bindings.runtime")
    assert instantiated_id(ended) is None


def test_the_driver_is_asked_for_types_that_the_runtime_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(cudaGraphNodeGetType=lambda node: (999, 0) if node == 3 else (0, 1))
    driver = SimpleNamespace(CUgraphNode=int, cuGraphNodeGetType=lambda node: (0, 12))
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    assert [node_type(_type_number(runtime, node)) for node in (2, 3)] == ["memcpy", "batch_mem_op"]
