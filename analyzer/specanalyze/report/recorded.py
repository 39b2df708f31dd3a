"""One recording as a report needs it: what the analyses say about it, or why they cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, TypeVar

from specanalyze.answers.accept import Accepts, accepts_of_cycles
from specanalyze.answers.advice import ACCEPTS, NODE_MAP, advice
from specanalyze.answers.layers import Layers, RankLayers, WindowLayers, layers_of, rank_layers, window_layers
from specanalyze.answers.measured import Measured, measured_of_ranks
from specanalyze.answers.measured_rank import MeasuredRank, WindowParts, measured_rank, window_parts
from specanalyze.answers.overhead import Overhead, RankTiers, overhead_of, rank_tiers
from specanalyze.answers.phases_report import PhaseReport, RankPhases, phase_report_of, rank_phases
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import read_rank
from specanalyze.attribution.window_work import WindowWork
from specanalyze.columns import of_kind
from specanalyze.engines.engine import each_rank
from specanalyze.formats.recordings import recording_in_name
from specanalyze.report.held_trace import held
from specanalyze.trace import RankSource, Trace
from specschema.errors import TraceError

T = TypeVar("T")


@dataclass(frozen=True)
class Recorded:
    """One recording.

    Attributes:
        label: short and unique among the recordings of the page.
        trace: the recording, its ranks held.
        baseline: whether it is the plain decoding that the others are judged by.
        phases: its cycles.
        measured, overhead, layers, accepts: None where it cannot tell; ``why`` says the reason under the same name.
        why: what is missing -> one line with what to record.
    """

    label: str
    trace: Trace
    baseline: bool
    phases: PhaseReport
    measured: Measured | None
    overhead: Overhead | None
    layers: Layers | None
    accepts: Accepts | None
    why: Mapping[str, str]

    @property
    def ranks(self) -> list[RankBreakdown]:
        return list(self.phases.breakdown.values())

    @property
    def main_phase(self) -> str:
        """``verify`` where it has any, else ``decode``, else the first phase it has."""
        for phase in ("verify", "decode"):
            if any(r.instances.get(phase) for r in self.ranks):
                return phase
        return self.phases.phases[0] if self.phases.phases else "cycle"


_INSIDE: Final = ("verify", "decode")
"""Phases that are shown layer by layer: the first one where the recording speculates, else the second."""


@dataclass(frozen=True)
class _Rank:
    """One rank, reduced for each of the analyses."""

    phases: RankPhases
    measured: MeasuredRank
    tiers: RankTiers
    layers: Mapping[str, RankLayers]
    has_nodes: bool


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> _Rank:
    read = read_rank(source, trace, phase_map, talks=True, look=_look)
    return _Rank(
        rank_phases(read, phase_map),
        measured_rank(read, [parts for parts, _ in read.looked]),
        rank_tiers(read.rank, read.cycles),
        {phase: rank_layers(source.key, [w[phase] for _, w in read.looked], phase) for phase in _INSIDE},
        of_kind(read.rank.events, ("node",)).height > 0,
    )


def _look(work: WindowWork) -> tuple[WindowParts, dict[str, WindowLayers]]:
    return window_parts(work), {phase: window_layers(work, phase) for phase in _INSIDE}


def record(trace: Trace, label: str, *, baseline: bool = False, phase_map: Mapping[str, str] | None = None) -> Recorded:
    """Look at one recording from all sides, its ranks read once.

    Raises:
        TraceError: no phase ranges or no cycle: then there is nothing to report.
    """
    trace = held(trace)
    ranks = list(each_rank(trace, _rank, phase_map))
    phases = phase_report_of(trace, [rank.phases for rank in ranks])
    why: dict[str, str] = {}

    def attempt(name: str, analysis: Callable[[], T | None], otherwise: str = "") -> T | None:
        try:
            found = analysis()
        except TraceError as error:
            why[name] = str(error)
            return None
        if found is None:
            why[name] = otherwise
        return found

    speculates = any(r.instances.get("verify") for r in phases.breakdown.values())

    def inside() -> Layers | None:
        phase = "verify" if speculates else "decode"
        return layers_of(trace, [r.layers[phase] for r in ranks], phase) if any(r.has_nodes for r in ranks) else None

    counted = phases.cycles.filter(phases.cycles["rank"].is_in(phases.counted))
    silent = (
        f"{label} does not say what was accepted; {advice(trace, ACCEPTS, 'lay FILE.cycles.json beside the trace')}"
        if speculates
        else f"{label} is plain decoding: nothing is drafted, so nothing is accepted"
    )
    return Recorded(
        label,
        trace,
        baseline,
        phases,
        attempt("measured", lambda: measured_of_ranks(trace, [rank.measured for rank in ranks])),
        attempt("overhead", lambda: overhead_of(trace, [rank.tiers for rank in ranks])),
        attempt(
            "layers",
            inside,
            f"{label} has no node map, so the modules inside its graph replays are unknown; "
            + advice(trace, NODE_MAP, "lay FILE.nodemap.json beside the trace"),
        ),
        attempt("accepts", lambda: accepts_of_cycles(trace, counted), silent),
        why,
    )


def measured_of(recorded: Recorded) -> Measured:
    """What the recording measured.

    Raises:
        TraceError: it cannot tell; with the reason.
    """
    if recorded.measured is None:
        raise TraceError(recorded.why["measured"])
    return recorded.measured


def labels(traces: Sequence[Trace]) -> list[str]:
    """A short name for each recording, unique among them: the file's, with its folder where that is needed."""
    paths = [PurePath(trace.name.split(", ")[0]) for trace in traces]
    # A trace.parquet is named by its owner; only names of rank files hold a rank to be left out ("tp2" may be the server's size).
    names = [
        path.stem if path.suffix == ".parquet" and "," not in trace.name else recording_in_name(path.name)
        for path, trace in zip(paths, traces, strict=True)
    ]
    short = [
        path.parent.name if name == "trace" and path.parent.name else name
        for path, name in zip(paths, names, strict=True)
    ]
    full = [f"{path.parent.name}/{name}" for path, name in zip(paths, names, strict=True)]
    chosen = [name if short.count(name) == 1 else whole for name, whole in zip(short, full, strict=True)]
    return [name if chosen.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(chosen)]
