"""A record batch of trace.parquet as a ``rank_collector.Piece``, without a copy where Arrow's own memory will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from specanalyze.columns import Ints
from specanalyze.formats.compact_rank import MISSING, Array, OddRowsError
from specanalyze.formats.event_frame import DTYPES
from specanalyze.formats.parquet_bounds import bare
from specanalyze.native.collect import Column


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
        self._known: dict[str, pa.Array] = {}

    @property
    def constant(self) -> Mapping[str, int]:
        return self._constant

    def has(self, name: str) -> bool:
        return name in self._names

    def tells(self, name: str) -> bool:
        return name in self._names and self._batch.column(name).null_count < len(self)

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def integers(self, name: str) -> Ints | None:
        found = self._integers(name)
        if found is None:
            return None
        values: Ints = (pc.fill_null(found, MISSING) if found.null_count else found).to_numpy(zero_copy_only=True)
        return values

    def column(self, name: str) -> Column | None:
        found = self._integers(name)
        if found is None:
            return None
        valid, values = found.buffers()
        if values is None or values.size < 8 * (found.offset + len(found)):
            raise OddRowsError
        if valid is not None and 8 * valid.size < found.offset + len(found):
            raise OddRowsError
        where = Column(values=values.address + 8 * found.offset, offset=found.offset)
        where.valid = None if valid is None or not found.null_count else valid.address
        return where

    def _integers(self, name: str) -> pa.Array | None:
        """A column of 64 bits."""
        if name not in self._names:
            return None
        if name not in self._known:
            column = self._batch.column(name)
            if not pa.types.is_integer(column.type) or pa.types.is_uint64(column.type):
                raise OddRowsError
            self._known[name] = column if column.type == pa.int64() else column.cast(pa.int64())
        return self._known[name]

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
            if name == "name":
                raise OddRowsError  # every event has one
            indices = pc.fill_null(indices, -1)
        return indices.to_numpy(zero_copy_only=True), self._texts(name, column.dictionary)

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

    def host(self, rows: Array) -> ArrowRows:
        some = self._batch.take(pa.array(rows))
        whole = {name: value for name, value in self._constant.items() if name != "device"}
        return ArrowRows(some, tuple(sorted(whole.items())))

    def facts(self, rows: Array, columns: Sequence[str]) -> pl.DataFrame:
        frame = _framed(pa.Table.from_batches([self._batch.select(columns).take(pa.array(rows))]))
        typed = frame.select(pl.col(c).cast(DTYPES[c], strict=False) for c in columns)
        if any(typed[c].null_count() != frame[c].null_count() for c in columns):
            raise OddRowsError
        return typed


@dataclass(frozen=True)
class ArrowRows:
    """Host rows as a record batch, and columns that have one value throughout."""

    rows: pa.RecordBatch
    constant: tuple[tuple[str, int], ...]

    @staticmethod
    def joined(parts: Sequence[ArrowRows]) -> pl.DataFrame:
        """See ``rank_collector.HostRows``."""
        frames = []
        # Row groups may differ in columns and types; batches of one do not.
        for _, alike in groupby(parts, key=lambda part: (part.rows.schema, part.constant)):
            some = [*alike]
            frame = _framed(pa.Table.from_batches([part.rows for part in some]))
            frames.append(frame.with_columns(pl.lit(value).alias(name) for name, value in some[0].constant))
        return pl.concat(frames, how="diagonal_relaxed")


def _framed(rows: pa.Table) -> pl.DataFrame:
    try:
        return cast(pl.DataFrame, pl.from_arrow(bare(rows)))  # polars trusts what it is given
    except pa.ArrowInvalid:
        raise OddRowsError from None
