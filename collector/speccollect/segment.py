"""One stretch of host stamps in preallocated arrays: what the hot path writes and the writer thread reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from speccollect.window_result import WindowResult

PHASE_BITS: Final = 14
PHASE_CAPACITY: Final = 1 << PHASE_BITS
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
PHASE_COLUMNS: Final = 4
CYCLE_COLUMNS: Final = 7
CELL: Final = 8  # bytes of an int64

UNKNOWN: Final = -1

Lengths = Sequence["int | None"]
NO_LENGTHS: Final[Lengths] = ()
"""The engine said that it does not know this cycle's accept lengths."""


class Segment:
    """Stamps of some hundreds or thousands of consecutive cycles.

    The thread that runs the cycles is the only one that writes rows; the writer thread reads them after the segment
    was handed over. Accept lengths may still arrive then: they are single reference stores into lists.

    Attributes:
        opened_at_ns: when it was taken, by the monotonic clock: the host's clock may be set while it is in use.
        phases: int64, PHASE_CAPACITY x PHASE_COLUMNS; a row whose END is 0 was never closed.
        cycles: int64, CYCLE_CAPACITY x CYCLE_COLUMNS; row i is cycle ``first_cycle + i``.
        window: profiler window the stretch lies in; None outside.
        warmup: the profiler was attached, but threw its events away.
        profile: what the profiler saw of the stretch; None outside windows.
        serial: rises with every use, so that a token of an earlier use is recognised.
        sealed: being written; what arrives now is too late.
    """

    __slots__ = (
        "accept_lengths",
        "accepted_draft_tokens",
        "cycle_bytes",
        "cycle_cells",
        "cycle_count",
        "cycles",
        "first_cycle",
        "opened_at_ns",
        "phase_bytes",
        "phase_cells",
        "phase_count",
        "phases",
        "profile",
        "request_ids",
        "sealed",
        "serial",
        "warmup",
        "window",
    )

    def __init__(self) -> None:
        self.phases: npt.NDArray[np.int64] = np.zeros((PHASE_CAPACITY, PHASE_COLUMNS), dtype=np.int64)
        self.cycles: npt.NDArray[np.int64] = np.zeros((CYCLE_CAPACITY, CYCLE_COLUMNS), dtype=np.int64)
        # item assignment through a memoryview costs half of numpy's own
        self.phase_cells = memoryview(self.phases.reshape(-1))  # type: ignore[arg-type]
        self.cycle_cells = memoryview(self.cycles.reshape(-1))  # type: ignore[arg-type]
        self.phase_bytes = self.phase_cells.cast("B")
        self.cycle_bytes = self.cycle_cells.cast("B")
        self.request_ids: list[tuple[str, ...] | None] = [None] * CYCLE_CAPACITY
        self.accept_lengths: list[Lengths | None] = [None] * CYCLE_CAPACITY
        self.accepted_draft_tokens: list[Lengths | None] = [None] * CYCLE_CAPACITY
        self.phase_count = 0
        self.cycle_count = 0
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
        count = self.cycle_count
        self.request_ids[:count] = [None] * count
        self.accept_lengths[:count] = [None] * count
        self.accepted_draft_tokens[:count] = [None] * count
        self.phase_count = 0
        self.cycle_count = 0
        self.first_cycle = first_cycle
        self.window = window
        self.opened_at_ns = opened_at_ns
        self.warmup = warmup
        self.sealed = False
        self.serial = serial
        self.profile = None

    def holds(self, cycle: int) -> bool:
        """Whether the row of a cycle lies here and may still be completed."""
        return not self.sealed and self.first_cycle <= cycle < self.first_cycle + self.cycle_count

    def settled(self, committing_modes: npt.NDArray[np.int64]) -> bool:
        """Whether every cycle that commits tokens has its accept lengths (they come late under overlap scheduling)."""
        count = self.cycle_count
        commits = np.isin(self.cycles[:count, MODE], committing_modes)
        return all(self.accept_lengths[i] is not None for i in np.flatnonzero(commits))
