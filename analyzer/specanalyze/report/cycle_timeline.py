"""One real cycle: host ranges, launch calls, streams and every rank's collectives, instant by instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import numpy as np
import polars as pl

from specanalyze.attribution.activities import communication_code
from specanalyze.attribution.analysis import RankAnalysis, WindowAnalysis, analyse_rank
from specanalyze.columns import of_kind
from specanalyze.phase_names import recognise
from specanalyze.report.palette import COLOURS, shown_as, variable
from specanalyze.report.recorded import Recorded
from specanalyze.report.section import Figure, table
from specanalyze.report.vega import rows, specification
from specanalyze.trace import RankSource, RankTrace
from specschema.figures import counted
from specschema.phases import BUCKETS, CYCLE, LEAF_PHASES, PHASE_KEYS

MOST_MARKS: Final = 1500
"""Marks of one lane; a lane with more draws those that start in the same instant of the plot together."""
MOST_RANKS: Final = 8
MARGIN_CYCLES: Final = 10
LONGEST_NAME: Final = 90

_SCHEMA: Final[dict[str, Any]] = {
    "lane": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "phase": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
_KINDS: Final = (
    *LEAF_PHASES,
    CYCLE,
    "inner",
    "launch",
    "graph_launch",
    *(b for b in BUCKETS if b not in ("launch", "graph_gap", "host")),
)


@dataclass(frozen=True)
class Chosen:
    """The cycle that is shown: the wholly recorded one whose step is nearest the median."""

    rank: str
    window: int
    cycle: int
    start_ns: int
    step_ns: int
    median_ns: float


def choose(recorded: Recorded) -> Chosen | None:
    """A usual cycle of the first rank; None where no traced cycle has a known step and all its records."""
    key = recorded.ranks[0].key
    whole = recorded.phases.cycles.filter(
        pl.col("rank") == key,
        pl.col("window").is_not_null(),
        pl.col("complete"),
        pl.col("step_ns") > 0,
        pl.col("mode").is_in(["speculative", "decode"]),
    )
    if not whole.height:
        return None
    middle = float(whole.select(pl.col("step_ns").median()).item())
    row = whole.sort((pl.col("step_ns") - middle).abs(), "start_ns").row(0, named=True)
    return Chosen(key, row["window"], row["cycle"], row["start_ns"], row["step_ns"], middle)


def timeline(recorded: Recorded, phase_map: Mapping[str, str] | None = None) -> Figure | None:
    """The chosen cycle as a plot; None where there is none."""
    chosen = choose(recorded)
    if chosen is None:
        return None
    frames, host, end = [], None, chosen.start_ns + chosen.step_ns
    for place, source in enumerate(recorded.trace.sources[:MOST_RANKS]):
        analysis = analyse_rank(_around(source, chosen), phase_map)
        window = next((w for w in analysis.windows if w.window == chosen.window), None)
        if window is None or not (place == 0 or analysis.trace.host == host):
            continue  # another host's clock cannot be laid beside this one's
        if place == 0:
            host = analysis.trace.host
            end = max(end, _last_end(window, chosen, end))
            frames += [
                _ranges(analysis, phase_map, chosen.start_ns, end),
                _launches(analysis, chosen.start_ns, end),
                _streams(window),
            ]
        frames.append(_collectives(window, analysis.trace.key))
    inside = pl.concat(frames).filter(pl.col("start_ns") < end, pl.col("end_ns") > chosen.start_ns)
    inside = inside.with_columns(pl.col("start_ns").clip(chosen.start_ns), pl.col("end_ns").clip(None, end))
    order = inside.get_column("lane").unique(maintain_order=True).to_list()
    drawn = _thinned(inside, chosen.start_ns, end)
    longest = inside.filter(~pl.col("lane").str.starts_with("collectives")).sort(
        pl.col("end_ns") - pl.col("start_ns"), descending=True
    )
    cells = [
        [
            r["lane"],
            shown_as(r["kind"]),
            r["name"],
            f"{(r['start_ns'] - chosen.start_ns) / 1e3:.1f}",
            f"{(r['end_ns'] - r['start_ns']) / 1e3:.1f}",
        ]
        for r in longest.head(100).iter_rows(named=True)
    ]
    columns = [("lane", False), ("kind", False), ("name", False), ("starts at µs", True), ("µs", True)]
    listed = table(columns, cells)
    title = (
        f"{recorded.label}: cycle {chosen.cycle} of rank {chosen.rank}, {chosen.step_ns / 1e6:.2f} ms "
        f"(median traced cycle {chosen.median_ns / 1e6:.2f} ms)"
    )
    words = f"Timeline of one cycle with the lanes {', '.join(order)}; {counted(inside.height, 'event')}. The table lists the longest."
    return Figure(
        title,
        words,
        _chart(drawn, order, (end - chosen.start_ns) / 1e3),
        listed,
        "Ctrl and the wheel, or a pinch, zoom; drag to move, double-click to see all again; point at a mark for its name.",
    )


def _around(source: RankSource, chosen: Chosen) -> RankTrace:
    """The rank's events a few cycles around the chosen one: all that its device work can have been launched by."""
    margin = MARGIN_CYCLES * chosen.step_ns
    return source.around(chosen.start_ns - margin, chosen.start_ns + chosen.step_ns + margin)


def _last_end(window: WindowAnalysis, chosen: Chosen, end: int) -> int:
    """Last end of what was launched in the cycle: device work may run on after the next cycle has begun."""
    acts = window.activities
    begun = np.append(acts.launches.start, -1)[acts.launch]
    mine = (begun >= chosen.start_ns) & (begun < end) & (acts.range >= 0)
    return int(acts.end[mine].max()) if mine.any() else end


def _ranges(analysis: RankAnalysis, phase_map: Mapping[str, str] | None, start: int, end: int) -> pl.DataFrame:
    """The host's ranges: the cycle, its phases, and what was annotated inside them."""
    found = of_kind(analysis.trace.events, ("cycle", "phase")).filter(
        pl.col("dur_ns") > 0, pl.col("start_ns") < end, pl.col("start_ns") + pl.col("dur_ns") > start
    )
    names = found.get_column("name").cast(pl.String).to_list()
    kinds = [phase or "inner" for phase in recognise(names, phase_map)]
    lane = ["host: cycle" if k == CYCLE else "host: inside" if k == "inner" else "host: phases" for k in kinds]
    frame = found.select(
        lane=pl.Series(lane, dtype=pl.String),
        kind=pl.Series(kinds, dtype=pl.String),
        name=pl.col("name").cast(pl.String),
        phase=pl.Series(kinds, dtype=pl.String),
        start_ns=pl.col("start_ns"),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )
    lanes = pl.Enum(["host: cycle", "host: phases", "host: inside"])
    # The inner of nested ranges is drawn last, so that it lies on top.
    return frame.sort(pl.col("lane").cast(lanes), -(pl.col("end_ns") - pl.col("start_ns"))).select(
        pl.col(c).cast(t) for c, t in _SCHEMA.items()
    )


def _launches(analysis: RankAnalysis, start: int, end: int) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    graph = name.str.contains("(?i)graphlaunch")
    return (
        of_kind(analysis.trace.events, ("launch",))
        .filter(pl.col("dur_ns") >= 0, pl.col("start_ns") < end, pl.col("start_ns") + pl.col("dur_ns") > start)
        .select(
            lane=pl.lit("launch calls"),
            kind=pl.when(graph).then(pl.lit("graph_launch")).otherwise(pl.lit("launch")),
            name=name,
            phase=pl.lit(None, pl.String),
            start_ns="start_ns",
            end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        )
        .select(pl.col(c).cast(t) for c, t in _SCHEMA.items())
    )


def _device(window: WindowAnalysis, which: Any, lane: pl.Expr) -> pl.DataFrame:
    acts = window.activities
    return (
        pl.DataFrame(
            {
                "stream": acts.stream[which],
                "kind": np.array(BUCKETS)[acts.bucket[which]],
                "name": np.array([*acts.names, ""], dtype=object)[acts.name[which]].astype(str),
                "phase": np.array(PHASE_KEYS)[acts.phase[which]],
                "start_ns": acts.start[which],
                "end_ns": acts.end[which],
            },
            schema_overrides={"kind": pl.String, "name": pl.String, "phase": pl.String},
        )
        .with_columns(lane=lane)
        .select(pl.col(c).cast(t) for c, t in _SCHEMA.items())
    )


def _streams(window: WindowAnalysis) -> pl.DataFrame:
    order = np.argsort(window.activities.stream, kind="stable")
    return _device(window, order, pl.format("stream {}", "stream"))


def _collectives(window: WindowAnalysis, key: str) -> pl.DataFrame:
    return _device(
        window, np.flatnonzero(communication_code(window.activities.bucket)), pl.lit(f"collectives, rank {key}")
    )


def _thinned(frame: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Rows to draw: µs from the cycle's start, and in crowded lanes neighbours of one kind together."""
    crowded = pl.len().over("lane") > MOST_MARKS
    each = pl.int_range(pl.len())
    place = (pl.col("start_ns") - start) * MOST_MARKS // max(end - start, 1)
    frame = frame.with_columns(_cell=pl.when(crowded).then(place).otherwise(-1 - each))
    together = frame.group_by("lane", "kind", "phase", "_cell", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.len().alias("count"),
        pl.col("name").sort_by(pl.col("end_ns") - pl.col("start_ns")).last(),
    )
    name = pl.col("name").str.slice(0, LONGEST_NAME)
    named = pl.when(pl.col("count") > 1).then(pl.format("{} together, the longest {}", "count", name)).otherwise(name)
    return together.select(
        "lane",
        "kind",
        name=named,
        phase=pl.col("phase").fill_null("–"),
        start=(pl.col("start_ns") - start) / 1e3,
        end=(pl.col("end_ns") - start) / 1e3,
        us=(pl.col("end_ns") - pl.col("start_ns")) / 1e3,
    )


def _chart(frame: pl.DataFrame, lanes: list[str], span_us: float) -> dict[str, Any]:
    used = set(frame.get_column("kind").to_list())
    kinds = [k for k in _KINDS if k in used and k in COLOURS]
    shown = {k: shown_as(k) for k in kinds}
    frame = frame.with_columns(pl.col("kind").replace(shown))
    # The wheel alone scrolls the page, which would stop here otherwise; a touchpad's pinch comes as a wheel with Ctrl.
    zoom = alt.selection_interval(
        bind="scales", encodings=["x"], name="zoom", zoom="wheel![event.ctrlKey || event.metaKey]"
    )
    scale = alt.Scale(domain=list(shown.values()), range=[variable(k) for k in kinds])
    y = alt.Y(
        "lane:N",
        sort=lanes,
        title=None,
        axis=alt.Axis(labelLimit=200, domain=False, ticks=False, grid=True),
        scale=alt.Scale(paddingInner=0.25),
    )
    x = alt.X("start:Q", title="µs from the cycle's start", scale=alt.Scale(domain=[0, span_us], nice=False))
    base = alt.Chart(height=30 * len(lanes)).encode(
        y=y,
        x=x,
        x2="end:Q",
        color=alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(orient="top", columns=5)),
        tooltip=[
            alt.Tooltip("name:N", title="name"),
            alt.Tooltip("kind:N", title="kind"),
            alt.Tooltip("phase:N", title="phase"),
            alt.Tooltip("us:Q", title="µs", format=",.1f"),
            alt.Tooltip("start:Q", title="starts at µs", format=",.1f"),
            alt.Tooltip("lane:N", title="lane"),
        ],
    )
    # A rim of its own colour keeps the shortest kernel visible; ranges that lie in each other need one of another colour.
    inner = f"datum.kind == '{shown_as('inner')}'"
    marks = base.transform_filter(f"!({inner})").mark_bar(clip=True, strokeWidth=0.6, orient="horizontal")
    marks = marks.encode(stroke=alt.Stroke("kind:N", title=None, scale=scale)).add_params(zoom)
    nested = base.transform_filter(inner).mark_bar(clip=True, orient="horizontal", stroke="var(--paper)", strokeWidth=1)
    return specification(alt.LayerChart(data=rows(frame), layer=[marks, nested]))
