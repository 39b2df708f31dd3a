"""Columns of an event frame as numpy arrays: whole columns, no Python object per event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int64]


def integers(frame: pl.DataFrame, column: str, missing: int) -> Ints:
    """A column as int64, ``missing`` where it is null or the frame does not have it."""
    if column not in frame.columns:
        return np.full(frame.height, missing, dtype=np.int64)
    return frame.get_column(column).cast(pl.Int64).fill_null(missing).to_numpy()


def factorize(frame: pl.DataFrame, column: str) -> tuple[Codes, list[str]]:
    """A string column as codes into its distinct values, so that text is looked at once per distinct value.

    Returns:
        codes (int64, -1 for null) and the values they index.
    """
    if column not in frame.columns or frame.height == 0:
        return np.full(frame.height, -1, dtype=np.int64), []
    series = frame.get_column(column).cast(pl.Categorical)
    physical = series.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    used, codes = np.unique(physical, return_inverse=True)
    present = pl.DataFrame({"code": physical, "value": series.cast(pl.String)}).unique("code").sort("code")
    values = present.get_column("value").to_list()
    if len(used) and used[0] == -1:
        return codes.astype(np.int64) - 1, values[1:]
    return codes.astype(np.int64), values


def texts(frame: pl.DataFrame, column: str) -> list[str | None]:
    """A string column as Python strings, for the few rows that need it."""
    if column not in frame.columns:
        return [None] * frame.height
    return frame.get_column(column).cast(pl.String).to_list()


def of_kind(frame: pl.DataFrame, kinds: Sequence[str]) -> pl.DataFrame:
    """Rows of the given kinds, in file order."""
    return frame.filter(pl.col("kind").cast(pl.String).is_in(list(kinds)))
