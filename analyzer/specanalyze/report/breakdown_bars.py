"""Where the main phase's time goes: one stacked bar a rank, the baseline's beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from specanalyze.answers.calibration import Calibration, calibrate
from specanalyze.attribution.breakdown_warnings import NO_DEVICE_WORK
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.render.terminal import milliseconds
from specanalyze.report.palette import variable
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, Section, table
from specanalyze.report.vega import rows, specification
from specschema.figures import change, percent
from specschema.phases import BUCKETS

SLICES: Final[tuple[tuple[str, str], ...]] = (
    ("graph_gap", "graph replay: gaps inside"),
    ("graph_launch", "graph replay: launching"),
    ("allreduce", "allreduce (exposed)"),
    ("other_comm", "other communication"),
    ("moe", "MoE"),
    ("attention", "attention"),
    ("gemm", "GEMM"),
    ("other_compute", "other compute"),
    ("graph_unresolved", "whole replays, kernels unknown"),
    ("memcpy", "copies and fills"),
    ("launch", "launching eager work"),
    ("host", "host"),
)
"""(slice, shown as) in the order of the bar: rule D3's graph replay first. Slices sum to the phase."""

IDLE: Final = ("graph_gap", "graph_launch", "launch", "host")
MOST_ESTIMATES: Final = 8
"""Ranks of a recording for which the untraced estimate is drawn, too."""

_LABELS: Final = dict(SLICES)
_ROOM: Final = 1.15
"""The axis reaches so much further than the longest bar, for the figure at its end."""
_AXIS: Final = alt.Axis(
    labelLimit=260, labelExpr="split(datum.label, ' · ')", labelLineHeight=14, labelOffset=-7, domain=False, ticks=False
)
"""The recording above, its rank below."""


def breakdown_section(recordings: Sequence[Recorded]) -> Section:
    """Bars of all ranks of all recordings, mean ms an instance of the main phase."""
    drawn: list[dict[str, Any]] = []
    cells: list[list[str]] = []
    notes: list[str] = []
    how = (
        "Each bar is the mean over the phase's wholly recorded instances; its slices partition the phase's device timeline exactly, "
        "so they sum to it. Allreduce is the exposed part; communication hidden under compute costs nothing here."
    )
    missing = []
    for recorded in recordings:
        phase = recorded.main_phase
        if not any(rank.device_ns for rank in recorded.ranks):
            missing.append(f"{recorded.label}: {NO_DEVICE_WORK}")
            continue
        withheld: dict[str, list[str]] = {}
        for rank in recorded.ranks:
            means = _means(rank, phase)
            name = f"{recorded.label} · rank {rank.key}"
            if means is None:
                missing.append(f"{name}: no {phase} instance was recorded whole with its device work")
                continue
            calibration = calibrate(rank, recorded.phases.cycles)
            estimate = _estimate(means, calibration)
            if calibration.reason is not None:
                withheld.setdefault(calibration.reason.removeprefix(f"rank {rank.key}: "), []).append(rank.key)
            drawn += _bar(f"{name} ({phase})", means, measured=True)
            if estimate is not None and len(recorded.ranks) <= MOST_ESTIMATES:
                drawn += _bar(f"{name} (untraced, estimate)", estimate, measured=False)
            cells += _cells(name, phase, means, estimate)
        notes += _distortion(recorded, withheld)
    columns = [
        ("rank", False),
        ("phase", False),
        ("where", False),
        ("mean ms", True),
        ("share", True),
        ("untraced ms (est.)", True),
    ]
    figures: tuple[Figure, ...] = ()
    if drawn:
        spec = _chart(pl.DataFrame(drawn))
        alt_text = f"Stacked bars of {len({d['bar'] for d in drawn})} ranks: mean time of the verify or decode phase by bucket, in ms."
        figures = (
            Figure("Time of the phase, ms", alt_text, spec, table(columns, cells, "specanalyze breakdown TRACE")),
        )
    main = recordings[0].main_phase
    return Section(
        "breakdown",
        f"Where {main}'s time goes",
        "Graph replay, allreduce, MoE, attention, GEMM or the rest?",
        figures,
        (how, *notes) if drawn else (),
        tuple(missing),
    )


def _means(rank: RankBreakdown, phase: str) -> dict[str, float] | None:
    """Slice -> mean ns a wholly recorded instance."""
    if not rank.phase_instances.height:
        return None
    whole = rank.phase_instances.filter(pl.col("phase") == phase, pl.col("complete"))
    if not whole.height:
        return None
    means = whole.select(pl.col(*BUCKETS, "graph_launch").mean()).row(0, named=True)
    means["launch"] -= means["graph_launch"]
    return {slice_: float(means[slice_]) for slice_, _ in SLICES}


def _estimate(means: dict[str, float], calibration: Calibration) -> dict[str, float] | None:
    """The same with idle slices as an untraced cycle would have them (rule D6)."""
    scale = calibration.scale
    return None if scale is None else {s: ns * scale if s in IDLE else ns for s, ns in means.items()}


def _bar(bar: str, means: dict[str, float], *, measured: bool) -> list[dict[str, Any]]:
    total = sum(means.values())
    return [
        {
            "bar": bar,
            "slice": _LABELS[s],
            "order": place,
            "ms": means[s] / 1e6,
            "share": percent(means[s] / total),
            "total": total / 1e6,
            "strength": 1.0 if measured else 0.6,
        }
        for place, (s, _) in enumerate(SLICES)
        if means[s] > 0
    ]


def _cells(name: str, phase: str, means: dict[str, float], estimate: dict[str, float] | None) -> list[list[str]]:
    total = sum(means.values())
    lines = [
        [name, phase, _LABELS[s], milliseconds(ns), percent(ns / total), milliseconds(estimate[s]) if estimate else "–"]
        for s, ns in means.items()
        if ns > 0
    ]
    whole = milliseconds(sum(estimate.values())) if estimate else "–"
    return [*lines, [name, phase, "total", milliseconds(total), "100.0 %", whole]]


def _chart(frame: pl.DataFrame) -> dict[str, Any]:
    present = [(s, label) for s, label in SLICES if frame.filter(pl.col("slice") == label).height]
    bars = frame.get_column("bar").unique(maintain_order=True).to_list()
    longest = float(frame.select(pl.col("total").max()).item())
    base = alt.Chart(rows(frame), height=34 * len(bars)).encode(y=alt.Y("bar:N", sort=bars, title=None, axis=_AXIS))
    stacked = base.mark_bar(stroke="var(--paper)", strokeWidth=1).encode(
        x=alt.X("ms:Q", title="ms an instance", stack="zero", scale=alt.Scale(domain=[0, _ROOM * longest], nice=False)),
        order=alt.Order("order:Q"),
        opacity=alt.Opacity("strength:Q", scale=None, legend=None),
        color=alt.Color(
            "slice:N",
            title=None,
            scale=alt.Scale(domain=[label for _, label in present], range=[variable(s) for s, _ in present]),
            legend=alt.Legend(orient="top", columns=3),
        ),
        tooltip=[
            alt.Tooltip("bar:N", title="rank"),
            alt.Tooltip("slice:N", title="where"),
            alt.Tooltip("ms:Q", title="ms", format=".3f"),
            alt.Tooltip("share:N", title="share"),
        ],
    )
    totals = base.mark_text(align="left", dx=5).encode(
        x=alt.X("max(total):Q"), text=alt.Text("max(total):Q", format=".2f")
    )
    return specification(stacked + totals)


def _distortion(recorded: Recorded, withheld: Mapping[str, Sequence[str]]) -> list[str]:
    """Rule D6: no idle figure without what observing cost; no word of an estimate that is withheld, but the reasons why."""
    effect = recorded.overhead.effect if recorded.overhead else None
    if effect is None:
        reason = recorded.why.get("overhead", "it has no untraced cycles to tell by how much")
        return [
            f"{recorded.label}: gaps, launches and host time are lengthened by observing, and {reason}. Busy time holds; "
            "no untraced estimate is drawn and no advice rests on idle time."
        ]
    known = effect.low is not None and effect.high is not None
    bounds = f" ({change(effect.low)} to {change(effect.high)})" if known else ""
    estimate = "the estimate scales them together until the cycle equals the untraced one."
    without = {key for ranks in withheld.values() for key in ranks}
    if without:
        some = len(without) < len(recorded.ranks)
        why = "; ".join(f"rank {', '.join(ranks)}: {reason}" if some else reason for reason, ranks in withheld.items())
        estimate = f"{estimate} {why}." if some else f"{why}."
    if known and not effect.excludes_zero:
        return [
            f"{recorded.label}: observing changed the cycle by {change(effect.value)}{bounds}: no more than noise. What it changes is gaps, "
            f"launches and host time; {estimate}"
        ]
    longer = effect.value > 0
    return [
        f"{recorded.label}: observing made the cycle {percent(abs(effect.value), 0)} {'longer' if longer else 'shorter'}{bounds}. Busy time holds; gaps, launches and host time "
        f"of the measured bars are too {'long' if longer else 'short'}, and {estimate}"
    ]
