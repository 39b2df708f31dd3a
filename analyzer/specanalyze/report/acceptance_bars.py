"""How often the k-th drafted token survives verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from specanalyze.answers.advice import ACCEPTS, advice
from specanalyze.answers.positions import acceptance_by_position
from specanalyze.report.palette import recording
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, Section, table
from specanalyze.report.vega import PERCENT_TICKS, percent_text, rows, specification
from specschema.figures import percent


def acceptance_section(recordings: Sequence[Recorded]) -> Section:
    """Bars of cumulative acceptance, the recordings side by side."""
    drawn: list[pl.DataFrame] = []
    lines, missing, notes = [], [], []
    speculating = [r for r in recordings if not r.baseline]
    for recorded in speculating:
        if recorded.accepts is None:
            missing.append(recorded.why["accepts"])
            continue
        accepts = recorded.accepts
        notes.append(
            f"{recorded.label}: accept length {accepts.accept_length:.3f} (the bonus token included), "
            f"{accepts.accepted_draft_tokens:.3f} accepted draft tokens, over {accepts.verify_steps:,} (request, verify step) pairs."
        )
        positions = acceptance_by_position(accepts.steps)
        if not positions.height:
            missing.append(
                f"{recorded.label} tells the tokens committed, but not how many drafts the verifier accepted: {advice(recorded.trace, ACCEPTS)}"
            )
            continue
        drawn.append(positions.with_columns(recording=pl.lit(recorded.label)))
        lines += [
            [
                recorded.label,
                str(r["position"]),
                str(r["proposed"]),
                str(r["reached"]),
                str(r["accepted"]),
                percent(r["conditional"]),
                percent(r["cumulative"]),
            ]
            for r in positions.iter_rows(named=True)
        ]
    columns = [
        ("recording", False),
        ("position", True),
        ("proposed", True),
        ("reached", True),
        ("accepted", True),
        ("accepted / reached", True),
        ("accepted / proposed", True),
    ]
    figures: tuple[Figure, ...] = ()
    if drawn:
        names = [r.label for r in speculating]
        spec = _chart(pl.concat(drawn), names)
        figures = (
            Figure(
                "Share of drafted tokens accepted, by position",
                "Bars by draft position; a tick marks acceptance among the steps that reached the position.",
                spec,
                table(columns, lines, "specanalyze accept TRACE"),
                wide=False,
            ),
        )
        notes.append(
            "Bar: of the steps that drafted this far, those whose draft here was accepted. Tick: of those whose earlier drafts were all accepted."
        )
    return Section(
        "acceptance",
        "Acceptance by position",
        "How far do drafts survive, and would fewer steps do?",
        figures,
        tuple(notes),
        tuple(missing),
    )


def _chart(frame: pl.DataFrame, names: list[str]) -> dict[str, Any]:
    present = frame.get_column("recording").unique(maintain_order=True).to_list()
    texts = {"of_all": percent_text("cumulative"), "of_reached": percent_text("conditional")}
    base = (
        alt.Chart(rows(frame), height=240)
        .transform_calculate(**texts)
        .encode(
            x=alt.X(
                "position:O",
                title="draft position",
                axis=alt.Axis(labelAngle=0),
                scale=alt.Scale(paddingInner=0.35, paddingOuter=0.3),
            ),
            tooltip=[
                alt.Tooltip("recording:N"),
                alt.Tooltip("position:O"),
                alt.Tooltip("of_all:N", title="accepted / proposed"),
                alt.Tooltip("of_reached:N", title="accepted / reached"),
                alt.Tooltip("proposed:Q"),
                alt.Tooltip("accepted:Q"),
            ],
        )
    )
    if len(present) > 1:
        base = base.encode(xOffset=alt.XOffset("recording:N", sort=present))
    colour = alt.Color(
        "recording:N",
        title=None,
        scale=alt.Scale(domain=present, range=[recording(names.index(n)) for n in present]),
        legend=alt.Legend(orient="top") if len(present) > 1 else None,
    )
    share = alt.Scale(domain=[0, 1])
    bars = (base.mark_bar() if len(present) > 1 else base.mark_bar(size=48)).encode(
        y=alt.Y("cumulative:Q", title="accepted", axis=alt.Axis(labelExpr=PERCENT_TICKS), scale=share), color=colour
    )
    ticks = base.mark_tick(color="var(--ink)", thickness=2, size=24 if len(present) == 1 else 12).encode(
        y=alt.Y("conditional:Q", scale=share)
    )
    return specification(bars + ticks)
