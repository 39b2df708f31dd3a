"""Cycles that may be compared with each other: of one mode, batch size and draft length."""

from __future__ import annotations

import polars as pl

from specanalyze.attribution.cycles import decoding


def alike_cycles(cycles: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Decode cycles that may be compared: the commonest traced mode, batch size and draft length, or unknown ones.

    Args:
        cycles: of ``cycles.cycle_table``, with at least one decode cycle.

    Returns:
        Rows of ``cycles``, and the mode.
    """
    decode = decoding(cycles)
    traced = decode.filter(pl.col("window").is_not_null())
    for column in ("mode", "batch_size", "draft_tokens"):
        values = (traced if traced.height else decode).get_column(column).drop_nulls()
        if len(values):
            commonest = values.value_counts(sort=True)[column][0]
            decode = decode.filter((pl.col(column) == commonest).fill_null(value=True))
            traced = traced.filter((pl.col(column) == commonest).fill_null(value=True))
    return decode, str(decode.get_column("mode").drop_nulls().mode()[0])
