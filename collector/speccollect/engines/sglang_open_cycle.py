"""The batch that SGLang's scheduler runs: what the hooks of its cycle share."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from speccollect.hooks.stamps import OpenCycle

NOTE: Final = "_speccollect_cycle"
"""Attribute of SGLang's result object that carries the cycle it belongs to."""

NO_PHASE: Final = -1

Progress = list[tuple[int, bool]]
"""Per request: tokens committed so far, and whether it is over."""


class Noted(NamedTuple):
    """A cycle on the result object, until the scheduler looks at the result."""

    number: int
    mode: str
    batch_size: int
    accepted: list[int] | None
    """Accepted drafts per request, from the v1 verifier."""
    before: Progress | None
    """Progress before the cycle; None under overlap scheduling."""


class OpenBatch(OpenCycle):
    """Where the hooks write while a batch is run; ``armed`` in speculative cycles alone, whose workers have hooks.

    Attributes:
        running: whether a cycle is open, of whatever mode.
        mode: the cycle's.
        batch_size: its requests.
        phase: number of the leaf phase that is open on the worker's thread; NO_PHASE without one.
        accepted, before: as in ``Noted``.
        replayed: whether the target's graph ran, for releases whose result doesn't say.
    """

    __slots__ = ("accepted", "batch_size", "before", "mode", "phase", "replayed", "running")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.running = False
        self.mode = ""
        self.batch_size = 0
        self.phase = NO_PHASE
        self.accepted: list[int] | None = None
        self.before: Progress | None = None
        self.replayed = False
