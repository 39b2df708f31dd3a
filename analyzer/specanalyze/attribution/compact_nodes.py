"""Which node of its captured graph each row of a compact window is: the answers of ``replay_nodes.place``, in narrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import mapped_bucket, mapped_subclass
from specanalyze.attribution.captured_nodes import NodeMap
from specanalyze.attribution.collective_columns import told
from specanalyze.attribution.cut_off import graph_nodes
from specanalyze.attribution.replay_fit import Fits
from specanalyze.attribution.replay_nodes import COUNTS, ById, Placement, by_id, place_replays
from specanalyze.columns import Ints
from specanalyze.formats.compact_rank import DeviceRows
from specanalyze.native.timeline import Array
from specschema.phases import BUCKETS

_SLICE: Final = 1 << 17
"""Rows handled at once where numpy would otherwise make several arrays as long as the rank."""


class RankNodes:
    """The captured graphs of one rank, and what its rows look like.

    Args:
        nodes: of the rank.
        looks: (name, kind, operation) of its device rows.
    """

    def __init__(self, nodes: NodeMap, looks: Sequence[tuple[str, str, str | None]]) -> None:
        self.map = nodes
        self.looks = [(name, kind) for name, kind, _ in looks]
        self.fits = Fits(nodes, self.looks)

    @staticmethod
    def of(events: pl.DataFrame, looks: Sequence[tuple[str, str, str | None]]) -> RankNodes | None:
        """Those of a rank's events; None where no graph was captured."""
        nodes = NodeMap.of(events)
        return RankNodes(nodes, looks) if nodes.rows.height else None

    @cached_property
    def told(self) -> pl.DataFrame:
        """What each node tells of its collective: columns of ``collective_columns.TOLD``."""
        return told(self.map.rows)

    @cached_property
    def graph_nodes(self) -> Ints:
        """As ``cut_off.graph_nodes``."""
        return graph_nodes(self.map.rows)

    @cached_property
    def _mapped(self) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Bucket of a row, and whether the map decided it, by node (none last) and the bucket that its look gives."""
        count, codes = len(self.map.modules) + 1, len(BUCKETS)
        node = np.repeat(np.append(np.arange(count - 1), -1), codes)
        every = Placement(node, self.map.rows, self.map.modules, one_of_several=np.zeros(0, dtype=bool))
        bucket, by_map = mapped_bucket(np.tile(np.arange(codes), count), every)
        return bucket.astype(np.uint8), by_map

    def subclasses(self, subclasses: list[str]) -> tuple[NDArray[np.uint16], list[str]]:
        """Finer class that each node gives a row by its bucket: code into the list, by (node, bucket); and the list, longer."""
        count, codes = len(self.map.modules), len(BUCKETS)
        node, bucket = np.repeat(np.arange(count), codes), np.tile(np.arange(codes), count)
        every = Placement(node, self.map.rows, self.map.modules, one_of_several=np.zeros(0, dtype=bool))
        decided = np.ones(len(node), dtype=bool)
        finer, longer = mapped_subclass(np.zeros(len(node), dtype=np.int64), subclasses, bucket, decided, every)
        return finer.astype(np.uint16).reshape(count, codes), longer

    def decide(self, bucket: NDArray[np.uint8], node: Array) -> NDArray[np.bool_]:
        """Give rows the buckets that their modules have, in place; which of them the map decided."""
        of_both, decided = self._mapped
        by_map = np.zeros(len(bucket), dtype=bool)
        last = len(self.map.modules)
        for low in range(0, len(bucket), _SLICE):
            part = slice(low, low + _SLICE)
            key = np.where(node[part] < 0, last, node[part]) * len(BUCKETS) + bucket[part]
            bucket[part] = of_both[key]
            by_map[part] = decided[key]
        return by_map


@dataclass
class PlacedRows:
    """Node of each device row of a window.

    Attributes:
        node: row of the node rows, -1 where no node is known, int32.
        several: rows that ``Placement.one_of_several`` names.
        placed, by_id, by_stream, unsure, other_count, other_names: as in ``Placement``.
    """

    node: NDArray[np.int32]
    several: list[Ints] = field(default_factory=list)
    placed: int = 0
    by_id: int = 0
    by_stream: int = 0
    unsure: int = 0
    other_count: int = 0
    other_names: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many replays were placed in which way, as ``RankBreakdown.node_map`` has them."""
        return {name: getattr(self, name) for name in COUNTS}

    def collective_nodes(self, index: Ints) -> NDArray[np.int32]:
        """Row of the node that tells of the collective of some rows, -1 where none does."""
        if self.several:
            unknown = np.zeros(len(self.node), dtype=bool)
            for rows in self.several:
                unknown[rows] = True
            return np.where(unknown[index], np.int32(-1), self.node[index])
        return self.node[index]


def ids_of(nodes: RankNodes, device: DeviceRows) -> ById | None:
    """Nodes by the ids that rows carry; ``device.id`` still has correlation ids."""
    return by_id(nodes.map, nodes.looks, device.look, device.ran, device.node, device.id)


def placed_rows(
    nodes: RankNodes, device: DeviceRows, call: Array, graph: NDArray[np.bool_], known: ById | None
) -> PlacedRows:
    """Find the node of each row of a window.

    Args:
        nodes: of the rank.
        device: rows in order of start.
        call: index of each row's launch call, -1 where none.
        graph: of each launch call, whether it is a graph launch.
        known: of ``ids_of``.
    """
    result = PlacedRows(np.full(len(device), -1, dtype=np.int32))
    if known is not None:
        result.node[:] = known.row
        result.placed = result.by_id = known.placed
        result.other_names = known.other_names
    in_turn, bounds = _replays(call, graph, None if known is None else known.settled)
    first = in_turn[bounds[:-1]]
    ran = device.ran[first] if len(device.ran) else np.full(len(first), -1)
    found = place_replays(nodes.fits, in_turn, bounds, ran, device.look, device.stream)
    order, numbers = found.order, found.numbers
    result.by_stream, result.unsure = found.by_stream, found.unsure
    for number in np.unique(numbers).tolist():  # one turn a captured graph, or a replay that fits none
        fit, replays = nodes.fits.found[number], np.flatnonzero(numbers == number)
        if fit.rows is None:
            result.other_names += len(replays) if fit.fits_count else 0
            result.other_count += 0 if fit.fits_count else len(replays)
            continue
        result.placed += len(replays)
        place, several = np.arange(len(fit.rows)), np.flatnonzero(fit.one_of_several)
        for some in np.array_split(bounds[replays], 1 + len(replays) * len(fit.rows) // _SLICE):
            rows = order[some[:, None] + place]
            result.node[rows] = fit.rows
            if len(several):
                result.several.append(rows[:, several].ravel().astype(np.int64))
    return result


def _replays(
    call: Array, graph: NDArray[np.bool_], settled: NDArray[np.bool_] | None
) -> tuple[NDArray[np.uint32], Ints]:
    """Rows of graph launches that are not settled, call by call, each in order of start; and where the calls begin, and the end."""
    parts, calls_of = [], []
    of_graph = np.append(graph, False)  # the last is that of rows without a call
    for low in range(0, max(1, len(call)), _SLICE):
        asked = call[low : low + _SLICE]
        inside = of_graph[asked]
        if settled is not None:
            inside &= ~settled[low : low + _SLICE]
        found = np.flatnonzero(inside)
        calls_of.append(asked[found])
        parts.append((found + low).astype(np.uint32))
    rows, of_row = np.concatenate(parts), np.concatenate(calls_of)
    begins = _begins(of_row)
    calls = of_row[begins]
    if bool((calls[1:] <= calls[:-1]).any()):  # replays overlap, or are not in the order of their calls
        rows = rows[np.argsort(of_row, kind="stable")]
        begins = _begins(call[rows])
    return rows, np.append(begins, len(rows))


def _begins(of_row: Array) -> Ints:
    """Where another value than the one before begins."""
    if not len(of_row):
        return np.empty(0, dtype=np.int64)
    return np.append(0, np.flatnonzero(of_row[1:] != of_row[:-1]) + 1)
