"""Which device work of a cycle grows with its place: phase by phase and bucket by bucket, over the windows of a request."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED, Interval
from specanalyze.answers.cycle_growth import Growth
from specanalyze.answers.cycle_place import CONTEXT, PLACE, POSITION, place_in_words, placed
from specanalyze.answers.medians import bounded, resampled_medians
from specanalyze.answers.neighbours import FEW
from specanalyze.attribution.cycles import decoding
from specschema.figures import signed
from specschema.phases import COMMUNICATION_BUCKETS, DEVICE_BUCKETS, LEAF_PHASES

SHARE: Final = 0.1
"""A part that grows by less than this share of the cycle's growth is not told."""

CHANGE: Final = 0.01
"""Nor one that changes by less than this share of itself between the windows."""
BLOCK: Final = 128
"""Attention kernels read a request's cache in blocks of up to so many tokens, and take longer at each new one: one was seen to grow by 0.27 ms in
64 tokens and by 0.48 at the next. Between two contexts the growth of up to one block may be missing or too much."""
APART: Final = 2
"""Windows less than so many blocks apart tell no growth a token."""

WORK: Final = tuple(b for b in DEVICE_BUCKETS if b not in COMMUNICATION_BUCKETS)
"""Communication moves the same bytes at any context: what changes of it between windows is waiting."""

GROWN_SCHEMA: Final[dict[str, Any]] = {
    "phase": pl.String,
    "bucket": pl.String,
    "first_place": pl.Float64,
    "first_ns": pl.Float64,
    "last_place": pl.Float64,
    "last_ns": pl.Float64,
    "ns_per_place": pl.Float64,
    "low_ns_per_place": pl.Float64,
    "high_ns_per_place": pl.Float64,
}
"""Columns of ``device_growth``."""


def device_growth(instances: pl.DataFrame, cycles: pl.DataFrame, growth: Growth | None) -> pl.DataFrame:
    """Parts of the cycle that grow as the cycle does.

    Args:
        instances: window, cycle, phase and the buckets, ns; recorded whole; one rank, or the mean over ranks as the first numbers
            its cycles.
        cycles: of that rank, columns of ``cycles.CYCLE_SCHEMA``.
        growth: of the untraced cycle.

    Returns:
        Columns of GROWN_SCHEMA, the most growing first: device time of a phase and bucket (communication is none) in the windows at the least and the greatest
        place (with one window in its two halves), medians over their cycles, where the difference is beyond the noise of cycles, CHANGE of it, and SHARE of
        what the cycle grows. Growth a place, with bounds from noise and BLOCK, is null where the places are less than APART blocks of each request apart.
        Without growth, or with fewer than FEW cycles at one of the places, it has no rows.
    """
    empty = pl.DataFrame(schema=GROWN_SCHEMA)
    if growth is None or not instances.height or not decoding(cycles).height:
        return empty
    rows, kind = placed(alike_cycles(cycles)[0])
    if kind != growth.kind:
        return empty
    places = rows.filter(pl.col("window").is_not_null()).select("window", "cycle", PLACE)
    known = instances.filter(pl.col("phase").is_in(LEAF_PHASES)).join(places, on=["window", "cycle"])
    summed = known.group_by("window", "cycle", "phase", PLACE).agg(pl.col(b).sum() for b in WORK)
    summed = summed.sort("window", "cycle")
    part = pl.col("window")
    if summed.get_column("window").n_unique() == 1:  # the two halves of the only window
        part = (pl.col(PLACE) > pl.col(PLACE).median()).cast(pl.Int64)
    summed = summed.with_columns(part=part)
    parts = summed.group_by("part").agg(pl.col(PLACE).median(), pl.col("cycle").n_unique().alias("n")).sort(PLACE)
    parts = parts.filter(pl.col("n") >= FEW)
    if parts.height < 2:
        return empty
    first, last = parts.row(0, named=True), parts.row(-1, named=True)
    apart = last[PLACE] - first[PLACE]
    if apart <= 0:
        return empty
    size = rows.get_column("batch_size").drop_nulls()
    # Without contexts a place is a cycle, which commits a token of each request at least.
    block = float(BLOCK * (size[0] if kind == CONTEXT and len(size) else 1))
    found = []
    for phase in summed.get_column("phase").unique(maintain_order=True):  # one turn a phase and bucket
        ends = [summed.filter(pl.col("phase") == phase, pl.col("part") == p["part"]) for p in (first, last)]
        for bucket in WORK:
            one, other = (e.get_column(bucket).to_numpy().astype(np.float64) for e in ends)
            if min(len(one), len(other)) < FEW or not (one.any() or other.any()):
                continue
            pair = float(np.median(one)), float(np.median(other))
            more = bounded(pair[1] - pair[0], resampled_medians(other, SEED + 1) - resampled_medians(one))
            rate = more.value / apart
            if not more.excludes_zero or rate / growth.slope.value < SHARE or abs(more.value) < CHANGE * pair[0]:
                continue
            slope = (rate, *_bounds(more, apart, block)) if apart >= APART * block else (None, None, None)
            found.append((phase, bucket, first[PLACE], pair[0], last[PLACE], pair[1], *slope))
    table = pl.DataFrame(found, schema=GROWN_SCHEMA, orient="row")
    return table.sort((pl.col("last_ns") - pl.col("first_ns")).abs(), descending=True)


def _bounds(more: Interval, apart: float, block: float) -> tuple[float, float]:
    """Of the growth a place: each end of what grew, with the growth of one block less and more."""
    ends = [end / (apart + way * block) for end in (more.low, more.high) if end is not None for way in (-1, 1)]
    return min(ends), max(ends)


def grown_part(row: dict[str, Any], kind: str) -> str:
    """``verify attention 4.15 ms at 213 tokens, 9.18 ms at 633 tokens (+11.5 us a token, 9.2 to 17.3)``, or without the rate."""
    ends = ", ".join(
        f"{row[f'{end}_ns'] / 1e6:.2f} ms at {place_in_words(row[f'{end}_place'], kind)}" for end in ("first", "last")
    )
    said = f"{row['phase']} {row['bucket']} {ends}"
    if row["ns_per_place"] is None:
        return said
    rate, low, high = (row[f"{name}ns_per_place"] / 1000 for name in ("", "low_", "high_"))
    return f"{said} ({signed(rate, 2)} us a {UNITS[kind]}, bounds {signed(low, 1)} to {signed(high, 1)})"


def too_near(grown: pl.DataFrame, kind: str) -> str | None:
    """Why the parts have no growth a token, and what would tell it; None where they have one."""
    if not grown.height or grown.get_column("ns_per_place").null_count() == 0:
        return None
    apart = float(grown["last_place"][0]) - float(grown["first_place"][0])
    return (
        f"by how much a {UNITS[kind]} cannot be told from contexts {apart:.0f} {UNITS[kind]}s apart, as such work grows in steps of up to {BLOCK} tokens "
        "of each request: record windows along the request (--windows record=40,repeat=3,gap=100)"
    )


UNITS: Final = {CONTEXT: "token", POSITION: "cycle"}
"""What a place counts."""
