"""The module of eager work: the innermost module range around the launch call, on the thread that made it.

The collector writes one range a module call where ``modules`` was asked for (``spec.module PATH``, with module and class); ranges of
any profiler that are called ``module PATH`` count the same. What the node map tells of a replay's activity stands above it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from specanalyze.attribution.captured_nodes import module_classes
from specanalyze.attribution.replay_nodes import Placement
from specanalyze.columns import Ints, distinct, factorize, integers, of_kind
from specanalyze.intervals import by_priority
from specschema.phases import RANGE_PREFIX

RANGE_NAME: Final = re.compile(rf"^(?:{re.escape(RANGE_PREFIX)})?module (\S+)$")
"""A module range's name; the path is what the module column says, where it says anything."""


def has_module_ranges(events: pl.DataFrame) -> bool:
    """Whether any range of the events is a module's."""
    _, names = factorize(of_kind(events, ("phase",)), "name")
    return any(RANGE_NAME.match(name) for name in names)


def module_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """The module ranges of one rank: pid, tid, start_ns, end_ns, module, module_class (null where unknown)."""
    rows = of_kind(events, ("phase",))
    codes, names = factorize(rows, "name")
    paths = [found.group(1) if (found := RANGE_NAME.match(name)) else None for name in names]
    if not any(path is not None for path in paths):
        return pl.DataFrame(
            schema=dict.fromkeys(("pid", "tid", "start_ns", "end_ns"), pl.Int64)
            | dict.fromkeys(("module", "module_class"), pl.String)
        )
    by_name = pl.Series([*paths, None], dtype=pl.String).gather(np.where(codes < 0, len(paths), codes))
    duration = integers(rows, "dur_ns", -1)
    table = pl.DataFrame(
        {
            "pid": integers(rows, "pid", 0),
            "tid": integers(rows, "tid", 0),
            "start_ns": integers(rows, "start_ns", 0),
            "end_ns": integers(rows, "start_ns", 0) + duration,
            "module": by_name,
            "module_class": rows.get_column("module_class").cast(pl.String)
            if "module_class" in rows.columns
            else pl.Series([None] * rows.height, dtype=pl.String),
        }
    )
    return table.filter(pl.Series(duration >= 0) & pl.col("module").is_not_null())


def with_eager_modules(placement: Placement, events: pl.DataFrame, pid: Ints, tid: Ints, at: Ints) -> Placement:
    """Give activities without a node the module that launched them.

    Args:
        placement: of the node map; its ``nodes`` may be empty.
        events: one rank's events.
        pid, tid: thread of each activity's launch call, -1 where none was recorded.
        at: start of that call, ns.

    Returns:
        The placement with one more row of ``nodes`` for each module that ran eagerly (no graph, no ordinal: order of first
        call), and ``node_row`` pointing to it.
    """
    ranges = module_ranges(events)
    asked = np.flatnonzero((placement.node_row < 0) & (tid != -1))
    if not ranges.height or not len(asked):
        return placement
    found = _innermost(ranges, pid[asked], tid[asked], at[asked])
    hit = found >= 0
    if not hit.any():
        return placement
    modules = ranges.with_row_index("range").select("range", "start_ns", "module", "module_class")
    known = modules.group_by("module", "module_class").agg(pl.col("start_ns").min()).sort("start_ns", "module")
    known = known.with_row_index("place")
    place_of = modules.join(known, on=["module", "module_class"], how="left", nulls_equal=True, maintain_order="left")
    nodes = placement.nodes
    node_row = placement.node_row.copy()
    node_row[asked[hit]] = nodes.height + place_of.get_column("place").cast(pl.Int64).to_numpy()[found[hit]]
    more = nodes.clear(n=known.height).with_columns(
        known.get_column(name).cast(nodes.schema.get(name, pl.String)) for name in ("module", "module_class")
    )
    longer = pl.concat([nodes, more], how="diagonal")
    return replace(
        placement,
        node_row=node_row,
        nodes=longer,
        modules=[*placement.modules, *module_classes(more)],
    )


def _innermost(ranges: pl.DataFrame, pid: Ints, tid: Ints, at: Ints) -> Ints:
    """Row of ``ranges`` that encloses each instant on its own thread, the innermost; -1 where none does."""
    found = np.full(len(at), -1, dtype=np.int64)
    start, end = integers(ranges, "start_ns", 0), integers(ranges, "end_ns", 0)
    range_pid, range_tid = integers(ranges, "pid", 0), integers(ranges, "tid", 0)
    for thread in distinct(range_tid)[0].tolist():  # one turn a thread that ran modules
        for process in distinct(range_pid[range_tid == thread])[0].tolist():
            mine = np.flatnonzero((range_tid == thread) & (range_pid == process))
            asked = np.flatnonzero((tid == thread) & (pid == process))
            s, e = start[mine], end[mine]
            inner_first = np.lexsort((-mine, e - s, -s))
            priority = np.empty(len(mine), dtype=np.int64)
            priority[inner_first] = np.arange(len(mine))
            segments = by_priority(s, e, priority)
            if not len(segments.start) or not len(asked):
                continue
            place = np.searchsorted(segments.start, at[asked], side="right") - 1
            inside = (place >= 0) & (at[asked] < segments.end[place])
            found[asked[inside]] = mine[segments.owner[place[inside]]]
    return found
