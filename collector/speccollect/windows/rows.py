"""A closed window -> rows: device work and its launches, operators, and phases on the profiler's own clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from speccollect.config import WindowSettings
from speccollect.cycles import segment as seg
from speccollect.cycles.rows import Origin, cycle_rows, phase_rows
from speccollect.cycles.segment import Segment
from speccollect.kineto.columns import DEVICE_TYPES, PAUSE_SECONDS, KinetoColumns
from speccollect.kineto.details import NODE_IDS, node_ids, read_details
from speccollect.kineto.events import CompiledEvents
from speccollect.nodemap.capture import CAPTURED, INSTANTIATED
from speccollect.nodemap.replays import captured_graphs
from speccollect.parts.table import coded, event_table, joined, known, present
from speccollect.windows.clock_marks import MARK
from specschema.phases import CYCLE, RANGE_PREFIX, range_name

if TYPE_CHECKING:
    from speccollect.windows.result import WindowResult

logger = logging.getLogger("speccollect")

GRAPH_LAUNCHES: Final = ("cudaGraphLaunch", "cuGraphLaunch")
LAUNCH_TYPES: Final = ("cuda_runtime", "cuda_driver")

Texts = Callable[[Sequence[int]], Iterator[str]]

CLOCK_NS: Final = 1_000
"""How far the profiler's clock and the stamps' may lie apart (both count Unix time from the same counter)."""


def pause() -> None:
    """Let the serving thread run."""
    time.sleep(PAUSE_SECONDS)


def read_window(profile: WindowResult) -> None:
    """Make columns of a closed window's events; where the compiled reader fails, the Python reader does it.

    Raises:
        Exception: whatever the reader raised; the window is lost then.
    """
    events = profile.events
    if profile.columns is not None or events is None:
        return
    begun, begun_ns = time.perf_counter_ns(), time.time_ns()
    try:
        profile.columns = events.columns(pause=pause)
    except Exception as error:
        if not isinstance(events, CompiledEvents):
            raise
        logger.warning("speccollect: the compiled reader failed (%s); the Python reader is used", error)
        profile.events = events = events.plain()
        profile.columns = events.columns(pause=pause)
    profile.info |= {
        "events": len(events),  # of CUPTI's raw records it was not known before
        "reader": events.reader,
        "read_by": "writer",
        "read_cost_ns": time.perf_counter_ns() - begun,
        "read_begun_ns": begun_ns,
    }


def window_table(
    segment: Segment, names: Sequence[str], origin: Origin, settings: WindowSettings
) -> tuple[pa.Table, dict[str, Any], int]:
    """Rows of one window, whose events ``read_window`` has read.

    Returns:
        The table; what the metadata says about the window; how many of our ranges were never closed.
    """
    profile = segment.profile
    assert profile is not None
    columns = profile.columns
    assert columns is not None
    begun_ns = time.time_ns()
    events = profile.events
    info = dict(profile.info)
    # without device records although graphs were replayed the profiler was blind, the device not idle
    info["device_records"] = int(columns.of_type(*DEVICE_TYPES).sum())
    info["graph_replays"] = profile.replays.count if profile.replays is not None else None
    fit = profile.clock.fit(columns) if profile.clock is not None else None
    if fit is not None:
        columns.start = fit.unix_ns(columns.start)
        info["clock_offset_ns"] = [fit.begin[1], fit.end[1]]
        info["clock_error_ns"] = max(fit.begin[2], fit.end[2])
    keep = np.ones(len(columns), dtype=np.bool_)
    if len(columns) > settings.max_events:
        limit_ns = int(np.partition(columns.start, settings.max_events)[settings.max_events])
        keep = columns.start < limit_ns
        info["cut"] = f"more than {settings.max_events} events: kept what began before {limit_ns}"
        info["cut_ns"] = limit_ns
    keep &= ~_of_the_tail(columns, int(info["end_ns"]))
    texts = events.texts if events is not None and profile.metadata else None
    tables = [
        _device_rows(columns, keep, origin, segment),
        _launch_rows(columns, keep, origin, segment),
        _operator_rows(columns, keep, origin, segment),
    ]
    if texts is not None:
        tables.append(_collective_rows(columns, keep, texts, origin, segment))
    ours = columns.named(
        np.flatnonzero(keep & columns.of_type("user_annotation")),
        lambda name: name.startswith(RANGE_PREFIX) and name != MARK,
    )
    ours = ours[columns.resource[ours] == origin.tid]
    if len(ours):
        cycles, phases, unclosed = _ranges(columns, ours, segment, names, origin)
    else:
        # host stamps, on the clock that the events were put on
        cycles, open_cycles = cycle_rows(segment, names, origin)
        phases, open_phases = phase_rows(segment, names, origin)
        unclosed = open_cycles + open_phases
    tables += [present(cycles), present(phases)]
    if profile.modules is not None:
        tables.append(present(profile.modules.rows(origin, segment.window)))
    profile.columns = None
    info["rows"] = sum(t.num_rows for t in tables)
    # while the writer thread is at it, cycles may be disturbed
    info["read_ns"] = [info.pop("read_begun_ns", begun_ns), time.time_ns()]
    return joined([table for table in tables if table.num_rows] or tables), info, unclosed


def _of_the_tail(columns: KinetoColumns, end_ns: int) -> npt.NDArray[np.bool_]:
    """What the host began after the window's last cycle, and device work that it launched there."""
    on_host = ~columns.of_type(*DEVICE_TYPES)
    late = on_host & (columns.start >= end_ns)
    calls = late & columns.of_type(*LAUNCH_TYPES)
    if not calls.any():
        return late
    return late | (~on_host & np.isin(columns.correlation, columns.correlation[calls]))


def _common(
    columns: KinetoColumns, rows: npt.NDArray[np.intp], kind: str | pa.Array, origin: Origin, window: int | None
) -> dict[str, Any]:
    duration = columns.duration[rows]
    return {
        "kind": kind,
        "rank": origin.rank,
        "pid": origin.pid,
        "name": coded(columns.name[rows], columns.names),
        "start_ns": columns.start[rows],
        "dur_ns": known(duration, pa.int64()),
        "window": window,
    }


def _device_rows(columns: KinetoColumns, keep: npt.NDArray[np.bool_], origin: Origin, segment: Segment) -> pa.Table:
    rows = np.flatnonzero(keep & columns.of_type(*DEVICE_TYPES))
    kinds = list(dict.fromkeys(DEVICE_TYPES.values()))
    code_of = np.array([kinds.index(DEVICE_TYPES[t]) if t in DEVICE_TYPES else -1 for t in columns.types] or [-1])
    details = _details(rows, segment)
    told = {name: values[rows] for name, values in columns.details.items()}
    ran = told.pop("graph_id", None)
    details |= {name: known(values, pa.int64()) for name, values in told.items()}
    graphs = _graph_ids(columns, rows, segment)
    if ran is None and "graph_id" in details:
        ran = details.pop("graph_id").fill_null(-1).to_numpy()
    # the node map's own numbers: CUPTI numbers graphs its own way
    if ran is not None:
        details["graph_id"] = known(captured_graphs(ran, graphs, CAPTURED, INSTANTIATED), pa.int64())
    elif graphs is not None:
        details["graph_id"] = known(graphs, pa.int64())
    return event_table(
        len(rows),
        {
            **_common(columns, rows, coded(code_of[columns.type[rows]], kinds), origin, segment.window),
            "correlation": columns.correlation[rows],
            "device": columns.device[rows],
            "stream": columns.resource[rows],
            **details,
        },
        sparse=True,
    )


def _details(rows: npt.NDArray[np.intp], segment: Segment) -> dict[str, pa.Array]:
    """Columns that the profiler's text of device rows gives; graph_id is the profiler's number of the executable graph."""
    profile = segment.profile
    if profile is None or profile.events is None or not profile.metadata or not len(rows):
        return {}
    if not profile.ids_only:
        return read_details(profile.events.texts(rows.tolist()), pause=pause)
    graph, node = node_ids(*profile.events.numbers(rows.tolist(), tuple(NODE_IDS), pause=pause))
    return {"graph_id": known(graph, pa.int64()), "node": known(node, pa.int64())} if (node >= 0).any() else {}


def _graph_ids(columns: KinetoColumns, rows: npt.NDArray[np.intp], segment: Segment) -> npt.NDArray[np.int64] | None:
    """Captured graph of each activity, from the stamps around the replays; negative where none encloses its launch."""
    replays = segment.profile.replays if segment.profile is not None else None
    if replays is None:
        return None
    calls = columns.named(np.flatnonzero(columns.of_type(*LAUNCH_TYPES)), lambda name: name.startswith(GRAPH_LAUNCHES))
    return replays.of_activities(columns.start[calls], columns.correlation[calls], columns.correlation[rows])


def _launch_rows(columns: KinetoColumns, keep: npt.NDArray[np.bool_], origin: Origin, segment: Segment) -> pa.Table:
    """Host calls that put work on a device: by name, or because device work names them."""
    calls = np.flatnonzero(keep & columns.of_type(*LAUNCH_TYPES))
    named = columns.named(calls, lambda name: any(word in name for word in ("Launch", "Memcpy", "Memset")))
    others = np.setdiff1d(calls, named, assume_unique=True)
    used = np.isin(columns.correlation[others], columns.correlation[columns.of_type(*DEVICE_TYPES)])
    rows = np.sort(np.concatenate((named, others[used])))
    return event_table(
        len(rows),
        {
            **_common(columns, rows, "launch", origin, segment.window),
            "tid": columns.resource[rows],
            "correlation": columns.correlation[rows],
        },
        sparse=True,
    )


def _operator_rows(columns: KinetoColumns, keep: npt.NDArray[np.bool_], origin: Origin, segment: Segment) -> pa.Table:
    """CPU operators, ranges that are not ours, and host calls that wait for a device."""
    ranges = np.flatnonzero(keep & columns.of_type("user_annotation"))
    calls = np.flatnonzero(keep & columns.of_type(*LAUNCH_TYPES))
    operators = np.flatnonzero(keep & columns.of_type("cpu_op"))
    foreign = columns.named(ranges, lambda name: not name.startswith(RANGE_PREFIX))
    waits = columns.named(calls, lambda name: "Synchronize" in name)
    rows = np.sort(np.concatenate((operators, foreign, waits)), kind="stable")
    return event_table(
        len(rows),
        {**_common(columns, rows, "op", origin, segment.window), "tid": columns.resource[rows]},
        sparse=True,
    )


def _collective_rows(
    columns: KinetoColumns, keep: npt.NDArray[np.bool_], texts: Texts, origin: Origin, segment: Segment
) -> pa.Table:
    """Collectives as the framework called them, where the profiler's text describes them."""
    rows = columns.named(
        np.flatnonzero(keep & columns.of_type("cpu_op", "user_annotation")), lambda name: name == "record_param_comms"
    )
    details = read_details(texts(rows.tolist()), pause=pause) if len(rows) else {}
    if "op" not in details:
        return event_table(0, {})
    table = event_table(
        len(rows),
        {**_common(columns, rows, "collective", origin, segment.window), "tid": columns.resource[rows], **details},
        sparse=True,
    )
    return table.filter(pc.is_valid(table["op"]))


def _ranges(
    columns: KinetoColumns,
    ours: npt.NDArray[np.intp],
    segment: Segment,
    names: Sequence[str],
    origin: Origin,
) -> tuple[pa.Table, pa.Table, int]:
    """Cycle and phase rows from the profiler's ranges; the facts of each cycle are joined by its number."""
    cycle_at = columns.named(ours, lambda name: name == range_name(CYCLE))
    cycle_at = cycle_at[np.argsort(columns.start[cycle_at], kind="stable")]
    starts, durations = columns.start[cycle_at], columns.duration[cycle_at]
    numbers = _cycle_numbers(segment, starts)
    matched = numbers >= 0
    cycles, unclosed = cycle_rows(
        segment, names, origin, measured=(numbers[matched], starts[matched], durations[matched])
    )
    rows = columns.named(ours, lambda name: name != range_name(CYCLE))
    rows = rows[np.argsort(columns.start[rows], kind="stable")]
    begin = columns.start[rows]
    around = np.searchsorted(starts, begin, side="right") - 1
    inside = (around >= 0) & (begin < (starts + durations)[around]) if len(starts) else np.zeros(len(rows), np.bool_)
    cycle = np.where(inside, numbers[around] if len(starts) else -1, -1)
    phases = event_table(
        len(rows),
        {
            **_common(columns, rows, "phase", origin, segment.window),
            "tid": columns.resource[rows],
            "cycle": known(cycle.astype(np.int64), pa.int64()),
        },
    )
    return cycles, phases, unclosed


def _cycle_numbers(segment: Segment, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Cycle number of each range: the cycle whose stamps lie around it, on the same clock; -1 where none does."""
    stamps = segment.cycles
    if len(stamps) == 0:
        return np.full(len(starts), -1, dtype=np.int64)
    row = np.clip(np.searchsorted(stamps[:, seg.START], starts + CLOCK_NS, side="right") - 1, 0, None)
    begin, end = stamps[row, seg.START], stamps[row, seg.END]
    around = (starts >= begin - CLOCK_NS) & ((end == 0) | (starts <= end + CLOCK_NS))
    numbers = np.where(around, segment.first_cycle + row, -1)
    # one range a cycle: the first one has it
    _, first = np.unique(numbers, return_index=True)
    single = np.full(len(numbers), -1, dtype=np.int64)
    single[first] = numbers[first]
    return single
