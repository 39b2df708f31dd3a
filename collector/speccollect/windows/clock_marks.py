"""A few ranges at a window's begin and end whose times both clocks know: the profiler's clock against the host's.

Phases are stamped by the host's clock (``time.time_ns``), events by the profiler's, which counts Unix time, too. A range of the profiler's
costs the server 10 us, a stamp 0.1, so phases are stamps inside windows as well, and these marks measure how far the two clocks
lie apart: the profiler's begin and end of a mark must lie between the stamps around its entry and its exit.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti.columns import ClockFit
from speccollect.kineto.columns import KinetoColumns
from specschema.phases import range_name

MARK: Final = range_name("clock")
MARKS: Final = 3
"""At each end of a window; what they tell together is narrower than any of them."""


class ClockMarks:
    """The marks of one window; all on the thread that opened it."""

    def __init__(self) -> None:
        self._begin: list[tuple[int, int, int, int]] = []
        self._end: list[tuple[int, int, int, int]] = []

    def begin(self) -> None:
        """Mark a window that has just been opened."""
        self._begin = _marked()

    def end(self) -> None:
        """Mark a window that is about to be closed."""
        self._end = _marked()

    def fit(self, columns: KinetoColumns) -> ClockFit | None:
        """What the profiler's times need to become the host's; None where it did not record the marks."""
        rows = rows_of(columns)
        if not self._begin or len(rows) != len(self._begin) + len(self._end) or not self._end:
            return None
        starts = columns.start[rows]
        ends = starts + columns.duration[rows]
        here = len(self._begin)
        return ClockFit(
            _reading(self._begin, starts[:here], ends[:here]), _reading(self._end, starts[here:], ends[here:])
        )


def rows_of(columns: KinetoColumns) -> npt.NDArray[np.intp]:
    """Rows of the marks, by time."""
    rows = np.flatnonzero(columns.of_type("user_annotation") & columns.name_mask(lambda name: name == MARK))
    return rows[np.argsort(columns.start[rows], kind="stable")]


def _marked() -> list[tuple[int, int, int, int]]:
    """Stamps before and after entering, and before and after leaving, of each mark."""
    from torch.autograd.profiler import record_function

    stamps = []
    for _ in range(MARKS):
        mark: Any = record_function(MARK)
        before = time.time_ns()
        mark.__enter__()
        entered = time.time_ns()
        mark.__exit__(None, None, None)
        stamps.append((before, entered, entered, time.time_ns()))
    return stamps


def _reading(
    stamps: list[tuple[int, int, int, int]], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """(the profiler's time, the host's minus it, uncertainty), ns: where all bounds overlap, or the gap between them."""
    host = np.array(stamps, dtype=np.int64)
    least = int(max((host[:, 0] - starts).max(), (host[:, 2] - ends).max()))
    most = int(min((host[:, 1] - starts).min(), (host[:, 3] - ends).min()))
    return int(starts[0]), (least + most) // 2, abs(most - least) // 2 + 1
