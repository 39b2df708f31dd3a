"""The embedded engine's hook points: the same mechanism, and the same places, as for a server."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from speccollect.cycles.phase_codes import CODES
from speccollect.cycles.segment import END, UNKNOWN
from speccollect.hooks.bracket import Bracket
from speccollect.hooks.guard import asks_capturing, capturing
from speccollect.hooks.points import HookPoint, Installed, Recorder, argument
from speccollect.hooks.points import install as install_points
from speccollect.hooks.stamps import Call, Fail, OpenCycle, Weave, within

_WORKER: Final = "speccollect.demo.worker"
_SCHEDULER: Final = "speccollect.demo.scheduler"

_NOTE: Final = "_speccollect_cycle"
"""Attribute of a cycle's result that carries the cycle's number from the worker's call to the scheduler's."""

_PROCESS: Final = CODES["process_result"]

_ident = threading.get_ident
_now = time.time_ns


def cycle(step: OpenCycle) -> Weave:
    """``SpeculativeWorker.forward_batch(batch)``: one cycle."""
    recorder = step.recorder

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            begun = False
            try:
                if not recorder.armed:
                    recorder.poll()
                if recorder.armed and not capturing():
                    begun = _begin(step, args[0], args[1] if len(args) > 1 else kwargs["batch"])
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                fail(error)
            if not begun:
                return original(*args, **kwargs)
            result = None
            try:
                result = original(*args, **kwargs)
            finally:
                try:
                    _end(step, result)
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    fail(error)
            return result

        return hooked

    return Weave(make)


def _begin(step: OpenCycle, worker: Any, batch: Any) -> bool:
    """Whether a cycle was begun for the batch; beginning one polls."""
    recorder = step.recorder
    request_ids = []
    context = 0
    for sequence in batch.sequences:
        request_ids.append(sequence.request.request_id)
        context += sequence.context_tokens
    mode = batch.mode
    drafts = worker.config.steps if mode == "speculative" else 0
    number = recorder.begin_cycle(mode, len(request_ids), drafts, request_ids, context)
    if number < 0:
        return False
    step.number = number
    step.rows = recorder.stamps
    step.thread = _ident()
    step.watched = recorder.watched
    if step.watched:
        step.capturing = asks_capturing()
    step.armed = True
    return True


def _end(step: OpenCycle, result: Any) -> None:
    """The cycle is over; ``result`` is None where it failed."""
    step.armed = False
    size: int | None = None
    if result is not None:
        size = result.graph_batch_size
        setattr(result, _NOTE, step.number)
    step.recorder.end_cycle(step.number, graph_batch_size=size)


def committed(step: OpenCycle) -> Weave:
    """``Scheduler.process_result(batch, result)``: accept lengths, known on the host by now; a prefill commits one token."""
    recorder = step.recorder

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not recorder.armed or _ident() != step.thread or capturing():
                return original(*args, **kwargs)
            rows, watched = recorder.stamps, recorder.watched
            end = len(rows) + END
            rows += (_now(), 0, UNKNOWN, _PROCESS)  # between cycles
            if watched:
                step.enter_range(_PROCESS)
            lengths = None
            try:
                lengths = original(*args, **kwargs)
            finally:
                rows[end] = _now()
                if watched:
                    step.leave_range()
            try:
                result = args[2] if len(args) > 2 else kwargs["result"]
                number = getattr(result, _NOTE, UNKNOWN)
                if number >= 0:
                    recorder.accept(number, lengths, result.accepted_draft_tokens)
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                fail(error)
            return lengths

        return hooked

    return Weave(make)


def finished(recorder: Recorder) -> Bracket:
    """``Scheduler.finish(sequence)``: the engine's own token counts."""

    def before(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sequence = argument("sequence", 0, args, kwargs)
        request = sequence.request
        recorder.request_finished(request.request_id, len(request.prompt), len(sequence.completion))

    def after(state: Any, result: Any, failed: bool) -> None:
        """Nothing to do."""

    return Bracket(before, after)


def points(recorder: Recorder) -> tuple[HookPoint, ...]:
    """Every method of the embedded engine that the recorder hears of."""
    step = OpenCycle(recorder)
    phases = ("prefill", "draft", "verify", "draft_extend", "decode")
    return (
        HookPoint(_WORKER, "SpeculativeWorker.forward_batch", lambda _: cycle(step), parameters=("batch",), polls=True),
        *(HookPoint(_WORKER, f"SpeculativeWorker.{name}", lambda _, name=name: within(step, name)) for name in phases),  # type: ignore[misc]
        HookPoint(_SCHEDULER, "Scheduler.process_result", lambda _: committed(step), parameters=("batch", "result")),
        HookPoint(_SCHEDULER, "Scheduler.finish", finished, parameters=("sequence",)),
    )


def install(recorder: Recorder) -> Installed:
    """Hook the embedded engine; ``remove()`` of the result undoes it."""
    return install_points(points(recorder), recorder, version=None)
