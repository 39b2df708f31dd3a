"""Interval algebra against instant-by-instant answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.intervals import Segments, by_priority, clip, first_started, subtract, union_by_key

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
