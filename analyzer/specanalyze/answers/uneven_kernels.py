"""Kernels that take longer on some ranks than on others, called equally often: ranks that ought to do the same work, and do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.bootstrap import LEVEL
from specanalyze.answers.breakdown import Breakdown
from specanalyze.answers.instance_kernels import KEYS, InstanceKernels, rank_instances
from specanalyze.answers.medians import resampled_medians
from specanalyze.answers.neighbours import FEW
from specschema.figures import counted
from specschema.phases import BUCKETS

WORTH: Final = 0.005
WORTH_NS: Final = 10_000
"""A difference below this share of the phase, or below 10 us an instance, is not shown: equal GPUs of one host differ by one to
five per cent in each kernel, which in a phase of a few short kernels is a share of its own."""
PLACED_ALIKE: Final = 0.1
"""Where the ranks know the module of shares of a kernel's calls that are further apart, they are compared by name alone."""

UNEVEN_SCHEMA: Final[dict[str, Any]] = {
    **dict.fromkeys(KEYS, pl.String),
    "calls": pl.Int64,
    "ranks": pl.List(pl.String),
    "call_ns": pl.List(pl.Float64),
    "instance_ns": pl.List(pl.Float64),
    "fastest": pl.String,
    "slowest": pl.String,
    "difference_ns": pl.Float64,
    "difference_low_ns": pl.Float64,
    "difference_high_ns": pl.Float64,
    "share": pl.Float64,
}
"""Columns of ``uneven_kernels``: phase, bucket, module (layers as N) and name; calls an instance, the same on all its ranks; by rank
(``ranks``): ns a call, and ns an instance that the partition gave them, both medians over instances; the ranks with least and most
of the latter, their difference with its bounds, and its share of the phase's instance."""


def compared_kernels(ranks: Mapping[str, InstanceKernels], breakdown: Breakdown) -> pl.DataFrame:
    """Kernels that several ranks call equally often in an instance of a phase.

    Instances in which a rank calls a kernel another number of times than usual (recorded in part, a batch of another size) do
    not count; nor do kernels that run in fewer than half of a rank's instances, or in fewer than FEW.

    Args:
        ranks: rank -> its kernels.
        breakdown: the partition of the same ranks.

    Returns:
        Columns of UNEVEN_SCHEMA, the largest difference first; its bounds null.
    """
    empty = pl.DataFrame(schema=UNEVEN_SCHEMA)
    if len(ranks) < 2:
        return empty
    typical = pl.concat([_typical(kernels, rank) for rank, kernels in placed_alike(ranks).items()])
    time = pl.col("instance_ns")
    rows = (
        typical.group_by(KEYS, maintain_order=True)
        .agg(
            pl.col("calls").first(),
            pl.col("calls").n_unique().alias("kinds"),
            pl.col("rank").alias("ranks"),
            pl.col("call_ns"),
            time,
            pl.col("rank").get(time.arg_min()).alias("fastest"),
            pl.col("rank").get(time.arg_max()).alias("slowest"),
            (time.max() - time.min()).alias("difference_ns"),
        )
        .filter(pl.col("ranks").list.len() > 1, pl.col("kinds") == 1)
    )
    phases = phase_instance_ns(breakdown)
    share = pl.col("difference_ns") / pl.col("phase").replace_strict(phases, default=None, return_dtype=pl.Float64)
    none = pl.lit(None, dtype=pl.Float64)
    rows = rows.with_columns(share.alias("share"), difference_low_ns=none, difference_high_ns=none)
    return rows.select(pl.col(c).cast(t) for c, t in UNEVEN_SCHEMA.items()).sort(
        "difference_ns", *KEYS, descending=[True, *[False] * len(KEYS)]
    )


def uneven_kernels(
    ranks: Mapping[str, InstanceKernels], breakdown: Breakdown, compared: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Those of ``compared_kernels`` whose difference is worth showing (WORTH, WORTH_NS) and beyond chance: bounds at 99 %, resampled, without zero.

    Args:
        ranks, breakdown: as there.
        compared: its answer, where it is known.
    """
    rows = compared_kernels(ranks, breakdown) if compared is None else compared
    rows = rows.filter(pl.col("share") >= WORTH, pl.col("difference_ns") >= WORTH_NS)
    if not rows.height:
        return rows
    alike = placed_alike(ranks)
    bounds = [_bounds(alike, row) for row in rows.iter_rows(named=True)]  # one turn a kernel worth it
    low, high = (pl.Series(name, [b[i] for b in bounds], dtype=pl.Float64) for i, name in enumerate(_BOUNDS))
    return rows.with_columns(low, high).filter(pl.col("difference_low_ns") > 0)


_BOUNDS: Final = ("difference_low_ns", "difference_high_ns")


def phase_instance_ns(breakdown: Breakdown) -> dict[str, float]:
    """ns of a whole instance of each phase that has any, mean over the ranks."""
    found: dict[str, list[float]] = {}
    for rank in breakdown.ranks:
        whole = rank.phase_instances.filter("complete") if rank.phase_instances.height else rank.phase_instances
        if whole.height:
            total = pl.sum_horizontal(*BUCKETS).mean().alias("mean_ns")
            for phase, mean in whole.group_by("phase").agg(total).iter_rows():
                if mean:
                    found.setdefault(phase, []).append(mean)
    return {phase: sum(each) / len(each) for phase, each in found.items()}


def placed_alike(ranks: Mapping[str, InstanceKernels]) -> dict[str, InstanceKernels]:
    """Kernels by module where the ranks know the module of the same share of a kernel's calls, else by name alone."""
    calls = pl.col("calls")
    known = calls.filter(pl.col("module").is_not_null()).sum() / calls.sum()
    in_all = {rank: _counted(kernels) for rank, kernels in ranks.items()}
    shares = [keys.group_by("phase", "name").agg(known.alias("known")) for keys in in_all.values()]
    apart = pl.col("known").max() - pl.col("known").min()
    unlike = (
        pl.concat(shares).group_by("phase", "name").agg(apart.alias("apart")).filter(pl.col("apart") > PLACED_ALIKE)
    )
    if not unlike.height:
        return dict(ranks)
    # Without its module a kernel's class is by name, which may be another one than the map's.
    placed = pl.concat([keys.filter(pl.col("module").is_not_null()) for keys in in_all.values()])
    told = placed.group_by("phase", "name", "bucket").agg(calls.sum()).sort("calls", "bucket", descending=[True, False])
    told = told.unique(["phase", "name"], keep="first", maintain_order=True).rename({"bucket": "told"})
    unlike = unlike.join(told, on=["phase", "name"], how="left")
    found = {}
    for rank, kernels in ranks.items():
        keys = kernels.keys.join(unlike, on=["phase", "name"], how="left", maintain_order="left")
        by_name = pl.col("apart").is_not_null()
        bucket = pl.when(by_name).then(pl.coalesce("told", "bucket")).otherwise(pl.col("bucket")).alias("bucket")
        module = pl.when(~by_name).then(pl.col("module")).alias("module")
        found[rank] = rank_instances([InstanceKernels(keys.with_columns(bucket, module).select(KEYS), kernels.times)])
    return found


def _counted(kernels: InstanceKernels) -> pl.DataFrame:
    """The kernels of a rank with their calls in all."""
    calls = kernels.times.group_by("kernel").agg(pl.col("calls").cast(pl.Int64).sum())
    return kernels.keys.with_row_index("kernel").join(calls, on="kernel", how="left")


def _typical(kernels: InstanceKernels, rank: str) -> pl.DataFrame:
    """One row a kernel of a rank: calls of its usual instance, ns a call and ns an instance."""
    keys = kernels.keys.with_row_index("kernel")
    phase = keys.select("kernel", pl.col("phase").cast(pl.Categorical))
    instances = (
        kernels.times.select("kernel", "window", "instance")
        .join(phase, on="kernel")
        .group_by("phase")
        .agg(pl.struct("window", "instance").n_unique().alias("instances"))
        .with_columns(pl.col("phase").cast(pl.String))
    )
    medians = (
        _usual(kernels.times)
        .group_by("kernel")
        .agg(
            pl.col("calls").first().cast(pl.Int64),
            pl.len().alias("counted"),
            (pl.col("busy_ns") / pl.col("calls")).median().alias("call_ns"),
            pl.col("exposed_ns").median().alias("instance_ns"),
        )
    )
    return (
        keys.join(medians, on="kernel", maintain_order="left")
        .join(instances, on="phase", maintain_order="left")
        .filter(pl.col("counted") >= FEW, 2 * pl.col("counted") >= pl.col("instances"))
        .select(pl.lit(rank).alias("rank"), *KEYS, "calls", "call_ns", "instance_ns")
    )


def _usual(times: pl.DataFrame) -> pl.DataFrame:
    """Instances that call a kernel as often as it is usual on their rank."""
    usual = times.group_by("kernel").agg(pl.col("calls").quantile(0.5, "lower").cast(pl.UInt32).alias("usual"))
    return times.join(usual, on="kernel").filter(pl.col("calls") == pl.col("usual"))


def _bounds(ranks: Mapping[str, InstanceKernels], row: Mapping[str, Any]) -> tuple[float, float]:
    """Bounds of a difference of medians over instances, at LEVEL.

    Both ranks are resampled with the same draws: where they have the same instances, as ranks of one group do, those stay paired, and
    what both share (a longer context) adds nothing to the bounds.
    """
    same = [pl.col(key).eq_missing(pl.lit(row[key], dtype=pl.String)) for key in KEYS]
    drawn = []
    for rank in (row["slowest"], row["fastest"]):
        (kernel,) = ranks[rank].keys.with_row_index("kernel").filter(*same).get_column("kernel")
        mine = _usual(ranks[rank].times.filter(pl.col("kernel") == kernel)).sort("window", "instance")
        drawn.append(resampled_medians(mine.get_column("exposed_ns").to_numpy().astype(np.float64)))
    low, high = np.quantile(drawn[0] - drawn[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def slower_ns(rows: pl.DataFrame) -> pl.DataFrame:
    """What each rank's kernels take more than the fastest rank's.

    Args:
        rows: of ``uneven_kernels`` or ``compared_kernels``.

    Returns:
        rank, phase, bucket, slower_ns an instance of the phase; one row where a rank has such a kernel, 0 where it is the fastest.
    """
    least = pl.col("instance_ns").list.min()
    each = rows.select("phase", "bucket", pl.col("ranks").alias("rank"), "instance_ns", least.alias("least"))
    return (
        each.explode("rank", "instance_ns")
        .group_by("rank", "phase", "bucket")
        .agg((pl.col("instance_ns") - pl.col("least")).sum().alias("slower_ns"))
        .sort("rank", "phase", "bucket")
    )


def typical_ratio(compared: pl.DataFrame) -> dict[str, float]:
    """How many times as long as on the fastest rank a typical kernel takes on each rank.

    The lesser of two medians, of kernels and of kernels weighted by their time: neither one long kernel nor many short ones alone make a
    rank slow.

    Args:
        compared: of ``compared_kernels``.
    """
    least = pl.col("instance_ns").list.min()
    each = compared.select(pl.col("ranks").alias("rank"), "instance_ns", least.alias("least"))
    each = each.explode("rank", "instance_ns").filter(pl.col("least") > 0)
    each = each.with_columns((pl.col("instance_ns") / pl.col("least")).alias("ratio")).sort("rank", "ratio")
    # In order of ratio, the kernel at which half of the time is reached.
    reached = pl.col("least").cum_sum().over("rank") * 2 >= pl.col("least").sum().over("rank")
    ratio = pl.col("ratio")
    medians = each.with_columns(reached.alias("reached")).group_by("rank", maintain_order=True)
    lesser = pl.min_horizontal(ratio.median(), ratio.filter(pl.col("reached")).min())
    return dict(medians.agg(lesser.alias("ratio")).iter_rows())


def sides(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Ranks of a row of ``uneven_kernels`` that are nearer to its slowest one, and those nearer to its fastest one."""
    times = dict(zip(row["ranks"], row["instance_ns"], strict=True))
    middle = (min(times.values()) + max(times.values())) / 2
    return [rank for rank, ns in times.items() if ns >= middle], [rank for rank, ns in times.items() if ns < middle]


def span_us(ns: Mapping[str, float], ranks: Sequence[str]) -> str:
    """us of some ranks, ``2.6`` or ``2.6 to 2.9``."""
    low, high = (f"{pick(ns[rank] for rank in ranks) / 1e3:.1f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    return name.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0].split("<")[0]


def in_words(row: Mapping[str, Any]) -> str:
    """A row of ``uneven_kernels`` as a sentence."""
    slower, faster = sides(row)
    call = dict(zip(row["ranks"], row["call_ns"], strict=True))
    where = f" in {row['module']}" if row["module"] else ""
    return (
        f"{row['phase']} {row['bucket']}, {short_name(row['name'])}{where}, {counted(row['calls'], 'call')}: {span_us(call, slower)} us a call on "
        f"{ranks_in_words(slower)}, {span_us(call, faster)} on {ranks_in_words(faster)}: {row['difference_ns'] / 1e6:.3f} ms a {row['phase']}"
    )


def ranks_in_words(ranks: Sequence[str]) -> str:
    """``rank 3`` or ``ranks 0, 1 and 3``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"
