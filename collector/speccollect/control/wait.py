"""Waiting until every rank has closed its files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from speccollect.control.status import RankStatus, alive, read_statuses

FINISHED = ("done", "failed")
_POLL_SECONDS = 0.05


def unfinished(folder: Path, recording: int) -> list[RankStatus]:
    """Ranks that take part in a recording, still run, and have not closed their files."""
    return [
        status
        for status in read_statuses(folder)
        if status.recording == recording and status.state not in FINISHED and alive(status) is not False
    ]


def wait_for_ranks(
    folder: Path, recording: int, timeout: float = 60.0, nudge: Callable[[], None] | None = None
) -> list[str]:
    """Wait until every rank that takes part has closed its files, or died.

    Args:
        folder: the collector's folder.
        recording: number of the recording, already disarmed.
        timeout: seconds without any progress after which a rank is given up.
        nudge: called once after two seconds if ranks are still at it: a server that went idle inside a profiler window
            closes it at its next step, so a tiny request helps.

    Returns:
        One line for each rank that was given up; empty when all is well.
    """
    begun = last_change = time.monotonic()
    nudged = False
    previous: list[RankStatus] = []
    while True:
        waiting = unfinished(folder, recording)
        if not waiting:
            return []
        now = time.monotonic()
        if waiting != previous:
            previous, last_change = waiting, now
        if nudge is not None and not nudged and now - begun > 2:
            nudged = True
            nudge()
        if now - last_change > timeout:
            return [
                f"rank {s.rank} (process {s.pid}) is still {s.state} after {timeout:.0f} s: what it has finished is kept"
                for s in waiting
            ]
        time.sleep(_POLL_SECONDS)
