"""A first look at a merged trace: host time of each phase of the cycles that no profiler disturbed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specschema.phases import LEAF_PHASES, range_name

_COLUMNS: Final = ("kind", "rank", "name", "start_ns", "dur_ns", "cycle", "mode", "window", "accept_lengths")


@dataclass(frozen=True)
class PhaseTable:
    """Phases of one rank.

    Attributes:
        mode: speculative, or decode where the server does not speculate.
        cycles: how many cycles the figures are over.
        traced: they lie inside profiler windows, because there are none outside: slower than the server is.
        cycle_ms: mean time from one cycle's start to the next one's (consecutive cycles only).
        phase_ms: phase -> mean host time per cycle; ``other`` is the rest.
        accept_length: mean tokens committed per (request, step); None where unknown.
    """

    rank: int
    mode: str
    cycles: int
    traced: bool
    cycle_ms: float
    phase_ms: dict[str, float]
    accept_length: float | None


def phase_table(path: Path) -> PhaseTable | None:
    """Read the lowest rank's cycles and phases; None when the trace has no decode cycle."""
    kinds = ["cycle", "phase"]
    rows = pq.read_table(path, columns=list(_COLUMNS), filters=[("kind", "in", kinds)]).unify_dictionaries()
    if rows.num_rows == 0:
        return None
    rank = pc.min(rows["rank"]).as_py()
    rows = rows.filter(pc.equal(rows["rank"], rank))
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
    starts = chosen["start_ns"].to_numpy()
    next_to = np.flatnonzero(np.diff(numbers) == 1)
    periods = np.diff(starts)[next_to]
    cycle_ns = float(np.mean(periods)) if len(periods) else float(np.mean(chosen["dur_ns"].to_numpy()))
    phases = rows.filter(pc.and_(pc.equal(kind, "phase"), pc.is_in(rows["cycle"], pa.array(numbers))))
    phase_ms: dict[str, float] = {}
    for phase in LEAF_PHASES:
        total = pc.sum(phases.filter(pc.equal(phases["name"].cast(pa.string()), range_name(phase)))["dur_ns"]).as_py()
        if total:
            phase_ms[phase] = total / len(numbers) / 1e6
    phase_ms["other"] = cycle_ns / 1e6 - sum(phase_ms.values())
    lengths = cycles["accept_lengths"].combine_chunks().flatten()
    accept = pc.mean(lengths).as_py() if len(lengths) else None
    return PhaseTable(rank, wanted, len(numbers), traced, cycle_ns / 1e6, phase_ms, accept)
