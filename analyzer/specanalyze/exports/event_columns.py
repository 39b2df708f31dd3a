"""The events of a rank while they are written: columns that few rows fill lie apart, so that a row takes what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints
from specanalyze.formats.event_frame import DTYPES
from specschema.events import COLUMN_NAMES

_FEW: Final = 16
"""A column that one row of so many fills, or fewer do, lies apart."""
_KEPT: Final = ("kind", "pid", "name", "start_ns", "dur_ns", "tid", "window", "device", "stream", "correlation")
"""Columns that are looked at as a whole."""


@dataclass(frozen=True)
class EventColumns:
    """Events in file order.

    Attributes:
        many: columns that many rows fill, and those that are looked at as a whole.
        few_rows: rows that fill any of the other columns, ascending.
        few: these columns, for those rows.
    """

    many: pl.DataFrame
    few_rows: Ints
    few: pl.DataFrame

    @staticmethod
    def of(events: pl.DataFrame) -> EventColumns:
        """Take the columns of some events apart."""
        most = events.height // _FEW
        few = [c for c in events.columns if c not in _KEPT and events.height - events[c].null_count() <= most]
        filled = np.zeros(events.height, dtype=bool)
        for name in few:
            filled |= events.get_column(name).is_not_null().to_numpy()
        rows = np.flatnonzero(filled)
        return EventColumns(events.drop(few), rows, events.select(few)[rows])

    def rows(self, index: Ints) -> pl.DataFrame:
        """Some events with every column of the event table, and those beside it."""
        low = int(index[0]) if len(index) else 0
        together = len(index) and int(index[-1]) - low + 1 == len(index) and bool((np.diff(index) == 1).all())
        found = self.many[low : low + len(index)] if together else self.many[index]
        place = np.searchsorted(self.few_rows, index)
        of_row = np.append(self.few_rows, -1)[place]
        told = of_row == index
        columns = self.few.columns
        if told.any():
            beside = self.few[pl.Series(place, dtype=pl.UInt32).set(pl.Series(~told), None)]
            found = found.hstack(beside.get_columns())
            columns = []
        missing = [c for c in (*COLUMN_NAMES, *columns) if c not in found.columns]
        types = {**DTYPES, **self.few.schema}
        return found.with_columns(pl.lit(None, dtype=types[c]).alias(c) for c in dict.fromkeys(missing))

    def only(self, kept: NDArray[np.bool_]) -> EventColumns:
        """Some of the events."""
        renumbered = np.cumsum(kept) - 1
        few = kept[self.few_rows]
        rows = renumbered[self.few_rows[few]]
        return EventColumns(self.many[np.flatnonzero(kept)], rows, self.few[np.flatnonzero(few)])
