"""Replays on several streams: the order of starts says nothing across streams, but within each stream it is the graph's.

A captured graph lists its nodes in the order in which they were captured. Branches that run beside each other (the shared experts
beside the routed ones) start in another order in every replay, so the n-th activity by start need not be the n-th node. On
one stream of a replay activities run one after another, in the order of capture of that branch. So the list of nodes is the streams'
lists, shuffled into each other: read from the front, each node must be the next activity of one of the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.columns import Ints

MOST_LANES: Final = 8
"""A replay on more streams is one the driver spread over streams as it liked (two processes on one device do that), and is read in
the order of starts."""

_MOST_WAYS: Final = 64
"""Ways of reading a list that are kept at a time; where equal names allow more, the list is not read."""


@dataclass(frozen=True)
class Lanes:
    """Activities of replays, each replay's first stream first and each stream in order of start.

    Attributes:
        order: the activities, replay by replay.
        lane: place of each one's stream among those of its replay, in order of their first activities; uint8. 0 everywhere in replays
            on one stream, and on more than MOST_LANES.
        mixed: replays with several.
    """

    order: NDArray[Any]
    lane: NDArray[np.uint8]
    mixed: NDArray[np.bool_]


def lanes(order: NDArray[Any], stream: NDArray[Any], bounds: Ints) -> Lanes:
    """Put activities of replays in order of their lanes.

    Args:
        order: activities, replay by replay, each in order of start.
        stream: of every activity; codes that are not negative.
        bounds: where each replay begins in ``order``, and the end.
    """
    lane = np.zeros(len(order), dtype=np.uint8)
    mixed = np.zeros(max(0, len(bounds) - 1), dtype=bool)
    if not len(order):
        return Lanes(order, lane, mixed)
    of = stream[order]
    first = np.repeat(of[bounds[:-1]], np.diff(bounds))
    mixed = np.logical_or.reduceat(of != first, bounds[:-1])
    if not mixed.any():
        return Lanes(order, lane, mixed)
    replay = np.repeat(np.flatnonzero(mixed), np.diff(bounds)[mixed])
    at = np.flatnonzero(np.repeat(mixed, np.diff(bounds)))
    pair = replay * (int(of.max()) + 1) + of[at]
    pairs, begin, which = np.unique(pair, return_index=True, return_inverse=True)
    by_begin = np.argsort(begin, kind="stable")  # replay by replay, streams in order of their first activities
    owner = pairs[by_begin] // (int(of.max()) + 1)
    rank = np.empty(len(pairs), dtype=np.int64)
    rank[by_begin] = np.arange(len(pairs)) - np.searchsorted(owner, owner)
    many = np.zeros(len(mixed), dtype=bool)
    many[owner[rank[by_begin] >= MOST_LANES]] = True
    mixed &= ~many
    lane[at] = np.where(many[replay], 0, rank[which]).astype(np.uint8)
    moved = at[np.lexsort((at, lane[at], replay))]
    placed = order.copy()
    placed[at] = order[moved]
    sorted_lane = lane.copy()
    sorted_lane[at] = lane[moved]
    return Lanes(placed, sorted_lane, mixed)


@dataclass(frozen=True)
class Reading:
    """Which activity each node is.

    Attributes:
        lane: of each node.
        unsure: nodes that an equal activity of another lane may be as well; there the lane that the node before is on was taken.
    """

    lane: Ints
    unsure: NDArray[np.bool_]


def read_lanes(count: Sequence[int], agree: Callable[[int, int, int], bool]) -> Reading | None:
    """Read a list of nodes as lanes shuffled into each other.

    Args:
        count: activities of each lane; together as many as nodes.
        agree: (node, lane, place in it) -> whether this activity can be this node.

    Returns:
        None where it can't be read so, or in too many ways.
    """
    total = sum(count)
    start = (0,) * len(count)
    layers: list[dict[tuple[int, ...], list[int]]] = []
    """Per node: how far each lane may have been read before it -> lanes whose next activity it may be."""
    reached = {start}
    for node in range(total):
        layer: dict[tuple[int, ...], list[int]] = {}
        onward: set[tuple[int, ...]] = set()
        for read in reached:
            ways = [k for k, done in enumerate(read) if done < count[k] and agree(node, k, done)]
            if ways:
                layer[read] = ways
                onward.update(_next(read, k) for k in ways)
        if not onward or len(onward) > _MOST_WAYS:
            return None
        layers.append(layer)
        reached = onward
    alive = {tuple(count)}
    for layer in reversed(layers):  # ways that end before the last node are none
        for read, ways in list(layer.items()):
            layer[read] = [k for k in ways if _next(read, k) in alive]
            if not layer[read]:
                del layer[read]
        alive = set(layer)
    lane, unsure = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=bool)
    read, current = start, 0
    for node, layer in enumerate(layers):
        ways = layer[read]
        current = current if current in ways else ways[0]
        lane[node] = current
        unsure[node] = len({(k, one[k]) for one, its in layer.items() for k in its}) > 1
        read = _next(read, current)
    return Reading(lane, unsure)


def _next(read: tuple[int, ...], lane: int) -> tuple[int, ...]:
    return (*read[:lane], read[lane] + 1, *read[lane + 1 :])
