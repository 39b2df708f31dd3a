"""Rows of the event table as a ``compact_rank.Piece``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from specanalyze.columns import Ints, factorize
from specanalyze.compact_rank import MISSING, Array
from specanalyze.event_frame import DTYPES


class FramePiece:
    """Some rows of one rank.

    Args:
        rows: columns of the event table; those that are null throughout may be missing.
        constant: integer columns beside these, with one value in all rows.
    """

    def __init__(self, rows: pl.DataFrame, constant: Mapping[str, int]) -> None:
        self._rows = rows
        self._constant = constant
        self._codes: dict[str, tuple[Array, list[str]]] = {}

    @property
    def constant(self) -> Mapping[str, int]:
        return self._constant

    def has(self, name: str) -> bool:
        return name in self._rows.columns

    def __len__(self) -> int:
        return self._rows.height

    def integers(self, name: str) -> Ints | None:
        if name not in self._rows.columns:
            return None
        column = self._rows.get_column(name).cast(pl.Int64)
        values: Ints = (column.fill_null(MISSING) if column.null_count() else column).to_numpy()
        return np.ascontiguousarray(values)

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        if name not in self._codes:
            codes, texts = factorize(self._rows, name)
            self._codes[name] = codes.astype(np.int32), texts
        return self._codes[name]

    def frame(self, rows: Array, columns: Sequence[str] | None = None) -> pl.DataFrame:
        kept = self._rows.columns if columns is None else [c for c in columns if c in self._rows.columns]
        some = self._rows.select(kept)[rows]
        whole = self._constant if columns is None else {}
        return some.with_columns(pl.lit(value, dtype=DTYPES[name]).alias(name) for name, value in whole.items())
