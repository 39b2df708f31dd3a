"""Waiting against transfer, rank by rank (rule D4): who waits, and for whom."""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import polars as pl

from specanalyze.answers.uneven_kernels import in_words
from specanalyze.render.terminal import milliseconds
from specanalyze.report.palette import variable
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, table
from specanalyze.report.vega import rows, specification
from specschema.figures import counted, percent

SLOWER: Final = 3
"""Kernels told in the notes; ``ranks`` has all."""


def slower_notes(recorded: Recorded) -> list[str]:
    """Kernels that take longer on some ranks, for which the others wait, a line each; the costliest first."""
    if recorded.measured is None:
        return []
    rows = recorded.measured.uneven.head(SLOWER).iter_rows(named=True)
    return [f"{recorded.label}: same kernel, other time: {in_words(row)}." for row in rows]


def wait_figure(recorded: Recorded) -> Figure | str:
    """Bars of one recording, or why its waiting is unknown and what to record."""
    m = recorded.measured
    if len(recorded.ranks) < 2:
        return f"{recorded.label} holds one rank: waiting for the others is unknown, not zero; record or import all ranks of the group"
    if m is None:
        return recorded.why["measured"]
    if m.waits is None or not m.waits.matched:
        reasons = "; ".join(m.waits.reasons) if m.waits is not None else "no window was recorded on all ranks"
        return f"{recorded.label}: no collective could be matched across ranks ({reasons or 'no communication kernel was recorded'})"
    phase = recorded.main_phase
    matched = m.waits.table(
        *("window", "collective", "rank", "dur_ns", "wait_ns", "transfer_ns", "complete"),
        of=m.waits.in_phase(phase) & ~pl.col("voided"),
    )
    if not matched.height:
        return f"{recorded.label}: no collective of {phase} could be matched across ranks ({'; '.join(m.waits.reasons) or 'all matches failed their test'})"
    at = ["window", "collective"]
    # The last to arrive has the shortest kernel: the others waited for it.
    last = matched.sort(*at, "dur_ns", maintain_order=True).unique(at, keep="first", maintain_order=True)
    lateness = dict(last.group_by("rank").len().iter_rows())
    sums = matched.group_by("rank").agg(
        pl.col("wait_ns").sum(), pl.col("transfer_ns").sum(), pl.len().alias("n"), pl.col("complete").all()
    )
    by_rank = {r["rank"]: r for r in sums.iter_rows(named=True)}
    drawn: list[dict[str, Any]] = []
    lines = []
    for rank in recorded.ranks:
        row, count = by_rank.get(rank.key), rank.whole.get(phase) or 1
        if row is None:
            lines.append([rank.key, "–", "–", "–", "–", "0", str(m.waits.unmatched.get(rank.key, 0))])
            continue
        drawn += [
            {"rank": f"rank {rank.key}", "part": part, "ms": row[column] / count / 1e6}
            for part, column in (("waiting", "wait_ns"), ("transfer", "transfer_ns"))
        ]
        bound = "" if row["complete"] else " at least"
        lines.append(
            [
                rank.key,
                milliseconds(row["wait_ns"] / count) + bound,
                milliseconds(row["transfer_ns"] / count),
                percent(row["wait_ns"] / spent if (spent := row["wait_ns"] + row["transfer_ns"]) else None),
                f"{lateness.get(rank.key, 0)} of {row['n']}",
                str(row["n"]),
                str(m.waits.unmatched.get(rank.key, 0)),
            ]
        )
    columns = [
        ("rank", False),
        (f"waiting, ms a {phase}", True),
        (f"transfer, ms a {phase}", True),
        ("waiting / both", True),
        ("came last in", True),
        ("collectives counted", True),
        ("kernels not matched", True),
    ]
    order = [f"rank {r.key}" for r in recorded.ranks]
    chart = (
        alt.Chart(rows(pl.DataFrame(drawn)), height=30 * len(order))
        .mark_bar(stroke="var(--paper)", strokeWidth=1)
        .encode(
            y=alt.Y("rank:N", sort=order, title=None, axis=alt.Axis(domain=False, ticks=False)),
            x=alt.X("ms:Q", title=f"ms a {phase}, hidden time included"),
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=["waiting", "transfer"], range=[variable("wait"), variable("transfer")]),
                legend=alt.Legend(orient="top"),
            ),
            order=alt.Order("part:N", sort="descending"),
            tooltip=[alt.Tooltip("rank:N"), alt.Tooltip("part:N"), alt.Tooltip("ms:Q", format=".3f")],
        )
    )
    voided = f"; {counted(m.waits.voided, 'match')} failed the test, not used" if m.waits.voided else ""
    title = f"{recorded.label}: time in {phase}'s collectives, ms a {phase} (of {counted(matched.select(at).unique().height, 'collective')}{voided})"
    return Figure(
        title,
        "Stacked bars a rank: time waiting for the last rank, and the transfer itself.",
        specification(chart),
        table(columns, lines, "specanalyze ranks TRACE"),
        wide=False,
    )
