"""Columns -> a table of the trace's schema: what is not given is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute  # casts load it; a process forked in the middle of that would keep half a module

from specschema.events import EVENT_SCHEMA


def constant(value: str, rows: int) -> pa.DictionaryArray:
    """A dictionary column that holds the same string in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([value]))


def coded(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary column from codes into ``names``; a negative code is null."""
    indices = np.asarray(codes, dtype=np.int32)
    return pa.DictionaryArray.from_arrays(_nullable(indices), pa.array(list(names), type=pa.string()))


def _nullable(values: npt.NDArray[Any]) -> pa.Array:
    """Negative values are null; without one no mask is made."""
    return pa.array(values, mask=values < 0) if len(values) and values.min() < 0 else pa.array(values)


def known(values: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    """A column whose negative values stand for unknown and become null."""
    return _nullable(values).cast(type_)


def event_table(rows: int, columns: Mapping[str, Any], *, sparse: bool = False) -> pa.Table:
    """Rows of the event table.

    Args:
        rows: number of rows.
        columns: column name -> Arrow array, numpy array, list, or a scalar for all rows (None: null).
        sparse: leave out the columns that are not given, to be joined with others by ``joined``.

    Returns:
        Table with EVENT_SCHEMA's columns, in its order, without metadata.

    Raises:
        KeyError: a column the schema does not have.
    """
    unknown = set(columns) - set(EVENT_SCHEMA.names)
    if unknown:
        raise KeyError(sorted(unknown))
    arrays: list[pa.Array] = []
    fields = [field for field in EVENT_SCHEMA if not sparse or columns.get(field.name) is not None]
    for field in fields:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, pa.Array):
            arrays.append(value if value.type == field.type else value.cast(field.type))
        elif isinstance(value, np.ndarray):
            arrays.append(pa.array(value).cast(field.type))
        elif isinstance(value, str):
            arrays.append(constant(value, rows))
        elif isinstance(value, int):
            arrays.append(pa.array(np.full(rows, value, dtype=field.type.to_pandas_dtype())))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(value, type=pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(value, type=field.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of ``event_table`` one below the other, with the columns that any of them has, in the schema's order."""
    whole = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    return whole.select([name for name in EVENT_SCHEMA.names if name in whole.column_names])


def present(table: pa.Table) -> pa.Table:
    """The columns that hold anything: two thirds of the schema's are null in a window, and half of its writing time."""
    return table.select([name for name in table.column_names if table[name].null_count < len(table) or name == "kind"])
