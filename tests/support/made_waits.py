"""Matched collectives made from the table that a test writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from specanalyze.attribution.collective_columns import NAMED
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.waits import Waits

_FACTS: dict[str, Any] = {
    **dict.fromkeys(("name", "op", "dtype"), pl.String),
    "elements": pl.Int64,
    "group": pl.String,
    "group_ranks": pl.List(pl.Int32),
    **dict.fromkeys(NAMED, pl.String),
}
_NUMBERS = {"start_ns": 0, "seq": -1, "replay": -1, "position": -1, "window": 0, "group_size": 2}


def waits_of(
    table: pl.DataFrame | None,
    unmatched: dict[str, int],
    voided: int = 0,
    missing: Sequence[tuple[str, int, int]] = (),
    reasons: Sequence[str] = (),
) -> Waits:
    """``Waits`` whose collectives are the rows of a table: columns of ``waits.COLLECTIVE_COLUMNS``, as many as the test needs."""
    rows = (
        pl.DataFrame(schema={"collective": pl.Int64, "rank": pl.String, "phase": pl.String}) if table is None else table
    )
    keys = list(unmatched)
    has = set(rows.columns)
    facts = rows.select(
        (pl.col(name) if name in has else pl.lit(None)).cast(dtype).alias(name) for name, dtype in _FACTS.items()
    )
    transfer = pl.col("dur_ns").min().over("collective") if "dur_ns" in has else pl.lit(0, dtype=pl.Int64)
    narrow = rows.select(
        pl.col("collective").cast(pl.UInt32),
        pl.col("rank").replace_strict({k: i for i, k in enumerate(keys)}, return_dtype=pl.UInt16).alias("who"),
        pl.col("phase").replace_strict(PHASE_CODE, return_dtype=pl.UInt8).alias("phase"),
        (pl.col("matched_by") == "seq" if "matched_by" in has else pl.lit(value=False)).alias("by_seq"),
        (pl.col("dur_ns") if "dur_ns" in has else pl.lit(0, dtype=pl.Int64)).alias("dur_ns"),
        transfer.alias("transfer_ns"),
        *((pl.col(n).fill_null(v) if n in has else pl.lit(v, dtype=pl.Int64)).alias(n) for n, v in _NUMBERS.items()),
        *((pl.col(n) if n in has else pl.lit(value=n == "complete")).alias(n) for n in ("complete", "voided")),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("fact"),
    )
    return Waits(narrow, facts, keys, unmatched, voided, list(missing), list(reasons))
