"""Which cycles the profiler looks at, and the window that is open."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from speccollect.config import WindowSettings
from speccollect.cupti.buffers import RawRecords
from speccollect.cupti.profiler import CuptiEvents, CuptiProfiler
from speccollect.cycles.ranges import external_profiler
from speccollect.kineto.events import Events
from speccollect.kineto.profiler import Profiler, foreign_profiler, yielding_to_others
from speccollect.nodemap.replays import ReplayStamps
from speccollect.windows.clock_marks import ClockMarks
from speccollect.windows.module_ranges import ModuleRanges
from speccollect.windows.profiler_choice import ProfilerChoice
from speccollect.windows.result import WindowResult
from specschema.phases import range_name

if TYPE_CHECKING:
    from speccollect.cycles.recording import Recording

logger = logging.getLogger("speccollect")

READ_AT_ONCE: Final = 200_000
"""Events that are read while the serving thread is held anyway, where the reader holds the interpreter lock: 1 to 5 us
each, a third of what stopping costs. Read by the writer thread instead, 34 000 events took 1.2 s on an H200 and made 60
untraced cycles up to three times slower (two threads passing one lock). Larger windows are left to the writer thread, in
slices; and so are all windows where the reader is compiled."""

SETTLE_CYCLES: Final = 4
"""Least number of cycles between two windows on a GPU. With TEARDOWN_CUPTI=1 Kineto detaches at the first CUDA calls after
a window; a window that begins before that comes out empty (seen on an H200, torch 2.11: sessions without anything between them were
empty by turns)."""

TAIL_CYCLES: Final = 2
"""Cycles on a GPU that the profiler stays on after a window's last one. The host is ahead of the device, under overlap scheduling by a
cycle: a profiler that stops when the host is through has not seen the last cycle's kernels end, and drops them. When the second
cycle after it begins, the server has processed the last one's result. Nothing of these cycles is kept but their stamps."""

REPLAYS: Final = 16384
"""Graph replays of one window whose graph is noted: 2048 cycles of eight replays."""

_CONTROL, _WARMUP, _RECORD, _TAIL, _DONE = range(5)


class Windows:
    """Counts decode cycles and opens and closes windows between two of them.

    Attributes:
        attached: the profiler hangs on the device (from warm-up on).
        delay: cycles that the first window waits longer; set by another thread, taken by the next ``step``.
        choice: which profiler the next window gets.
        range_type: makes a range that Kineto records; None outside windows.
        device: cuda, or cpu when Kineto sees no device and operators stand in.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self.choice = ProfilerChoice(settings)
        self.device = self.choice.device
        self.attached = False
        self.delay = 0
        self.range_type: Callable[[str], Any] | None = None
        self._state = _CONTROL
        self._remaining = settings.skip
        self._index = 0
        self._profiler: Profiler | CuptiProfiler | None = None
        self._replays: ReplayStamps | None = None
        self._clock: ClockMarks | None = None
        self._modules: ModuleRanges | None = None
        self._recording: Recording | None = None  # while its ranges are the profiler's, too
        self._guard = contextlib.ExitStack()
        self._opened_ns = 0
        self._opened_at_ns = 0
        self._first_cycle = 0
        self._ended_ns = 0  # of the window's last cycle; 0 as long as it records
        self._cycles = 0
        self._tail = tail_cycles(self.device)

    @property
    def settling(self) -> int:
        """Decode cycles before the first window; 0 once it has begun."""
        return self._remaining if self._state == _CONTROL and self._index == 0 else 0

    def step(self, recording: Recording) -> None:
        """A decode cycle is about to begin."""
        if self.delay:
            if self._state == _CONTROL and self._index == 0:
                self._remaining += self.delay
            self.delay = 0
        if self._state == _RECORD and self._remaining > 0:
            seconds = (time.monotonic_ns() - self._opened_at_ns) / 1e9
            if seconds > self.settings.max_seconds:
                self.close(recording, f"longer than {self.settings.max_seconds} s")
        while self._remaining == 0 and self._state != _DONE:
            self._advance(recording)
        self._remaining -= 1

    def _advance(self, recording: Recording) -> None:
        if self._state == _CONTROL:
            if self._index >= self.settings.repeat:
                self._state = _DONE
            elif self._prepare(recording):
                self._state = _WARMUP
                self._remaining = self.settings.warmup
                if self._remaining:
                    recording.warmup = True
                    recording.rotate()
        elif self._state == _WARMUP:
            self._open(recording)
        elif self._state == _RECORD and self._tail:
            self._end_of_cycles(recording)
            self._remaining = self._tail
        else:
            self.close(recording, None)

    def _pass_over(self, recording: Recording, why: str) -> None:
        """No window this time; the phases go on, and the next window is tried in its turn."""
        message = f"window {self._index} was not recorded: {why}"
        recording.say(message)
        self._next()

    def _next(self) -> None:
        self._index += 1
        self._state = _CONTROL
        settle = SETTLE_CYCLES if self.device == "cuda" else 0
        self._remaining = max(self.settings.gap, settle)

    def _prepare(self, recording: Recording) -> bool:
        if foreign_profiler():
            self._pass_over(recording, "another torch profiler is running (stop it, phases go on)")
            return False
        try:
            profiler = self.choice.attached(recording.say)
        except Exception as error:  # noqa: BLE001  phases need no profiler
            self._pass_over(recording, f"the profiler could not be attached ({type(error).__name__}: {error})")
            return False
        self._profiler = profiler
        self.attached = True
        if not profiler.plain:
            self._guard.enter_context(
                yielding_to_others(lambda: self.close(recording, "another torch profiler was started"))
            )
        return True

    def _open(self, recording: Recording) -> None:
        assert self._profiler is not None
        recording.warmup = False
        recording.window = self._index
        recording.rotate()
        if recording.segment is None:
            self._let_go(recording, "no buffer was free, the disk is too slow")
            return
        try:
            self._profiler.start()
        except Exception as error:  # noqa: BLE001  phases need no profiler
            self._let_go(recording, f"the profiler did not start ({type(error).__name__}: {error})")
            return
        if self.device == "cuda":
            self._replays = ReplayStamps(REPLAYS)
            self._replays.start()
        if self.settings.modules:
            self._modules = ModuleRanges()
            why = self._modules.start()
            if why is not None:
                recording.say(f"no module ranges: {why}")
        if self._profiler.has_ranges:
            self._clock = ClockMarks()
            self._clock.begin()
        if self._profiler.has_ranges and self.settings.ranges:
            from torch.autograd.profiler import record_function

            self.range_type = lambda name: record_function(range_name(name))
            self._recording = recording
            recording.ranges = True
        self._opened_ns = time.time_ns()
        self._opened_at_ns = time.monotonic_ns()
        self._first_cycle = recording.next_cycle
        self._state = _RECORD
        self._remaining = self.settings.record

    def _end_of_cycles(self, recording: Recording) -> None:
        """The window has its cycles; the profiler stays for the device to come through them."""
        self._ended_ns = time.time_ns()
        self._cycles = recording.next_cycle - self._first_cycle
        if self._replays is not None:
            self._replays.stop()
        if self._modules is not None:
            self._modules.stop()
        self._no_ranges()
        recording.window, recording.warmup = None, True
        recording.hold()
        self._state = _TAIL

    def _no_ranges(self) -> None:
        self.range_type = None
        if self._recording is not None:
            self._recording.ranges = self._recording.nvtx.listening
            self._recording = None

    def _let_go(self, recording: Recording, why: str) -> None:
        """Of a window that is being opened: what its cycles would have been is control again."""
        recording.window = None
        with contextlib.suppress(Exception):  # a profiler that can't start may not be able to stop either
            self.drop()
        if recording.segment is not None:
            recording.rotate()
        self._pass_over(recording, why)

    def close(self, recording: Recording, cut: str | None) -> None:
        """End the open window, if there is one, and hand its events over.

        Args:
            cut: why it ended early; None when all its cycles were recorded.
        """
        if not self.attached or self._profiler is None:
            return
        if self._state not in (_RECORD, _TAIL):
            self.drop()
            recording.warmup = False
            self._next()
            return
        held_from = time.perf_counter_ns()
        hasty = cut is not None  # another profiler may be about to take CUPTI
        if self._state == _RECORD:
            self._ended_ns, self._cycles = time.time_ns(), recording.next_cycle - self._first_cycle
            segment = recording.segment
        else:
            cut = None  # it has all its cycles
            segment = recording.held
        profiler, clock, replays, modules = self._profiler, self._clock, self._replays, self._modules
        self._detach()
        columns = None
        try:
            events: Events | None
            if isinstance(profiler, CuptiProfiler):
                events = CuptiEvents(profiler)
                if hasty:
                    events.settle()
            else:
                if clock is not None:
                    clock.end()
                events = profiler.stop()
            count, reader = len(events), events.reader
            begun = time.perf_counter_ns()
            if not events.off_thread and count <= READ_AT_ONCE:
                columns = events.columns(pause=None)
                if not profiler.metadata:
                    events.release()
                    events = None
        except Exception as error:  # noqa: BLE001  its cycles stay, with their phases; what the profiler saw is lost
            recording.lost.windows += 1
            recording.say(
                f"window {self._index} is lost: the profiler could not end it ({type(error).__name__}: {error})"
            )
            self._closed(recording)
            return
        read_cost_ns = time.perf_counter_ns() - begun
        if columns is not None:
            replayed = 0 if replays is None else replays.count
            self.choice.look(recording.say, self._index, profiler, columns, replayed)
        number = self._index
        if cut is not None:
            recording.say(f"window {number} is cut: {cut}")
        if segment is not None and segment.window == number:
            segment.profile = WindowResult(
                events=events,
                columns=columns,
                info={
                    "window": number,
                    "first_cycle": self._first_cycle,
                    "cycles": self._cycles,
                    "start_ns": self._opened_ns,
                    "end_ns": self._ended_ns,
                    "events": count,
                    "cut": cut,
                    "profiler": profiler.kind,
                    "prepare_cost_ns": profiler.prepare_cost_ns,
                    "start_cost_ns": profiler.start_cost_ns,
                    "stop_cost_ns": profiler.stop_cost_ns,
                    "events_cost_ns": profiler.events_cost_ns,
                    "read_cost_ns": read_cost_ns,
                    "held_ns": time.perf_counter_ns() - held_from,
                    "reader": reader,
                    # the same dictionary until the window is written: reading on the writer thread adds to it
                    **({} if modules is None else {"module_calls": modules.count, "module_calls_lost": modules.lost}),
                    **({"cupti": profiler.facts} if isinstance(profiler, CuptiProfiler) else {}),
                },
                metadata=profiler.metadata,
                ids_only=profiler.ids_only,
                replays=replays,
                clock=clock,
                modules=modules,
            )
        else:
            recording.lost.windows += 1
        self._closed(recording)

    def _closed(self, recording: Recording) -> None:
        recording.hand_held()
        recording.window, recording.warmup = None, False
        recording.rotate()
        self._next()

    def drop(self) -> None:
        """Stop the profiler and forget its events."""
        profiler = self._profiler
        if not self.attached or profiler is None:
            return
        recorded = self._state in (_RECORD, _TAIL)
        self._detach()
        if not recorded:
            profiler.start()
        left = profiler.stop()
        if isinstance(left, RawRecords):
            left.settle()  # before whoever comes next takes CUPTI

    def forget(self) -> None:
        """In a forked child: the profiler is the parent's, and must not be stopped here; what was wrapped for it comes back."""
        if self.attached:
            self._detach()

    def _detach(self) -> None:
        self._guard.close()
        if self._replays is not None:
            self._replays.stop()
            self._replays = None
        if self._modules is not None:
            self._modules.stop()
            self._modules = None
        self._clock = None
        self._no_ranges()
        self.attached = False
        self._profiler = None


def tail_cycles(device: str) -> int:
    """Cycles that the profiler stays on after a window's last one."""
    return TAIL_CYCLES if device == "cuda" else 0


def open_windows(settings: WindowSettings, say: Callable[[str], None]) -> Windows | None:
    """The recording's windows; None where there can be none, and ``say`` is told why."""
    if settings.repeat == 0:
        return None
    owner = external_profiler()
    if owner is not None:
        say(f"another profiler owns the device in this process ({owner} is set): phases and NVTX ranges only")
        return None
    try:
        return Windows(settings)
    except ImportError as error:
        say(f"torch can't be imported ({error}): phases only")
        return None
