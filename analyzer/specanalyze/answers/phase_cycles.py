"""The time of each cycle of one rank, phase by phase, of the device and of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.attribution.analysis import RankAnalysis, WindowAnalysis
from specanalyze.attribution.cycles import rank_cycles, rank_stamps
from specanalyze.attribution.instances import cycle_numbers, instance_table
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.columns import Ints
from specschema.phases import BUCKETS, LEAF_PHASES, REMAINDERS

OTHER: Final = "other"
"""cycle, between, outside and unattributed together; for the host, what of the step lies in no leaf."""

_REMAINDER_CODES = [PHASE_CODE[p] for p in REMAINDERS]


def phase_cycles(
    analysis: RankAnalysis, phase_map: Mapping[str, str] | None = None, metadata: Mapping[str, Any] | None = None
) -> pl.DataFrame:
    """Cycles of one rank; the arguments are those of ``cycles.rank_cycles``.

    Returns:
        One row a cycle: columns of ``cycles.CYCLE_SCHEMA``; ``host_<phase>_ns`` for each of LEAF_PHASES and ``other``: the host's
        ranges, null where the cycle has none recorded; ``device_<phase>_ns``: of a leaf what the partition gave its ranges, of
        ``other`` what it gave to no leaf between the cycle's start and the next one's, null outside windows; ``complete``: all
        its replays have device records; ``runs_over``: its device work ended after the next cycle began.
    """
    cycles = rank_cycles(analysis.trace, phase_map, metadata)
    stamps = rank_stamps(analysis.trace, phase_map)
    key = ["window", "cycle"]
    length = pl.col("end_ns") - pl.col("start_ns")
    stamps = stamps.filter(pl.col("cycle").is_not_null())
    host = stamps.group_by(key).agg(
        *(length.filter(pl.col("phase") == p).sum().alias(f"host_{p}_ns") for p in LEAF_PHASES)
    )
    leaves = pl.sum_horizontal(f"host_{p}_ns" for p in LEAF_PHASES)
    table = cycles.join(host, on=key, how="left", nulls_equal=True, maintain_order="left")
    stamped = pl.col("host_verify_ns").is_not_null()
    table = table.with_columns(pl.when(stamped).then(pl.col("step_ns") - leaves).alias(f"host_{OTHER}_ns"))
    device = [_device_table(window, cycles) for window in analysis.windows if window.partition is not None]
    empty = pl.DataFrame(schema=_DEVICE_SCHEMA)
    return table.join(pl.concat([empty, *device]), on=key, how="left", nulls_equal=True, maintain_order="left")


_DEVICE_SCHEMA: Final[dict[str, Any]] = {
    "window": pl.Int64,
    "cycle": pl.Int64,
    **{f"device_{p}_ns": pl.Int64 for p in (*LEAF_PHASES, OTHER)},
    "complete": pl.Boolean,
    "runs_over": pl.Boolean,
}


def _device_table(window: WindowAnalysis, cycles: pl.DataFrame) -> pl.DataFrame:
    """Columns of _DEVICE_SCHEMA for the cycles of one window that have phases."""
    mine = cycles.filter(pl.col("window") == window.window)
    instances = instance_table(window)
    total = pl.sum_horizontal(*BUCKETS)
    table = (
        instances.filter(pl.col("cycle") >= 0)
        .group_by("window", "cycle")
        .agg(
            *(total.filter(pl.col("phase") == p).sum().alias(f"device_{p}_ns") for p in LEAF_PHASES),
            pl.col("complete").all(),
        )
    )
    start = mine.get_column("start_ns").to_numpy()
    following = mine.select((pl.col("start_ns") + pl.col("step_ns")).fill_null(-1)).to_series().to_numpy()
    reached = _last_end(window, mine.get_column("cycle").fill_null(-1).to_numpy())
    known = following >= 0
    other = np.where(known, _other_before(window, following) - _other_before(window, start), 0)
    sliced = mine.select("window", "cycle").with_columns(
        pl.when(pl.Series(known)).then(pl.Series(other)).alias(f"device_{OTHER}_ns"),
        pl.when(pl.Series(known & (reached >= 0))).then(pl.Series(reached > following)).alias("runs_over"),
    )
    joined = table.join(sliced, on=["window", "cycle"], how="inner")
    return joined.select(pl.col(c).cast(t) for c, t in _DEVICE_SCHEMA.items())


def _other_before(window: WindowAnalysis, instant: Ints) -> Ints:
    """ns that the partition gave to no leaf before each instant."""
    part = window.partition
    if part is None or not len(part.start):
        return np.zeros(len(instant), dtype=np.int64)
    other = np.isin(part.phase, _REMAINDER_CODES)
    upto = np.concatenate([[0], np.cumsum(np.where(other, part.end - part.start, 0))])
    at = np.searchsorted(part.start, instant, side="right") - 1
    inside = np.clip(instant - part.start[np.maximum(at, 0)], 0, (part.end - part.start)[np.maximum(at, 0)])
    return np.where(at < 0, 0, upto[np.maximum(at, 0)] + np.where(other[np.maximum(at, 0)], inside, 0)).astype(np.int64)


def _last_end(window: WindowAnalysis, cycles: Ints) -> Ints:
    """Last end of the device work that each of the cycles launched in its ranges, -1 where none."""
    acts = window.activities
    called = acts.range >= 0
    numbers = cycle_numbers(window.ranges)[acts.range[called]]
    order = np.argsort(cycles, kind="stable")
    at = np.searchsorted(cycles[order], numbers)
    found = at < len(cycles)
    found[found] &= cycles[order][at[found]] == numbers[found]
    ends = np.full(len(cycles), -1, dtype=np.int64)
    np.maximum.at(ends, order[at[found]], acts.end[called][found])
    return ends
