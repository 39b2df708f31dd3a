"""One stretch of host stamps in plain lists: what the hot path writes and the writer thread reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.parts.slices import give_way

if TYPE_CHECKING:
    from speccollect.windows.result import WindowResult

PHASE_CAPACITY: Final = 1 << 14
CYCLE_CAPACITY: Final = 4096

# columns of the two int64 tables
START: Final = 0
END: Final = 1
CYCLE: Final = 2  # phases
NAME: Final = 3  # phases: index into the recorder's list of names
MODE: Final = 2  # cycles: index into the recorder's list of names
BATCH_SIZE: Final = 3
DRAFT_TOKENS: Final = 4
GRAPH_BATCH_SIZE: Final = 5  # UNKNOWN when eager
CONTEXT_TOKENS: Final = 6  # UNKNOWN where the engine does not say
CYCLE_COLUMNS: Final = 7
REQUEST_IDS: Final = 7  # what follows is in a cycle's row, not in the table
ACCEPT_LENGTHS: Final = 8
ACCEPTED_DRAFT_TOKENS: Final = 9
PHASE_COLUMNS: Final = 4

PHASE_CELLS: Final = PHASE_CAPACITY * PHASE_COLUMNS
TOKEN_BITS: Final = 17
"""Bits of a phase's place in ``stamps``; above them in a token is the segment's serial."""

UNKNOWN: Final = -1

_SLICE: Final = 8192  # cells turned into an array without letting go of the interpreter: some 0.2 ms
_ROWS_SLICE: Final = 256  # rows read or given back without letting go of it: less

Lengths = Sequence["int | None"]
NO_LENGTHS: Final[Lengths] = ()
"""The engine said that it does not know this cycle's accept lengths."""

CycleRow = list[Any]
"""A cycle: its cells by the columns above, then REQUEST_IDS, ACCEPT_LENGTHS (None: not told yet), ACCEPTED_DRAFT_TOKENS."""


class Segment:
    """Stamps of some hundreds or thousands of consecutive cycles.

    The thread that runs the cycles is the only one that writes rows; the writer thread reads them after the segment
    was handed over. Accept lengths may still arrive then: they are single reference stores into lists.

    Rows are kept in lists of Python's own: on a server's step path, whose caches the step has emptied, a store into an
    array costs what brings its code and its memory back, 2 to 6 us where an append costs half of one.

    Attributes:
        opened_at_ns: when it was taken, by the monotonic clock: the host's clock may be set while it is in use.
        stamps: cells of the phases, PHASE_COLUMNS each: start, end (0 as long as it is open), cycle, name.
        rows: one row a cycle; row i is cycle ``first_cycle + i``.
        window: profiler window the stretch lies in; None outside.
        warmup: the profiler was attached, but threw its events away.
        profile: what the profiler saw of the stretch; None outside windows.
        serial: rises with every use, so that a token of an earlier use is recognised.
        sealed: being written; what arrives now is too late.
    """

    __slots__ = (
        "first_cycle",
        "opened_at_ns",
        "profile",
        "rows",
        "sealed",
        "serial",
        "stamps",
        "warmup",
        "window",
    )

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self.rows: list[CycleRow] = []
        self.first_cycle = 0
        self.opened_at_ns = 0
        self.window: int | None = None
        self.warmup = False
        self.sealed = False
        self.serial = 0
        self.profile: WindowResult | None = None

    def reset(
        self, first_cycle: int, window: int | None, opened_at_ns: int, serial: int, *, warmup: bool = False
    ) -> None:
        """Make the segment ready for cycles from ``first_cycle`` on; called by the thread that runs the cycles only."""
        # new lists: a phase of an earlier use that closes only now closes there
        self.stamps, self.rows = [], []
        self.first_cycle = first_cycle
        self.window = window
        self.opened_at_ns = opened_at_ns
        self.warmup = warmup
        self.sealed = False
        self.serial = serial
        self.profile = None

    def release(self) -> None:
        """Give the memory of what was written back; called by the writer thread, once the segment is sealed.

        Without it every segment of the pool kept its last rows until its next use, 40 MB in all, and the thread that runs
        the cycles gave them back, a millisecond or two at once. Here it goes in slices, and after each the other thread may
        have the interpreter. Places stay until the last reference goes: a phase that closes only now still finds its own.
        """
        rows, self.rows = self.rows, []
        while rows:
            del rows[-_ROWS_SLICE:]
            give_way()
        stamps, self.stamps = self.stamps, []
        for at in range(0, len(stamps), _SLICE):
            stamps[at : at + _SLICE] = [0] * len(stamps[at : at + _SLICE])
            give_way()

    @property
    def cycle_count(self) -> int:
        """Cycles that have begun."""
        return len(self.rows)

    @property
    def cycles(self) -> npt.NDArray[np.int64]:
        """int64, CYCLE_COLUMNS wide, one row a cycle; END is 0 where it was never ended."""
        return self.first(len(self.rows))

    def first(self, count: int) -> npt.NDArray[np.int64]:
        """As ``cycles``, of the first so many that have begun."""
        rows = self.rows
        cells = np.empty((count, CYCLE_COLUMNS), dtype=np.int64)
        for at in range(0, count, _ROWS_SLICE):
            end = min(at + _ROWS_SLICE, count)
            cells[at:end] = [row[:CYCLE_COLUMNS] for row in rows[at:end]]
            give_way()
        return cells

    @property
    def phases(self) -> npt.NDArray[np.int64]:
        """int64, one row a phase: START, END (0 where it was never closed), CYCLE, NAME."""
        stamps = self.stamps
        count = len(stamps) // PHASE_COLUMNS * PHASE_COLUMNS
        cells = np.empty(count, dtype=np.int64)
        for at in range(0, count, _SLICE):
            cells[at : at + _SLICE] = stamps[at : min(at + _SLICE, count)]
            give_way()
        return cells.reshape(-1, PHASE_COLUMNS)

    def holds(self, cycle: int) -> bool:
        """Whether the row of a cycle lies here and may still be completed."""
        return not self.sealed and self.first_cycle <= cycle < self.first_cycle + len(self.rows)

    def settled(self, committing: Collection[int]) -> bool:
        """Whether every cycle that commits tokens has its accept lengths (they come late under overlap scheduling).

        Args:
            committing: codes of the modes of such cycles.
        """
        rows = self.rows
        for at in range(0, len(rows), _ROWS_SLICE):
            if any(row[ACCEPT_LENGTHS] is None and row[MODE] in committing for row in rows[at : at + _ROWS_SLICE]):
                return False
            give_way()
        return True
