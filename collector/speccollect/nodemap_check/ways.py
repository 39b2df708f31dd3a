"""The three ways from a replay's activity to its node, compared by ``nodemap_check``: order of start, CUPTI's node ids through
cupti-python, and node ids in Kineto's own text (torch 2.12 and newer; torch.cuda.graph_annotations matches by the same ids)."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from packaging.version import Version

from speccollect.cupti.profiler import CuptiProfiler
from speccollect.kineto.columns import DEVICE_TYPES, KinetoColumns
from speccollect.kineto.details import NODE_IDS, node_ids
from speccollect.kineto.events import Events
from speccollect.kineto.profiler import Profiler
from speccollect.native import cupti_library
from speccollect.native.build import NotBuilt
from speccollect.nodemap.capture import CAPTURED, INSTANTIATED, graph_id_of
from speccollect.nodemap.replays import captured_graphs
from speccollect.nodemap_check.annotations import check_annotations
from speccollect.nodemap_check.sessions import fewest, profiled, replays_of, settle, streams_of

Check = Callable[[bool, str], None]
Say = Callable[[str], None]

MAX_RECORDS: Final = 1_000_000
COPIES_SINCE: Final = (2, 14)
"""torch whose Kineto writes ids of copies and fills, too (pytorch/kineto 461a26cd)."""
ORDER: Final = "order of starts"
KINETO: Final = "Kineto's node ids"
CUPTI: Final = "cupti-python's node ids"

Names = Mapping[int, str]
"""Node -> name of the activity that ran it."""


def cupti_missing() -> str | None:
    """Why cupti-python can't be had here; None where it can. Compiles what takes its buffers."""
    with contextlib.suppress(NotBuilt):  # then records are objects, and what is said of the window tells why
        cupti_library.build()
    try:
        CuptiProfiler(1)
    except Exception as error:  # noqa: BLE001  the check goes on without it
        return f"{type(error).__name__}: {error}"
    return None


def by_cupti(work: Callable[[], object], *, objects: bool = False) -> tuple[KinetoColumns, dict[str, Any]]:
    """Columns of ``work`` through cupti-python, and what the trace would say of the window.

    Args:
        objects: as cupti-python's objects, even where raw buffers can be had.
    """
    settle()
    profiler = CuptiProfiler(MAX_RECORDS, importlib.import_module("cupti.cupti") if objects else None)
    profiler.prepare()
    work()
    profiler.start()
    work()
    torch.cuda.synchronize()
    return profiler.read(profiler.stop(), pause=None), profiler.facts


def by_kineto_text(work: Callable[[], object]) -> KinetoColumns:
    """Columns of ``work`` through Kineto, with the nodes its text tells; ``details`` is empty where it tells none."""
    settle()
    profiler = Profiler(cuda=True, cpu_ops=False, stamps=True, details=False)
    profiler.prepare()
    profiler.start()
    work()
    torch.cuda.synchronize()
    return with_node_ids(profiler.stop(), told=profiler.metadata)


def with_node_ids(events: Events, *, told: bool = True) -> KinetoColumns:
    """Kineto's events; ``details`` hold executable graph and node of device rows, where the text tells any."""
    columns = events.columns(pause=None)
    rows = np.flatnonzero(columns.of_type(*DEVICE_TYPES))
    if not told or not len(rows):
        return columns
    found = node_ids(*events.numbers(rows.tolist(), tuple(NODE_IDS), pause=None))
    if (found[1] >= 0).any():
        for name, values in zip(NODE_IDS.values(), found, strict=True):
            columns.details[name] = np.full(len(columns), -1, dtype=np.int64)
            columns.details[name][rows] = values
    return columns


def shown_nodes(rows: dict[str, Any]) -> list[int]:
    """Ordinals of the map's nodes that show an activity."""
    pairs = zip(rows["node"], rows["node_type"], strict=True)
    return sorted(node for node, kind in pairs if kind in ("kernel", "memcpy", "memset"))


def names_by_order(rows: dict[str, Any], columns: KinetoColumns) -> Names:
    """What ran each node, by order of starts; nothing where a replay has another number of activities, or two replays differ."""
    return _agreed([(shown_nodes(rows), members) for _, members in replays_of(columns)], columns)


def like_the_map(rows: dict[str, Any], names: Names) -> bool:
    """Whether every kernel has the name that its node had at capture; False where there are none."""
    kernels = [
        (n, name)
        for n, kind, name in zip(rows["node"], rows["node_type"], rows["name"], strict=True)
        if kind == "kernel"
    ]
    return bool(names) and all(names.get(node) == name for node, name in kernels)


def names_by_id(columns: KinetoColumns) -> Names:
    """What ran each node, by the ids of the activities; those without one (copies, before torch 2.14) are left out."""
    node = columns.details["node"]
    told = [members[node[members] >= 0] for _, members in replays_of(columns)]
    return _agreed([(node[members].tolist(), members) for members in told], columns)


def _agreed(replays: list[tuple[list[int], Any]], columns: KinetoColumns) -> Names:
    each = [
        dict(zip(nodes, (columns.names[n] for n in columns.name[members]), strict=True))
        for nodes, members in replays
        if len(nodes) == len(members)
    ]
    return each[0] if len(each) == len(replays) > 0 and all(one == each[0] for one in each) else {}


def compare_names(check: Check, say: Say, label: str, ways: Mapping[str, Names]) -> None:
    """Whether the ways name the same activity at each node, two by two; a way without names contradicts itself."""
    for (one, names), (other, others) in itertools.combinations(ways.items(), 2):
        both = names.keys() & others.keys()
        same = sum(names[node] == others[node] for node in both)
        check(
            same == len(both) > 0,
            f"{label}: {one} and {other} name the same activity at {same} of {len(both)} nodes"
            f" ({len(names)} and {len(others)} have one)",
        )
    missing = [way for way in (ORDER, KINETO, CUPTI) if way not in ways]
    if missing:
        say(f"      {label}: {' and '.join(missing)} can't be compared on this machine")


def check_graph(check: Check, say: Say, label: str, columns: KinetoColumns, number: int) -> None:
    """The executable graph that the profiler names is the captured one, where anything tells a graph's id at capture."""
    if not CAPTURED and not INSTANTIATED:
        say(
            f"      {label} graph ids are not compared: neither driver nor cupti-python tells a captured graph's id here"
        )
        return
    ran = columns.details["graph_id"][columns.of_type(*DEVICE_TYPES)]
    ran = ran[ran >= 0]
    numbers = set(captured_graphs(ran, None, CAPTURED, INSTANTIATED).tolist())
    check(
        numbers == {number},
        f"{label} graph ids {sorted(set(ran.tolist()))} are the captured graph {numbers}, expected {number}"
        f" (captured as {CAPTURED}, instantiated as {INSTANTIATED})",
    )


def compare_nodes(
    check: Check, label: str, rows: dict[str, Any], columns: KinetoColumns, replays: int, *, copies: bool = True
) -> None:
    """Node ids against the order of starts and against the kernels' names at capture.

    Args:
        copies: copies and fills have ids, too; not so in Kineto's text before torch 2.14.
    """
    shown = set(shown_nodes(rows))
    name_of = dict(zip(rows["node"], rows["name"], strict=True))
    kernel = {n: kind == "kernel" for n, kind in zip(rows["node"], rows["node_type"], strict=True)}
    node = columns.details["node"]
    found = replays_of(columns)
    whole, ordered, named, activities = 0, 0, 0, 0
    for _, members in found:
        members = members[node[members] >= 0]
        ids = node[members].tolist()
        without = {n for n in shown - set(ids) if copies or kernel[n]}
        whole += not without and len(ids) == len(set(ids) & shown)
        ordered += ids == sorted(ids)
        for i, row in zip(ids, members, strict=True):
            if kernel.get(i, False):
                activities += 1
                named += name_of[i] == columns.names[columns.name[row]]
    check(
        len(found) == replays == whole and named == activities > 0,
        f"{label}: {whole} of {len(found)} replays have every {'node' if copies else 'kernel'} once by its id, {named} of {activities} kernels"
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
    ways: dict[str, dict[str, Names]] = {label: {} for label in graphs}
    for label, graph in graphs.items():
        rows = noted[_number(graph)]
        columns = by_kineto_text(lambda graph=graph: repeat(graph))  # type: ignore[misc]
        in_order, streams = names_by_order(rows, columns), streams_of(columns)
        if streams > 1 and not like_the_map(rows, in_order):
            say(
                f"      {label}: {ORDER} tells nothing here: a replay runs on {streams} streams, and they start as they like"
            )
        else:
            ways[label][ORDER] = in_order
        if "node" in columns.details:
            copies = Version(torch.__version__).release >= COPIES_SINCE
            compare_nodes(check, f"{label}, {KINETO}", rows, columns, replays, copies=copies)
            check_graph(check, say, f"{label}: Kineto's", columns, _number(graph))
            ways[label][KINETO] = names_by_id(columns)
        else:
            say(f"      {label}: Kineto of torch {torch.__version__} gives no node ids: order of starts it is")
    check_annotations(check, say)
    missing = cupti_missing()
    if fewest(int(missing is None)) == 0:
        say(f"      no cupti-python here ({missing}): its node ids are not compared")
        for label in graphs:
            compare_names(check, say, label, ways[label])
        return
    before = {label: _median(launch_us(graph)) for label, graph in graphs.items()}
    for label, graph in graphs.items():
        rows = noted[_number(graph)]
        columns, facts = by_cupti(lambda graph=graph: repeat(graph))  # type: ignore[misc]
        compare_nodes(check, f"{label}, {CUPTI}", rows, columns, replays)
        check_graph(check, say, f"{label}: CUPTI's", columns, _number(graph))
        ways[label][CUPTI] = names_by_id(columns)
        compare_names(check, say, label, ways[label])
        say(f"      {label}: window {facts}")
    for label, graph in graphs.items():
        say(
            f"      {label}: launch and replay {before[label]} us before cupti-python's windows,"
            f" {_median(launch_us(graph))} us after them (CUPTI stays attached)"
        )
    for label, graph in graphs.items():
        _check_buffers(check, say, label, lambda graph=graph: repeat(graph))  # type: ignore[misc]


def _check_buffers(check: Check, say: Say, label: str, work: Callable[[], None]) -> None:
    """Raw buffers show what cupti-python's objects show, and leave CUPTI to a torch.profiler and get it back from it."""
    raw, facts = by_cupti(work)
    if "objects_because" in facts:
        say(f"      {label}: CUPTI's raw buffers are not compared ({facts['objects_because']})")
        return
    shown = shown_activities(raw)
    for text, columns in (
        ("cupti-python's objects show", by_cupti(work, objects=True)[0]),
        ("torch.profiler after them shows", profiled(work, say)),
        ("raw buffers after that show", by_cupti(work)[0]),
    ):
        found = shown_activities(columns)
        check(
            found == shown != {},
            f"{label}: CUPTI's raw buffers show {sum(shown.values())} activities, {text} {sum(found.values())}"
            + (
                ""
                if found == shown
                else f"; they differ in {list((found | shown).items() - (found & shown).items())[:3]}"
            ),
        )


def shown_activities(columns: KinetoColumns) -> Counter[tuple[str, str]]:
    """How often each activity ran, by type and, of kernels, name: of copies the profilers spell memories in ways of their own."""
    rows = np.flatnonzero(columns.of_type(*DEVICE_TYPES))
    types = [columns.types[code] for code in columns.type[rows].tolist()]
    names = [columns.names[code] for code in columns.name[rows].tolist()]
    return Counter((t, n if t == "kernel" else "") for t, n in zip(types, names, strict=True))


def _number(graph: torch.cuda.CUDAGraph) -> int:
    number = graph_id_of(graph)
    assert number is not None
    return number


def _median(figures: list[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(round(statistics.median(column), 1) for column in zip(*figures, strict=True))
