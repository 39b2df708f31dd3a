"""``kernels``: device time by kernel name, with counts and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.rank_result import read_rank
from specanalyze.attribution.window_work import WindowWork
from specanalyze.columns import distinct
from specanalyze.engines.engine import each_rank
from specanalyze.native.timeline import Array
from specanalyze.trace import RankSource, Trace
from specschema.phases import BUCKETS, PHASE_KEYS

SCHEMA: Final[dict[str, Any]] = {
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


WHOLE: Final[dict[str, Any]] = dict.fromkeys(("whole_count", "whole_sum_ns", "whole_exposed_ns"), pl.Int64)
"""The parts of count, sum_ns and exposed_ns in instances of phases whose records are whole: what a figure a cycle is made of."""


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
    return pl.concat(tables).select(*SCHEMA).sort("sum_ns", "name", descending=[True, False], maintain_order=True)


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> pl.DataFrame:
    read = read_rank(source, trace, phase_map, look=KernelTimes.of)
    return rank_kernels(read.rank.key, read.looked)


@dataclass(frozen=True)
class KernelTimes:
    """The device activities of one window, kernel by kernel.

    Attributes:
        keys: phase, bucket, subclass, name, classified of each kernel, in order of its first activity; exposed_ns and, of instances that are
            not whole, the columns _PART.
        kernel: row of ``keys`` for each activity.
        length: of each, ns.
    """

    keys: pl.DataFrame
    kernel: NDArray[np.uint32]
    length: Array

    @classmethod
    def of(cls, work: WindowWork) -> KernelTimes:
        sizes = (len(BUCKETS), max(1, len(work.subclasses)), max(1, len(work.names)), 2)
        code = work.phase.astype(np.int64)
        for size, column in zip(sizes, (work.bucket, work.subclass, work.name, work.classified), strict=True):
            code *= size
            code += column
        used, kernel = distinct(code)
        first = np.full(len(used), len(code), dtype=np.int64)
        np.minimum.at(first, kernel, np.arange(len(code)))
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(used), dtype=np.uint32)
        rank[order] = np.arange(len(used), dtype=np.uint32)
        exposed = np.zeros(len(used), dtype=np.int64)
        np.add.at(exposed, kernel, work.exposed.astype(np.int64))
        broken = {name: np.zeros(len(used), dtype=np.int64) for name in _PART}
        rows = np.flatnonzero(~work.in_whole)
        for name, values in zip(_PART, (1, work.length[rows], work.exposed[rows]), strict=True):
            np.add.at(broken[name], kernel[rows], np.asarray(values, dtype=np.int64))
        parts = []
        rest = used[order]
        for size in reversed(sizes):
            rest, part = np.divmod(rest, size)
            parts.append(part)
        known, text, subclass, bucket = parts
        keys = pl.DataFrame(
            {
                "phase": [PHASE_KEYS[p] for p in rest.tolist()],
                "bucket": [BUCKETS[b] for b in bucket.tolist()],
                "subclass": [work.subclasses[s] for s in subclass.tolist()],
                "name": [work.names[n] for n in text.tolist()],
                "classified": known.astype(bool),
                "exposed_ns": exposed[order],
                **{name: sums[order] for name, sums in broken.items()},
            },
            schema=_KEYS,
        )
        return cls(keys, rank[kernel], work.length)


_PART: Final = ("part_count", "part_sum_ns", "part_exposed_ns")
_KEYS: Final = {
    **{name: SCHEMA[name] for name in ("phase", "bucket", "subclass", "name", "classified", "exposed_ns")},
    **dict.fromkeys(_PART, pl.Int64),
}


def rank_kernels(key: str, windows: Sequence[KernelTimes]) -> pl.DataFrame:
    """``kernels`` of one rank, from the activities of its windows, with the columns WHOLE."""
    if not windows:
        return pl.DataFrame(schema={**SCHEMA, **WHOLE})
    names = ["phase", "bucket", "subclass", "name", "classified"]
    keys = pl.concat([window.keys for window in windows])
    whole = keys.group_by(names, maintain_order=True).agg(pl.col("exposed_ns", *_PART).sum()).with_row_index("kernel")
    numbers = keys.join(whole, on=names, how="left", maintain_order="left").get_column("kernel").to_numpy()
    first = 0
    frames = []
    for window in windows:
        of_key = numbers[first : first + window.keys.height]
        first += window.keys.height
        frames.append(pl.DataFrame({"kernel": of_key[window.kernel], "dur_ns": window.length.astype(np.int64)}))
    duration = pl.col("dur_ns")
    spread = (
        pl.concat(frames)
        .group_by("kernel")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            duration.sum().alias("sum_ns"),
            duration.mean().alias("mean_ns"),
            duration.quantile(0.1, "linear").alias("p10_ns"),
            duration.median().alias("median_ns"),
            duration.quantile(0.9, "linear").alias("p90_ns"),
            duration.max().alias("max_ns"),
        )
    )
    own = ("count", "sum_ns", "exposed_ns")
    left = [(pl.col(n) - pl.col(p)).alias(w) for n, p, w in zip(own, _PART, WHOLE, strict=True)]
    return (
        whole.join(spread, on="kernel")
        .with_columns(left)
        .sort("kernel")
        .sort("sum_ns", "name", descending=[True, False], maintain_order=True)
        .select(pl.lit(key).alias("rank"), *(name for name in (*SCHEMA, *WHOLE) if name != "rank"))
    )
