"""Exact algebra of half-open integer intervals [start, end), over whole columns.

Every function takes and returns int64 arrays. "Disjoint" means sorted by start with no overlap and no empty interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specanalyze.columns import rows_by_key
from specanalyze.native import overlay as native_overlay

Ints: TypeAlias = NDArray[np.int64]


class Segments(NamedTuple):
    """Disjoint intervals, each with the index of the input interval that owns it.

    Attributes:
        start: first instant, ascending.
        end: instant after the last, > start.
        owner: index into the caller's intervals.
    """

    start: Ints
    end: Ints
    owner: Ints


EMPTY: Ints = np.empty(0, dtype=np.int64)
_COMPILED_ABOVE: Final = 10_000
"""Intervals that repay the call of the compiled form."""


def first_started(start: Ints, end: Ints, order: Ints) -> Segments:
    """Give each instant to the interval that started first among those that cover it.

    In order of start an interval owns exactly what lies past the latest end of all before it: whatever started
    earlier and still runs has the instant. So one running maximum suffices.

    Args:
        start, end: the intervals; empty ones own nothing.
        order: permutation that sorts by start; ties already broken the way the caller wants.

    Returns:
        Disjoint segments; ``owner`` indexes ``start``.
    """
    if not len(order):
        return Segments(EMPTY, EMPTY, EMPTY)
    sorted_start, sorted_end = start[order], end[order]
    reached = np.maximum.accumulate(sorted_end)
    begin = sorted_start.copy()
    np.maximum(begin[1:], reached[:-1], out=begin[1:])
    keep = begin < sorted_end
    return Segments(begin[keep], sorted_end[keep], order[keep].astype(np.int64, copy=False))


def by_priority(start: Ints, end: Ints, priority: Ints) -> Segments:
    """Give each instant to the covering interval with the lowest priority number.

    Each interval is laid over the elementary stretches between all end points as two overlapping blocks of a power
    of two, and the blocks are then handed down level by level (a sparse table run backwards), so the cost is
    n log n array operations whatever the nesting.

    Args:
        start, end: the intervals; empty ones own nothing.
        priority: distinct numbers; the lowest wins.

    Returns:
        Disjoint segments, neighbours of the same owner joined; ``owner`` indexes ``start``.
    """
    index = np.flatnonzero(start < end)
    if not len(index):
        return Segments(EMPTY, EMPTY, EMPTY)
    points = np.unique(np.concatenate([start[index], end[index]]))
    left = np.searchsorted(points, start[index])
    length = np.searchsorted(points, end[index]) - left
    level = np.frexp(length.astype(np.float64))[1] - 1  # exact below 2**53: the largest power of two <= length
    rank_of = np.empty(len(index), dtype=np.int64)
    by_rank = np.argsort(priority[index], kind="stable")
    rank_of[by_rank] = np.arange(len(index))
    nobody = len(index)
    winner = np.full(len(points) - 1, nobody, dtype=np.int64)
    for k in range(int(level.max()), -1, -1):
        half = 1 << k
        here = level == k
        np.minimum.at(winner, left[here], rank_of[here])
        np.minimum.at(winner, left[here] + length[here] - half, rank_of[here])
        if k:
            half >>= 1
            handed = winner.copy()
            np.minimum(handed[half:], winner[:-half], out=handed[half:])
            winner = handed
    held = winner < nobody
    change = np.empty(len(winner), dtype=bool)
    change[0] = True
    np.not_equal(winner[1:], winner[:-1], out=change[1:])
    first = np.flatnonzero(change)
    last = np.append(first[1:], len(winner))
    owned = held[first]
    first, last = first[owned], last[owned]
    return Segments(points[first], points[last], index[by_rank[winner[first]]])


def clip(segments: Segments, free_start: Ints, free_end: Ints) -> Segments:
    """Parts of ``segments`` that lie in the disjoint intervals ``free``."""
    low = np.searchsorted(free_end, segments.start, side="right")
    high = np.searchsorted(free_start, segments.end, side="left")
    count = high - low
    which = np.repeat(np.arange(len(count)), count)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    free = low[which] + offset
    return Segments(
        np.maximum(segments.start[which], free_start[free]),
        np.minimum(segments.end[which], free_end[free]),
        segments.owner[which],
    )


def subtract(free_start: Ints, free_end: Ints, taken: Segments) -> tuple[Ints, Ints]:
    """What is left of the disjoint intervals ``free`` once the disjoint ``taken`` is removed."""
    if not len(free_start) or not len(taken.start):
        return free_start, free_end
    gap_start = np.append(free_start[0], taken.end)
    gap_end = np.append(taken.start, free_end[-1])
    keep = gap_start < gap_end
    gaps = Segments(gap_start[keep], gap_end[keep], np.arange(int(keep.sum())))
    left = clip(gaps, free_start, free_end)
    return left.start, left.end


def union_by_key(key: Ints, start: Ints, end: Ints, keys: int) -> Ints:
    """Length of the union of the intervals of each key.

    Args:
        key: 0 <= key < keys, per interval.
        start, end: the intervals.
        keys: number of keys.

    Returns:
        ``keys`` lengths.
    """
    lengths = np.zeros(keys, dtype=np.int64)
    for k, rows in rows_by_key(key, keys):  # one turn a phase, not an event
        rows = rows[np.argsort(start[rows], kind="stable")]
        begin, stop = start[rows], end[rows]
        np.maximum(begin[1:], np.maximum.accumulate(stop)[:-1], out=begin[1:])
        lengths[k] = np.maximum(stop - begin, 0).sum()
    return lengths


def start_order(start: Ints, tie: Ints) -> Ints:
    """Permutation that sorts by start; equal starts by ``tie``, then in their own order.

    Starts are nearly sorted as they come, so sorting by them alone is cheap; only equal ones are sorted again.
    """
    order = np.argsort(start, kind="stable")
    by_start = start[order]
    equal = by_start[1:] == by_start[:-1]
    if equal.any():
        among = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        some = order[among]
        order[among] = some[np.lexsort((tie[some], start[some]))]
    return order


def overlay(layers: Sequence[Segments], begin: int, end: int) -> Segments:
    """Give each instant of [begin, end) to the first layer that covers it.

    Args:
        layers: disjoint segments each, first layer first.
        begin, end: what to cover.

    Returns:
        Disjoint segments with the owners of their layers; instants that no layer covers are in none.
    """
    compiled = native_overlay.overlay(layers, begin, end) if _repays(layers) else None
    if compiled is not None:
        return Segments(*compiled)
    free_start, free_end = (np.array([x], dtype=np.int64) if begin < end else EMPTY for x in (begin, end))
    taken = [Segments(EMPTY, EMPTY, EMPTY)]
    for layer in layers:
        taken.append(clip(layer, free_start, free_end))
        free_start, free_end = subtract(free_start, free_end, taken[-1])
    start, stop, owner = (np.concatenate(column) for column in zip(*taken, strict=True))
    order = np.argsort(start, kind="stable")
    return Segments(start[order], stop[order], owner[order])


def _repays(layers: Sequence[Segments]) -> bool:
    return sum(len(layer.start) for layer in layers) > _COMPILED_ABOVE
