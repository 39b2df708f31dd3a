"""``phases``: the cycle, phase by phase, as the device worked and as the host saw it, traced and untraced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from specanalyze.answers.accept import verify_steps_of
from specanalyze.answers.advice import CYCLES, advice
from specanalyze.answers.breakdown import assemble
from specanalyze.answers.control import Control, control_of
from specanalyze.answers.cycle_growth import Growth, growth_of_cycles
from specanalyze.answers.device_growth import GROWN_SCHEMA, device_growth
from specanalyze.answers.pace import Pace, pace_of
from specanalyze.answers.phase_cycles import OTHER, phase_cycles
from specanalyze.answers.phase_remarks import remarks
from specanalyze.answers.request_table import request_table
from specanalyze.answers.server_count import REQUEST_SCHEMA, request_rows
from specanalyze.attribution.cycles import DECODING, control_is_another_run, decoding, replicas
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import ReadRank, read_rank
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, Trace
from specschema.errors import TraceError, UsageError
from specschema.phases import LEAF_PHASES, REMAINDERS

TOTAL: Final = "total"
"""The whole cycle, from its start to the start of the next."""
GROUPINGS: Final = ("rank", "cycle", "request")
"""What ``phases`` can be split by."""
VIEWS: Final = ("device", "host", "untraced")
"""``device``: the partition of the windows; ``host``: the host's ranges in the same windows; ``untraced``: the host's ranges
outside windows, where nothing was observed but the time: the true clock."""


@dataclass(frozen=True)
class PhaseReport:
    """The cycles of a recording.

    Attributes:
        name: the recording.
        breakdown: partition of each rank, by rank key.
        cycles: of ``phase_cycles.phase_cycles``, all ranks.
        counted: ranks that tokens are counted on, one a replica.
        traced, untraced: speed inside and outside the windows, of these ranks.
        accept_length: over all verify steps; None where unknown.
        requests: rows of ``server_count.request_rows``.
        another_run: the untraced cycles belong to another run.
        control: what the traced cycles are compared with; None without untraced cycles.
        growth: how the untraced cycle grows over the request, on the first of the counted ranks; None where it does not.
        grown: the device work that grows with it, see ``device_growth.device_growth``.
        warnings, notes: one line each; notes explain the figures.
    """

    name: str
    breakdown: dict[str, RankBreakdown]
    cycles: pl.DataFrame
    counted: list[str]
    traced: Pace
    untraced: Pace
    accept_length: float | None
    requests: pl.DataFrame
    another_run: bool
    warnings: list[str]
    control: Control | None = None
    growth: Growth | None = None
    grown: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GROWN_SCHEMA))
    notes: list[str] = field(default_factory=list)

    @property
    def pace(self) -> Pace:
        """The best clock there is: untraced cycles, else traced ones."""
        return self.untraced if self.untraced.cycles else self.traced

    @property
    def phases(self) -> list[str]:
        """Leaf phases that any view has, in display order."""
        seen = [p for p in LEAF_PHASES if any(p in r.buckets_ns for r in self.breakdown.values())]
        stamped = [p for p in LEAF_PHASES if self.cycles.get_column(f"host_{p}_ns").sum()]
        return [p for p in LEAF_PHASES if p in seen or p in stamped]


def phase_report(trace: Trace, phase_map: Mapping[str, str] | None = None) -> PhaseReport:
    """Cycle times by phase, of the device and of the host.

    Raises:
        TraceError: no rank has a recognised range or a cycle.
    """
    return phase_report_of(trace, each_rank(trace, _rank, phase_map))


RankPhases: TypeAlias = tuple[RankBreakdown, pl.DataFrame, pl.DataFrame]
"""One rank's breakdown, requests and cycles."""


def rank_phases(read: ReadRank[Any], phase_map: Mapping[str, str] | None = None) -> RankPhases:
    """What the report needs of one rank."""
    return read.breakdown, request_rows(read.rank), phase_cycles(read, phase_map)


def phase_report_of(trace: Trace, reduced: Iterable[RankPhases]) -> PhaseReport:
    """``phase_report`` of ranks that are read already.

    Raises:
        TraceError: as ``phase_report``.
    """
    ranks: list[RankBreakdown] = []
    tables: list[pl.DataFrame] = []
    requests = [pl.DataFrame(schema=REQUEST_SCHEMA)]
    for rank, asked, table in reduced:
        ranks.append(rank)
        requests.append(asked)
        tables.append(table)
    result = assemble(trace, ranks)
    cycles = pl.concat(tables)
    if not cycles.height:
        raise TraceError(f"{trace.name} has no cycles: {advice(trace, CYCLES, 'give a --phase-map')}")
    counted = replicas(trace, cycles)
    mine = cycles.filter(pl.col("rank").is_in(counted))
    steps, _ = verify_steps_of(mine)
    first = mine.filter(pl.col("rank") == counted[0])
    growth = growth_of_cycles(first)
    whole = next(r.phase_instances for r in result.ranks if r.key == counted[0])
    if whole.height:
        whole = whole.filter("complete")
    report = PhaseReport(
        name=trace.name,
        breakdown={r.key: r for r in result.ranks},
        cycles=cycles,
        counted=counted,
        traced=pace_of(mine.filter(pl.col("window").is_not_null())),
        untraced=pace_of(mine.filter("control")),
        accept_length=int(steps["committed"].sum()) / steps.height if steps.height else None,
        requests=pl.concat(requests),
        another_run=control_is_another_run(cycles),
        warnings=result.warnings,
        control=control_of(decoding(mine)),
        growth=growth,
        grown=device_growth(whole, first, growth),
    )
    report.notes.extend(remarks(report, phases_frame(report)))
    return report


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> RankPhases:
    read: ReadRank[None] = read_rank(source, trace, phase_map)
    return rank_phases(read, phase_map)


_VIEW_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "view": pl.String,
    "phase": pl.String,
    "cycles": pl.Int64,
    "whole_cycles": pl.Int64,
    "total_ns": pl.Int64,
    "share": pl.Float64,
    "mean_ns": pl.Float64,
    "p10_ns": pl.Float64,
    "median_ns": pl.Float64,
    "p90_ns": pl.Float64,
}


def phases_frame(report: PhaseReport, by: str = "rank") -> pl.DataFrame:
    """The report as a table.

    Args:
        report: of ``phase_report``.
        by: ``rank``, ``cycle`` or ``request``.

    Returns:
        By rank: rank, view, phase (leaves, ``other``, ``total``), cycles, whole_cycles (those of them with all their device records),
        total_ns, share (of the view's total), mean_ns (total / cycles), and over its whole cycles p10_ns, median_ns, p90_ns. The device
        view's totals are the exact partition of its windows; where some of its cycles are not whole, mean_ns is that of the whole
        ones. By cycle: ``PhaseReport.cycles``. By request: see ``request_table``.

    Raises:
        UsageError: an unknown grouping.
        TraceError: by request in a recording that names none.
    """
    if by not in GROUPINGS:
        raise UsageError(f"cannot split by {by!r}; use one of {', '.join(GROUPINGS)}")
    if by == "cycle":
        return report.cycles
    if by == "request":
        return request_table(report)
    rows = [
        row
        for key in report.breakdown
        for view in VIEWS
        for row in _view(report, key, view, report.cycles.filter(pl.col("rank") == key))
    ]
    return pl.DataFrame(rows, schema=_VIEW_SCHEMA)


def _view(report: PhaseReport, key: str, view: str, cycles: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of one rank and view; none where the view sees nothing."""
    traced = pl.col("window").is_not_null()
    mine = cycles.filter(pl.col("mode").is_in(DECODING), pl.col("control") if view == "untraced" else traced)
    names = [*report.phases, OTHER]
    if view == "device":
        rank = report.breakdown[key]
        if not rank.window_ns or not rank.device_ns:
            return []  # host ranges alone: the host's views show them
        totals = {p: rank.total_ns(p) for p in report.phases}
        totals[OTHER] = sum(rank.total_ns(p) for p in REMAINDERS)
        totals[TOTAL] = rank.window_ns
        count = mine.height
        mine, broken = mine.filter(pl.col("complete")), mine.filter(~pl.col("complete"))
        columns = {p: f"device_{p}_ns" for p in names}
        means = _whole_means(totals, mine, broken, columns)
    else:
        mine = mine.filter(pl.col("step_ns").is_not_null())
        if not mine.height:
            return []
        count = mine.height
        columns = {p: f"host_{p}_ns" for p in names}
        if mine.get_column(columns[OTHER]).null_count() == mine.height:
            columns = {}  # cycles without stamps inside: their length is all that is known
        totals = {p: int(mine.get_column(c).sum()) for p, c in columns.items()}
        totals[TOTAL] = int(mine.get_column("step_ns").sum())
        means = {p: ns / count for p, ns in totals.items()}
    columns[TOTAL] = "step_ns"
    whole = totals[TOTAL]
    rows = []
    for phase, column in columns.items():
        if phase in LEAF_PHASES and not totals[phase]:
            continue
        values = mine.get_column(column).drop_nulls().to_numpy()
        p10, median, p90 = np.percentile(values, [10, 50, 90]) if len(values) else [None] * 3
        rows.append(
            {
                "rank": key,
                "view": view,
                "phase": phase,
                "cycles": count,
                "whole_cycles": mine.height,
                "total_ns": totals[phase],
                "share": totals[phase] / whole if whole else None,
                "mean_ns": means.get(phase),
                "p10_ns": p10,
                "median_ns": median,
                "p90_ns": p90,
            }
        )
    return rows


def _whole_means(
    totals: Mapping[str, int], whole: pl.DataFrame, broken: pl.DataFrame, columns: Mapping[str, str]
) -> dict[str, float]:
    """Mean ns a cycle of the device view: the totals over all cycles where all are whole, else what the whole ones have of them.

    Between the last whole cycle of a window and its end lies idle time that an end of the recording made, so ``other`` is then the mean
    over whole cycles that another one follows.
    """
    if not whole.height:
        return {}
    if not broken.height:
        return {p: ns / whole.height for p, ns in totals.items()}
    found = {p: (totals[p] - int(broken.get_column(c).sum())) / whole.height for p, c in columns.items() if p != OTHER}
    between = whole.get_column(columns[OTHER]).drop_nulls()
    if len(between):
        found[OTHER] = float(between.sum()) / len(between)
    return found | {TOTAL: sum(found.values())}


COVERS: Final = {
    "untraced": "untraced, undisturbed cycles alone: their tokens over their time",
    "traced": "cycles inside the windows alone: their tokens over their time, which observing makes longer",
    "accept_length": "all verify steps on record, traced and untraced",
    "requests": "times and tokens: cycles of one kind, see `clock`; accept_length: all verify steps of the request; prompt_tokens, completion_tokens and "
    "first_token_ns: the whole request, windows included",
}
"""Figure -> the cycles that it is of."""


def phases_json(report: PhaseReport) -> dict[str, Any]:
    """The documented JSON layout of ``phases``: ns, shares 0..1, null where unknown."""
    ranks: dict[str, Any] = {key: dict.fromkeys(VIEWS) for key in report.breakdown}
    for row in phases_frame(report).to_dicts():
        counts = {name: row[name] for name in ("cycles", "whole_cycles")}
        view = ranks[row["rank"]][row["view"]] or {**counts, "phases": {}}
        names = ("total_ns", "share", "mean_ns", "p10_ns", "median_ns", "p90_ns")
        view["phases"][row["phase"]] = {name: row[name] for name in names}
        ranks[row["rank"]][row["view"]] = view
    return {
        "trace": report.name,
        "ranks": ranks,
        "accept_length": report.accept_length,
        "counted_ranks": report.counted,
        "clock": "untraced" if report.untraced.cycles else "traced",
        "covers": COVERS,
        "untraced": report.untraced.to_json(),
        "traced": report.traced.to_json(),
        "control": None if report.control is None else report.control.to_json(),
        "growth": None if report.growth is None else {**report.growth.to_json(), "device": report.grown.to_dicts()},
        "requests": _requests(report),
        "notes": report.notes,
        "warnings": report.warnings,
    }


def _requests(report: PhaseReport) -> list[dict[str, Any]]:
    """Rows of ``request_table``; none where the recording does not tell its requests apart, or times none of them."""
    try:
        return request_table(report).to_dicts()
    except TraceError:
        return []
