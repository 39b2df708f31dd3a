"""Hooks on a step's path, each one plain function around the server's: it stamps when it begins and when it ends.

Between two of them a step empties the caches, so that what a hook costs is code and memory that have to come back: some
microsecond for each frame and each library call, next to nothing for what the hook before it has just used. So these
hooks share one small object, and write into a list. As with a bracket the original never leaves their hands: it runs
once, its arguments, result and exception untouched.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, NamedTuple

from speccollect.cycles.phase_codes import CODES, KNOWN_NAMES
from speccollect.cycles.segment import END
from speccollect.hooks.guard import asks_capturing, tell

Call = Callable[..., Any]

Fail = Callable[[Exception], None]
"""Told of an exception of ours; never raises."""

NO_LEAF: Final = -1

_now = time.time_ns


class Weave(NamedTuple):
    """A hook that is made for one target."""

    make: Callable[[Call, Fail], Call]
    """``make(original, fail)``: the function that takes the original's place."""


def woven(original: Any, weave: Weave, recorder: Any, where: str, *, method: bool) -> Call:
    """The function in the place of ``original``, which may be a plain function or something that binds itself.

    Args:
        where: name of the hooked method, for ``recorder.fail``.
        method: whether the first argument is the instance.
    """
    call: Call = original
    if type(original) is not FunctionType and method:

        def call(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
            return original.__get__(instance, type(instance))(*args, **kwargs)

    return functools.wraps(original)(weave.make(call, lambda error: tell(recorder, where, error)))


class OpenCycle:
    """Where the hooks of one engine write while a cycle is open.

    Attributes:
        armed: whether one is: hooks of what runs within a cycle have nothing to do otherwise.
        thread: the thread that opened it; on others these hooks do nothing.
        capturing: says whether a CUDA graph is being captured.
        number: the cycle's.
        leaf: place of the leaf phase that is open, NO_LEAF without one.
    """

    __slots__ = ("armed", "capturing", "leaf", "number", "recorder", "rows", "thread", "watched")

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.armed = False
        self.thread = 0
        self.capturing: Callable[[], bool] = asks_capturing()
        self.number = -1
        self.rows: list[int] = []
        self.watched = False
        self.leaf = NO_LEAF

    def open(self, number: int, leaf: int) -> None:
        """A cycle was begun by this thread, with the leaf phase of this number: phases go where the recorder wants them."""
        recorder = self.recorder
        self.rows = recorder.stamps
        self.watched = recorder.watched
        self.thread = threading.get_ident()
        self.capturing = asks_capturing()
        self.number = number
        self.leaf = self.begin(leaf)
        self.armed = True

    def here(self) -> bool:
        """Whether a cycle of this thread is open, and no CUDA graph is being captured."""
        return self.armed and threading.get_ident() == self.thread and not self.capturing()

    def begin(self, code: int) -> int:
        """The phase of this number (``cycles.phase_codes``) begins; returns its place, for ``end``."""
        rows = self.rows
        place = len(rows)
        rows += (_now(), 0, self.number, code)
        if self.watched:
            self.enter_range(code)
        return place

    def end(self, place: int) -> None:
        """The phase at ``place`` ends."""
        self.rows[place + END] = _now()
        if self.watched:
            self.leave_range()

    def enter_range(self, code: int) -> None:
        """The range of a phase that was stamped, where ``watched`` says that somebody wants it. Never raises."""
        try:
            self.recorder.enter_range(KNOWN_NAMES[code])
        except Exception as error:  # noqa: BLE001  hook boundary: fail open
            tell(self.recorder, "enter_range", error)

    def leave_range(self) -> None:
        """The innermost range ends. Never raises."""
        try:
            self.recorder.leave_range()
        except Exception as error:  # noqa: BLE001  hook boundary: fail open
            tell(self.recorder, "leave_range", error)

    def enter(self, code: int) -> None:
        """A leaf phase begins."""
        self.leaf = self.begin(code)

    def leave(self) -> None:
        """The leaf phase ends, if there is one."""
        if self.leaf >= 0:
            self.end(self.leaf)
            self.leaf = NO_LEAF


def stamped(cycle: OpenCycle, name: str) -> Weave:
    """The call as the sub-phase ``name`` of the cycle that is open."""

    code, ident = CODES[name], threading.get_ident

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not cycle.armed or ident() != cycle.thread or cycle.capturing():
                return original(*args, **kwargs)
            place = cycle.begin(code)
            try:
                return original(*args, **kwargs)
            finally:
                cycle.end(place)

        return hooked

    return Weave(make)


def within(cycle: OpenCycle, name: str) -> Weave:
    """The call as the phase ``name`` of the cycle that is open, in one frame.

    Unlike ``stamped`` it asks whether a graph is captured only where ranges are wanted: a stamp is the host's alone and
    leaves a capture as it is. For engines that capture none within a cycle, and whose cycles begin outside of captures.
    """
    code, ident = CODES[name], threading.get_ident

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not cycle.armed or ident() != cycle.thread:
                return original(*args, **kwargs)
            watched = cycle.watched
            if watched and cycle.capturing():
                return original(*args, **kwargs)
            rows = cycle.rows
            end = len(rows) + END
            rows += (_now(), 0, cycle.number, code)
            if watched:
                cycle.enter_range(code)
            try:
                return original(*args, **kwargs)
            finally:
                rows[end] = _now()
                if watched:
                    cycle.leave_range()

        return hooked

    return Weave(make)
