"""Columns as codes."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from specanalyze.columns import factorize


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
def test_values_come_in_the_order_of_the_rows_whatever_the_process_read_before(kind: type[pl.DataType]) -> None:
    earlier = pl.Series(
        ["factorized last", "factorized first"], dtype=pl.Categorical
    )  # numbers both, the other way round
    frame = pl.DataFrame(
        {"name": pl.Series([None, "factorized first", "factorized last", None, "factorized first"], dtype=kind)}
    )
    codes, values = factorize(frame, "name")
    assert values == ["factorized first", "factorized last"]
    assert codes.tolist() == [-1, 0, 1, -1, 0]
    assert len(earlier) == 2  # kept: polars forgets categories that nothing holds


def test_nothing_and_nulls_alone_have_no_values() -> None:
    for values in ([], [None, None]):
        codes, found = factorize(pl.DataFrame({"name": pl.Series(values, dtype=pl.String)}), "name")
        assert (codes.tolist(), found) == ([-1] * len(values), [])
    codes, found = factorize(pl.DataFrame({"other": [1, 2]}), "name")
    assert (codes.tolist(), found) == ([-1, -1], [])
    assert codes.dtype == np.int64
