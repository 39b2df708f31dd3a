"""Rows of the event table as a ``rank_collector.Piece``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from specanalyze.columns import Ints, factorize
from specanalyze.formats.compact_rank import MISSING, Array
from specanalyze.formats.event_frame import DTYPES
from specanalyze.native.collect import Column, address


class FramePiece:
    """Some rows of one rank.

    Args:
        rows: columns of the event table; those that are null throughout may be missing.
        constant: integer columns beside these, with one value in all rows.
    """

    def __init__(self, rows: pl.DataFrame, constant: Mapping[str, int]) -> None:
        self._rows = rows
        self._constant = constant
        self._known: dict[str, Ints | None] = {}
        self._codes: dict[str, tuple[Array, list[str]]] = {}

    @property
    def constant(self) -> Mapping[str, int]:
        return self._constant

    def has(self, name: str) -> bool:
        return name in self._rows.columns

    def tells(self, name: str) -> bool:
        return name in self._rows.columns and self._rows.get_column(name).null_count() < self._rows.height

    def __len__(self) -> int:
        return self._rows.height

    def integers(self, name: str) -> Ints | None:
        if name not in self._rows.columns:
            return None
        column = self._rows.get_column(name).cast(pl.Int64)
        values: Ints = (column.fill_null(MISSING) if column.null_count() else column).to_numpy()
        return np.ascontiguousarray(values)

    def column(self, name: str) -> Column | None:
        if name not in self._known:
            self._known[name] = self.integers(name)
        return None if self._known[name] is None else Column(values=address(self._known[name]))

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        if name not in self._codes:
            codes, texts = factorize(self._rows, name)
            self._codes[name] = codes.astype(np.int32), texts
        return self._codes[name]

    def host(self, rows: Array) -> FrameRows:
        some = self._rows[rows]
        whole = (pl.lit(value, dtype=DTYPES[name]).alias(name) for name, value in self._constant.items())
        return FrameRows(some.with_columns(whole))

    def facts(self, rows: Array, columns: Sequence[str]) -> pl.DataFrame:
        return self._rows.select(columns)[rows]


@dataclass(frozen=True)
class FrameRows:
    """Host rows as a frame."""

    rows: pl.DataFrame

    @staticmethod
    def joined(parts: Sequence[FrameRows]) -> pl.DataFrame:
        return pl.concat([part.rows for part in parts], how="diagonal_relaxed")
