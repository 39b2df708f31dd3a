"""The three ways from a replay's activity to its node, compared by ``nodemap_check``: order of start, CUPTI's node ids through
cupti-python, and node ids in Kineto's own text (torch 2.14 and newer)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from speccollect.cupti_profiler import CuptiProfiler
from speccollect.event_details import read_details
from speccollect.kineto import DEVICE_TYPES, KinetoColumns
from speccollect.nodemap import CAPTURED, graph_id_of
from speccollect.nodemap_check_sessions import fewest, replays_of, settle
from speccollect.nodemap_replays import captured_graphs
from speccollect.profiler import Profiler

Check = Callable[[bool, str], None]
Say = Callable[[str], None]

MAX_RECORDS: Final = 1_000_000


def cupti_missing() -> str | None:
    """Why cupti-python can't be had here; None where it can."""
    try:
        CuptiProfiler(1)
    except Exception as error:  # noqa: BLE001  the check goes on without it
        return f"{type(error).__name__}: {error}"
    return None


def by_cupti(work: Callable[[], object]) -> tuple[KinetoColumns, dict[str, Any]]:
    """Columns of ``work`` through cupti-python, and what the trace would say of the window."""
    settle()
    profiler = CuptiProfiler(MAX_RECORDS)
    profiler.prepare()
    work()
    profiler.start()
    work()
    torch.cuda.synchronize()
    return profiler.read(profiler.stop(), pause=None), profiler.facts


def by_kineto_text(work: Callable[[], object]) -> KinetoColumns:
    """Columns of ``work`` through Kineto, with the nodes its text tells; ``details`` is empty where it tells none."""
    settle()
    profiler = Profiler(cuda=True, cpu_ops=False, stamps=True, details=True)
    profiler.prepare()
    profiler.start()
    work()
    torch.cuda.synchronize()
    events = profiler.stop()
    columns = events.columns(pause=None)
    rows = np.flatnonzero(columns.of_type(*DEVICE_TYPES))
    details = read_details(events.texts(rows.tolist()), pause=lambda: None) if profiler.metadata else {}
    if "node" in details:
        node = np.full(len(columns), -1, dtype=np.int64)
        node[rows] = details["node"].fill_null(-1).to_numpy()
        columns.details["node"] = node
    return columns


def compare_nodes(check: Check, label: str, rows: dict[str, Any], columns: KinetoColumns, replays: int) -> None:
    """Node ids against the order of starts and against the kernels' names at capture."""
    shown = [
        n for n, kind in zip(rows["node"], rows["node_type"], strict=True) if kind in ("kernel", "memcpy", "memset")
    ]
    name_of = dict(zip(rows["node"], rows["name"], strict=True))
    kernel = {n: kind == "kernel" for n, kind in zip(rows["node"], rows["node_type"], strict=True)}
    node = columns.details["node"]
    found = replays_of(columns)
    whole, ordered, named, activities = 0, 0, 0, 0
    for _, members in found:
        ids = node[members].tolist()
        whole += sorted(ids) == sorted(shown)
        ordered += ids == sorted(shown)
        for i, row in zip(ids, members, strict=True):
            if kernel.get(i, False):
                activities += 1
                named += name_of[i] == columns.names[columns.name[row]]
    check(
        len(found) == replays == whole and named == activities > 0,
        f"{label}: {whole} of {len(found)} replays have every node once by its id, {named} of {activities} kernels"
        f" the name that their node had at capture; in {ordered} replays the order of starts says the same",
    )


def compare_ways(
    check: Check,
    say: Say,
    graphs: dict[str, torch.cuda.CUDAGraph],
    noted: dict[int, Any],
    repeat: Callable[[torch.cuda.CUDAGraph], None],
    replays: int,
    launch_us: Callable[[torch.cuda.CUDAGraph], list[tuple[float, float]]],
) -> None:
    """All ways that this machine offers, for each graph. The last part of a check: CUPTI stays attached after it."""
    for label, graph in graphs.items():
        columns = by_kineto_text(lambda graph=graph: repeat(graph))  # type: ignore[misc]
        if "node" in columns.details:
            compare_nodes(check, f"{label}, Kineto's node ids", noted[_number(graph)], columns, replays)
        else:
            say(f"      {label}: Kineto of torch {torch.__version__} gives no node ids: order of starts it is")
    missing = cupti_missing()
    if fewest(int(missing is None)) == 0:
        say(f"      no cupti-python here ({missing}): its node ids are not compared")
        return
    before = {label: _median(launch_us(graph)) for label, graph in graphs.items()}
    for label, graph in graphs.items():
        rows = noted[_number(graph)]
        columns, facts = by_cupti(lambda graph=graph: repeat(graph))  # type: ignore[misc]
        compare_nodes(check, f"{label}, cupti-python's node ids", rows, columns, replays)
        ran = columns.details["graph_id"][columns.of_type(*DEVICE_TYPES)]
        numbers = set(captured_graphs(ran, None, CAPTURED).tolist())
        check(
            numbers == {_number(graph)},
            f"{label}: CUPTI's graph ids {sorted(set(ran.tolist()))} are the captured graph {numbers},"
            f" expected {_number(graph)} (captured as {CAPTURED})",
        )
        say(f"      {label}: window {facts}")
    for label, graph in graphs.items():
        say(
            f"      {label}: launch and replay {before[label]} us before cupti-python's windows,"
            f" {_median(launch_us(graph))} us after them (CUPTI stays attached)"
        )


def _number(graph: torch.cuda.CUDAGraph) -> int:
    number = graph_id_of(graph)
    assert number is not None
    return number


def _median(figures: list[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(round(statistics.median(column), 1) for column in zip(*figures, strict=True))
