"""Whole decode cycles of a recording, mean over the ranks: what every comparison of cycles stands on."""

from __future__ import annotations

import polars as pl

from specanalyze.answers.breakdown import Breakdown
from specschema.phases import BUCKETS


def whole_cycles(breakdown: Breakdown) -> pl.DataFrame:
    """Whole decode cycles: those that verify or decode, prefill nothing, and have the records of all their replays.

    Returns:
        One row a window, cycle and phase, in that order: window, cycle (as the first rank numbers it), phase, and the mean over the
        ranks of each bucket and of graph_launch in ns and of replays in replays, as floats. Without such cycles it has no rows.
    """
    wide = [*BUCKETS, "graph_launch", "replays"]
    tables = [
        r.phase_instances.select("window", "cycle", "phase", "complete", *wide).with_columns(rank=pl.lit(r.key))
        for r in breakdown.ranks
        if r.phase_instances.height
    ]
    if not tables:
        return pl.DataFrame(schema={"window": pl.Int64, "cycle": pl.Int64, "phase": pl.String})
    rows = _numbered_alike(pl.concat(tables).filter(pl.col("cycle") >= 0), breakdown.ranks[0].key)
    phase = pl.col("phase")
    of_cycle = ["rank", "window", "cycle"]
    speculates = rows.filter(phase == "verify").height > 0
    main = "verify" if speculates else "decode"
    rows = rows.with_columns(
        pl.col("complete").all().over(of_cycle).alias("whole"),
        (phase == main).any().over(of_cycle).alias("decodes"),
        (phase == "prefill").any().over(of_cycle).alias("prefills"),
    ).filter("whole", "decodes", ~pl.col("prefills"))
    summed = rows.group_by(*of_cycle, "phase").agg(pl.col(wide).sum())
    return (
        summed.group_by("window", "cycle", "phase")
        .agg(pl.col(wide).cast(pl.Float64).mean())
        .sort("window", "cycle", "phase")
    )


def _numbered_alike(rows: pl.DataFrame, first: str) -> pl.DataFrame:
    """Cycles of a window by the numbers that the first rank gave them.

    A rank may have begun to count a cycle later than another: its windows then hold the same cycles under numbers shifted by
    the same amount, and a mean by number would pair each with its neighbour. Where a window's numbers are no shift of each
    other they stay as they are.
    """
    spans = rows.group_by("rank", "window").agg(
        pl.col("cycle").min().alias("low"),
        pl.col("cycle").n_unique().alias("count"),
        pl.col("cycle").max().alias("high"),
    )
    told = spans.filter(pl.col("rank") == first).select(
        "window", low_first="low", count_first="count", high_first="high"
    )
    same = (pl.col("count") == pl.col("count_first")) & (
        pl.col("high") - pl.col("low") == pl.col("high_first") - pl.col("low_first")
    )
    shift = pl.when(same).then(pl.col("low_first") - pl.col("low")).otherwise(0)
    shifts = spans.join(told, on="window").select("rank", "window", shift=shift)
    moved = rows.join(shifts, on=["rank", "window"], how="left")
    return moved.with_columns(pl.col("cycle") + pl.col("shift").fill_null(0)).drop("shift")
