"""Events taken apart into columns that many rows fill and columns that few do."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from specanalyze.exports.event_columns import EventColumns
from specanalyze.formats.event_frame import DTYPES
from specschema.events import COLUMN_NAMES

ROWS = 64


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    """A column that all rows fill, one that four of 64 may, one that any may, and texts and lists among them."""
    few = draw(st.lists(st.integers(0, ROWS - 1), max_size=4))
    some = draw(st.lists(st.integers(0, ROWS - 1), max_size=ROWS))
    number = np.arange(ROWS)
    return pl.DataFrame(
        {
            "kind": pl.Series(["kernel"] * ROWS).cast(DTYPES["kind"]),
            "start_ns": pl.Series(number * 10, dtype=pl.Int64),
            "op": pl.Series(["op" if i in few else None for i in range(ROWS)]).cast(DTYPES["op"]),
            "group_ranks": pl.Series([[i] if i in few else None for i in range(ROWS)], dtype=DTYPES["group_ranks"]),
            "node": pl.Series([i if i in some else None for i in range(ROWS)], dtype=DTYPES["node"]),
            "beside": pl.Series([i if i in few else None for i in range(ROWS)], dtype=pl.Int64),
        }
    )


def whole(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in COLUMN_NAMES if c not in frame.columns]
    return frame.with_columns(missing).select(*COLUMN_NAMES, "beside")


@given(frames(), st.lists(st.integers(0, ROWS - 1), unique=True), st.booleans())
def test_rows_are_what_they_were(frame: pl.DataFrame, index: list[int], in_order: bool) -> None:
    rows = np.array(sorted(index) if in_order else index, dtype=np.int64)
    got = EventColumns.of(frame).rows(rows).select(*COLUMN_NAMES, "beside")
    assert_frame_equal(got, whole(frame[rows]))


@given(frames(), st.sets(st.integers(0, ROWS - 1)), st.integers(0, ROWS), st.integers(0, ROWS))
def test_some_of_the_events_keep_their_columns(frame: pl.DataFrame, gone: set[int], low: int, high: int) -> None:
    kept = np.array([row not in gone for row in range(ROWS)])
    left = EventColumns.of(frame).only(kept)
    index = np.arange(min(low, int(kept.sum())), min(high, int(kept.sum())))
    assert_frame_equal(left.rows(index).select(*COLUMN_NAMES, "beside"), whole(frame.filter(pl.Series(kept)))[index])


def test_what_few_rows_fill_lies_apart() -> None:
    frame = pl.DataFrame({"start_ns": np.arange(ROWS), "node": [1] + [None] * (ROWS - 1)})
    columns = EventColumns.of(frame)
    assert columns.many.columns == ["start_ns"]
    assert columns.few_rows.tolist() == [0]
