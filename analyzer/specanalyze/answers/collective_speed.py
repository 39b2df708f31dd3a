"""How fast collectives of each size moved: bus bandwidth against what the link can do, said in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from specschema.link_limits import LinkLimit, link_limit

LATENCY_BOUND: Final = 0.1
"""Below this share of the link's limit the bytes hardly matter: latency decides."""
BANDWIDTH_BOUND: Final = 0.5
"""From this share of the limit on the bytes decide: measured bus bandwidths end at 70 to 85 % of it."""

BYTES_OF: Final = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool", "fp8", "char", "byte"), 1),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "half", "f16", "fp16", "int16", "short"), 2),
    **dict.fromkeys(("float32", "float", "f32", "fp32", "int32", "int", "u32"), 4),
    **dict.fromkeys(("float64", "double", "f64", "int64", "long", "u64"), 8),
}
"""Bytes of an element, under every spelling that torch, Kineto and kernel names use."""

SHAPE: Final = ("phase", "op", "dtype", "elements", "group_size", "algorithm", "protocol", "library")

SCHEMA: Final = {
    "phase": pl.String,
    "op": pl.String,
    "dtype": pl.String,
    "elements": pl.Int64,
    "group_size": pl.Int64,
    "algorithm": pl.String,
    "protocol": pl.String,
    "library": pl.String,
    "bytes": pl.Int64,
    "collectives": pl.Int64,
    "transfer_ns": pl.Int64,
    "total_ns": pl.Int64,
    "bus_gb_s": pl.Float64,
    "link": pl.String,
    "limit_gb_s": pl.Float64,
    "link_share": pl.Float64,
    "bound": pl.String,
    "words": pl.String,
}


def message_bytes() -> pl.Expr:
    """Bytes that one rank puts in; null where elements or type are unknown."""
    return pl.col("elements") * pl.col("dtype").str.to_lowercase().replace_strict(
        BYTES_OF, default=None, return_dtype=pl.Int64
    )


def bus_factor() -> pl.Expr:
    """What a message's bytes count on the busiest link of an ideal algorithm (as nccl-tests has it, by what one rank puts
    in): 2(n-1)/n for an allreduce, n-1 for an allgather, (n-1)/n for reducescatter and alltoall, 1 from one to others."""
    n, op = pl.col("group_size").cast(pl.Float64), pl.col("op")
    return (
        pl.when(op == "allreduce")
        .then(2 * (n - 1) / n)
        .when(op == "allgather")
        .then(n - 1)
        .when(op.is_in(["reducescatter", "alltoall"]))
        .then((n - 1) / n)
        .when(op.is_in(["broadcast", "reduce", "send", "recv"]))
        .then(pl.lit(1.0))
    )


def limit_of(environment: Mapping[str, Any], hosts: int) -> LinkLimit | None:
    """The ceiling between the recording's GPUs; None between hosts, where the recording says nothing, and for mixed links."""
    if hosts > 1:
        return None
    links = [link.get("nvlink") for link in environment.get("links") or [] if isinstance(link, Mapping)]
    gpu = environment.get("gpu")
    if not isinstance(gpu, str) or not links or any(link is None for link in links) or len(set(links)) > 1:
        return None
    return link_limit(gpu, bool(links[0]))


def collective_speeds(collectives: pl.DataFrame, limit: LinkLimit | None) -> pl.DataFrame:
    """One row for each size and kind of collective.

    Args:
        collectives: one row a collective and rank: collective (number), the columns of SHAPE, transfer_ns (null where ranks could not be
            matched).
        limit: of the link between the ranks.

    Returns:
        SHAPE, then bytes (one rank's), collectives (how many), transfer_ns (median), total_ns (sum of transfers over collectives),
        bus_gb_s (at the median), link, limit_gb_s, link_share, bound (``latency``, ``bandwidth``, ``between``; null where a
        part is unknown), words; the costliest first. What is unknown is null.
    """
    if not collectives.height:
        return pl.DataFrame(schema=SCHEMA)
    each = collectives.unique("collective", keep="first", maintain_order=True)
    rows = (
        each.group_by(SHAPE, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("transfer_ns").median().round().cast(pl.Int64),
            pl.col("transfer_ns").sum().alias("total_ns"),
        )
        .with_columns(
            message_bytes().alias("bytes"),
            pl.lit(None if limit is None else limit.link, dtype=pl.String).alias("link"),
            pl.lit(None if limit is None else limit.gb_per_s, dtype=pl.Float64).alias("limit_gb_s"),
        )
        .with_columns(
            # bytes per ns are GB/s
            pl.when(pl.col("transfer_ns") > 0)
            .then(pl.col("bytes") * bus_factor() / pl.col("transfer_ns"))
            .alias("bus_gb_s")
        )
        .with_columns((pl.col("bus_gb_s") / pl.col("limit_gb_s")).alias("link_share"))
        .with_columns(
            pl.when(pl.col("link_share") < LATENCY_BOUND)
            .then(pl.lit("latency"))
            .when(pl.col("link_share") >= BANDWIDTH_BOUND)
            .then(pl.lit("bandwidth"))
            .when(pl.col("link_share").is_not_null())
            .then(pl.lit("between"))
            .alias("bound")
        )
    )
    words = pl.Series("words", [_words(row) for row in rows.iter_rows(named=True)], dtype=pl.String)
    return (
        rows.with_columns(words)
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .sort("total_ns", descending=True, maintain_order=True)
    )


def size(count: int | None) -> str:
    """12288 -> ``12 KB``."""
    if count is None:
        return "size unknown"
    for unit, step in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= step:
            value = count / step
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count} B"


def _words(row: Mapping[str, Any]) -> str:
    """``latency-bound, 12 KB, LL ring``."""
    bound = {"latency": "latency-bound", "bandwidth": "bandwidth-bound", "between": "between latency and bandwidth"}
    way = " ".join(part for part in (row["protocol"], row["algorithm"]) if part) or row["library"]
    return ", ".join(part for part in (bound.get(row["bound"]), size(row["bytes"]), way) if part)
