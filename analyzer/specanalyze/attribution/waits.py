"""Waiting and transfer of collectives across ranks (RULES R7, design rule D4): what each rank tells, and what matching it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import polars as pl

from specanalyze.attribution.activities import Activities, communication_code
from specanalyze.attribution.analysis import RankAnalysis
from specanalyze.attribution.collective_columns import NAMED, collective_columns
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.attribution.replay_numbers import Replays, counted_calls, placed_in_replays, replays_through
from specanalyze.columns import Ints, integers, texts
from specschema.phases import CYCLE, LEAF_PHASES, PHASE_KEYS

FACTS: Final = ("name", "op", "dtype", "elements", "group", "group_ranks", *NAMED)
"""Columns that say what a collective is; kernels that are alike share a row of them."""
ROWS: Final[dict[str, Any]] = {
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "seq": pl.Int64,
    "phase": pl.UInt8,
    "replay": pl.Int32,
    "position": pl.Int32,
    "window": pl.Int32,
    "fact": pl.UInt32,
}
"""Columns of ``Talk.rows``; fact is a row of ``Talk.facts``."""
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

    @property
    def facts(self) -> pl.DataFrame:
        """What each kernel is: columns FACTS."""
        return self.kernels.select(FACTS)

    @property
    def rows(self) -> pl.DataFrame:
        """The kernels in narrow columns: ROWS."""
        length = pl.col("end_ns") - pl.col("start_ns")
        rows = self.kernels.with_columns(length.alias("dur_ns"), pl.int_range(pl.len()).alias("fact"))
        return rows.select(pl.col(name).cast(dtype) for name, dtype in ROWS.items())


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
    """What matching needs of a rank: ``Communication``, or ``compact_talk.CompactTalk``."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str | None: ...
    @property
    def kernels(self) -> pl.DataFrame: ...
    @property
    def rows(self) -> pl.DataFrame: ...
    @property
    def facts(self) -> pl.DataFrame: ...


@dataclass
class Waits:
    """What matching the ranks' collectives says.

    Attributes:
        rows: one row a collective and rank, by both, in narrow columns: collective (number in order of time), who (index into
            ``keys``), by_seq, start_ns, dur_ns, transfer_ns (the shortest dur_ns of the collective), seq, phase (index into
            ``phases``), replay, position (n-th of its group in its replay; -1 where it has none, as the two before), window,
            fact (row of ``facts``), group_size, complete, voided.
        facts: columns FACTS.
        keys: of the ranks.
        unmatched: rank key -> communication kernels not matched with the other ranks'.
        voided: collectives whose match failed the test of the ends.
        missing: (group, seq, missing rank) of groups without a record of one of their ranks.
        reasons: why replays of a phase were not matched, one line each.
        offsets: rank key -> median difference of collective ends to the first rank's, ns, where hosts differ.
        offset_spread: rank key -> median absolute deviation of that difference, ns.
        phases: name of each phase code.
    """

    rows: pl.DataFrame
    facts: pl.DataFrame
    keys: list[str]
    unmatched: dict[str, int]
    voided: int
    missing: list[tuple[str, int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    offset_spread: dict[str, int] = field(default_factory=dict)
    phases: tuple[str, ...] = PHASE_KEYS

    @property
    def matched(self) -> bool:
        """Whether any collective could be matched, void ones included."""
        return self.rows.height > 0

    @property
    def collectives(self) -> pl.DataFrame:
        """``table`` of all columns."""
        return self.table(*COLLECTIVE_COLUMNS)

    def table(self, *columns: str, of: pl.Expr | None = None) -> pl.DataFrame:
        """Some columns of the collectives, one row a collective and rank, in order of time.

        Args:
            columns: of COLLECTIVE_COLUMNS. wait_ns and transfer_ns are null where the match is void; seq, replay and position
                where there is none.
            of: which of ``rows``.
        """
        rows = self.rows if of is None else self.rows.filter(of)
        return pl.DataFrame([self._column(rows, name).alias(name) for name in columns])

    def in_phase(self, phase: str) -> pl.Expr:
        """Rows of a phase."""
        return pl.col("phase").is_in([code for code, name in enumerate(self.phases) if name == phase])

    def of_rank(self, key: str) -> pl.Expr:
        """Rows of a rank."""
        return pl.col("who").is_in([who for who, name in enumerate(self.keys) if name == key])

    def _column(self, rows: pl.DataFrame, name: str) -> pl.Series:
        if name in self.facts.columns:
            return self.facts.get_column(name).gather(rows.get_column("fact"))
        if name in ("phase", "rank"):
            texts, column = (self.phases, "phase") if name == "phase" else (self.keys, "who")
            return pl.Series(texts, dtype=pl.String).gather(rows.get_column(column).cast(pl.UInt32))
        value = pl.col(name)
        special = {
            "matched_by": pl.when("by_seq").then(pl.lit("seq")).otherwise(pl.lit("replay")),
            "end_ns": pl.col("start_ns") + pl.col("dur_ns"),
            "wait_ns": pl.when(~pl.col("voided")).then(pl.col("dur_ns") - pl.col("transfer_ns")),
            "transfer_ns": pl.when(~pl.col("voided")).then(value),
            **{c: pl.when(pl.col(c) >= 0).then(pl.col(c)).cast(pl.Int64) for c in ("seq", "replay", "position")},
            **{c: pl.col(c).cast(pl.Int64) for c in ("collective", "group_size")},
        }
        return rows.select(special.get(name, value)).to_series()


COLLECTIVE_COLUMNS: Final = (
    *("collective", "matched_by", "phase", "group", "seq", "replay", "position", "rank", "name", "op", "dtype"),
    *("elements", "group_size", *NAMED, "start_ns", "end_ns", "dur_ns", "wait_ns", "transfer_ns", "complete"),
    *("voided", "window"),
)
"""Columns of ``Waits.collectives``."""


def joined_waits(parts: Sequence[Waits], unmatched: dict[str, int]) -> Waits:
    """What was matched window by window, together; collectives and replays stay numbered within their window."""
    first = 0
    rows = []
    for part in parts:
        rows.append(part.rows.with_columns(pl.col("fact") + pl.lit(first, dtype=pl.UInt32)))
        first += part.facts.height
    return replace(
        parts[0],
        rows=pl.concat(rows),
        facts=pl.concat([part.facts for part in parts]),
        unmatched=unmatched,
        voided=sum(part.voided for part in parts),
        missing=[],
        reasons=[line for part in parts for line in part.reasons],
        offsets={},
        offset_spread={},
    )
