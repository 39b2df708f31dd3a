"""Interval algebra against instant-by-instant answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specanalyze import intervals
from specanalyze.intervals import (
    Segments,
    by_priority,
    clip,
    first_started,
    overlay,
    start_order,
    subtract,
    union_by_key,
)
from specanalyze.native.library import library

_pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=14)


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in pairs], dtype=np.int64)
    return start, start + np.array([d for _, d in pairs], dtype=np.int64)


def _instants(segments: Segments) -> dict[int, int]:
    """instant -> owner; fails when two segments share an instant."""
    held: dict[int, int] = {}
    for s, e, owner in zip(*(column.tolist() for column in segments), strict=True):
        for t in range(s, e):
            assert t not in held
            held[t] = owner
    return held


def _best(pairs: list[tuple[int, int]], key: Callable[[int], object]) -> dict[int, int]:
    cover = {t: [i for i, (s, d) in enumerate(pairs) if s <= t < s + d] for t in range(90)}
    return {t: min(rows, key=key) for t, rows in cover.items() if rows}  # type: ignore[arg-type]


@given(_pairs)
def test_first_started(pairs: list[tuple[int, int]]) -> None:
    start, end = _columns(pairs)
    order = np.lexsort((np.arange(len(start)), start))
    assert _instants(first_started(start, end, order)) == _best(pairs, lambda i: (pairs[i][0], i))


@given(_pairs, st.randoms())
def test_by_priority(pairs: list[tuple[int, int]], random: object) -> None:
    start, end = _columns(pairs)
    priority = np.arange(len(start))
    random.shuffle(priority)  # type: ignore[attr-defined]
    segments = by_priority(start, end, priority)
    assert _instants(segments) == _best(pairs, lambda i: int(priority[i]))
    joined = (segments.end[:-1] == segments.start[1:]) & (segments.owner[:-1] == segments.owner[1:])
    assert not joined.any()


@given(_pairs, _pairs)
def test_clip_and_subtract(pairs: list[tuple[int, int]], free: list[tuple[int, int]]) -> None:
    start, end = _columns(pairs)
    taken = by_priority(start, end, np.arange(len(start)))
    f = by_priority(*_columns(free), np.zeros(len(free), dtype=np.int64))
    inside = clip(taken, f.start, f.end)
    assert _instants(inside) == {t: o for t, o in _instants(taken).items() if t in _instants(f)}
    left_start, left_end = subtract(f.start, f.end, inside)
    left = _instants(Segments(left_start, left_end, np.arange(len(left_start))))
    assert set(left) == set(_instants(f)) - set(_instants(taken))


@given(_pairs, st.data())
def test_union_by_key(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    keys = np.array([data.draw(st.integers(0, 2)) for _ in pairs], dtype=np.int64)
    start, end = _columns(pairs)
    want = [
        len({t for k, (s, d) in zip(keys, pairs, strict=True) if k == key for t in range(s, s + d)}) for key in range(3)
    ]
    assert union_by_key(keys, start, end, 3).tolist() == want


@pytest.mark.parametrize("compiled", [False, True])
@settings(deadline=None)  # the first use compiles
@given(st.lists(_pairs, max_size=5), st.integers(0, 30), st.integers(30, 80))
def test_overlay(compiled: bool, layers: list[list[tuple[int, int]]], begin: int, end: int) -> None:
    if compiled and library("overlay") is None:
        pytest.skip("no C compiler on this machine")
    made, owned = [], 0
    for pairs in layers:
        start, stop = _columns(pairs)
        disjoint = first_started(start, stop, np.lexsort((np.arange(len(start)), start)))
        made.append(Segments(disjoint.start, disjoint.end, disjoint.owner + owned))
        owned += len(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_COMPILED_ABOVE", -1 if compiled else 1 << 60)
        found = overlay(made, begin, end)
    expected: dict[int, int] = {}
    for layer in reversed(made):
        expected |= _instants(layer)
    assert _instants(found) == {t: owner for t, owner in expected.items() if begin <= t < end}
    assert found.start.tolist() == sorted(found.start.tolist())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20))
def test_start_order(rows: list[tuple[int, int]]) -> None:
    start, tie = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    assert start_order(start, tie).tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i], i))
