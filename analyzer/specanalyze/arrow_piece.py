"""A record batch of trace.parquet as a ``compact_rank.Piece``, without a copy where Arrow's own memory will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from specanalyze.columns import Ints
from specanalyze.compact_rank import MISSING, Array, OddRowsError
from specanalyze.event_frame import DTYPES


class ArrowPiece:
    """Some rows of one rank.

    Args:
        batch: columns of the event table, texts dictionary-encoded.
        constant: integer columns that have one value throughout and were therefore not read.
        dictionaries: texts of the batches before, by column; kept up to date.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        constant: Mapping[str, int],
        dictionaries: dict[str, tuple[pa.Array, list[str]]],
    ) -> None:
        self._batch = batch
        self._dictionaries = dictionaries
        self._constant = constant
        self._names = set(batch.schema.names)
        self._known: dict[str, Ints] = {}

    @property
    def constant(self) -> Mapping[str, int]:
        return self._constant

    def has(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def integers(self, name: str) -> Ints | None:
        if name in self._known:
            return self._known[name]
        if name in self._names:
            column = self._batch.column(name)
            if pa.types.is_dictionary(column.type) or not pa.types.is_integer(column.type):
                raise OddRowsError
            if pa.types.is_uint64(column.type):
                raise OddRowsError
            if column.type != pa.int64():
                column = column.cast(pa.int64())
            if column.null_count:
                column = pc.fill_null(column, MISSING)
            values: Ints = column.to_numpy(zero_copy_only=True)
        else:
            return None
        self._known[name] = values
        return values

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        if name not in self._names:
            return np.full(len(self), -1, dtype=np.int32), []
        column = self._batch.column(name)
        if not pa.types.is_dictionary(column.type) or column.dictionary.null_count:
            raise OddRowsError
        indices = column.indices
        if indices.type != pa.int32():
            indices = indices.cast(pa.int32())
        if indices.null_count:
            indices = pc.fill_null(indices, -1)
        codes = indices.to_numpy(zero_copy_only=True)
        texts = self._texts(name, column.dictionary)
        if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(texts):
            raise OddRowsError
        return codes, texts

    def _texts(self, name: str, dictionary: pa.Array) -> list[str]:
        before = self._dictionaries.get(name)
        if before is None or not before[0].equals(dictionary):
            try:
                texts = dictionary.to_pylist()
            except UnicodeDecodeError:
                raise OddRowsError from None
            if not all(type(text) is str for text in texts):
                raise OddRowsError
            self._dictionaries[name] = before = (dictionary, texts)
        return before[1]

    def frame(self, rows: Array, columns: Sequence[str] | None = None) -> pl.DataFrame:
        names = [c for c in columns or self._batch.schema.names if c in self._names]
        if not names:
            return pl.DataFrame()
        some = self._batch.select(names)
        some = some.take(pa.array(rows)) if len(rows) else some.slice(0, 0)
        some.validate(full=True)  # polars trusts what it is given
        frame = cast(pl.DataFrame, pl.from_arrow(some))
        typed = frame.select(pl.col(c).cast(DTYPES[c], strict=False) for c in names)
        if any(typed[c].null_count() != frame[c].null_count() for c in names):
            raise OddRowsError
        if columns is not None:
            return typed
        whole = {c: v for c, v in self._constant.items() if c != "device"}
        return typed.with_columns(pl.lit(v).cast(DTYPES[c]).alias(c) for c, v in whole.items())
