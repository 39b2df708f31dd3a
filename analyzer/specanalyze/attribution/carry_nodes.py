"""Writes the node that each replay activity was found to be into its row, so that a trace carries it from then on."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from specanalyze.attribution.activities import join_activities
from specanalyze.attribution.breakdown_warnings import overlooked
from specanalyze.attribution.ranges import recognised_ranges
from specanalyze.columns import integers
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.events import DEVICE_KINDS


def with_nodes(trace: Trace) -> Trace:
    """The same recording; graph_id and node are filled on device rows of replays that fit a captured graph.

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
    if placement is None or not placement.placed:
        return rank
    device = rank.events.get_column("kind").cast(pl.String).is_in(list(DEVICE_KINDS)).arg_true().to_numpy()
    found = placement.node_row >= 0
    rows = device[activities.row[found]]
    columns = []
    for name in ("graph_id", "node"):
        values = integers(rank.events, name, -1).copy()
        values[rows] = integers(placement.nodes, name, -1)[placement.node_row[found]]
        columns.append(pl.Series(name, values).set(pl.Series(values < 0), None))
    return replace(rank, events=rank.events.with_columns(columns))
