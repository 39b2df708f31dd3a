"""Writes the nodes of replays that name some of them into the rows of all their activities, so that a trace carries them from then on.

A node that was found by the order of activities is not written: read again, it would count as one that the recording itself names, its
doubts (an equal kernel on another stream, a captured graph of another batch size) forgotten. It is found again in the same way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from specanalyze.attribution.activities import join_activities
from specanalyze.attribution.breakdown_warnings import overlooked
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.columns import integers
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.events import DEVICE_KINDS


def with_nodes(trace: Trace) -> Trace:
    """The same recording; graph_id and node are filled on device rows of replays that name nodes of a captured graph.

    Ranges that look like phases and are none are named in the recording's warnings, once a rank is read.
    """

    def carrying(source: RankSource) -> RankSource:
        return replace(source, read=lambda: _placed(source.read(), trace.warnings), compact=None, near=None)

    return replace(trace, sources=tuple(carrying(source) for source in trace.sources))


def _placed(rank: RankTrace, warnings: list[str]) -> RankTrace:
    ranges = recognised_ranges(rank.events)
    warnings += (line for line in overlooked(rank.key, ranges.unrecognised) if line not in warnings)
    activities = join_activities(rank.events, ranges)
    placement = activities.placement
    if placement is None or not placement.by_id:
        return rank
    device = rank.events.get_column("kind").cast(pl.String).is_in(list(DEVICE_KINDS)).arg_true().to_numpy()
    own = integers(rank.events, "node", -1)[device[activities.row]] >= 0
    found = (placement.node_row >= 0) & (activities.launch >= 0)
    found &= np.isin(activities.launch, activities.launch[found & own])
    rows = device[activities.row[found]]
    columns = []
    for name in ("graph_id", "node"):
        values = integers(rank.events, name, -1).copy()
        values[rows] = integers(placement.nodes, name, -1)[placement.node_row[found]]
        columns.append(pl.Series(name, values).set(pl.Series(values < 0), None))
    return replace(rank, events=rank.events.with_columns(columns))
