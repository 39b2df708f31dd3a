"""One armed recording of one rank: what the cycles leave behind, until the writer thread has it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from speccollect.config import WindowSettings
from speccollect.cycles import segment as seg
from speccollect.cycles.lost import Lost as Lost
from speccollect.cycles.phase_codes import CODES, KNOWN_NAMES
from speccollect.cycles.ranges import NvtxRanges
from speccollect.cycles.rows import COMMITTING_MODES
from speccollect.cycles.segment import NO_LENGTHS, PHASE_CELLS, PHASE_COLUMNS, TOKEN_BITS, CycleRow, Segment
from specschema.phases import CYCLE

if TYPE_CHECKING:
    from speccollect.windows.window import Windows

logger = logging.getLogger("speccollect")

SEGMENTS: Final = 16
"""Buffers of a rank, 3 MB each when full, next to nothing when empty or written. A window takes three (control, warm-up,
window). When all wait for the disk, rows are dropped and counted."""

SEGMENT_SECONDS: Final = 10
"""A kill loses at most this much of the phase tier."""

_ROOM: Final = PHASE_CELLS - 256 * PHASE_COLUMNS  # of the rest one more cycle may need as much as 256 phases
_ROTATE_NS: Final = SEGMENT_SECONDS * 1_000_000_000
_NAMES_LIMIT: Final = 256  # names of phases and modes; more of them means that somebody builds names from data

_MESSAGES_LIMIT: Final = 50

STEP_NS: Final = 20_000_000
"""A disagreement of the host's two clocks that no gentle correction reaches in SEGMENT_SECONDS (at most 500 ppm: 5 ms)."""

_now = time.time_ns
_steady = time.monotonic_ns


class Recording:
    """Written by the thread that runs the cycles, and by no other.

    Attributes:
        next_cycle: number the next cycle gets.
        handed: segments that wait for the writer thread, oldest first.
        held: a window's segment, as long as the profiler waits for the device to come through its cycles.
        free: empty segments; the writer thread puts them back.
        names: phases and modes by code.
        ranges: whether phases are ranges for somebody, NVTX's or the profiler's; without, they are stamps alone.
        stamps: where phases of the open cycle are written: the segment's, or a list that is thrown away and counted.
    """

    def __init__(self, number: int, settings: WindowSettings, nvtx: NvtxRanges, tid: int) -> None:
        self.number = number
        self.settings = settings
        self.nvtx = nvtx
        self.tid = tid
        self.thread = threading.get_ident()
        self.started_ns = _now()
        self.names = list(KNOWN_NAMES)
        self._codes = dict(CODES)
        self.lost = Lost()
        self.next_cycle = 0
        self.windows: Windows | None = None
        self.messages: list[str] = []
        self.free: deque[Segment] = deque(Segment() for _ in range(SEGMENTS))
        self.handed: deque[Segment] = deque()
        self.requests: deque[tuple[str, int, int, int]] = deque()
        self._recent: deque[Segment] = deque(maxlen=SEGMENTS)
        self.segment: Segment | None = None
        self.held: Segment | None = None
        self.open_cycle = seg.UNKNOWN
        self._open_row: CycleRow | None = None
        self._dropped: list[int] = []
        self.stamps = self._dropped
        self._profiled: list[Any] = []  # record_function ranges open inside a window
        self.ranges = nvtx.listening
        self.window: int | None = None
        self.warmup = False
        self._serial = 0
        self._offset_ns: int | None = None
        self.rotate()

    def say(self, message: str) -> None:
        """Tell the log, the rank's status and the trace; each message once."""
        if message not in self.messages and len(self.messages) < _MESSAGES_LIMIT:
            self.messages.append(message)
            logger.warning("%s", message)

    # ---- segments

    def hold(self) -> None:
        """Take an empty segment and keep the current one back, whose profile comes a few cycles later; accept lengths still reach it."""
        self.held, self.segment = self.segment, None
        if self.held is not None:
            self._recent.append(self.held)
        self.rotate()

    def hand_held(self) -> None:
        """Hand over the segment that was kept back, if there is one."""
        held, self.held = self.held, None
        if held is not None:
            self.handed.append(held)

    def rotate(self) -> None:
        """Hand the current segment over and take an empty one; without one, rows are dropped until there is."""
        old = self.segment
        if old is not None:
            self.segment = None
            if old.rows or old.stamps or old.profile is not None:
                self._recent.append(old)
                self.handed.append(old)
            else:
                self.free.append(old)
        try:
            new = self.free.popleft()
        except IndexError:
            self.stamps = self._dropped
            return
        self._serial += 1
        new.reset(self.next_cycle, self.window, _steady(), self._serial, warmup=self.warmup)
        self.segment = new
        self.stamps = new.stamps
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        """Stamps count Unix time, which an administrator or a time service may set while cycles run."""
        before = _steady()
        offset_ns = _now() - before
        if _steady() - before > STEP_NS // 4:
            return  # the thread was held between the two: no reading; the next buffer gives one
        step_ns = offset_ns - self._offset_ns if self._offset_ns is not None else 0
        self._offset_ns = offset_ns
        if abs(step_ns) > STEP_NS:
            self.say(
                f"the host's clock was set {'forward' if step_ns > 0 else 'back'} by {abs(step_ns) / 1e9:.3f} s shortly "
                f"before cycle {self.next_cycle}: times before and after it don't compare"
            )

    def _make_room(self) -> None:
        """Take an empty segment where the current one is full or old."""
        self._count_dropped()
        current = self.segment
        if current is None:
            self.rotate()
        elif current.window is not None:
            # a window is one segment; what does not fit is dropped and counted
            self.stamps = self._dropped if len(current.stamps) > _ROOM else current.stamps
        elif (
            len(current.rows) >= seg.CYCLE_CAPACITY
            or len(current.stamps) > _ROOM
            or _steady() - current.opened_at_ns > _ROTATE_NS
        ):
            self.rotate()

    def _count_dropped(self) -> None:
        if self._dropped:
            self.lost.phases += len(self._dropped) // PHASE_COLUMNS
            self._dropped = []  # a new one: a phase that is still open closes in the old one
            if self.segment is None:
                self.stamps = self._dropped

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            if len(self.names) >= _NAMES_LIMIT:
                raise ValueError(f"more than {_NAMES_LIMIT} names of phases; the last one is {name[:80]!r}")
            code = len(self.names)
            self.names.append(name)
            self._codes[name] = code
        return code

    # ---- cycles

    def begin_cycle(
        self,
        mode: str,
        batch_size: int,
        draft_tokens: int | None,
        request_ids: Sequence[str],
        context_tokens: int | None,
    ) -> int:
        if self.open_cycle >= 0:
            self._abandon_cycle()
        if self.windows is not None and mode in COMMITTING_MODES:
            self.windows.step(self)
        number = self.next_cycle
        segment = self.segment
        if (
            segment is None
            or segment.window is not None
            or len(segment.rows) >= seg.CYCLE_CAPACITY
            or len(segment.stamps) > _ROOM
            or _steady() - segment.opened_at_ns > _ROTATE_NS
        ):
            self._make_room()
            segment = self.segment
        self.next_cycle = number + 1
        self.open_cycle = number
        if segment is None or len(segment.rows) >= seg.CYCLE_CAPACITY:
            self.lost.cycles += 1
            self._open_row = None
            return number
        row = [
            _now(),
            0,
            self._codes[mode] if mode in self._codes else self._code(mode),
            batch_size,
            seg.UNKNOWN if draft_tokens is None else draft_tokens,
            seg.UNKNOWN,
            seg.UNKNOWN if context_tokens is None else context_tokens,
            tuple(request_ids),
            None,
            None,
        ]
        self._open_row = row
        segment.rows.append(row)
        if self.ranges:
            self.enter(CYCLE)
        return number

    def end_cycle(self, cycle: int, graph_batch_size: int | None) -> None:
        if cycle != self.open_cycle:
            self.lost.unclosed += 1
            return
        if self.ranges or self._profiled:
            self.leave()
        self.open_cycle = seg.UNKNOWN
        row = self._open_row
        if row is not None:
            row[seg.END] = _now()
            if graph_batch_size is not None:
                row[seg.GRAPH_BATCH_SIZE] = graph_batch_size

    def _abandon_cycle(self) -> None:
        """An exception in the server left the cycle open: its row stays without an end and is left out."""
        self.open_cycle = seg.UNKNOWN
        self.nvtx.unwind()
        while self._profiled:
            self._profiled.pop().__exit__(None, None, None)

    def accept(
        self, cycle: int, accept_lengths: Sequence[int | None] | None, accepted: Sequence[int | None] | None
    ) -> None:
        current = self.segment
        # the segment in use can't be sealed
        if current is None or not 0 <= cycle - current.first_cycle < len(current.rows):
            for candidate in self._recent:
                if candidate.holds(cycle):
                    current = candidate
                    break
            else:
                self.lost.late_accepts += 1
                return
        try:
            row = current.rows[cycle - current.first_cycle]
        except IndexError:  # sealed and released since we looked
            self.lost.late_accepts += 1
            return
        # lists and tuples, what engines hand over as a rule, are copied without a frame of its own
        row[seg.ACCEPTED_DRAFT_TOKENS] = (
            tuple(accepted) if isinstance(accepted, (list, tuple)) else _host_values(accepted)
        )
        # last: with it the cycle counts as told
        row[seg.ACCEPT_LENGTHS] = (
            tuple(accept_lengths) if isinstance(accept_lengths, (list, tuple)) else _host_values(accept_lengths)
        )

    def request_finished(self, request_id: str, prompt_tokens: int, completion_tokens: int) -> None:
        if len(self.requests) >= seg.CYCLE_CAPACITY:
            self.lost.requests += 1
            return
        self.requests.append((request_id, prompt_tokens, completion_tokens, _now()))

    # ---- phases

    def begin_phase(self, name: str) -> int:
        segment, stamps = self.segment, self.stamps
        row = len(stamps)
        if segment is None or stamps is self._dropped or row >= PHASE_CELLS:
            self.lost.phases += 1
            return -1
        code = self._codes[name] if name in self._codes else self._code(name)
        stamps += (_now(), 0, self.open_cycle, code)
        if self.ranges:
            self.enter(name)
        return segment.serial << TOKEN_BITS | row

    def end_phase(self, token: int) -> None:
        segment = self.segment
        if self.ranges or self._profiled:
            self.leave()
        row = token & (1 << TOKEN_BITS) - 1
        if segment is None or segment.serial != token >> TOKEN_BITS or row >= len(segment.stamps):
            # begun before the segment was handed over; its row is left out and counted by the writer
            return
        segment.stamps[row + seg.END] = _now()

    # ---- ranges that other tools see

    def enter(self, name: str) -> None:
        """Open the range of a phase of the open cycle, or of the cycle itself."""
        if self.nvtx.listening:
            self.nvtx.push(name, self.open_cycle)
        windows = self.windows
        if windows is not None and windows.range_type is not None:
            profiled = windows.range_type(name)
            profiled.__enter__()
            self._profiled.append(profiled)

    def leave(self) -> None:
        """Close the innermost range."""
        if self._profiled:
            self._profiled.pop().__exit__(None, None, None)
        if self.nvtx.listening:
            self.nvtx.pop()

    def close(self) -> None:
        """Nothing more comes: hand over what there is."""
        self._abandon_cycle()
        self._count_dropped()
        if self.windows is not None:
            self.windows.close(self, "the recording ended")
        if self.segment is not None:
            self.rotate()


def _host_values(values: Sequence[int | None] | None) -> Sequence[int | None]:
    """A copy of host values. A tensor is refused: reading one on a device would be a copy and a synchronisation."""
    if values is None:
        return NO_LENGTHS
    if hasattr(values, "device") and not isinstance(values, (list, tuple)):
        raise TypeError(f"accept lengths must be host values, not {type(values).__name__}")
    return tuple(values)
