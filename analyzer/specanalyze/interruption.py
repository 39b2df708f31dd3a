"""A command that is told to end takes its half-written files away first."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruption(KeyboardInterrupt):
    """A signal that ends this process, on the way up through whoever has something to put away.

    Attributes:
        signal: which one.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def listen() -> None:
    """Let signals that would end this process at once do so as Ctrl-C does; a second one ends it at once, and one that is ignored
    (``nohup``) stays ignored."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Interruption(number)


def said(stop: BaseException | None) -> tuple[str, int] | None:
    """One line and an exit code (128 and the signal's number, as shells have it) for what Ctrl-C or a signal brought about, through
    typer's own exits; None for anything else."""
    while stop is not None and not isinstance(stop, KeyboardInterrupt):
        stop = stop.__cause__ or stop.__context__
    if stop is None:
        return None
    number = stop.signal if isinstance(stop, Interruption) else signal.SIGINT
    return f"ended by {number.name} before it was done", 128 + number
