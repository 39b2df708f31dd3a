"""The same collective on all ranks: matched by sequence number, or by its place in the replays (RULES R7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.clock_offsets import clock_offsets
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.replay_numbers import differing_replays, none_matched, some_unmatched
from specanalyze.attribution.waits import MATCH_PHASES, ROWS, Talk, Waits
from specanalyze.columns import Ints, distinct

_NO_RANKS: Final = -1


def match(ranks: Sequence[Talk], absent: Collection[int] = ()) -> Waits | None:
    """Match the collectives of all ranks; None with fewer than two ranks, where waiting is unknown.

    Args:
        ranks: what each rank recorded.
        absent: ranks of the recording that are not among these. A collective whose group is not told may have had them, so it
            counts as incomplete.
    """
    if len(ranks) < 2:
        return None
    kernels, facts = _together(ranks)
    by_seq, missing = _matched_by_seq(kernels, facts, ranks, absent)
    by_replay, reasons = _matched_by_replay(kernels, facts, ranks, absent)
    spoken = np.bincount(kernels.get_column("who").to_numpy(), minlength=len(ranks))
    del kernels
    rows, offsets, spread = _tested([*by_seq, *by_replay], facts, ranks)
    matched = np.bincount(rows.get_column("who").to_numpy(), minlength=len(ranks))
    return Waits(
        rows,
        facts.frame,
        [r.key for r in ranks],
        {r.key: int(spoken[i] - matched[i]) for i, r in enumerate(ranks)},
        rows.filter("voided").get_column("collective").n_unique(),
        missing,
        reasons,
        {ranks[i].key: ns for i, ns in offsets.items()},
        {ranks[i].key: ns for i, ns in spread.items()},
    )


@dataclass(frozen=True)
class _Facts:
    """What collectives are.

    Attributes:
        frame: columns FACTS.
        group: number of the process group (name and ranks) of each row; of a group whose ranks are not known, the name counts.
        members: ranks of the group of each row, _NO_RANKS where they are not known.
    """

    frame: pl.DataFrame
    group: Ints
    members: Ints


def _together(ranks: Sequence[Talk]) -> tuple[pl.DataFrame, _Facts]:
    """The ranks' kernels in one table, with ``who``, and their facts."""
    frames, facts = [], []
    first = 0
    for i, rank in enumerate(ranks):
        rows, own = rank.rows, rank.facts
        fact = (pl.col("fact") + pl.lit(first, dtype=pl.UInt32)).alias("fact")
        frames.append(rows.with_columns(fact, pl.lit(i, dtype=pl.UInt16).alias("who")))
        facts.append(own.with_columns(pl.lit(rank.rank, dtype=pl.Int32).alias("of_rank")))
        first += own.height
    frame = _told_by_others(pl.concat(facts))
    listed = pl.col("group_ranks").cast(pl.List(pl.String)).list.join(",")
    text = pl.concat_str(pl.col("group").fill_null(""), listed.fill_null("?"), separator="|")
    group = frame.select(text.rank("dense").cast(pl.Int64)).to_series().to_numpy()
    members = frame.select(pl.col("group_ranks").list.len().cast(pl.Int64).fill_null(_NO_RANKS)).to_series().to_numpy()
    return pl.concat(frames), _Facts(frame, group, members)


def _told_by_others(facts: pl.DataFrame) -> pl.DataFrame:
    """The facts with the ranks of a group also where only its name is told: those told elsewhere, if all tell the same of that name.

    Args:
        facts: columns FACTS and of_rank, which is of the ranks that the group may have.
    """
    silent = pl.col("group").is_not_null() & pl.col("group_ranks").is_null()
    if not facts.select(silent.any() & pl.col("group_ranks").is_not_null().any()).item():
        return facts.drop("of_rank")
    told = facts.filter(pl.col("group").is_not_null() & pl.col("group_ranks").is_not_null())
    told = told.select("group", told="group_ranks").unique(maintain_order=True)
    told = told.filter(pl.len().over("group") == 1)
    return (
        facts.join(told, on="group", how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("group_ranks", pl.when(pl.col("told").list.contains(pl.col("of_rank"))).then("told")).alias(
                "group_ranks"
            )
        )
        .drop("told", "of_rank")
    )


@dataclass(frozen=True)
class _Matched:
    """Kernels that were matched in one way.

    Attributes:
        rows: columns ROWS and who; by who, then by time.
        match: which are the same collective, from 0.
        size: ranks of the group, as far as it is known, of each row.
        complete: of each row, whether all of them are there.
        by_seq: how they were matched.
    """

    rows: pl.DataFrame
    match: Ints
    size: Ints
    complete: NDArray[np.bool_]
    by_seq: bool


def _matched_by_seq(
    kernels: pl.DataFrame, facts: _Facts, ranks: Sequence[Talk], absent: Collection[int]
) -> tuple[list[_Matched], list[tuple[str, int, int]]]:
    """Eager collectives: same process group and sequence number, once a rank."""
    rows = kernels.filter(pl.col("seq") >= 0, pl.col("replay") < 0)
    if not rows.height:
        return [], []
    # A group known by name only is taken to be one group; groups of one name but other members are told apart.
    fact = rows.get_column("fact").to_numpy()
    key = _numbered(facts.group[fact], rows.get_column("seq").to_numpy(), rows.get_column("window").to_numpy())
    who = rows.get_column("who").to_numpy()
    # A key that a rank shows twice says nothing about which is which: not matched.
    once = _times(key * len(ranks) + who) == 1
    have = np.bincount(key[once], minlength=int(key.max()) + 1)[key]
    kept = np.flatnonzero(once & (have > 1))
    rows, key, have, fact, who = rows[kept], key[kept], have[kept], fact[kept], who[kept]
    members = {*(r.rank for r in ranks), *absent}
    size = facts.members[fact]
    complete = have >= np.where(size == _NO_RANKS, len(members), size)
    missing: list[tuple[str, int, int]] = []
    lacking = np.flatnonzero(~complete)
    if len(lacking):
        grouped = (
            pl.DataFrame(
                {
                    "key": key[lacking],
                    "who": who[lacking],
                    "seq": rows.get_column("seq").to_numpy()[lacking],
                    "fact": fact[lacking],
                }
            )
            .group_by("key", maintain_order=True)
            .agg("who", pl.col("seq", "fact").first())
        )
        for _, present, seq, first in grouped.iter_rows():  # one turn an incomplete collective
            name, listed = facts.frame.select("group", "group_ranks").row(first)
            there = {ranks[i].rank for i in present}
            everyone = listed if listed is not None else sorted(members)
            missing.extend((name or "", seq, rank) for rank in everyone if rank not in there)
    return [_Matched(rows, key, np.where(size == _NO_RANKS, have, size), complete, by_seq=True)], missing


def _matched_by_replay(
    kernels: pl.DataFrame, facts: _Facts, ranks: Sequence[Talk], absent: Collection[int]
) -> tuple[list[_Matched], list[str]]:
    """The n-th communication kernel of the n-th replay of a phase, where the counts of all ranks agree; why others are not matched.

    Where every kernel of a phase's replays tells its group, it is the n-th kernel of that group, among the group's ranks.
    """
    usable: list[_Matched] = []
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
        usable += _same_in_group(mine, facts, ranks, phase, len(counts[0]), reasons, all_here=not absent)
    return usable, reasons


def _same_in_group(
    rows: pl.DataFrame,
    facts: _Facts,
    ranks: Sequence[Talk],
    phase: str,
    replays: int,
    reasons: list[str],
    *,
    all_here: bool,
) -> list[_Matched]:
    """A phase's kernels in replays where all ranks of their group have equally many of that group."""
    fact = rows.get_column("fact").to_numpy()
    known = bool((facts.members[fact] != _NO_RANKS).all())
    if known:
        rows = rows.sort("who", "replay", "position")
        fact = rows.get_column("fact").to_numpy()
    group = facts.group[fact] if known else np.zeros(len(fact), dtype=np.int64)
    everyone = {r.rank: i for i, r in enumerate(ranks)}
    kept: list[_Matched] = []
    odd: set[int] = set()
    for number in list(
        dict.fromkeys(group[np.sort(np.unique(group, return_index=True)[1])].tolist())
    ):  # one turn a group
        part = np.flatnonzero(group == number)
        named = facts.frame.get_column("group_ranks")[int(fact[part[0]])].to_list() if known else None
        members = [everyone[r] for r in named if r in everyone] if named is not None else list(range(len(ranks)))
        if len(members) < 2:
            members = []  # its other ranks are not in this recording
        here = rows if len(part) == rows.height else rows[part]
        who, replay = (here.get_column(c).to_numpy().astype(np.int64) for c in ("who", "replay"))
        place = who * replays + replay
        sizes = np.bincount(place, minlength=len(ranks) * replays).reshape(len(ranks), replays)[members]
        same = (sizes == sizes[:1]).all(axis=0)
        odd.update(np.flatnonzero(~same).tolist())
        if known:
            here = here.with_columns(pl.Series("position", _nth(place).astype(np.int32)))
        allowed = np.zeros(len(ranks), dtype=bool)
        allowed[members] = True
        used = allowed[who] & same[replay]
        here, replay = (here, replay) if used.all() else (here.filter(pl.Series(used)), replay[used])
        position = here.get_column("position").to_numpy().astype(np.int64)
        match = distinct(replay * (int(position.max(initial=0)) + 1) + position)[1]
        told = facts.members[here.get_column("fact").to_numpy()]
        complete = all_here if named is None else len(members) == len(named)
        kept.append(
            _Matched(
                here,
                match,
                np.where(told == _NO_RANKS, len(members), told),
                np.full(here.height, complete),
                by_seq=False,
            )
        )
    if odd:
        reasons.append(some_unmatched(phase, len(odd), replays))
    return kept


def _nth(key: Ints) -> Ints:
    """Which of the rows with its key each row is, from 0."""
    order = np.argsort(key, kind="stable")
    new = np.append(True, key[order][1:] != key[order][:-1]) if len(key) else np.empty(0, dtype=bool)
    begins = np.flatnonzero(new)
    nth = np.empty(len(key), dtype=np.int64)
    nth[order] = np.arange(len(key)) - np.repeat(begins, np.diff(np.append(begins, len(key))))
    return nth


def _times(key: Ints) -> Ints:
    """How many rows have each row's key."""
    _, place = distinct(key)
    return np.bincount(place)[place] if len(key) else place


def _numbered(*columns: NDArray[np.integer]) -> Ints:
    """Number of each row's combination of values."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        used, place = distinct(column.astype(np.int64))
        key = distinct(key * len(used) + place)[1]
    return key


def _tested(
    parts: Sequence[_Matched], facts: _Facts, ranks: Sequence[Talk]
) -> tuple[pl.DataFrame, dict[int, int], dict[int, int]]:
    """Test each match by the agreement of ends on hosts that share a clock, number them by time, and split wait and transfer.

    Returns:
        ``Waits.rows``, and the ranks' clocks against the first one's.
    """
    first = 0
    matches = []
    for part in parts:
        matches.append(part.match + first)
        first += int(part.match.max(initial=-1)) + 1
    empty = pl.DataFrame(schema={**ROWS, "who": pl.UInt16})
    rows = pl.concat([part.rows.select(empty.columns) for part in parts]) if parts else empty
    match = np.concatenate(matches) if parts else np.empty(0, dtype=np.int64)
    rows = rows.with_columns(
        group_size=pl.Series(np.concatenate([p.size for p in parts]) if parts else [], dtype=pl.Int32),
        complete=pl.Series(np.concatenate([p.complete for p in parts]) if parts else [], dtype=pl.Boolean),
        by_seq=pl.Series(np.repeat([p.by_seq for p in parts], [len(p.match) for p in parts]), dtype=pl.Boolean),
    )
    order = np.argsort(match, kind="stable")  # within a match by rank: so lie the rows of each part
    begins = np.flatnonzero(np.append(True, np.diff(match[order]) != 0)) if len(match) else order
    start, length = rows.get_column("start_ns").to_numpy(), rows.get_column("dur_ns").to_numpy()
    who = rows.get_column("who").to_numpy()
    shortest = np.minimum.reduceat(length[order], begins) if len(match) else order
    hosts = [r.host or "" for r in ranks]
    void = _spread((start + length)[order], who[order], begins, hosts) > shortest
    leads = order[begins]
    by_time = np.lexsort((leads, start[leads], who[leads], start[leads]))
    number = np.empty(len(leads), dtype=np.int64)
    number[by_time] = np.arange(len(leads))
    of_row = np.empty(len(match), dtype=np.int64)
    of_row[order] = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(match))))
    rows = rows.with_columns(
        collective=pl.Series(number[of_row], dtype=pl.UInt32),
        transfer_ns=pl.Series(shortest[of_row], dtype=pl.Int64),
        voided=pl.Series(void[of_row], dtype=pl.Boolean),
    )
    placed = order[np.argsort(number[of_row[order]], kind="stable")]
    rows = rows[placed] if len(placed) else rows
    if len(set(hosts)) < 2:
        return rows, {}, {}
    compared = rows.select("who", "voided", match="collective", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    return rows, *clock_offsets(compared, hosts)


def _spread(end: Ints, who: NDArray[np.integer], begins: Ints, hosts: Sequence[str]) -> Ints:
    """The most by which the ends of each match differ on one host.

    Args:
        end, who: of rows, match by match.
        begins: where each match begins.
        hosts: of the ranks.
    """
    most = np.zeros(len(begins), dtype=np.int64)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for host in dict.fromkeys(hosts) if len(begins) else ():  # one turn a host
        mine = np.array([h == host for h in hosts])[who]
        last = np.maximum.reduceat(np.where(mine, end, low), begins)
        earliest = np.minimum.reduceat(np.where(mine, end, high), begins)
        some = last >= earliest
        most[some] = np.maximum(most[some], last[some] - earliest[some])
    return most
