"""Waiting and transfer of collectives across ranks (RULES R7, design rule D4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import polars as pl

from specanalyze.attribution.activities import Activities, communication_code
from specanalyze.attribution.analysis import RankAnalysis
from specanalyze.attribution.clock_offsets import clock_offsets
from specanalyze.attribution.collective_columns import NAMED, collective_columns
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.attribution.replay_numbers import (
    Replays,
    counted_calls,
    differing_replays,
    none_matched,
    placed_in_replays,
    replays_through,
    some_unmatched,
)
from specanalyze.columns import Ints, integers, texts
from specschema.phases import CYCLE, LEAF_PHASES

MATCH_PHASES: Final = (*LEAF_PHASES, CYCLE)
"""Phases whose replays are counted and matched with the other ranks'."""


@dataclass(frozen=True)
class Communication:
    """One rank's communication kernels, as far as matching needs them.

    Attributes:
        key: the rank's key in reports.
        host: host name or hash; None counts as the same host as every other None.
        kernels: columns index (of the activity), start_ns, end_ns, name, op, dtype, elements, group, group_ranks, algorithm,
            protocol, library, seq, phase (code), replay (n-th graph launch call of its phase, -1 outside replays), position (n-th
            in its replay).
        replays_by_window: window -> phase code -> communication kernels of each replay, replays without records included as 0.
    """

    key: str
    rank: int
    host: str | None
    kernels: pl.DataFrame
    replays_by_window: dict[int, dict[int, Ints]]

    @property
    def replays(self) -> dict[int, Ints]:
        """Phase code -> kernels of each replay, replays numbered through, window after window."""
        return replays_through(self.replays_by_window)


@dataclass
class Waits:
    """What matching the ranks' collectives says.

    Attributes:
        collectives: one row a collective and rank: collective (number in order of time), matched_by (``seq`` or
            ``replay``), phase, group, seq, replay, position (n-th of its group in its replay), rank (key), name, op, dtype, elements,
            group_size, algorithm, protocol, library, start_ns, end_ns, dur_ns, wait_ns (null where the match is void),
            transfer_ns, complete, voided.
        unmatched: rank key -> communication kernels not matched with the other ranks'.
        voided: collectives whose match failed the test of the ends.
        missing: (group, seq, missing rank) of groups without a record of one of their ranks.
        reasons: why replays of a phase were not matched, one line each.
        offsets: rank key -> median difference of collective ends to the first rank's, ns, where hosts differ.
        offset_spread: rank key -> median absolute deviation of that difference, ns.
    """

    collectives: pl.DataFrame
    unmatched: dict[str, int]
    voided: int
    missing: list[tuple[str, int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    offset_spread: dict[str, int] = field(default_factory=dict)


def communication_of(
    key: str, rank: int, host: str | None, ranges: Ranges, activities: Activities, window: int
) -> Communication:
    """Pick one rank's communication kernels and place them in the replays of their phases.

    Replays are counted by their launch calls, with or without records; calls in no recognised range form no replay here.
    """
    index = np.flatnonzero(communication_code(activities.bucket))
    launch = activities.launch[index]
    launches = activities.launches
    range_phase = np.append(ranges.phase, -1)
    call_phase = range_phase[activities.graph_call_range]
    number, counts = counted_calls(call_phase, activities.graph_call_start, [PHASE_CODE[p] for p in MATCH_PHASES])
    replay = np.full(len(index), -1, dtype=np.int64)
    in_graph = np.flatnonzero(launch >= 0)
    in_graph = in_graph[launches.graph[launch[in_graph]]]
    replay[in_graph] = number(launches.start[launch[in_graph]])
    phase = activities.phase[index]
    position, replays = placed_in_replays(phase, replay, activities.start[index], counts)
    rows = activities.rows[activities.row[index]]
    kernels = pl.DataFrame(
        {
            "index": index,
            "start_ns": activities.start[index],
            "end_ns": activities.end[index],
            "name": texts(rows, "name"),
            "seq": integers(rows, "seq", -1),
            "phase": phase,
            "replay": replay,
            "position": position,
        },
        schema_overrides={"name": pl.String},
    )
    told = collective_columns(activities, index)
    kernels = pl.concat([kernels, told], how="horizontal").with_columns(pl.lit(window).alias("window"))
    return Communication(key, rank, host, kernels, {window: replays})


def joined_windows(parts: Sequence[Communication]) -> Communication:
    """One rank's windows together; replays are numbered through, window after window."""
    before: dict[int, int] = {}
    frames = []
    for part in parts:
        shift = pl.lit(0)
        for phase, sizes in part.replays.items():
            moved = (pl.col("phase") == phase) & (pl.col("replay") >= 0)
            shift = pl.when(moved).then(before.get(phase, 0)).otherwise(shift)
            before[phase] = before.get(phase, 0) + len(sizes)
        frames.append(part.kernels.with_columns((pl.col("replay") + shift).alias("replay")))
    by_window = {window: sizes for part in parts for window, sizes in part.replays_by_window.items()}
    return replace(parts[0], kernels=pl.concat(frames), replays_by_window=by_window)


def rank_communication(analysis: RankAnalysis) -> Communication:
    """One rank's communication over all windows."""
    rank = analysis.trace
    return joined_windows(
        [communication_of(rank.key, rank.rank, rank.host, w.ranges, w.activities, w.window) for w in analysis.windows]
    )


class Talk(Replays, Protocol):
    """What matching needs of a rank: ``Communication``, or what becomes it when asked."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str | None: ...
    @property
    def kernels(self) -> pl.DataFrame: ...


def match(ranks: Sequence[Talk], absent: Collection[int] = ()) -> Waits | None:
    """Match the collectives of all ranks; None with fewer than two ranks, where waiting is unknown.

    Args:
        ranks: what each rank recorded.
        absent: ranks of the recording that are not among these. A collective whose group is not told may have had them, so it
            counts as incomplete.
    """
    if len(ranks) < 2:
        return None
    tables = [r.kernels.with_columns(pl.lit(i, dtype=pl.Int64).alias("who")) for i, r in enumerate(ranks)]
    all_kernels = pl.concat(tables)
    by_seq, missing = _matched_by_seq(all_kernels, ranks, absent)
    by_replay, reasons = _matched_by_replay(all_kernels, ranks, absent)
    matched = pl.concat([by_seq, by_replay.select(by_seq.columns)])
    matched = _tested(matched, ranks)
    unmatched = {r.key: r.kernels.height - matched.filter(pl.col("who") == i).height for i, r in enumerate(ranks)}
    voided = matched.filter(pl.col("voided")).get_column("collective").n_unique()
    offsets, spread = clock_offsets(matched, [r.host or "" for r in ranks])
    return Waits(
        _named(matched, ranks),
        unmatched,
        voided,
        missing,
        reasons,
        {ranks[i].key: ns for i, ns in offsets.items()},
        {ranks[i].key: ns for i, ns in spread.items()},
    )


def _matched_by_seq(
    kernels: pl.DataFrame, ranks: Sequence[Talk], absent: Collection[int]
) -> tuple[pl.DataFrame, list[tuple[str, int, int]]]:
    """Eager collectives: same process group and sequence number, once a rank."""
    # A group known by name only is taken to be one group; groups of one name but other members are told apart.
    keyed = kernels.filter(pl.col("seq") >= 0, pl.col("replay") < 0).with_columns(
        pl.concat_str(
            pl.col("group").fill_null(""),
            pl.col("group_ranks").cast(pl.List(pl.String)).list.join(",").fill_null(""),
            separator="|",
        ).alias("_group")
    )
    keys = ["_group", "seq", "window"]
    # A key that a rank shows twice says nothing about which is which: not matched.
    once = keyed.filter(pl.len().over([*keys, "who"]) == 1)
    sized = once.with_columns(pl.len().over(keys).alias("have"))
    sized = sized.filter(pl.col("have") > 1)
    members = {*(r.rank for r in ranks), *absent}
    expected = (
        pl.when(pl.col("group_ranks").is_not_null())
        .then(pl.col("group_ranks").list.len())
        .otherwise(pl.lit(len(members)))
    )
    sized = sized.with_columns((pl.col("have") >= expected).alias("complete"), pl.lit("seq").alias("matched_by"))
    incomplete = sized.filter(~pl.col("complete"))
    missing: list[tuple[str, int, int]] = []
    grouped = incomplete.group_by(keys, maintain_order=True).agg(
        pl.col("who").alias("present"), pl.col("group_ranks").first(), pl.col("group").first().alias("name")
    )
    for row in grouped.iter_rows(named=True):  # one turn an incomplete collective
        present = {ranks[i].rank for i in row["present"]}
        everyone = row["group_ranks"] if row["group_ranks"] is not None else sorted(members)
        missing.extend((row["name"] or "", row["seq"], rank) for rank in everyone if rank not in present)
    return _numbered(sized, keys), missing


def _matched_by_replay(
    kernels: pl.DataFrame, ranks: Sequence[Talk], absent: Collection[int]
) -> tuple[pl.DataFrame, list[str]]:
    """The n-th communication kernel of the n-th replay of a phase, where the counts of all ranks agree; why others are not matched.

    Where every kernel of a phase's replays tells its group, it is the n-th kernel of that group, among the group's ranks.
    """
    usable: list[pl.DataFrame] = []
    reasons: list[str] = []
    for phase in MATCH_PHASES:
        code = PHASE_CODE[phase]
        counts = [r.replays[code] for r in ranks]
        if not any(c.any() for c in counts):
            continue
        differing = differing_replays(ranks, code)
        if differing:
            reasons.append(none_matched(phase, differing))
            continue
        mine = kernels.filter((pl.col("phase") == code) & (pl.col("replay") >= 0))
        usable.append(_same_in_group(mine, ranks, phase, len(counts[0]), reasons, all_here=not absent))
    columns = {"_group": pl.String, "have": pl.UInt32, "complete": pl.Boolean, "matched_by": pl.String}
    empty = kernels.clear().with_columns(pl.lit(None, dtype=d).alias(n) for n, d in columns.items())
    rows = pl.concat(usable) if usable else empty
    return _numbered(rows, ["phase", "replay", "_group", "position", "window"]), reasons


def _same_in_group(
    kernels: pl.DataFrame, ranks: Sequence[Talk], phase: str, replays: int, reasons: list[str], *, all_here: bool
) -> pl.DataFrame:
    """A phase's kernels in replays where all ranks of their group have equally many of that group."""
    known = kernels.get_column("group_ranks").null_count() == 0
    group = (
        pl.concat_str(
            pl.col("group").fill_null(""), pl.col("group_ranks").cast(pl.List(pl.String)).list.join(","), separator="|"
        )
        if known
        else pl.lit("")
    )
    rows = kernels.with_columns(group.alias("_group"))
    if known:
        rows = rows.sort("who", "replay", "position").with_columns(
            pl.int_range(pl.len()).over("who", "replay", "_group").cast(pl.Int64).alias("position")
        )
    everyone = {r.rank: i for i, r in enumerate(ranks)}
    kept: list[pl.DataFrame] = []
    odd: set[int] = set()
    for part in rows.partition_by("_group", maintain_order=True):  # one turn a group
        named = part.get_column("group_ranks")[0] if known else None
        members = [everyone[r] for r in named if r in everyone] if named is not None else list(range(len(ranks)))
        if len(members) < 2:
            members = []  # its other ranks are not in this recording
        place = part.get_column("who") * replays + part.get_column("replay")
        sizes = np.bincount(place.to_numpy(), minlength=len(ranks) * replays).reshape(len(ranks), replays)[members]
        same = (sizes == sizes[:1]).all(axis=0)
        odd.update(np.flatnonzero(~same).tolist())
        kept.append(
            part.filter(
                pl.col("who").is_in(members), pl.col("replay").is_in(np.flatnonzero(same).tolist())
            ).with_columns(
                pl.lit(len(members), dtype=pl.UInt32).alias("have"),
                pl.lit(all_here if named is None else len(members) == len(named)).alias("complete"),
                pl.lit("replay").alias("matched_by"),
            )
        )
    if odd:
        reasons.append(some_unmatched(phase, len(odd), replays))
    return pl.concat(kept)


def _numbered(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Give each match an id that is unique within its way of matching."""
    text = pl.concat_str([pl.col(k).cast(pl.String) for k in keys], separator="/")
    members = pl.coalesce(pl.col("group_ranks").list.len(), pl.col("have")).cast(pl.Int64)
    return rows.with_columns((pl.col("matched_by") + ":" + text).alias("match"), members.alias("group_size")).drop(
        "_group", "have"
    )


def _tested(matched: pl.DataFrame, ranks: Sequence[Talk]) -> pl.DataFrame:
    """Test each match by the agreement of ends on hosts that share a clock, number them by time, and split wait and transfer."""
    hosts = [r.host or "" for r in ranks]
    host_code = {h: i for i, h in enumerate(dict.fromkeys(hosts))}
    of_rank = pl.DataFrame({"who": np.arange(len(ranks)), "host": [host_code[h] for h in hosts]}).cast(pl.Int64)
    rows = matched.join(of_rank, on="who", how="left").with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("dur_ns")
    )
    shortest = pl.col("dur_ns").min().over("match")
    spread = pl.col("end_ns").max().over("match", "host") - pl.col("end_ns").min().over("match", "host")
    rows = rows.with_columns(shortest.alias("transfer_ns"), spread.max().over("match").alias("spread_ns"))
    rows = rows.with_columns((pl.col("spread_ns") > pl.col("transfer_ns")).alias("voided"))
    first = rows.sort("who", "start_ns", maintain_order=True).unique("match", keep="first", maintain_order=True)
    numbered = first.sort("start_ns", maintain_order=True).select("match").with_row_index("collective")
    rows = rows.join(numbered, on="match", how="left").with_columns(pl.col("collective").cast(pl.Int64))
    return rows.with_columns(
        pl.when(~pl.col("voided")).then(pl.col("dur_ns") - pl.col("transfer_ns")).alias("wait_ns"),
        pl.when(~pl.col("voided")).then(pl.col("transfer_ns")).alias("transfer_ns"),
    )


def _named(rows: pl.DataFrame, ranks: Sequence[Talk]) -> pl.DataFrame:
    """The public table: names instead of codes, in order of time."""
    names = pl.DataFrame({"who": np.arange(len(ranks)), "rank": [r.key for r in ranks]}).with_columns(
        pl.col("who").cast(pl.Int64)
    )
    phases = pl.DataFrame({"phase": list(PHASE_CODE.values()), "phase_name": list(PHASE_CODE)}).cast(
        {"phase": pl.Int64}
    )
    return (
        rows.join(names, on="who", how="left")
        .join(phases, on="phase", how="left")
        .sort("collective", "who")
        .select(
            "collective",
            "matched_by",
            pl.col("phase_name").alias("phase"),
            "group",
            pl.when(pl.col("seq") >= 0).then(pl.col("seq")).alias("seq"),
            pl.when(pl.col("replay") >= 0).then(pl.col("replay")).alias("replay"),
            pl.when(pl.col("position") >= 0).then(pl.col("position")).alias("position"),
            "rank",
            "name",
            "op",
            "dtype",
            "elements",
            "group_size",
            *NAMED,
            "start_ns",
            "end_ns",
            "dur_ns",
            "wait_ns",
            "transfer_ns",
            "complete",
            "voided",
            "window",
        )
    )
