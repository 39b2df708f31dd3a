"""A recorder that writes down what hooks tell it, phases by name with their depth."""

from __future__ import annotations

from typing import Any


class RecordedCalls:
    """Stands where the real recorder would, as ``speccollect.hooks.points.Recorder`` asks.

    Attributes:
        stamps: what hooks stamped themselves; it is ``watched``, so that ``phases`` has it, too.
    """

    def __init__(self) -> None:
        self.armed = True
        self.stamps: list[int] = []
        self.watched = True
        self.cycles: list[Any] = []
        self.ends: dict[int, int | None] = {}
        self.phases: list[str] = []
        self.open: list[str] = []
        self.accepts: dict[int, Any] = {}
        self.finished: list[Any] = []
        self.failures: list[Any] = []
        self.told: dict[str, Any] = {}

    def poll(self) -> None:
        pass

    def identify(self, **told: Any) -> None:
        self.told = told

    def begin_cycle(self, *fields: Any) -> int:
        self.cycles.append(fields)
        return len(self.cycles) - 1

    def end_cycle(self, cycle: int, graph_batch_size: int | None = None) -> None:
        self.ends[cycle] = graph_batch_size

    def begin_phase(self, name: str) -> int:
        self.open.append(name)
        self.phases.append("/".join(self.open))
        return len(self.open)

    def end_phase(self, token: int) -> None:
        assert token == len(self.open)
        self.open.pop()

    def enter_range(self, name: str) -> None:
        self.begin_phase(name)

    def leave_range(self) -> None:
        self.open.pop()

    def accept(self, cycle: int, accept_lengths: Any, accepted_draft_tokens: Any) -> None:
        self.accepts[cycle] = (accept_lengths, accepted_draft_tokens)

    def request_finished(self, *fields: Any) -> None:
        self.finished.append(fields)

    def fail(self, where: str, error: BaseException) -> None:
        self.armed = False
        self.failures.append((where, repr(error)))
