"""``python -m speccollect.nodemap_check``: does the node map tell the truth on this machine's GPU, driver and torch?

Captures a small model on one stream and on two, replays it under torch.profiler, and compares every activity with the map:
number, type, kernel name, and the module, the last against an eager run of the same model in which each kernel's module is
known from the profiler's own ranges. Started with ``torchrun --nproc-per-node N`` it has NCCL all-reduces in the graph and
checks their columns, too. Where cupti-python is installed, or torch's Kineto tells node ids (2.12 and newer), those must agree with
the map, with the order of starts and with each other, two by two; where torch.cuda.graph_annotations works (driver from 13.1 on), so
must what it notes at capture. What can't be compared is said. Says what the map costs at capture, and that a replay costs nothing: the same graph, node by node,
and the same time within bounds, over captures with and without it in balanced order, beside a control of captures that do not
differ (``cost``). ``--explain`` captures with parts of the map, too: the module hooks alone, and hooks that only
count nodes. Exit code 0: all is well.
"""

from __future__ import annotations

import collections
import gc
import os
import sys
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as distributed

from speccollect.kineto.columns import KinetoColumns
from speccollect.nodemap.capture import NodeMap, graph_id_of
from speccollect.nodemap.cuda_graph import CapturedGraph
from speccollect.nodemap.replays import ReplayStamps
from speccollect.nodemap_check.cost import check_cost, replay_seconds
from speccollect.nodemap_check.model import LAYERS, TOKENS, WIDTH, Model, capture
from speccollect.nodemap_check.sessions import eager_kernels, profiled, replays_of, streams_of
from speccollect.nodemap_check.ways import compare_ways

REPLAYS: Final = 20
SHOWN: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Node types that show an activity when they run -> Kineto's type for it."""


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
    total, differ, streams = len(shown) * len(replays), sum(wrong_name.values()), streams_of(events)
    if differ and streams > 1:
        mapped = collections.Counter(rows["name"][node] for node in shown if rows["node_type"][node] == "kernel")
        kernels = [[events.names[n] for n in events.name[a]] for _, a in replays]
        ran = [collections.Counter(name for name in names if name in mapped) for names in kernels]
        report.check(
            all(one == mapped for one in ran),
            f"{label}: each replay runs the map's kernels, on {streams} streams; in order of start {differ} of {total} names differ:"
            " only ids, and the order within each stream, tell which is which",
        )
        return
    report.check(not wrong_name, f"{label}: kernel names of {total} activities in order of start, {differ} differ")
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


def replay_us(graph: torch.cuda.CUDAGraph, times: int = 60) -> list[tuple[float, float]]:
    """Microseconds of the launch call and of the whole, of each of some replays."""
    return [tuple(1e6 * seconds for seconds in replay_seconds(graph)) for _ in range(times)]  # type: ignore[misc]


def check_maps(report: Report, models: dict[str, Model], x: torch.Tensor) -> None:
    """Captures, replays and compares each model. Graphs end with this function: NCCL can't go while one refers to it."""
    noted: dict[int, Any] = {}
    nodemap = NodeMap(noted.__setitem__, lambda: CapturedGraph(cupti_ids=True)).install()
    graphs = {label: capture(model, x)[0] for label, model in models.items()}
    for label, graph in graphs.items():
        report.check(graph_id_of(graph) in noted, f"{label}: the capture left a map")
    if not all(graph_id_of(graph) in noted for graph in graphs.values()):
        return
    for label, graph in graphs.items():
        rows = noted[graph_id_of(graph)]  # type: ignore[index]
        compare_replays(report, label, rows, profiled(lambda graph=graph: repeat(graph), report.say))  # type: ignore[misc]
        compare_modules(report, label, rows, eager_kernels(models[label], x, report.say))
        if distributed.is_initialized():
            compare_collectives(report, label, rows)
        report.check(
            rows["node"] == list(range(len(rows["node"]))), f"{label}: a node's id is its place in creation order"
        )
    check_stamps(report, graphs)
    nodemap.remove()
    compare_ways(report.check, report.say, graphs, noted, repeat, REPLAYS, replay_us)


def repeat(graph: torch.cuda.CUDAGraph) -> None:
    """REPLAYS replays, one at a time."""
    for _ in range(REPLAYS):
        graph.replay()
        torch.cuda.synchronize()


def check_stamps(report: Report, graphs: dict[str, torch.cuda.CUDAGraph]) -> None:
    """Stamps tell which graph each replay ran."""
    order = [label for _ in range(5) for label in graphs]
    stamps = ReplayStamps()

    def alternate() -> None:
        stamps.stop()
        stamps.start()
        for label in order:
            graphs[label].replay()

    launches = np.array([at for at, _ in replays_of(profiled(alternate, report.say))], dtype=np.int64)
    stamps.stop()
    told = stamps.graph_ids(launches).tolist()
    report.check(
        told == [graph_id_of(graphs[label]) for label in order], f"stamps tell the graph of each replay: {told}"
    )


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
    models = {"one stream": Model(None), "two streams": Model(torch.cuda.Stream())}  # type: ignore[no-untyped-call]
    for model in models.values():
        model.to("cuda", torch.bfloat16)
    for label, model in models.items():
        check_cost(report.check, report.say, label, model, x, explain="--explain" in sys.argv[1:])
    check_maps(report, models, x)
    if distributed.is_initialized():
        torch.cuda.synchronize()
        gc.collect()
        distributed.destroy_process_group()
    report.say("all is well" if not report.failed else f"{report.failed} checks failed")
    return 1 if report.failed else 0
