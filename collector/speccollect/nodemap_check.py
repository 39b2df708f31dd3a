"""``python -m speccollect.nodemap_check``: does the node map tell the truth on this machine's GPU, driver and torch?

Captures a small model on one stream and on two, replays it under torch.profiler, and compares every activity with the map:
number, type, kernel name, and the module, the last against an eager run of the same model in which each kernel's module is
known from the profiler's own ranges. Started with ``torchrun --nproc-per-node N`` it has NCCL all-reduces in the graph and
checks their columns, too. Says what the map costs at capture and that a replay costs nothing. Exit code 0: all is well.
"""

from __future__ import annotations

import collections
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as distributed
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from speccollect.kineto import KinetoColumns, read_columns
from speccollect.nodemap import NodeMap, graph_id_of
from speccollect.nodemap_replays import ReplayStamps

WIDTH: Final = 1024
LAYERS: Final = 8
TOKENS: Final = 3
REPLAYS: Final = 20
DEVICE_TYPES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
SHOWN: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Node types that show an activity when they run -> Kineto's type for it."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv_proj, self.o_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(self.norm(x)).view(x.shape[0], 3, 8, -1).unbind(1)
        scores = torch.softmax(torch.einsum("thd,shd->hts", q, k), -1)
        y: torch.Tensor = self.o_proj((scores @ v.transpose(0, 1)).transpose(0, 1).reshape(x.shape[0], -1))
        return x + y


class Mlp(nn.Module):
    """Two projections, a shared one that may run on a stream beside them, and an all-reduce between ranks."""

    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.beside = beside
        self.norm, self.shared = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        z: torch.Tensor
        if self.beside is not None:
            self.beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.beside):
                z = self.shared(h)
        else:
            z = self.shared(h)
        y: torch.Tensor = self.down(torch.nn.functional.silu(self.up(h)))
        if self.beside is not None:
            torch.cuda.current_stream().wait_stream(self.beside)
        if distributed.is_initialized():
            distributed.all_reduce(y)
        return x + y + z


class Layer(nn.Module):
    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp(beside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mlp(self.self_attn(x))
        return y


class Model(nn.Module):
    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(beside) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x
        for layer in self.layers:
            y = layer(y)
        return y


class Report:
    """Lines of the check, and whether all passed."""

    def __init__(self) -> None:
        self.failed = 0

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def check(self, passed: bool, text: str) -> None:
        self.failed += not passed
        self.say(f"{'PASS' if passed else 'FAIL'}  {text}")


@torch.no_grad()
def capture(model: nn.Module, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, float]:
    """A captured forward, and the seconds the capture took."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    begun = time.perf_counter()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        model(x)
    return graph, time.perf_counter() - begun


def profiled(work: Callable[[], object], *, ranges: bool = False) -> KinetoColumns:
    """Kineto's events of ``work``."""
    activities = [ProfilerActivity.CUDA] + ([ProfilerActivity.CPU] if ranges else [])
    with profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize()
    kineto: Any = profiler.profiler
    return read_columns(kineto.kineto_results.events(), pause=None)


def replays_of(events: KinetoColumns) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """(start of the launch call, rows of its activities by start) of each graph launch, in order."""
    device = np.flatnonzero(events.of_type(*DEVICE_TYPES))
    launches = np.flatnonzero(
        events.of_type("cuda_runtime", "cuda_driver") & events.name_mask(lambda name: "GraphLaunch" in name)
    )
    found = []
    for launch in launches[np.argsort(events.start[launches])]:
        rows = device[events.correlation[device] == events.correlation[launch]]
        found.append((int(events.start[launch]), rows[np.argsort(events.start[rows], kind="stable")]))
    return found


@torch.no_grad()
def eager_kernels(model: nn.Module, x: torch.Tensor) -> dict[str, collections.Counter[str]]:
    """Kernel names by module path, from an eager run: the innermost module range around each launch call."""
    open_ranges: list[Any] = []
    paths = {module: f"Model.{name}" if name else "Model" for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        open_ranges.append(record_function("module " + paths[module]))
        open_ranges[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = [h for m in model.modules() for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    events = profiled(lambda: model(x), ranges=True)
    for handle in handles:
        handle.remove()
    ranges = np.flatnonzero(
        events.of_type("user_annotation", "cpu_op") & events.name_mask(lambda name: name.startswith("module "))
    )
    begins, ends = events.start[ranges], events.start[ranges] + events.duration[ranges]
    launches = np.flatnonzero(events.of_type("cuda_runtime", "cuda_driver"))
    launched = dict(zip(events.correlation[launches].tolist(), events.start[launches].tolist(), strict=True))
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in np.flatnonzero(events.of_type(*DEVICE_TYPES)):
        at = launched.get(int(events.correlation[row]))
        if at is None:
            continue
        around = np.flatnonzero((begins <= at) & (at < ends))
        if len(around):
            inner = ranges[around[np.argmax(begins[around])]]
            path = events.names[events.name[inner]].removeprefix("module ")
            found[path][events.names[events.name[row]]] += 1
    return found


def compare_replays(report: Report, label: str, rows: dict[str, Any], events: KinetoColumns) -> None:
    """Count, types and kernel names of each replay against the map."""
    shown = [i for i, kind in enumerate(rows["node_type"]) if kind in SHOWN]
    hidden = collections.Counter(kind for kind in rows["node_type"] if kind not in SHOWN)
    replays = replays_of(events)
    counts = {len(activities) for _, activities in replays}
    report.check(
        len(replays) == REPLAYS and counts == {len(shown)},
        f"{label}: {len(replays)} replays of {sorted(counts)} activities; the map has {len(shown)} nodes that show one"
        f" (and {dict(hidden)} that show none)",
    )
    if counts != {len(shown)}:
        return
    wrong_type, wrong_name = collections.Counter[str](), collections.Counter[str]()
    for _, activities in replays:
        for node, row in zip(shown, activities, strict=True):
            kind, name = events.types[events.type[row]], events.names[events.name[row]]
            if SHOWN[rows["node_type"][node]] != kind:
                wrong_type[f"node {node} is a {rows['node_type'][node]}, ran as {kind} {name[:60]}"] += 1
            elif kind == "kernel" and rows["name"][node] != name:
                wrong_name[f"node {node}: map {rows['name'][node][:70]!r}, trace {name[:70]!r}"] += 1
    copies = all(" ran as kernel mem" in text for text in wrong_type)  # a copy may run as a kernel of the driver's
    report.check(copies, f"{label}: types agree but for {sum(wrong_type.values())} {dict(wrong_type.most_common(3))}")
    total = len(shown) * len(replays)
    report.check(
        not wrong_name,
        f"{label}: kernel names of {total} activities in order of start, {sum(wrong_name.values())} differ",
    )
    for text, times in wrong_name.most_common(5):
        report.say(f"      {times} x {text}")


def compare_modules(report: Report, label: str, rows: dict[str, Any], eager: dict[str, Any]) -> None:
    """Kernels of each module: the map against the eager run."""
    mapped: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, kind, path in zip(rows["name"], rows["node_type"], rows["module"], strict=True):
        if kind == "kernel":
            mapped[path][name] += 1
    kernels = {
        path: collections.Counter({n: c for n, c in names.items() if not n.startswith(("Memcpy", "Memset"))})
        for path, names in eager.items()
    }
    differing = [path for path in sorted({*mapped, *kernels}, key=str) if mapped.get(path) != kernels.get(path)]
    same = sum(sum(names.values()) for path, names in mapped.items() if path not in differing)
    report.check(
        not differing,
        f"{label}: {same} of {sum(map(sum, (c.values() for c in mapped.values())))} kernels lie in the module"
        f" that launches them eagerly ({len(mapped)} modules, {len(differing)} differ)",
    )
    for path in differing[:5]:
        report.say(f"      {path}: map {dict(mapped.get(path, {}))}, eager {dict(kernels.get(path, {}))}"[:400])


def compare_collectives(report: Report, label: str, rows: dict[str, Any]) -> None:
    """The all-reduces' columns, where there are several ranks."""
    found = [
        (rows["name"][i], rows["dtype"][i], rows["elements"][i], rows["group_ranks"][i])
        for i, op in enumerate(rows["op"])
        if op is not None
    ]
    world = distributed.get_world_size()
    expected = ("bfloat16", TOKENS * WIDTH, list(range(world)))
    good = [what for what in found if what[1:] == expected and "nccl" in what[0].lower()]
    report.check(
        len(found) == len(good) == LAYERS,
        f"{label}: {len(good)} of {LAYERS} all-reduces have their columns {found[:1]}",
    )


def replay_us(graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """Median microseconds of the launch call and of a whole replay, of 200."""
    launch, whole = [], []
    for _ in range(200):
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        graph.replay()
        called = time.perf_counter_ns()
        torch.cuda.synchronize()
        launch.append((called - begun) / 1e3)
        whole.append((time.perf_counter_ns() - begun) / 1e3)
    return statistics.median(launch), statistics.median(whole)


def main() -> int:
    """Runs the check; 0 when everything passed."""
    report = Report()
    if not torch.cuda.is_available():
        report.say("no CUDA device here")
        return 2
    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else profiling once makes every later launch dearer
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    if rank:
        report.say = lambda text: None  # type: ignore[method-assign]
    report.say(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")

    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    two = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    models = {"one stream": Model(None), "two streams": Model(two)}
    for model in models.values():
        model.to("cuda", torch.bfloat16)
    plain = {label: min(capture(model, x)[1] for _ in range(3)) for label, model in models.items()}

    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__).install()
    graphs, stamps = {}, ReplayStamps()
    for label, model in models.items():
        tries = [capture(model, x) for _ in range(3)]
        graphs[label] = tries[-1][0]
        cost = min(seconds for _, seconds in tries)
        report.say(f"      {label}: capture {plain[label] * 1e3:.1f} ms without the map, {cost * 1e3:.1f} ms with it")
        report.check(graph_id_of(graphs[label]) in noted, f"{label}: the capture left a map")
    if not all(graph_id_of(graph) in noted for graph in graphs.values()):
        return 1

    with_map = {label: replay_us(graph) for label, graph in graphs.items()}
    for label, graph in graphs.items():
        rows = noted[graph_id_of(graph)]  # type: ignore[index]

        def replay(graph: torch.cuda.CUDAGraph = graph) -> None:
            for _ in range(REPLAYS):
                graph.replay()
                torch.cuda.synchronize()

        profiled(replay)  # the first profile of a process settles things
        compare_replays(report, label, rows, profiled(replay))
        compare_modules(report, label, rows, eager_kernels(models[label], x))
        if distributed.is_initialized():
            compare_collectives(report, label, rows)

    order = [label for _ in range(5) for label in graphs]

    def alternate() -> None:
        for label in order:
            graphs[label].replay()

    stamps.start()
    launches = np.array([at for at, _ in replays_of(profiled(alternate))], dtype=np.int64)
    stamps.stop()
    told = stamps.graph_ids(launches).tolist()
    report.check(
        told == [graph_id_of(graphs[label]) for label in order], f"stamps tell the graph of each replay: {told}"
    )

    nodemap.remove()
    for label, graph in graphs.items():
        report.say(f"      {label}: launch and replay {with_map[label]} us with the map, {replay_us(graph)} us without")
    if distributed.is_initialized():
        graphs.clear()  # NCCL can't go while a graph refers to it
        distributed.destroy_process_group()
    report.say("all is well" if not report.failed else f"{report.failed} checks failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
