"""Warnings of several recordings, each with the name of its own: a line about rank 0 must say whose."""

from __future__ import annotations

from collections.abc import Iterable

from specanalyze.trace import Trace


def recording_warnings(traces: Iterable[Trace]) -> list[str]:
    """The traces' own warnings; a line that does not name its recording is given the name."""
    lines = (line if trace.name in line else f"{trace.short}: {line}" for trace in traces for line in trace.warnings)
    return list(dict.fromkeys(lines))
