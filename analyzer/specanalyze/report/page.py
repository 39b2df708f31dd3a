"""The page: looks at the recordings, lets every section draw itself, and writes one HTML text that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specanalyze.report.acceptance_bars import acceptance_section
from specanalyze.report.breakdown_bars import breakdown_section
from specanalyze.report.changes import changes_section
from specanalyze.report.cycle_timeline import timeline
from specanalyze.report.cycle_times import cycle_time_figures
from specanalyze.report.findings import Findings, findings
from specanalyze.report.headline import Fact, Headline, environment_facts, headlines
from specanalyze.report.layer_heat import layer_figures
from specanalyze.report.palette import definitions
from specanalyze.report.rank_waits import slower_notes, wait_figure
from specanalyze.report.recorded import Recorded, labels, record
from specanalyze.report.section import Figure, Section
from specanalyze.report.sweep_lines import sweep_section
from specanalyze.report.vega import library
from specanalyze.trace import Trace

MOST_BYTES: Final = 3_000_000
"""A page stays below this, however long its recording."""


@dataclass(frozen=True)
class Report:
    """All that a page shows.

    Attributes:
        headlines, facts, more_facts, findings, sections: in their order.
        labels: of the recordings.
        warnings: one line each, with the recording's label.
        names: path of a recording as messages name it -> its label.
    """

    headlines: list[Headline]
    facts: list[Fact]
    more_facts: list[Fact]
    findings: list[Findings]
    sections: list[Section]
    labels: list[str]
    warnings: list[str]
    names: Mapping[str, str]


def build_report(
    traces: Sequence[Trace],
    *,
    baseline: Trace | None = None,
    accept_differences: bool = False,
    values: Sequence[str] | None = None,
    phase_map: Mapping[str, str] | None = None,
) -> Report:
    """Look at recordings side by side.

    Args:
        traces: the recordings, the one in question first.
        baseline: plain decoding of the same server.
        accept_differences: judge by the baseline even if it ran on another environment.
        values: draft steps of each recording, where they do not say them.
        phase_map: regular expression -> phase for range names that are not built in.

    Raises:
        TraceError: a recording has no phase ranges or no cycles. Anything else that one lacks is said in its section.
    """
    everything = [*traces, baseline] if baseline is not None else list(traces)
    recordings = [
        record(trace, label, baseline=trace is baseline, phase_map=phase_map)
        for trace, label in zip(everything, labels(everything), strict=True)
    ]
    first, more = environment_facts(recordings)
    judged = [r for r in recordings if not r.baseline]
    sections = [
        breakdown_section(recordings),
        _timelines(judged, phase_map),
        _layers(judged),
        _waits(judged),
        acceptance_section(recordings),
        _cycle_times(recordings),
        changes_section(recordings, accept_differences=accept_differences),
        sweep_section(judged, values, accept_differences=accept_differences),
    ]
    said = [
        f"{r.label}: {line}"
        for r in recordings
        for line in dict.fromkeys((*r.trace.warnings, *r.phases.warnings, *r.phases.notes))
    ]
    return Report(
        headlines(recordings, accept_differences=accept_differences),
        first,
        more,
        findings(recordings, accept_differences=accept_differences),
        sections,
        [r.label for r in recordings],
        said,
        {r.trace.name: r.label for r in recordings},
    )


def _timelines(recordings: Sequence[Recorded], phase_map: Mapping[str, str] | None) -> Section:
    figures, missing = [], []
    for recorded in recordings:
        figure = timeline(recorded, phase_map)
        if figure is None:
            missing.append(
                f"{recorded.label} has no traced cycle with all its device records and a known length: record a kernel window of several cycles"
            )
        else:
            figures.append(figure)
    notes = (
        "A launch call puts work on a stream; the device runs it later. Lanes of other ranks of the same host share its clock. "
        "The cycle shown is the wholly recorded one whose length is nearest the median.",
    )
    return Section(
        "timeline",
        "One real cycle",
        "What did host, launches, streams and collectives do in one cycle?",
        tuple(figures),
        notes if figures else (),
        tuple(missing),
    )


def _layers(recordings: Sequence[Recorded]) -> Section:
    figures = [f for r in recordings for f in layer_figures(r)]
    missing = [r.why["layers"] for r in recordings if r.layers is None]
    notes = [
        f"{r.label}: {r.layers.placed} of {r.layers.replays} replays fit the node map; {r.layers.unplaced_ns / 1e6:.3f} ms of the phase has no module."
        for r in recordings
        if r.layers is not None
    ]
    return Section(
        "layers",
        "Layer by layer",
        "Inside the graph replay: which layers and modules take the time?",
        tuple(figures),
        tuple(notes),
        tuple(missing),
    )


def _waits(recordings: Sequence[Recorded]) -> Section:
    found = [wait_figure(r) for r in recordings]
    notes = (
        "The same collective on all ranks: its shortest kernel is the transfer, what the others take longer is waiting for the last to arrive. "
        "Waiting is lost to skew between ranks; transfer to the links and the algorithm. "
        "Came last in: collectives that found this rank the last to arrive, however little it was late; the rank that waits least is the late one.",
    )
    return Section(
        "waits",
        "Waiting and transfer",
        "Is allreduce slow, or does a rank come late?",
        tuple(f for f in found if isinstance(f, Figure)),
        (
            *(notes if any(isinstance(f, Figure) for f in found) else ()),
            *(n for r in recordings for n in slower_notes(r)),
        ),
        tuple(f for f in found if isinstance(f, str)),
    )


def _cycle_times(recordings: Sequence[Recorded]) -> Section:
    figures, missing = [], []
    for recorded in recordings:
        drawn = cycle_time_figures(recorded)
        figures += drawn
        if not drawn:
            missing.append(
                f"{recorded.label} has no two neighbouring decode cycles, so no cycle time: record a longer stretch of one request"
            )
        elif not recorded.phases.untraced.cycles:
            missing.append(
                f"{recorded.label} has no untraced cycles beside the observed ones: the true cycle time is unknown; record a longer answer, so that cycles stay outside the windows"
            )
    return Section(
        "cycle-times",
        "Cycle times over the request",
        "Is the cycle steady, and what did observing it cost?",
        tuple(figures),
        (),
        tuple(missing),
    )


def to_html(report: Report) -> str:
    """The page as one text: scripts, styles and data inside; it asks the network for nothing, and may not (its own policy)."""
    environment = Environment(
        loader=PackageLoader("specanalyze.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ident"] = id
    environment.filters["short"] = partial(_short, report.names)
    environment.filters["prose"] = _prose
    templates = files("specanalyze.report") / "templates"
    own = (templates / "report.js").read_text(encoding="utf-8")
    styles = (templates / "report.css").read_text(encoding="utf-8")
    vega = library()
    figures = [figure for section in report.sections for figure in section.figures]
    specs = {f"figure-{n}": figure.spec for n, figure in enumerate(figures) if figure.spec is not None}
    return environment.get_template("report.html.j2").render(
        report=report,
        key_of={id(figure): f"figure-{n}" for n, figure in enumerate(figures)},
        light=Markup(definitions(dark=False)),
        dark=Markup(definitions(dark=True)),
        styles=Markup(styles),
        library=Markup(vega),
        script=Markup(own),
        data=Markup(_embedded(specs)),
        hashes=Markup(" ".join(_digest(text) for text in (vega, own))),
    )


def _short(names: Mapping[str, str], text: str) -> str:
    """A message with the labels of recordings in place of their paths."""
    for name, label in names.items():
        text = text.replace(name, label)
    return text


_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]{1,32}(?![\w-])")
"""``--speculative-num-steps``: a browser would break it after its hyphens, and nobody could copy it."""


def _prose(text: str) -> Markup:
    """Text of a message: what stands between backticks is a command or a value, options stay on one line, everything is escaped."""
    parts = [Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(part)))) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a lone backtick is a backtick
        return Markup("`").join(parts)
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _embedded(value: Any) -> str:
    """JSON that may stand inside a script element: no text of a trace can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(script: str) -> str:
    """The script as the page's policy names it; any other script does not run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
