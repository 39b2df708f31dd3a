"""A first look at a merged trace: the phases of one rank's cycles, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specschema.events import DEVICE_KINDS, EVENT_SCHEMA
from specschema.phases import LEAF_PHASES, range_name

_COLUMNS: Final = (
    "kind",
    "rank",
    "name",
    "start_ns",
    "dur_ns",
    "tid",
    "cycle",
    "mode",
    "window",
    "accept_lengths",
    "correlation",
)


@dataclass(frozen=True)
class PhaseTable:
    """Phases of one rank, per cycle.

    Attributes:
        mode: speculative, or decode where the server does not speculate.
        cycles: how many cycles were looked at. Means are over those that the next one follows, where there are any: phases
            and cycle over the same stretches, so that what is left of a cycle is never negative.
        traced: they lie inside profiler windows, because there are none outside: slower than the server is.
        cycle_ms: mean time from one cycle's start to the next one's (consecutive cycles only).
        host_ms: phase -> time its host range was open. On a GPU this is launching and waiting, not the work.
        device_ms: phase -> time its device work was running (union), from the profiled cycles; empty without any.
        accept_length: mean tokens committed per (request, step); None where unknown.
    """

    rank: int
    mode: str
    cycles: int
    traced: bool
    cycle_ms: float
    host_ms: dict[str, float]
    device_ms: dict[str, float]
    accept_length: float | None


def phase_table(path: Path) -> PhaseTable | None:
    """Read the lowest rank's cycles, phases and device work; None when the trace has no decode cycle."""
    file = pq.ParquetFile(path)
    rank = min(
        (pc.min(file.read_row_group(i, ["rank"])["rank"]).as_py() for i in range(file.num_row_groups)), default=None
    )
    if rank is None:
        return None
    wanted_kinds = ["cycle", "phase", "launch", *DEVICE_KINDS]
    filters = [("rank", "==", rank), ("kind", "in", wanted_kinds)]
    schema = EVENT_SCHEMA.remove_metadata()  # a rank's own file leaves out columns that are null throughout
    rows = pq.read_table(path, columns=list(_COLUMNS), filters=filters, schema=schema).unify_dictionaries()
    kind, mode = rows["kind"].cast(pa.string()), rows["mode"].cast(pa.string())
    for wanted in ("speculative", "decode"):
        cycles = rows.filter(pc.and_(pc.equal(kind, "cycle"), pc.equal(mode, wanted)))
        if cycles.num_rows:
            break
    else:
        return None
    untraced = cycles.filter(pc.is_null(cycles["window"]))
    traced = untraced.num_rows == 0
    chosen = (cycles if traced else untraced).sort_by("cycle")
    numbers = chosen["cycle"].to_numpy()
    next_to = np.flatnonzero(np.diff(numbers) == 1)
    periods = np.diff(chosen["start_ns"].to_numpy())[next_to]
    if len(periods):
        numbers = numbers[next_to]
    cycle_ns = float(np.mean(periods)) if len(periods) else float(np.mean(chosen["dur_ns"].to_numpy()))
    phases = rows.filter(pc.equal(kind, "phase"))
    measured = phases.filter(pc.is_in(phases["cycle"], pa.array(numbers)))
    lengths = cycles["accept_lengths"].combine_chunks().flatten()
    profiled = cycles.filter(pc.is_valid(cycles["window"]))
    return PhaseTable(
        rank=rank,
        mode=wanted,
        cycles=chosen.num_rows,
        traced=traced,
        cycle_ms=cycle_ns / 1e6,
        host_ms=_host_ms(measured, len(numbers)),
        device_ms=_device_ms(rows, kind, phases, profiled.num_rows),
        accept_length=pc.mean(lengths).as_py() if len(lengths) else None,
    )


def _host_ms(phases: pa.Table, cycles: int) -> dict[str, float]:
    names = phases["name"].cast(pa.string())
    found = {p: pc.sum(phases.filter(pc.equal(names, range_name(p)))["dur_ns"]).as_py() for p in LEAF_PHASES}
    return {phase: total / cycles / 1e6 for phase, total in found.items() if total}


def _device_ms(rows: pa.Table, kind: pa.ChunkedArray, phases: pa.Table, cycles: int) -> dict[str, float]:
    """Busy time of each phase's device work: work belongs to the phase that encloses the start of its launch call."""
    work = rows.filter(pc.is_in(kind, pa.array(DEVICE_KINDS)))
    launches = rows.filter(pc.equal(kind, "launch")).sort_by("correlation")
    if work.num_rows == 0 or launches.num_rows == 0 or cycles == 0:
        return {}
    launch_ids = launches["correlation"].to_numpy()
    launch_of = np.clip(np.searchsorted(launch_ids, work["correlation"].to_numpy()), 0, len(launch_ids) - 1)
    known = launch_ids[launch_of] == work["correlation"].to_numpy()
    launched = launches["start_ns"].to_numpy()[launch_of]
    start = work["start_ns"].to_numpy()
    end = start + work["dur_ns"].fill_null(0).to_numpy()
    names = phases["name"].cast(pa.string())
    result = {}
    for phase in LEAF_PHASES:
        ranges = phases.filter(pc.equal(names, range_name(phase))).sort_by("start_ns")
        if ranges.num_rows == 0:
            continue
        begin = ranges["start_ns"].to_numpy()
        stop = begin + ranges["dur_ns"].to_numpy()
        at = np.searchsorted(begin, launched, side="right") - 1
        inside = known & (at >= 0) & (launched < stop[at])
        if inside.any():
            result[phase] = _union_ns(start[inside], end[inside]) / cycles / 1e6
    return result


def _union_ns(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> int:
    """Length of the union of intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reached[:-1]])
    return int(np.sum(np.maximum(end - np.maximum(start, before), 0)))
