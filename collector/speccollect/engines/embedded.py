"""The embedded engine's hook points: the same mechanism, and the same places, as for a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from speccollect.hooking import HookPoint, Installed, Recorder, Wrapper, argument, phase
from speccollect.hooking import install as install_points

_Call = Callable[..., Any]
_WORKER: Final = "speccollect.demo.worker"
_SCHEDULER: Final = "speccollect.demo.scheduler"

_cycles: Final[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()
"""Result of a cycle -> the cycle's number, from the worker's call to the scheduler's."""


def cycle(recorder: Recorder) -> Wrapper:
    """``SpeculativeWorker.forward_batch(batch)``: one cycle."""

    def wrapper(wrapped: _Call, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = argument("batch", 0, args, kwargs)
        number = recorder.begin_cycle(
            batch.mode,
            len(batch.sequences),
            worker.config.steps if batch.mode == "speculative" else 0,
            [sequence.request.request_id for sequence in batch.sequences],
            sum(sequence.context_tokens for sequence in batch.sequences),
        )
        size: int | None = None
        try:
            result = wrapped(*args, **kwargs)
            size = result.graph_batch_size
            _cycles[result] = number
            return result
        finally:
            recorder.end_cycle(number, graph_batch_size=size)

    return wrapper


def committed(recorder: Recorder) -> Wrapper:
    """``Scheduler.process_result(batch, result)``: accept lengths, known on the host by now; a prefill commits one token."""

    def wrapper(wrapped: _Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = argument("result", 1, args, kwargs)
        token = recorder.begin_phase("process_result")
        try:
            lengths = wrapped(*args, **kwargs)
        finally:
            recorder.end_phase(token)
        number = _cycles.pop(result, -1)
        if number >= 0:
            recorder.accept(number, lengths, result.accepted_draft_tokens)
        return lengths

    return wrapper


def finished(recorder: Recorder) -> Wrapper:
    """``Scheduler.finish(sequence)``: the engine's own token counts."""

    def wrapper(wrapped: _Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sequence = argument("sequence", 0, args, kwargs)
        request = sequence.request
        recorder.request_finished(request.request_id, len(request.prompt), len(sequence.completion))
        return wrapped(*args, **kwargs)

    return wrapper


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
