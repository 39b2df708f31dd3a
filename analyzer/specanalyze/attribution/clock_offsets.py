"""Clocks of ranks on different hosts, against the first rank's (design rule D7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def clock_offsets(matched: pl.DataFrame, hosts: Sequence[str]) -> tuple[dict[int, int], dict[int, int]]:
    """How far each rank's clock is ahead of the first rank's, from the ends of collectives; empty where all ranks share a host.

    Args:
        matched: one row a collective and rank: match, who (index of the rank), end_ns, voided.
        hosts: host of each rank.

    Returns:
        Index of the rank -> median difference of ends, ns, and -> median absolute deviation of that difference, ns, of ranks that have a
        collective with the first one that is not void.
    """
    offsets: dict[int, int] = {}
    spread: dict[int, int] = {}
    if len(set(hosts)) < 2:
        return offsets, spread
    used = matched.filter(~pl.col("voided"))
    base = used.filter(pl.col("who") == 0).select("match", pl.col("end_ns").alias("base_ns"))
    apart = used.join(base, on="match").select("who", apart_ns=pl.col("end_ns") - pl.col("base_ns"))
    for who in range(len(hosts)):
        values = apart.filter(pl.col("who") == who).get_column("apart_ns").to_numpy()
        if len(values):
            offsets[who] = int(np.median(values))
            spread[who] = int(np.median(np.abs(values - offsets[who])))
    return offsets, spread
