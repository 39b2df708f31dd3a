"""The device rows and launch calls of one window as ``cut_off`` looks at them, of both ways of reading a rank."""

from __future__ import annotations

import numpy as np

from specanalyze.attribution.analysis import WindowAnalysis
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_window import JoinedWindow, Looks
from specanalyze.attribution.cut_off import WindowRows, graph_nodes
from specanalyze.columns import distinct, integers


def analysed_rows(window: WindowAnalysis) -> WindowRows:
    """Of a window that was analysed through whole tables."""
    acts = window.activities
    launches, placement = acts.launches, acts.placement
    order = np.argsort(acts.start, kind="stable")
    streams, stream = distinct(acts.stream)
    device = distinct(integers(acts.rows, "device", 0)[acts.row])[1]
    nowhere = np.empty(0, dtype=np.int64)
    return WindowRows(
        acts.start[order],
        (device * max(1, len(streams)) + stream)[order],
        acts.name[order],
        np.arange(len(acts.names)),
        acts.launch[order],
        nowhere if placement is None else placement.node_row[order],
        nowhere if placement is None else graph_nodes(placement.nodes),
        launches.start,
        launches.range,
        launches.graph,
        launches.activities,
        acts.graph_call_range,
    )


def joined_rows(window: JoinedWindow, looks: Looks, nodes: RankNodes | None) -> WindowRows:
    """Of a window in narrow columns."""
    calls = window.calls
    nowhere = np.empty(0, dtype=np.int64)
    return WindowRows(
        window.device.start,
        window.device.stream,
        window.device.look,
        looks.same,
        window.call,
        nowhere if window.placed is None else window.placed.node,
        nowhere if nodes is None else nodes.graph_nodes,
        calls.start,
        window.call_range,
        calls.graph,
        window.count,
        window.call_range[np.flatnonzero(calls.graph)],
    )
