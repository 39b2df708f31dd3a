"""A closed window on its way from the serving thread to the writer thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from speccollect.kineto.columns import KinetoColumns
from speccollect.kineto.events import Events
from speccollect.nodemap.replays import ReplayStamps
from speccollect.windows.clock_marks import ClockMarks
from speccollect.windows.module_ranges import ModuleRanges


@dataclass
class WindowResult:
    """A closed window as the serving thread leaves it.

    Attributes:
        events: what the profiler left; None when ``columns`` has everything.
        columns: the events, read; None while they wait for the writer thread.
        info: what the trace's metadata says about the window.
        metadata: whether the events carry the profiler's text.
        ids_only: of that text only graph and node ids are wanted.
        replays: which captured graph each replay ran; None where no graph can be told.
        clock: what measures the profiler's clock against the host's; None where the profiler takes no ranges.
        modules: which module ran when; None where nobody asked.
    """

    events: Events | None
    columns: KinetoColumns | None
    info: dict[str, Any]
    metadata: bool
    ids_only: bool = False
    replays: ReplayStamps | None = None
    clock: ClockMarks | None = None
    modules: ModuleRanges | None = None


def empty_window(number: int, kind: str, device_records: int, replays: int | None) -> str | None:
    """What to say of a window without device activity although graphs ran: it says nothing about the device, not that it was
    idle. None for any other window."""
    if device_records or not replays:
        return None
    return f"window {number} is empty: {replays} graph replays ran, but {kind} saw none"
