"""How far the timeline of one window had come at the starts of its cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from specanalyze.attribution.analysis import WindowAnalysis
from specanalyze.attribution.partition import Partition
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.columns import Ints
from specschema.phases import REMAINDERS

_REMAINDER_CODES: Final = [PHASE_CODE[p] for p in REMAINDERS]


@dataclass(frozen=True)
class WindowMarks:
    """One window of one rank.

    Attributes:
        window: its number.
        ranges: recognised ranges.
        range_end: last end of the device work launched in each, -1 where none was, ns.
        instants: ns, in order, each once.
        before: ns that the partition gave to no leaf phase before each instant.
    """

    window: int
    ranges: Ranges
    range_end: Ints
    instants: Ints
    before: Ints

    def other_before(self, instant: Ints) -> Ints:
        """``before`` of some of the instants."""
        return self.before[np.searchsorted(self.instants, instant)]


def analysed_marks(window: WindowAnalysis, part: Partition, instants: Ints) -> WindowMarks:
    """Of a window that was analysed through whole tables."""
    acts = window.activities
    called = acts.range >= 0
    range_end = np.full(len(window.ranges), -1, dtype=np.int64)
    np.maximum.at(range_end, acts.range[called], acts.end[called])
    before = np.zeros(len(instants), dtype=np.int64)
    if len(part.start):
        other = np.isin(part.phase, _REMAINDER_CODES)
        length = part.end - part.start
        upto = np.cumsum(np.where(other, length, 0)) - np.where(other, length, 0)
        at = np.searchsorted(part.start, instants, side="right") - 1
        held = np.maximum(at, 0)
        inside = np.clip(instants - part.start[held], 0, length[held])
        before = np.where(at < 0, 0, upto[held] + np.where(other[held], inside, 0))
    return WindowMarks(window.window, window.ranges, range_end, instants, before)
