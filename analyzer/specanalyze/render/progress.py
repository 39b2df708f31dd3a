"""Progress of reading, on stderr, only where a person watches and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 1.0
"""Work shorter than this shows no bar."""


@contextmanager
def reading() -> Iterator[Callable[[int, int], None] | None]:
    """A ``progress(bytes_done, bytes_total)`` callback, or None where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
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

    def update(done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - began > PATIENCE_SECONDS:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
