"""What the node map costs at capture and at replay, for ``nodemap_check``: captures by turns in balanced order, replays mixed,
and the control against itself beside it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from speccollect.nodemap.capture import NodeMap
from speccollect.nodemap.cuda_graph import CapturedGraph
from speccollect.nodemap_check.effect import (
    Verdict,
    balanced_orders,
    effect,
    flat,
    neighbours,
    replay_orders,
    verdict,
)
from speccollect.nodemap_check.model import capture
from speccollect.nodemap_check.nodes import counts, differences, graph_facts, kept_graph
from speccollect.nodemap_check.sessions import fewest

WITHOUT, AGAIN, WITH = "without", "without, again", "with"
KINDS: Final = (WITHOUT, AGAIN, WITH)
PARTS: Final = ("module hooks alone", "hooks and counting")
"""Parts of the map, captured as kinds of their own where the whole is slower (``--explain``)."""

LEAST_SQUARES, MOST_SQUARES = 4, 16
REPLAY_ROUNDS: Final = 6
REPLAYS_A_VISIT: Final = 8
FIRST_REPLAYS: Final = 10
"""The first ones upload the graph."""
BUDGET_SECONDS: Final = 12.0
"""Of one model; more squares of captures are made in it until a verdict stands."""

Check = Callable[[bool, str], None]
Say = Callable[[str], None]


class _NoCount:
    """A reader that asks CUDA for nothing: what is left are the module hooks."""

    def count(self) -> int:
        return 0

    def nodes(self) -> list[Any]:
        return []


class _Counting(CapturedGraph):
    """A reader that counts but lists no node."""

    def nodes(self) -> list[Any]:
        return []


@contextlib.contextmanager
def as_kind(kind: str) -> Iterator[None]:
    """Captures within it are of this kind."""
    reader: Callable[[], Any] = {PARTS[0]: _NoCount, PARTS[1]: _Counting}.get(kind, CapturedGraph)
    nodemap = None if kind in (WITHOUT, AGAIN) else NodeMap(lambda graph_id, rows: None, reader).install()
    try:
        yield
    finally:
        if nodemap is not None:
            nodemap.remove()


@dataclass
class Measurements:
    """Times by block of captures, seconds; and device memory that each capture took, bytes."""

    captures: list[dict[str, float]]
    replays: list[dict[str, float]]
    launches: list[dict[str, float]]
    memory: dict[str, list[int]]


def replay_seconds(graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """Of one replay on an idle device: the launch call, and all until the device is done."""
    torch.cuda.synchronize()
    begun = time.perf_counter_ns()
    graph.replay()
    called = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (called - begun) / 1e9, (time.perf_counter_ns() - begun) / 1e9


def measure_square(model: nn.Module, x: torch.Tensor, kinds: tuple[str, ...], square: int, into: Measurements) -> None:
    """Captures one square of graphs, replays them mixed, and adds what they took; the graphs end with it."""
    order = flat(balanced_orders(kinds, MOST_SQUARES)[square * len(kinds) : (square + 1) * len(kinds)])
    graphs, seconds = [], []
    for kind in order:
        before = torch.cuda.memory_reserved()
        with as_kind(kind):
            graph, took = capture(model, x)
        graphs.append(graph)
        seconds.append(took)
        into.memory.setdefault(kind, []).append(torch.cuda.memory_reserved() - before)
    for graph in graphs:
        for _ in range(FIRST_REPLAYS):
            graph.replay()
    times: list[list[tuple[float, float]]] = [[] for _ in graphs]
    for turn in replay_orders(len(graphs), REPLAY_ROUNDS, seed=1 + square):
        for place in turn:
            times[place] += [replay_seconds(graphs[place]) for _ in range(REPLAYS_A_VISIT)]
    medians = [tuple(statistics.median(column) for column in zip(*each, strict=True)) for each in times]
    into.captures += neighbours(seconds, order)
    into.launches += neighbours([launch for launch, _ in medians], order)
    into.replays += neighbours([whole for _, whole in medians], order)


def measure(model: nn.Module, x: torch.Tensor, kinds: tuple[str, ...] = KINDS) -> Measurements:
    """Squares of captures until the replays' verdict stands, or the budget is spent; the same number on all ranks."""
    found = Measurements([], [], [], {})
    begun = time.monotonic()
    for square in range(MOST_SQUARES):
        measure_square(model, x, kinds, square, found)
        if square + 1 < LEAST_SQUARES:
            continue
        open_ = verdict(effect(found.replays, WITHOUT, WITH), effect(found.replays, WITHOUT, AGAIN)) is Verdict.OPEN
        if fewest(int(open_ and time.monotonic() - begun < BUDGET_SECONDS)) == 0:
            break
    return found


def median_of(blocks: list[dict[str, float]], kind: str) -> float:
    return statistics.median(block[kind] for block in blocks)


def check_cost(check: Check, say: Say, label: str, model: nn.Module, x: torch.Tensor, *, explain: bool = False) -> None:
    """Captures and replays with the map and without; says where the difference comes from when there is one."""
    compare_graphs(check, say, label, model, x)
    found = measure(model, x, (*KINDS, *PARTS) if explain else KINDS)
    for what, blocks, unit, scale in (("capture", found.captures, "ms", 1e3), ("replay", found.replays, "us", 1e6)):
        times = ", ".join(f"{median_of(blocks, kind) * scale:.2f} {kind}" for kind in blocks[0])
        say(f"      {label}: {what}, {unit}: {times} (medians of {len(blocks)} captures each)")
    launch = {kind: median_of(found.launches, kind) * 1e6 for kind in found.launches[0]}
    say(f"      {label}: launch call, us: {', '.join(f'{us:.1f} {kind}' for kind, us in launch.items())}")
    say(
        f"      {label}: a capture with the map takes {effect(found.captures, WITHOUT, WITH)} longer, without it once more"
        f" {effect(found.captures, WITHOUT, AGAIN)}"
    )
    memory = {kind: sorted(set(taken)) for kind, taken in found.memory.items()}
    say(f"      {label}: device memory a capture takes, bytes: {memory}")
    of_map, of_method = (effect(found.replays, WITHOUT, kind) for kind in (WITH, AGAIN))
    said = verdict(of_map, of_method)
    check(
        said in (Verdict.SAME, Verdict.FASTER),
        f"{label}: a replay with the map is {said.value}: {of_map}; without it once more: {of_method}",
    )
    for part in PARTS if explain else ():
        say(f"      {label}: a replay of a graph captured with {part}: {effect(found.replays, WITHOUT, part)}")


def compare_graphs(check: Check, say: Say, label: str, model: nn.Module, x: torch.Tensor) -> None:
    """Nodes, kernels and their launch shapes of a graph captured with the map, against two without."""
    facts = []
    for kind in KINDS:
        graph = kept_graph()
        if graph is None:
            say(f"      {label}: torch {torch.__version__} keeps no graph to look at: nodes are not compared")
            return
        with as_kind(kind):
            capture(model, x, graph)
        try:
            facts.append(graph_facts(graph))
        except (ImportError, RuntimeError) as error:
            say(f"      {label}: nodes are not compared: {error}")
            return
    method, mapped = differences(facts[0], facts[1]), differences(facts[0], facts[2])
    check(
        not mapped or mapped == method,
        f"{label}: the graph is the same with the map: {counts(facts[2])}, {facts[2].edges} edges, kernels and launch shapes",
    )
    for line in mapped:
        say(f"      without and with: {line}")
    for line in method:
        say(f"      without, twice: {line}")
