"""``overhead``: what observing cost, from cycles inside and outside the windows of the same recording (rule D6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from specanalyze.answers.advice import CYCLES, advice
from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED, Floats, Interval
from specanalyze.answers.control import Control, control_of
from specanalyze.answers.cycle_growth import Growth, growth_of_cycles
from specanalyze.answers.cycle_place import CONTEXT, PLACE, placed
from specanalyze.answers.medians import bounded, median_interval, ratio_interval
from specanalyze.answers.neighbours import NEIGHBOURS, neighbours, points
from specanalyze.attribution.cycles import CYCLE_SCHEMA, control_is_another_run, decoding, rank_cycles, replicas
from specanalyze.attribution.host_rows import host_rows
from specanalyze.columns import of_kind
from specanalyze.engines.engine import each_rank
from specanalyze.formats.rank_collector import TORCH_OPERATOR
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
            over_untraced: its ratio to the rank's untraced median - 1; where cycles depend on their place, of a window to the untraced
            cycles beside it, and null for other stretches, which stand at other places.
        effect: traced / untraced - 1 over one rank a replica; None without untraced cycles.
        drift: after / before - 1; None where one is missing. Where cycles grow over the request: of the cycles after the first window
            to those before it, both at its place.
        control: what the traced cycles are compared with; None without untraced cycles.
        growth: how the untraced cycle grows over the request; None where it does not.
        notes, warnings: one line each.
    """

    name: str
    mode: str
    table: pl.DataFrame
    effect: Interval | None
    drift: Interval | None
    control: Control | None = None
    growth: Growth | None = None
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
    if not labelled.filter(pl.col("window").is_not_null()).height:
        raise TraceError(
            f"{trace.name} has no profiled cycle with a known step: nothing shows what observing cost; record windows (kernel tier)"
        )
    # Tensor-parallel ranks run in step: counted together they would make the bounds look tighter than they are.
    one = labelled.filter(pl.col("rank").is_in(replicas(trace, cycles)))
    control = control_of(one)
    growth = growth_of_cycles(one.filter(pl.col("rank") == one["rank"][0]))
    result = Overhead(
        trace.name,
        mode,
        _table(labelled, tiers),
        None if control is None else control.effect,
        _drift(one, growth),
        control,
        growth,
        warnings=list(trace.warnings),
    )
    result.notes.extend(_notes(result, trace, apart))
    return result


RankTiers: TypeAlias = tuple[str, pl.DataFrame, tuple[str, str]]
"""One rank's key, cycles and tiers."""


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> RankTiers:
    rank = host_rows(source)
    return rank_tiers(rank, rank_cycles(rank, phase_map, trace.metadata))


def rank_tiers(rank: RankTrace, cycles: pl.DataFrame) -> RankTiers:
    """What is needed of a rank; ``rank`` of ``host_rows.host_rows``, or as ``read_rank`` has read it."""
    return rank.key, cycles, _tiers(rank)


def _tiers(rank: RankTrace) -> tuple[str, str]:
    """What was recorded outside and inside the windows of a rank."""
    events = rank.events
    outside = events.filter(pl.col("window").is_null()) if "window" in events.columns else events.clear()
    stamps = of_kind(outside, ("phase",)).height > 0
    # User ranges of libraries (gloo:broadcast) are operators by kind, too; only torch's own say that operators were recorded.
    operators = of_kind(events, ("op",)).get_column("name").cast(pl.String).str.starts_with(TORCH_OPERATOR).any()
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


def _drift(one: pl.DataFrame, growth: Growth | None) -> Interval | None:
    """After / before - 1 of the untraced cycles.

    Where cycles grow over the request, those after the windows are longer in any case: then the cycles behind the first window
    stand against those before it, each drawn out to that window's place.
    """
    before, after = (one.filter(pl.col("stretch") == s) for s in (BEFORE, AFTER))
    if not (before.height and after.height):
        return None
    if growth is None:
        ratio = ratio_interval(_steps(after), _steps(before))
        low, high = (None if v is None else v - 1 for v in (ratio.low, ratio.high))
        return Interval(ratio.value - 1, low, high)
    mine = placed(one.filter(pl.col("rank") == one["rank"][0]))[0]
    window = mine.filter(pl.col("window") == mine["window"].min())
    if not window.height:
        return None
    place = float(window.get_column(PLACE).to_numpy().mean())
    behind = mine.filter("control", pl.col("start_ns") > window["start_ns"].max()).head(2 * NEIGHBOURS)
    ahead = mine.filter("control", pl.col("stretch") == BEFORE).tail(2 * NEIGHBOURS)
    sides = [neighbours(*points(rows), place, seed) for rows, seed in ((behind, SEED), (ahead, SEED + 4))]
    if sides[0] is None or sides[1] is None:
        return None
    behind_ns, ahead_ns = (side.typical(place) for side in (sides[0], sides[1]))
    return bounded(behind_ns / ahead_ns - 1, sides[0].drawn_at(place) / sides[1].drawn_at(place) - 1)


def _table(labelled: pl.DataFrame, tiers: Mapping[str, tuple[str, str]]) -> pl.DataFrame:
    rows = []
    for (rank,), own in labelled.group_by("rank", maintain_order=True):  # one turn a rank
        control = control_of(own)
        places = placed(own)[0] if control is not None and control.place is not None else own
        for (stretch,), mine in own.group_by("stretch", maintain_order=True):  # one turn a stretch
            median = median_interval(_steps(mine))
            traced = mine["window"][0] is not None
            over = None
            if control is not None and control.place is None:
                over = median.value / control.untraced_ns.value - 1
            elif control is not None and traced and (near := control.beside.get((str(rank), int(mine["window"][0])))):
                at, steps = points(places.filter(pl.col("stretch") == stretch))
                typical = near.at(at)
                over = float(np.median(steps - typical) / typical.mean())
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
                    "over_untraced": over,
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
    if result.control is not None and result.control.place is not None and result.control.span is not None:
        said.append(_beside(result.control))
    if result.growth is not None:
        said.append(
            f"{result.growth.sentence('the untraced cycle')}: untraced cycles of other places are no control, and after against before is "
            "taken at the place of the first window"
        )
    if any("phases" in str(tier) for tier in result.table.get_column("tier")):
        said.append(
            "the phase tier runs in all cycles, so its own cost cannot be seen within one recording; "
            "compare tok/s with the collector switched off"
        )
    return said


def _beside(control: Control) -> str:
    """What the control is, where it is not every untraced cycle."""
    first, last = control.span or (0.0, 0.0)
    span = f"{first:.0f} to {last:.0f} tokens" if control.place == CONTEXT else f"cycles {first:.0f} to {last:.0f}"
    traced = "" if control.traced_ns is None else f", {control.traced_ns / 1e6:.3f} ms traced"
    return (
        f"control: {control.words} ({span}): {control.untraced_ns.value / 1e6:.3f} ms untraced{traced}; "
        "cycles of other places differ by more than noise"
    )


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
        "control": None if result.control is None else result.control.to_json(),
        "growth": None if result.growth is None else result.growth.to_json(),
        "stretches": result.table.to_dicts(),
        "notes": result.notes,
        "warnings": result.warnings,
    }
