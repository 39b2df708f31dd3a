"""``kernels``: device time by kernel name, with counts and spread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from specanalyze.attribution.analysis import RankAnalysis, WindowAnalysis, analyse_rank
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, Trace
from specschema.phases import BUCKETS, PHASE_KEYS

SCHEMA = {
    "rank": pl.String,
    "phase": pl.String,
    "bucket": pl.String,
    "subclass": pl.String,
    "name": pl.String,
    "count": pl.Int64,
    "sum_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "mean_ns": pl.Float64,
    "p10_ns": pl.Float64,
    "median_ns": pl.Float64,
    "p90_ns": pl.Float64,
    "max_ns": pl.Int64,
    "classified": pl.Boolean,
}


def kernels(trace: Trace, phase_map: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Device activities by rank, phase and name.

    Returns:
        Columns of SCHEMA, largest ``sum_ns`` first: count; sum_ns, the plain sum of durations (overlapping activities
        count twice); exposed_ns, the instants the partition gave to them (never twice, only inside the window); spread
        of one activity's duration; classified: False where no rule knows the name.
    """
    tables = list(each_rank(trace, _rank, phase_map))
    if not tables:
        return pl.DataFrame(schema=SCHEMA)
    return pl.concat(tables).sort("sum_ns", "name", descending=[True, False], maintain_order=True)


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> pl.DataFrame:
    return rank_kernels(analyse_rank(source.read(), phase_map))


def rank_kernels(rank: RankAnalysis) -> pl.DataFrame:
    """``kernels`` of one rank."""
    frames = [_window_table(window, rank.trace.key) for window in rank.windows]
    if not frames:
        return pl.DataFrame(schema=SCHEMA)
    rows = pl.concat(frames)
    keys = ["rank", "phase", "bucket", "subclass", "name", "classified"]
    duration = pl.col("dur_ns")
    return (
        rows.group_by(keys, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            duration.sum().alias("sum_ns"),
            pl.col("exposed_ns").sum(),
            duration.mean().alias("mean_ns"),
            duration.quantile(0.1, "linear").alias("p10_ns"),
            duration.median().alias("median_ns"),
            duration.quantile(0.9, "linear").alias("p90_ns"),
            duration.max().alias("max_ns"),
        )
        .sort("sum_ns", "name", descending=[True, False], maintain_order=True)
        .select(*SCHEMA)
    )


def _window_table(window: WindowAnalysis, key: str) -> pl.DataFrame:
    """One row an activity: its keys, duration and exposed time."""
    acts, part = window.activities, window.partition
    exposed = np.zeros(len(acts), dtype=np.int64)
    if part is not None:
        held = part.activity >= 0
        np.add.at(exposed, part.activity[held], (part.end - part.start)[held])
    names = pl.DataFrame(
        {"code": range(len(acts.names)), "name": list(acts.names)}, schema={"code": pl.Int64, "name": pl.String}
    )
    finer = pl.DataFrame(
        {"subclass_code": range(len(acts.subclasses)), "subclass": list(acts.subclasses)},
        schema={"subclass_code": pl.Int64, "subclass": pl.String},
    )
    table = pl.DataFrame(
        {
            "code": acts.name,
            "subclass_code": acts.subclass,
            "phase_code": acts.phase,
            "bucket_code": acts.bucket,
            "dur_ns": acts.end - acts.start,
            "exposed_ns": exposed,
            "classified": acts.classified,
        }
    )
    phases = pl.DataFrame({"phase_code": list(PHASE_CODE.values()), "phase": list(PHASE_KEYS)}).cast(
        {"phase_code": pl.Int64}
    )
    buckets = pl.DataFrame({"bucket_code": range(len(BUCKETS)), "bucket": list(BUCKETS)}).cast(
        {"bucket_code": pl.Int64}
    )
    return (
        table.join(names, on="code", how="left", maintain_order="left")
        .join(finer, on="subclass_code", how="left", maintain_order="left")
        .join(phases, on="phase_code", how="left", maintain_order="left")
        .join(buckets, on="bucket_code", how="left", maintain_order="left")
        .select(pl.lit(key).alias("rank"), "phase", "bucket", "subclass", "name", "classified", "dur_ns", "exposed_ns")
    )
