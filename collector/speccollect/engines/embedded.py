"""The embedded engine's hook points: the same mechanism, and the same places, as for a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from speccollect.bracket import Bracket
from speccollect.hooking import HookPoint, Installed, Recorder, argument
from speccollect.hooking import install as install_points

_WORKER: Final = "speccollect.demo.worker"
_SCHEDULER: Final = "speccollect.demo.scheduler"

_NOTE: Final = "_speccollect_cycle"
"""Attribute of a cycle's result that carries the cycle's number from the worker's call to the scheduler's."""


def cycle(recorder: Recorder) -> Bracket:
    """``SpeculativeWorker.forward_batch(batch)``: one cycle."""

    def before(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        batch = argument("batch", 0, args, kwargs)
        sequences = batch.sequences
        context = 0
        for sequence in sequences:
            context += sequence.context_tokens
        number = recorder.begin_cycle(
            batch.mode,
            len(sequences),
            worker.config.steps if batch.mode == "speculative" else 0,
            [sequence.request.request_id for sequence in sequences],
            context,
        )
        return number if number >= 0 else None

    def after(number: int, result: Any, failed: bool) -> None:
        size: int | None = None
        if not failed:
            size = result.graph_batch_size
            setattr(result, _NOTE, number)
        recorder.end_cycle(number, graph_batch_size=size)

    return Bracket(before, after)


def phase(name: str) -> Callable[[Recorder], Bracket]:
    """The call as the phase ``name``."""

    def factory(recorder: Recorder) -> Bracket:
        def before(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
            return recorder.begin_phase(name)

        def after(token: int, result: Any, failed: bool) -> None:
            recorder.end_phase(token)

        return Bracket(before, after)

    return factory


def committed(recorder: Recorder) -> Bracket:
    """``Scheduler.process_result(batch, result)``: accept lengths, known on the host by now; a prefill commits one token."""

    def before(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any]:
        return recorder.begin_phase("process_result"), argument("result", 1, args, kwargs)

    def after(state: tuple[int, Any], lengths: Any, failed: bool) -> None:
        token, result = state
        recorder.end_phase(token)
        number = getattr(result, _NOTE, -1)
        if number >= 0 and not failed:
            recorder.accept(number, lengths, result.accepted_draft_tokens)

    return Bracket(before, after)


def finished(recorder: Recorder) -> Bracket:
    """``Scheduler.finish(sequence)``: the engine's own token counts."""

    def before(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sequence = argument("sequence", 0, args, kwargs)
        request = sequence.request
        recorder.request_finished(request.request_id, len(request.prompt), len(sequence.completion))

    def after(state: Any, result: Any, failed: bool) -> None:
        """Nothing to do."""

    return Bracket(before, after)


POINTS: Final = (
    HookPoint(_WORKER, "SpeculativeWorker.forward_batch", cycle, parameters=("batch",), polls=True),
    HookPoint(_WORKER, "SpeculativeWorker.prefill", phase("prefill")),
    HookPoint(_WORKER, "SpeculativeWorker.draft", phase("draft")),
    HookPoint(_WORKER, "SpeculativeWorker.verify", phase("verify")),
    HookPoint(_WORKER, "SpeculativeWorker.draft_extend", phase("draft_extend")),
    HookPoint(_WORKER, "SpeculativeWorker.decode", phase("decode")),
    HookPoint(_SCHEDULER, "Scheduler.process_result", committed, parameters=("batch", "result")),
    HookPoint(_SCHEDULER, "Scheduler.finish", finished, parameters=("sequence",)),
)
"""Every method of the embedded engine that the recorder hears of."""


def install(recorder: Recorder) -> Installed:
    """Hook the embedded engine; ``remove()`` of the result undoes it."""
    return install_points(POINTS, recorder, version=None)
