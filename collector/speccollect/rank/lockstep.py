"""Windows of the same cycles on all ranks, also where a busy server was armed.

Each rank sees the command at its own next step, so one of them may begin to count a cycle earlier than another. Ranks that run in
step (tensor parallel) begin a cycle at nearly the same time: the writer threads tell each other when their first cycles began, find
the same cycles among their own, and let the windows of a rank that counted earlier wait for the others. Nothing of it runs on the
serving thread but one attribute check a cycle.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from speccollect.control.status import read_statuses
from speccollect.cycles import segment as seg
from speccollect.cycles.recording import Recording
from speccollect.cycles.rows import COMMITTING_MODES
from speccollect.rank.identity import Identity

MOST_AHEAD: Final = 4
"""A rank further ahead than this was not in step with the others: its windows stay where they are."""

AGREEMENT: Final = 0.3
"""In step, the same cycle begins on all ranks within this share of a cycle, in the median over some cycles."""

_FIRST: Final = "rank*.first.json"

SHOWN: Final = 8
"""Begins of cycles that a rank shows the others."""


def place_in_step(starts: npt.NDArray[np.int64], shown: npt.NDArray[np.int64]) -> int | None:
    """Which of a rank's cycles is the first one of the rank that began to count last.

    Args:
        starts: begins of the rank's own cycles, ns, ascending, at least MOST_AHEAD more than ``shown``.
        shown: begins of the first cycles of the other rank.

    Returns:
        Its index; None where the two are not in step.
    """
    usual = float(np.median(np.diff(shown)))
    apart = [float(np.median(np.abs(starts[place : place + len(shown)] - shown))) for place in range(MOST_AHEAD + 1)]
    place = int(np.argmin(apart))
    return place if apart[place] <= AGREEMENT * usual else None


class Lockstep:
    """One rank's part in it; used by its writer thread.

    Attributes:
        ahead: cycles that this rank counted before the last one began; None as long as that is not known.
    """

    def __init__(self, files: Path, identity: Identity, recording: Recording) -> None:
        self._files = files
        self._identity = identity
        self._recording = recording
        self._told = False
        self._settled = (identity.world_size or 1) < 2
        self.ahead: int | None = None

    def step(self) -> None:
        """Look around; called now and then until all is settled."""
        windows, segment = self._recording.windows, self._recording.segment
        if self._settled or windows is None or segment is None:
            return
        if segment.first_cycle != 0 or windows.settling < 2:
            self._settled = True  # too late, or windows begin at once
            return
        if segment.cycle_count < SHOWN + MOST_AHEAD:
            return
        cycles = segment.first(SHOWN + MOST_AHEAD)  # not all: it is asked again until every rank has told
        starts = cycles[:, seg.START]
        if not self._told:
            self._tell(starts[:SHOWN].tolist())
        armed = sum(status.recording == self._recording.number for status in read_statuses(self._files.parent))
        if len(list(self._files.glob(_FIRST))) < armed:
            return
        self._settled = True
        shown = self._shown()
        place = place_in_step(starts, np.array(max(shown)))  # of the rank whose first cycle was the last
        if place is None:
            return
        self.ahead = place
        committing = [i for i, name in enumerate(list(self._recording.names)) if name in COMMITTING_MODES]
        windows.delay = int(np.isin(cycles[:place, seg.MODE], committing).sum())

    def _tell(self, starts: list[int]) -> None:
        path = self._files / f"rank{self._identity.rank:05d}.first.json"
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"starts_ns": starts, "data": self._identity.coordinates.get("data")}, file)
        os.replace(temporary, path)
        self._told = True

    def _shown(self) -> list[list[int]]:
        """What the ranks of this rank's replica have shown, its own included."""
        found = []
        for path in self._files.glob(_FIRST):
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["data"] == self._identity.coordinates.get("data"):
                found.append([int(start) for start in told["starts_ns"]])
        return found
