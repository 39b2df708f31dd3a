"""Columns of an event frame as numpy arrays: whole columns, no Python object per event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int64]

_TABLE_LIMIT: Final = 1 << 16
_TABLE_ROOM: Final = 8
"""A table may have this many places, and as many more for each value."""


def integers(frame: pl.DataFrame, column: str, missing: int) -> Ints:
    """A column as int64, ``missing`` where it is null or the frame does not have it."""
    if column not in frame.columns:
        return np.full(frame.height, missing, dtype=np.int64)
    return _filled(frame.get_column(column), missing)


def _filled(values: pl.Series, missing: int) -> Ints:
    """As int64. Steps without effect are left out: each one that polars runs as a query costs 0.1 ms, however short the column."""
    if values.dtype != pl.Int64:
        values = values.cast(pl.Int64)
    return (values.fill_null(missing) if values.null_count() else values).to_numpy()


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values, ascending, and the index of each value among them.

    Values that lie close together (codes, ids) are looked up in a table; sorting them would cost ten times as much.
    """
    if not len(values):
        return values, values
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > _TABLE_LIMIT + _TABLE_ROOM * len(values):
        used, inverse = np.unique(values, return_inverse=True)
        return used, inverse.astype(np.int64, copy=False)
    place = values - low
    seen = np.zeros(span, dtype=bool)
    seen[place] = True
    used = np.flatnonzero(seen)
    index = np.zeros(span, dtype=np.int64)
    index[used] = np.arange(len(used))
    return used + low, index[place]


def again(ids: NDArray[Any], unknown: int) -> NDArray[np.bool_]:
    """Which rows have the id of an earlier row; those of the ``unknown`` id never do."""
    found: NDArray[np.bool_] = ids != unknown
    found[np.unique(ids, return_index=True)[1]] = False
    return found


def how_many(values: NDArray[Any]) -> int:
    """How many distinct values there are."""
    if not len(values):
        return 0
    low, high = int(values.min()), int(values.max())
    if high - low >= _TABLE_LIMIT + _TABLE_ROOM * len(values):
        return len(np.unique(values))
    seen = np.zeros(high - low + 1, dtype=bool)
    seen[values - low] = True
    return int(np.count_nonzero(seen))


def places(ids: Ints, values: Ints) -> Ints:
    """Index of each value among ``ids`` (ascending, distinct), -1 where it is none of them."""
    if not len(ids):
        return np.full(len(values), -1, dtype=np.int64)
    low, span = int(ids[0]), int(ids[-1]) - int(ids[0]) + 1
    if span > _TABLE_LIMIT + _TABLE_ROOM * len(values):
        at = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
        return np.where(ids[at] == values, at, -1)
    table = np.full(span + 1, -1, dtype=np.int64)  # the last place is that of values outside
    table[ids - low] = np.arange(len(ids))
    inside = (values >= low) & (values <= int(ids[-1]))
    return table[np.where(inside, values - low, span)]


def rows_by_key(key: Ints, keys: int) -> Iterator[tuple[int, Ints]]:
    """(key, its rows in order) for each key from 0 that occurs.

    Small keys are narrowed first: numpy sorts 16 bits by radix, in linear time.
    """
    narrow = key.astype(np.int16) if keys <= np.iinfo(np.int16).max else key
    order = np.argsort(narrow, kind="stable")
    low = 0
    for number, high in enumerate(np.cumsum(np.bincount(key, minlength=keys)).tolist()):
        if low < high:
            yield number, order[low:high]
        low = high


def factorize(frame: pl.DataFrame, column: str) -> tuple[Codes, list[str]]:
    """A string column as codes into its distinct values, so that text is looked at once per distinct value.

    Returns:
        codes (int64, -1 for null) and the values they index, in the order in which they come up: polars numbers categories in the order
        in which the whole process met them, so that answers would depend on what it read before.
    """
    if column not in frame.columns or frame.height == 0:
        return np.full(frame.height, -1, dtype=np.int64), []
    series = frame.get_column(column)
    if series.dtype != pl.Categorical:
        series = series.cast(pl.Categorical)
    used, codes = distinct(_filled(series.to_physical(), -1))
    first = np.empty(len(used), dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    if used[0] == -1:
        codes, first = codes - 1, first[1:]
    order = np.argsort(first)
    values = series[first[order]].cast(pl.String).to_list()
    if (np.diff(order) < 0).any():
        place = np.empty(len(order) + 1, dtype=np.int64)
        place[order] = np.arange(len(order))
        place[-1] = -1  # null
        codes = place[codes]
    return codes, values


def texts(frame: pl.DataFrame, column: str) -> list[str | None]:
    """A string column as Python strings, for the few rows that need it."""
    if column not in frame.columns:
        return [None] * frame.height
    return frame.get_column(column).cast(pl.String).to_list()


def of_kind(frame: pl.DataFrame, kinds: Sequence[str]) -> pl.DataFrame:
    """Rows of the given kinds, in file order."""
    return frame.filter(pl.any_horizontal(pl.col("kind") == kind for kind in kinds))  # codes are compared, not text
