"""Progress of reading, on stderr, only where a person watches and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PATIENCE_SECONDS = 1.0
"""Work shorter than this shows no bar."""

_stops: list[Callable[[], None]] = []


def reading() -> Callable[[int, int], None] | None:
    """A ``progress(bytes_done, bytes_total)`` callback, or None where stderr is not a terminal.

    Ranks are read lazily, long after a recording was opened, so the bar lives until everything is read or the command
    ends (``finish``).
    """
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    began = time.monotonic()
    bar = Progress(
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("reading")
    _stops.append(bar.stop)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()
        elif not bar.live.is_started and time.monotonic() - began > PATIENCE_SECONDS:
            bar.start()

    return update


def finish() -> None:
    """Take every bar off the terminal: the command is over, or an error is about to be printed."""
    while _stops:
        _stops.pop()()
