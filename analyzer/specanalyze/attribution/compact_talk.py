"""One rank's communication kernels in a few narrow arrays, and their waiting and transfer summed without a table of them.

``waits.match`` makes one row of text and numbers for each collective and rank; a breakdown shows sums by replay alone. Where nothing
but the order in the replays tells which collective is which, these sums need durations and ends only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import polars as pl

from specanalyze.attribution.activities import communication_code
from specanalyze.attribution.collective_columns import described, told, with_nodes
from specanalyze.attribution.compact_window import JoinedWindow, Looks
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.replay_numbers import (
    counted_calls,
    differing_replays,
    none_matched,
    placed_in_replays,
    replay_sizes,
    replays_through,
    some_unmatched,
)
from specanalyze.attribution.waits import MATCH_PHASES, ROWS
from specanalyze.columns import Ints, distinct
from specanalyze.native.timeline import Array
from specschema.phases import OUTSIDE, UNATTRIBUTED

_SLICE: Final = 1 << 17
"""Rows looked up at once, where numpy would otherwise make an array as long as the rank."""
_Group: TypeAlias = tuple[str, tuple[int, ...]]
"""Name of a process group, and its ranks."""


@dataclass(frozen=True)
class TalkPart:
    """Communication kernels of one window, in order of start.

    Attributes:
        window: its number.
        start, length: ns.
        look: index into the rank's looks.
        phase: code.
        replay: n-th graph launch call of its phase in the window, -1 outside replays.
        told: what few rows tell: columns row (index into these arrays) and those of COLLECTIVE_FACTS that occur.
        node: row of ``CompactTalk.nodes`` that tells what the kernel's own row does not, -1 where none does; empty of a rank without
            captured graphs.
    """

    window: int
    start: Ints
    length: Array
    look: Array
    phase: Array
    replay: Array
    told: pl.DataFrame
    node: Array

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class CompactTalk:
    """One rank's communication kernels; what ``waits.Communication`` is, and becomes it when asked for its table.

    Attributes:
        key, rank, host: of the rank.
        names: name of each look.
        parts: by window.
        part_replays: by window: phase code -> communication kernels of each replay, replays without records included as 0.
        nodes: what the nodes of captured graphs tell of their collectives: columns of ``collective_columns.TOLD``.
    """

    key: str
    rank: int
    host: str | None
    names: list[str]
    parts: list[TalkPart]
    part_replays: list[dict[int, Ints]]
    nodes: pl.DataFrame = field(default_factory=pl.DataFrame)

    @cached_property
    def replays(self) -> dict[int, Ints]:
        """Phase code -> kernels of each replay, replays numbered through, window after window."""
        return replays_through(self.replays_by_window)

    @property
    def replays_by_window(self) -> dict[int, dict[int, Ints]]:
        """Window -> phase code -> kernels of each replay."""
        return {part.window: sizes for part, sizes in zip(self.parts, self.part_replays, strict=True)}

    @property
    def is_plain(self) -> bool:
        """Whether no kernel's own row tells a group, a sequence number or another fact."""
        return not any(part.told.height for part in self.parts)

    @cached_property
    def _groups(self) -> tuple[Ints, list[_Group]]:
        """Number of the process group of each row of ``nodes``, -1 where its ranks are not known, and the groups."""
        numbers: dict[_Group, int] = {}
        groups = [
            -1 if ranks is None else numbers.setdefault((name or "", tuple(ranks)), len(numbers))
            for name, ranks in self.nodes.select("group", "group_ranks").iter_rows()  # one turn a node
        ]
        return np.array(groups, dtype=np.int64), list(numbers)

    def groups(self, code: int) -> set[_Group] | None:
        """The process groups of the kernels in the replays of a phase; None where one of them does not tell its group's ranks."""
        found: set[_Group] = set()
        for part in self.parts:
            mine = (part.phase == code) & (part.replay >= 0)
            if not mine.any():
                continue
            if not len(part.node) or part.node[mine].min() < 0:
                return None
            of_node, groups = self._groups
            numbers = np.unique(of_node[part.node[mine]]).tolist()
            if numbers[0] < 0:
                return None
            found.update(groups[number] for number in numbers)
        return found

    @property
    def kernels(self) -> pl.DataFrame:
        """The table of ``waits.Communication``."""
        rows, wide = self.rows, ("seq", "phase", "replay", "position")
        index = np.concatenate([np.arange(len(part), dtype=np.int64) for part in self.parts])
        return pl.concat(
            [
                rows.select(
                    pl.Series("index", index),
                    "start_ns",
                    (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"),
                    self.facts.get_column("name").gather(rows.get_column("fact")),
                    pl.col(wide).cast(pl.Int64),
                ),
                self.facts.drop("name")[rows.get_column("fact").to_numpy()],
                rows.select("window"),
            ],
            how="horizontal",
        )

    @property
    def rows(self) -> pl.DataFrame:
        """As ``waits.Communication.rows``."""
        frames = []
        before: dict[int, int] = {}
        for part, sizes, fact in zip(self.parts, self.part_replays, self._described[0], strict=True):
            replay = part.replay.astype(np.int64)
            position, _ = placed_in_replays(part.phase, replay, part.start, {c: len(n) for c, n in sizes.items()})
            for code, counts in sizes.items():  # replays are numbered through
                if before.get(code):
                    replay[(part.phase == code) & (replay >= 0)] += before[code]
                before[code] = before.get(code, 0) + len(counts)
            seq = np.full(len(part), -1, dtype=np.int64)
            if "seq" in part.told.columns:
                seq[part.told.get_column("row").to_numpy()] = part.told.get_column("seq").fill_null(-1).to_numpy()
            columns = (part.start, part.length, seq, part.phase, replay, position, None, fact)
            frame = pl.DataFrame(
                [
                    (
                        pl.repeat(part.window, len(part), dtype=dtype, eager=True)
                        if c is None
                        else pl.Series(c).cast(dtype)
                    ).alias(n)
                    for (n, dtype), c in zip(ROWS.items(), columns, strict=True)
                ]
            )
            frames.append(frame)
        return pl.concat(frames)

    @property
    def facts(self) -> pl.DataFrame:
        """As ``waits.Communication.facts``; kernels that look alike and are of one node share a row."""
        return self._described[1]

    @cached_property
    def _described(self) -> tuple[list[Ints], pl.DataFrame]:
        """Row of ``facts`` for each kernel of each part, and the facts."""
        numbers: list[Ints] = []
        frames: list[pl.DataFrame] = []
        first = 0
        for part in self.parts:
            node = part.node.astype(np.int64) if len(part.node) else np.full(len(part), -1, dtype=np.int64)
            width = self.nodes.height + 1
            used, fact = distinct(part.look.astype(np.int64) * width + node + 1)
            own = part.told.get_column("row").to_numpy() if part.told.height else np.empty(0, dtype=np.int64)
            fact[own] = len(used) + np.arange(len(own))  # rows that tell something of their own
            alike = told(pl.DataFrame({"row": used}))
            both = pl.concat([alike, told(part.told)]) if len(own) else alike
            code = np.concatenate([used, part.look[own].astype(np.int64) * width + node[own] + 1])
            look, place = np.divmod(code, width)
            if len(part.node):
                both = with_nodes(both, self.nodes, place - 1)
            name = pl.Series("name", self.names, dtype=pl.String).gather(look.astype(np.uint32))
            frames.append(pl.concat([pl.DataFrame([name]), described(both, name)], how="horizontal"))
            numbers.append(fact + first)
            first += len(code)
        return numbers, pl.concat(frames)


def joined_parts(windows: Sequence[CompactTalk]) -> CompactTalk:
    """One rank's windows together."""
    return replace(
        windows[0],
        parts=[part for talk in windows for part in talk.parts],
        part_replays=[sizes for talk in windows for sizes in talk.part_replays],
    )


def window_talk(window: JoinedWindow, looks: Looks) -> tuple[TalkPart, dict[int, Ints]]:
    """Communication kernels of a window, and how many each replay of each phase has."""
    device, calls, ranges = window.device, window.calls, window.ranges
    talks = communication_code(looks.bucket.astype(np.int64))
    slices = [np.flatnonzero(talks[device.look[low : low + _SLICE]]) + low for low in range(0, len(device), _SLICE)]
    index = np.concatenate([np.empty(0, dtype=np.int64), *slices])
    call = window.call[index]
    range_phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE]).astype(np.uint8)
    phase = np.full(len(index), PHASE_CODE[UNATTRIBUTED], dtype=np.uint8)
    phase[call >= 0] = range_phase[window.call_range[call[call >= 0]]]
    graph = np.flatnonzero(calls.graph)
    call_phase = np.append(ranges.phase, -1)[window.call_range[graph]]
    codes = [PHASE_CODE[p] for p in MATCH_PHASES]
    number, counts = counted_calls(call_phase, calls.start[graph], codes)
    replay = np.full(len(index), -1, dtype=np.int32)
    if len(graph):
        in_graph = (call >= 0) & calls.graph[call]
        replay[in_graph] = number(calls.start[call[in_graph]])
    start = device.start[index]
    replays = replay_sizes(phase, replay, counts)
    part = TalkPart(
        window.number,
        start,
        device.length[index],
        device.look[index],
        phase,
        replay,
        _told(device.told, index),
        np.empty(0, dtype=np.int32) if window.placed is None else window.placed.collective_nodes(index),
    )
    return part, replays


def _told(facts: pl.DataFrame, index: Ints) -> pl.DataFrame:
    """The facts of some device rows, by their place among these."""
    if not facts.height:
        return facts
    places = pl.DataFrame({"row": index, "place": np.arange(len(index), dtype=np.int64)})
    return facts.join(places, on="row", how="inner").drop("row").rename({"place": "row"}).sort("row")


@dataclass(frozen=True)
class ReplaySums:
    """Waiting and transfer summed by replay.

    Attributes:
        tables: (rank key, phase) -> the table of ``wait_table.by_replay``, of phases that are matched.
        matched: collectives matched across ranks, void ones included.
        voided: those of them whose match failed the test of the ends.
        unmatched: rank key -> communication kernels not matched with the other ranks'.
        reasons: why replays of a phase were not matched, one line each.
        missing: none, as no group is told; for ``wait_warnings.Matched``.
    """

    tables: dict[tuple[str, str], pl.DataFrame]
    matched: int
    voided: int
    unmatched: dict[str, int]
    reasons: list[str]
    missing: tuple[tuple[str, int, int], ...] = ()


def replay_sums(ranks: Sequence[CompactTalk]) -> ReplaySums | None:
    """Waiting and transfer of each rank in each replay, where only the order in the replays can match collectives.

    None where it takes more to match them, and with one rank.
    """
    if len(ranks) < 2 or not all(rank.is_plain for rank in ranks):
        return None
    if len({tuple(part.window for part in rank.parts) for rank in ranks}) > 1:
        return None
    sums: dict[tuple[str, str], pl.DataFrame] = {}
    matched = voided = 0
    reasons: list[str] = []
    for phase in MATCH_PHASES:
        code = PHASE_CODE[phase]
        by_window = [[sizes[code] for sizes in rank.part_replays] for rank in ranks]
        if not any(sizes.any() for windows in by_window for sizes in windows):
            continue
        differing = differing_replays(ranks, code)
        if differing:
            reasons.append(none_matched(phase, differing))
            continue
        if not _all_talk(ranks, code):
            return None
        counts = np.stack([np.concatenate(windows) for windows in by_window])
        fewest = counts.min(axis=0)
        same = fewest == counts.max(axis=0)
        if not same.all():
            reasons.append(some_unmatched(phase, int((~same).sum()), len(same)))
        found, void = _phase_sums(ranks, phase, same, fewest)
        sums |= found
        voided += void
        matched += int(fewest[same].sum())
    unmatched = {rank.key: sum(len(part) for part in rank.parts) - matched for rank in ranks}
    return ReplaySums(sums, matched, voided, unmatched, reasons)


def _all_talk(ranks: Sequence[CompactTalk], code: int) -> bool:
    """Whether the collectives of a phase's replays count as those of all ranks: one tells no group, or all tell one that has them all."""
    groups: set[_Group] = set()
    for rank in ranks:
        mine = rank.groups(code)
        if mine is None:
            return True
        groups |= mine
    everyone = {rank.rank for rank in ranks}
    return len(everyone) == len(ranks) and [everyone.intersection(members) for _, members in groups] == [everyone]


def _phase_sums(
    ranks: Sequence[CompactTalk], phase: str, same: np.ndarray[tuple[int], np.dtype[np.bool_]], counts: Ints
) -> tuple[dict[tuple[str, str], pl.DataFrame], int]:
    """Of the replays that are the ``same`` on all ranks; and how many matches are void."""
    rows = [_in_replays(rank, PHASE_CODE[phase], same) for rank in ranks]
    shortest = np.min([length for _, length in rows], axis=0)
    ends = np.stack([start + length for start, length in rows])
    hosts = np.array([rank.host or "" for rank in ranks])
    used = np.max([np.ptp(ends[hosts == host], axis=0) for host in dict.fromkeys(hosts)], axis=0) <= shortest
    replays = np.flatnonzero(same)
    bounds = np.append(0, np.cumsum(counts[replays]))
    whole = np.append(0, np.cumsum(used))
    kept = whole[bounds[1:]] > whole[bounds[:-1]]
    transfer = _by_replay(np.where(used, shortest, 0), bounds)
    sums = {}
    for rank, (_, length) in zip(ranks, rows, strict=True):
        wait = _by_replay(np.where(used, length - shortest, 0), bounds)
        table = {"replay": replays[kept], "wait_ns": wait[kept], "transfer_ns": transfer[kept]}
        sums[rank.key, phase] = pl.DataFrame(table)
    return sums, int((~used).sum())


def _in_replays(rank: CompactTalk, code: int, same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Ints, Ints]:
    """(start, length) of a rank's kernels in some replays of a phase, replay after replay."""
    starts, lengths = [], []
    before = 0
    for part, sizes in zip(rank.parts, rank.part_replays, strict=True):
        mine = np.flatnonzero((part.phase == code) & (part.replay >= 0))
        mine = mine[same[part.replay[mine] + before]]
        mine = mine[np.argsort(part.replay[mine], kind="stable")]
        starts.append(part.start[mine])
        lengths.append(part.length[mine].astype(np.int64))
        before += len(sizes[code])
    return np.concatenate(starts), np.concatenate(lengths)


def _by_replay(values: Ints, bounds: Ints) -> Ints:
    total: Ints = np.append(0, np.cumsum(values))
    return total[bounds[1:]] - total[bounds[:-1]]
