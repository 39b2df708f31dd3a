"""The time of each cycle of one rank, phase by phase, of the device and of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.attribution.cycles import rank_stamps
from specanalyze.attribution.instances import cycle_numbers
from specanalyze.attribution.rank_result import ReadRank
from specanalyze.attribution.window_marks import WindowMarks
from specanalyze.columns import Ints
from specschema.phases import BUCKETS, LEAF_PHASES

OTHER: Final = "other"
"""cycle, between, outside and unattributed together; for the host, what of the step lies in no leaf."""


def phase_cycles(read: ReadRank[Any], phase_map: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Cycles of one rank.

    Returns:
        One row a cycle: columns of ``cycles.CYCLE_SCHEMA``; ``host_<phase>_ns`` for each of LEAF_PHASES and ``other``: the host's
        ranges, null where the cycle has none recorded; ``device_<phase>_ns``: of a leaf what the partition gave its ranges, of
        ``other`` what it gave to no leaf between the cycle's start and the next one's, null outside windows; ``complete``: all
        its replays have device records; ``runs_over``: its device work ended after the next cycle began.
    """
    cycles = read.cycles
    stamps = rank_stamps(read.rank, phase_map)
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
    device = [_device_table(marks, read.breakdown.phase_instances, cycles) for marks in read.marks]
    empty = pl.DataFrame(schema=_DEVICE_SCHEMA)
    return table.join(pl.concat([empty, *device]), on=key, how="left", nulls_equal=True, maintain_order="left")


_DEVICE_SCHEMA: Final[dict[str, Any]] = {
    "window": pl.Int64,
    "cycle": pl.Int64,
    **{f"device_{p}_ns": pl.Int64 for p in (*LEAF_PHASES, OTHER)},
    "complete": pl.Boolean,
    "runs_over": pl.Boolean,
}


def _device_table(marks: WindowMarks, instances: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """Columns of _DEVICE_SCHEMA for the cycles of one window that have phases."""
    mine = cycles.filter(pl.col("window") == marks.window)
    total = pl.sum_horizontal(*BUCKETS)
    table = (
        instances.filter(pl.col("window") == marks.window, pl.col("cycle") >= 0)
        .group_by("window", "cycle")
        .agg(
            *(total.filter(pl.col("phase") == p).sum().alias(f"device_{p}_ns") for p in LEAF_PHASES),
            pl.col("complete").all(),
        )
    )
    start = mine.get_column("start_ns")
    following = mine.select((pl.col("start_ns") + pl.col("step_ns")).fill_null(-1)).to_series().to_numpy()
    reached = _last_end(marks, mine.get_column("cycle").fill_null(-1).to_numpy())
    known = following >= 0
    upto = np.where(known, following, start.to_numpy())  # an instant in any case
    other = np.where(known, marks.other_before(upto) - marks.other_before(start.to_numpy()), 0)
    sliced = mine.select("window", "cycle").with_columns(
        pl.when(pl.Series(known)).then(pl.Series(other)).alias(f"device_{OTHER}_ns"),
        pl.when(pl.Series(known & (reached >= 0))).then(pl.Series(reached > following)).alias("runs_over"),
    )
    joined = table.join(sliced, on=["window", "cycle"], how="inner")
    return joined.select(pl.col(c).cast(t) for c, t in _DEVICE_SCHEMA.items())


def _last_end(marks: WindowMarks, cycles: Ints) -> Ints:
    """Last end of the device work that each of the cycles launched in its ranges, -1 where none."""
    numbers = cycle_numbers(marks.ranges)
    order = np.argsort(cycles, kind="stable")
    at = np.searchsorted(cycles[order], numbers)
    found = at < len(cycles)
    found[found] &= cycles[order][at[found]] == numbers[found]
    ends = np.full(len(cycles), -1, dtype=np.int64)
    np.maximum.at(ends, order[at[found]], marks.range_end[found])
    return ends
