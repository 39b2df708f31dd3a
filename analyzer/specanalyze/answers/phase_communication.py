"""Communication of a phase across the ranks: what each replay waits for, and what it transfers (rule D4)."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from specanalyze.attribution.collective_match import match
from specanalyze.attribution.waits import Talk, Waits, joined_waits
from specschema.kernel_classes import classify
from specschema.phases import COMMUNICATION_BUCKETS


def matched_waits(talks: Mapping[int, list[Talk]], ranks: int) -> Waits | None:
    """Collectives matched window by window, where all ranks have the window; None with one rank, or without any."""
    if ranks < 2:
        return None
    found = [w for talk in talks.values() if len(talk) == ranks and (w := match(talk)) is not None]
    if not found:
        return None
    return joined_waits(found, {key: sum(w.unmatched.get(key, 0) for w in found) for key in found[0].unmatched})


def phase_communication(waits: Waits | None, ranks: int, phase: str, bucket: str | None = None) -> pl.DataFrame | None:
    """Waiting and transfer of the communication kernels in each replay of a phase, mean over the ranks.

    Args:
        waits: of ``matched_waits``.
        ranks: of the recording.
        phase: leaf phase.
        bucket: ``allreduce`` or ``other_comm``; None for both.

    Returns:
        window, replay, wait_ns, transfer_ns in order of time; None where nothing could be matched across ranks.
    """
    if waits is None or not waits.matched:
        return None
    mine = waits.table(
        *("window", "replay", "wait_ns", "transfer_ns", *(("name", "op") if bucket is not None else ())),
        of=waits.in_phase(phase) & (pl.col("replay") >= 0) & ~pl.col("voided"),
    )
    if bucket is not None:
        mine = mine.filter(_bucket(mine) == bucket)
    if not mine.height:
        return None
    return (
        mine.group_by("window", "replay")
        .agg((pl.col(c).sum() / ranks).alias(c) for c in ("wait_ns", "transfer_ns"))
        .sort("window", "replay")
    )


def _bucket(collectives: pl.DataFrame) -> pl.Series:
    """Bucket of each collective: its kernel's class, as in the partition; else its operation says it."""
    names = collectives.get_column("name")
    known = {n: b for n in names.unique().drop_nulls().to_list() if (b := classify(n).bucket) in COMMUNICATION_BUCKETS}
    by_op = pl.when(pl.col("op") == "allreduce").then(pl.lit("allreduce")).otherwise(pl.lit("other_comm"))
    by_name = pl.col("name").replace_strict(known, default=None, return_dtype=pl.String)
    return collectives.select(pl.coalesce(by_name, by_op)).to_series()
