"""Waiting and transfer as JSON and as sums: what the ranks' matched collectives come to."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from specanalyze.attribution.waits import Waits

SHARES_SCHEMA: Final = {"replay": pl.Int64, "wait_ns": pl.Int64, "transfer_ns": pl.Int64}


def by_replay(waits: Waits | None, rank: str, phase: str) -> pl.DataFrame:
    """Waiting and transfer of one rank in each replay of a phase, over matched collectives that are not void.

    Returns:
        One row a replay (eager collectives together under a null replay): replay, wait_ns, transfer_ns.
    """
    if waits is None or not waits.matched:
        return pl.DataFrame(schema=SHARES_SCHEMA)
    mine = waits.table(*SHARES_SCHEMA, of=~pl.col("voided") & waits.of_rank(rank) & waits.in_phase(phase))
    sums = mine.group_by("replay").agg(pl.col("wait_ns").sum(), pl.col("transfer_ns").sum()).sort("replay")
    return sums.select(pl.col(name).cast(kind) for name, kind in SHARES_SCHEMA.items())


_OF_JSON: Final = (
    *("collective", "matched_by", "phase", "group", "seq", "rank", "dur_ns", "wait_ns", "transfer_ns", "complete"),
    "voided",
)


def wait_json(waits: Waits | None) -> dict[str, Any] | None:
    """The ``wait`` object of ``ranks --json`` (docs/commands.md); None with one rank."""
    if waits is None:
        return None
    table = waits.table(*_OF_JSON)
    keys = list(waits.unmatched)
    by_seq = table.filter(pl.col("matched_by") == "seq")
    by_replay = table.filter(pl.col("matched_by") == "replay")
    used = table.filter(~pl.col("voided"))
    ways = []
    if by_seq.height:
        ways.append("process group and Seq")
    phases = by_replay.get_column("phase").unique(maintain_order=True).to_list()
    ways += [f"n-th communication kernel of the n-th {phase} replay" for phase in phases]
    complete = bool(table.get_column("complete").all()) if table.height else None
    first = pl.col("voided", "matched_by", "complete", "group", "seq").first()
    each = table.group_by("collective", maintain_order=True).agg("rank", "wait_ns", first)
    shares = each.select("voided", "rank", "wait_ns").iter_rows()
    per_collective = [None if void else dict(zip(ranks, ns, strict=True)) for void, ranks, ns in shares]
    each = each.with_row_index("place").filter(pl.col("matched_by") == "seq")
    numbers = each.get_column("seq")
    ambiguous = set(numbers.filter(numbers.is_duplicated()).to_list())
    missing: dict[tuple[str, int], set[int]] = {}
    for group, seq, rank in waits.missing:
        missing.setdefault((group, seq), set()).add(rank)
    collectives: dict[str, Any] = {}
    for one in each.iter_rows(named=True):  # one turn a collective with a sequence number, for its JSON object
        values, lacks = per_collective[one["place"]], missing.get((one["group"] or "", one["seq"]), ())
        entry: dict[str, Any] = {"complete": one["complete"]}
        if lacks and not one["complete"]:
            entry |= {"missing_ranks": sorted(lacks), "lower_bound_ns": values}
        else:
            entry["wait_ns"] = values
        collectives[f"{one['seq']}#{one['place']}" if one["seq"] in ambiguous else str(one["seq"])] = entry
    sums = {k: used.filter(pl.col("rank") == k) for k in keys}
    result: dict[str, Any] = {
        "matched_by": "; ".join(ways) or None,
        "complete": complete,
        "voided": waits.voided,
        "unmatched_kernels": waits.unmatched,
        "per_collective_ns": per_collective,
        "wait_ns": {k: int(t["wait_ns"].sum()) for k, t in sums.items()},
        "transfer_ns": {k: int(t["transfer_ns"].sum()) for k, t in sums.items()},
        "last_to_arrive": last_to_arrive(table),
    }
    if collectives:
        result["collectives"] = collectives
    return result


def last_to_arrive(table: pl.DataFrame) -> list[str | None]:
    """For each collective in order of time the rank with the shortest duration: the others waited for it; None if void."""
    if not table.height:
        return []
    by_time = table.sort("collective", "dur_ns", maintain_order=True)
    shortest = by_time.group_by("collective", maintain_order=True).first()
    picked = shortest.select(pl.when(~pl.col("voided")).then(pl.col("rank"))).to_series()
    return picked.to_list()
