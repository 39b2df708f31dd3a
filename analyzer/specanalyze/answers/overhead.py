"""``overhead``: what observing cost, from cycles inside and outside the windows of the same recording (rule D6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from specanalyze.answers.advice import CYCLES, advice
from specanalyze.answers.bootstrap import Floats, Interval
from specanalyze.answers.medians import median_interval, ratio_interval
from specanalyze.attribution.cycles import CYCLE_SCHEMA, control_is_another_run, decoding, rank_cycles, replicas
from specanalyze.attribution.host_rows import host_rows, with_operators
from specanalyze.columns import of_kind
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.errors import TraceError
from specschema.figures import percent, rounded

BEFORE: Final = "before"
BETWEEN: Final = "between"
AFTER: Final = "after"
CONTROL: Final = "control"
"""Untraced cycles of another run."""

LASTING: Final = 0.03
"""A slowdown after the windows beyond this share is called one, if its bounds also exclude 0."""

TABLE_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "stretch": pl.String,
    "tier": pl.String,
    "traced": pl.Boolean,
    "cycles": pl.Int64,
    "median_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "over_untraced": pl.Float64,
}
"""Columns of ``Overhead.table``."""


@dataclass(frozen=True)
class Overhead:
    """What observing cost.

    Attributes:
        name: the recording.
        mode: mode of the cycles compared.
        table: TABLE_SCHEMA, one row a rank and stretch (``before`` the first window, ``window N``, ``between`` windows, ``after``
            the last, ``control``; ``warm-up`` and ``reading`` are untraced cycles that were disturbed all the same and count nowhere): what was recorded (tier), cycles with a known step, median step and its bounds, and
            over_untraced: its ratio to the rank's untraced median - 1.
        effect: traced / untraced - 1 over one rank a replica; None without untraced cycles.
        drift: after / before - 1; None where one is missing.
        notes, warnings: one line each.
    """

    name: str
    mode: str
    table: pl.DataFrame
    effect: Interval | None
    drift: Interval | None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def lasting(self) -> bool:
        """Whether cycles stayed slower after the windows than they were before."""
        return self.drift is not None and self.drift.value > LASTING and (self.drift.low or 0.0) > 0


def measure_overhead(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Overhead:
    """Compare cycles inside the windows with cycles outside.

    Only cycles of the windows' commonest mode, batch size and draft length are compared; those that do not tell theirs are
    taken as the same.

    Raises:
        TraceError: no traced cycle with a known step.
    """
    return overhead_of(trace, each_rank(trace, _rank, phase_map))


def overhead_of(trace: Trace, ranks: Iterable[RankTiers]) -> Overhead:
    """``measure_overhead`` of ranks that are read already.

    Raises:
        TraceError: as ``measure_overhead``.
    """
    tables, tiers = [pl.DataFrame(schema=CYCLE_SCHEMA)], {}
    for key, table, tier in ranks:
        tables.append(table)
        tiers[key] = tier
    cycles = pl.concat(tables)
    apart = control_is_another_run(cycles)
    if not decoding(cycles).height:
        raise TraceError(f"{trace.name} has no decode cycles: {advice(trace, CYCLES, 'give a --phase-map')}")
    alike, mode = alike_cycles(cycles)
    labelled = _stretches(alike, apart).filter(pl.col("step_ns") > 0)
    traced = labelled.filter(pl.col("window").is_not_null())
    if not traced.height:
        raise TraceError(
            f"{trace.name} has no profiled cycle with a known step: nothing shows what observing cost; record windows (kernel tier)"
        )
    # Tensor-parallel ranks run in step: counted together they would make the bounds look tighter than they are.
    one = labelled.filter(pl.col("rank").is_in(replicas(trace, cycles)))
    traced, untraced = one.filter(pl.col("window").is_not_null()), one.filter("control")
    effect = _less_one(ratio_interval(_steps(traced), _steps(untraced))) if traced.height and untraced.height else None
    before, after = (one.filter(pl.col("stretch") == s) for s in (BEFORE, AFTER))
    drift = _less_one(ratio_interval(_steps(after), _steps(before))) if before.height and after.height else None
    result = Overhead(trace.name, mode, _table(labelled, tiers), effect, drift, warnings=list(trace.warnings))
    result.notes.extend(_notes(result, trace, apart))
    return result


RankTiers: TypeAlias = tuple[str, pl.DataFrame, tuple[str, str]]
"""One rank's key, cycles and tiers."""


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> RankTiers:
    rank = host_rows(source)
    return rank_tiers(source, rank, rank_cycles(rank, phase_map, trace.metadata))


def rank_tiers(source: RankSource, rank: RankTrace, cycles: pl.DataFrame) -> RankTiers:
    """What is needed of a rank; ``rank`` of ``host_rows.host_rows``, or as ``read_rank`` has read it."""
    return rank.key, cycles, _tiers(with_operators(source, rank))


def alike_cycles(cycles: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Decode cycles that may be compared: the commonest traced mode, batch size and draft length, or unknown ones.

    Args:
        cycles: of ``cycles.cycle_table``, with at least one decode cycle.

    Returns:
        Rows of ``cycles``, and the mode.
    """
    decode = decoding(cycles)
    traced = decode.filter(pl.col("window").is_not_null())
    for column in ("mode", "batch_size", "draft_tokens"):
        values = (traced if traced.height else decode).get_column(column).drop_nulls()
        if len(values):
            commonest = values.value_counts(sort=True)[column][0]
            decode = decode.filter((pl.col(column) == commonest).fill_null(value=True))
            traced = traced.filter((pl.col(column) == commonest).fill_null(value=True))
    return decode, str(decode.get_column("mode").drop_nulls().mode()[0])


def _tiers(rank: RankTrace) -> tuple[str, str]:
    """What was recorded outside and inside the windows of a rank."""
    events = rank.events
    outside = events.filter(pl.col("window").is_null()) if "window" in events.columns else events.clear()
    stamps = of_kind(outside, ("phase",)).height > 0
    # User ranges of libraries (gloo:broadcast) are operators by kind, too; only torch's own say that operators were recorded.
    operators = of_kind(events, ("op",)).get_column("name").cast(pl.String).str.starts_with("aten::").any()
    return "phases" if stamps else "cycles only", "kernels and CPU operators" if operators else "kernels"


def _stretches(cycles: pl.DataFrame, apart: bool) -> pl.DataFrame:
    """Add ``stretch`` to each cycle."""
    windows = pl.col("window").is_not_null()
    start = pl.col("start_ns")
    first, last = start.filter(windows).min().over("rank"), start.filter(windows).max().over("rank")
    outside = (
        pl.when(start < first).then(pl.lit(BEFORE)).when(start > last).then(pl.lit(AFTER)).otherwise(pl.lit(BETWEEN))
    )
    return cycles.with_columns(
        stretch=pl.when(windows)
        .then(pl.format("window {}", "window"))
        .when(pl.col("disturbed").is_not_null())
        .then(pl.col("disturbed"))
        .otherwise(pl.lit(CONTROL) if apart else outside)
    )


def _steps(cycles: pl.DataFrame) -> Floats:
    return cycles.get_column("step_ns").to_numpy().astype(np.float64)


def _less_one(of: Interval) -> Interval:
    low, high = (None if v is None else v - 1 for v in (of.low, of.high))
    return Interval(of.value - 1, low, high)


def _table(labelled: pl.DataFrame, tiers: Mapping[str, tuple[str, str]]) -> pl.DataFrame:
    rows = []
    for (rank, stretch), mine in labelled.group_by("rank", "stretch", maintain_order=True):  # one turn a stretch
        whole = labelled.filter(pl.col("rank") == rank, pl.col("control")).get_column("step_ns").median()
        median = median_interval(_steps(mine))
        traced = mine["window"][0] is not None
        rows.append(
            {
                "rank": rank,
                "stretch": stretch,
                "tier": tiers[str(rank)][int(traced)],
                "traced": traced,
                "cycles": mine.height,
                "median_ns": median.value,
                "low_ns": median.low,
                "high_ns": median.high,
                "over_untraced": median.value / whole - 1 if isinstance(whole, float) else None,
            }
        )
    return pl.DataFrame(rows, schema=TABLE_SCHEMA)


def _notes(result: Overhead, trace: Trace, apart: bool) -> list[str]:
    said = []
    if result.effect is None:
        said.append(
            "no untraced cycle: what observing cost is unknown; record a longer answer, so that cycles stay outside the windows, or give "
            "those of another run of the same server with --cycles FILE"
        )
    if apart:
        said.append(
            "the untraced cycles are those of another run: no drift can be told, and the runs may differ by themselves"
        )
    elif result.effect is not None and result.drift is None:
        said.append(
            "cycles before the first window or after the last are missing: whether a slowdown stays after profiling is unknown; "
            "take the control before as well as after"
        )
    if result.lasting:
        said.append(
            f"cycles stay {_share(result.drift)} slower after the windows than before the first: {_lasting_cause(trace)}. "
            "Trust the cycles before the first window"
        )
    if any("phases" in str(tier) for tier in result.table.get_column("tier")):
        said.append(
            "the phase tier runs in all cycles, so its own cost cannot be seen within one recording; "
            "compare tok/s with the collector switched off"
        )
    return said


def _lasting_cause(trace: Trace) -> str:
    """What can make cycles stay slower: CUPTI only where there is a GPU, and where it was not told to detach."""
    if (trace.metadata.get("recording") or {}).get("device") == "cpu":
        return "recorded on a CPU, where no GPU profiler stays attached: other load on the machine, or work that grew"
    settings = (trace.metadata.get("environment") or {}).get("variables")
    teardown = settings.get("TEARDOWN_CUPTI") if isinstance(settings, Mapping) else None
    if str(teardown) == "1":
        return "TEARDOWN_CUPTI is 1, so CUPTI should have detached: longer contexts, clocks or other load are likelier causes"
    return (
        "CUPTI left attached looks like this "
        f"(TEARDOWN_CUPTI is {'not recorded' if teardown is None else teardown}; it must be 1 before the profiler first starts)"
    )


def _share(of: Interval | None) -> str:
    if of is None:
        return "?"
    bounds = "" if of.low is None or of.high is None else f" ({rounded(of.low * 100)} to {rounded(of.high * 100)})"
    return f"{percent(of.value)}{bounds}"


def overhead_json(result: Overhead) -> dict[str, Any]:
    """The documented JSON layout of ``overhead``; shares: 0.1 is 10 % slower."""

    def share(of: Interval | None) -> dict[str, Any] | None:
        return None if of is None else {"value": of.value, "low": of.low, "high": of.high}

    return {
        "trace": result.name,
        "mode": result.mode,
        "effect": share(result.effect),
        "drift": share(result.drift),
        "lasting_slowdown": result.lasting if result.drift is not None else None,
        "stretches": result.table.to_dicts(),
        "notes": result.notes,
        "warnings": result.warnings,
    }
