"""What SGLang's scheduler loop says about its cycles, phases and requests, read where it is on the host already.

One cycle is one ``Scheduler.run_batch``. Its tokens are known when the scheduler processes the batch's result: at once
for the v1 speculative worker, one loop iteration later under overlap scheduling. Until then the cycle's number travels
on the result object itself, so nothing is kept here and nothing can pile up. Committed tokens are counted on the request
objects, before and after, so that every generation of workers is counted alike and tokens after a stop token are left
out; the verifier's own count is read from the result. Nothing here reads a device tensor or waits for the device.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Final

from speccollect.cycles.phase_codes import CODES
from speccollect.cycles.segment import END, UNKNOWN
from speccollect.engines.sglang_batch import (
    TargetGraph,
    accepted_of,
    mode_of,
    place_of,
    progress_of,
    replica_rank,
    settings_of,
)
from speccollect.engines.sglang_open_cycle import NO_PHASE, NOTE, Noted, OpenBatch, Progress
from speccollect.hooks.guard import asks_capturing, capturing
from speccollect.hooks.points import Recorder
from speccollect.hooks.stamps import NO_LEAF, Call, Fail, Weave

_PHASE_OF_MODE: Final = {"decode": "decode", "prefill": "prefill", "mixed": "prefill", "idle": "idle"}
"""Leaf phase that covers a whole cycle; a speculative cycle has phases of its own."""

_PLAIN: Final = (str, int, float, bool, list, tuple, type(None))
"""Types of server arguments that are worth a line in the trace's metadata."""

_PROCESS: Final = CODES["process_result"]

logger: Final = logging.getLogger("speccollect")

_ident = threading.get_ident
_now = time.time_ns


class CycleHooks:
    """Hooks of SGLang's scheduler; one for each recorder. Used on the scheduler's main thread.

    Attributes:
        open: the batch that is run, for the hooks of what the workers do (``sglang_parts``).
    """

    def __init__(self, recorder: Recorder) -> None:
        self.open = OpenBatch(recorder)
        self._recorder = recorder
        self._settings: dict[str, Any] = {}
        self._forward_mode: Any = None
        self._algorithm: Any = None
        self._mode: str | None = None
        self._polled = False
        self._target = TargetGraph()

    def started(self, wrapped: Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Scheduler.__init__``: tells the recorder which rank this is and what the server runs with."""
        outcome = wrapped(*args, **kwargs)
        try:
            self._identify(scheduler)
        except Exception:
            logger.warning("speccollect: SGLang's rank and arguments could not be read", exc_info=True)
        return outcome

    def _identify(self, scheduler: Any) -> None:
        settings = self._settings = settings_of(scheduler.server_args)
        place = place_of(scheduler)
        self._recorder.identify(
            rank=replica_rank(settings, place),
            coordinates={name: value for name, value in place.items() if value is not None},
            server="sglang",
            server_version=getattr(sys.modules.get("sglang"), "__version__", None),
            server_args={key: value for key, value in settings.items() if isinstance(value, _PLAIN)},
            model_path=settings.get("model_path"),
        )

    def receive(self) -> Weave:
        """``recv_requests``: passed by the loop on every turn, idle or not; only the poll matters.

        A turn that begins a cycle has polled with it: the next one need not.
        """
        recorder = self._recorder

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if self._polled:
                    self._polled = False
                else:
                    try:
                        recorder.poll()
                    except Exception as error:  # noqa: BLE001  hook boundary: fail open
                        fail(error)
                return original(*args, **kwargs)

            return hooked

        return Weave(make)

    # One batch

    def run_batch(self) -> Weave:
        """``Scheduler.run_batch(batch)``: one cycle."""
        recorder = self._recorder

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not recorder.armed:
                    return original(*args, **kwargs)
                begun = False
                try:
                    begun = self._begin(args, kwargs)
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    fail(error)
                if not begun:
                    return original(*args, **kwargs)
                result = None
                try:
                    result = original(*args, **kwargs)
                finally:
                    try:
                        self._end(args[0], result)
                    except Exception as error:  # noqa: BLE001  hook boundary: fail open
                        fail(error)
                return result

            return hooked

        return Weave(make)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a cycle was begun for the batch."""
        if capturing():
            return False
        scheduler = args[0]
        batch = args[1] if len(args) > 1 else kwargs["batch"]
        forward_mode, algorithm = batch.forward_mode, batch.spec_algorithm
        if forward_mode is not self._forward_mode or algorithm is not self._algorithm:
            # members of enumerations: what they say is asked once, not with five frames a cycle
            self._forward_mode, self._algorithm, self._mode = forward_mode, algorithm, mode_of(batch)
        mode = self._mode
        if mode is None:
            return False
        requests = batch.reqs
        request_ids = [request.rid for request in requests]
        speculative = mode == "speculative"
        drafts = 0
        context: int | None = None
        if speculative or mode == "decode":
            context = 0
            for request in requests:
                context += len(request.origin_input_ids) + len(request.output_ids)  # as its seqlen
        if speculative:
            worker = getattr(scheduler, "model_worker", None)
            verified = getattr(worker, "speculative_num_draft_tokens", None)  # the worker's own number: it may adapt
            drafts = verified - 1 if verified else self._draft_tokens(scheduler)
        recorder = self._recorder
        number = recorder.begin_cycle(
            mode,
            len(request_ids),
            drafts,
            request_ids,
            context,
        )
        self._polled = True
        if number < 0:  # the control word said stop
            return False
        step = self.open
        # The v1 worker commits tokens within run_batch. Under overlap the previous batch's result is yet to be
        # processed and would be counted here, so there the count starts when this batch's result comes.
        step.before = None if scheduler.enable_overlap else progress_of(requests)
        step.accepted = None
        step.replayed = False
        step.mode = mode
        step.batch_size = len(request_ids)
        step.number = number
        step.phase = NO_PHASE
        step.rows = recorder.stamps
        step.watched = recorder.watched
        step.thread = _ident()
        if step.watched:
            step.capturing = asks_capturing()
        step.leaf = NO_LEAF if speculative else step.begin(CODES[_PHASE_OF_MODE[mode]])
        step.running = True
        step.armed = speculative
        return True

    def _end(self, scheduler: Any, result: Any) -> None:
        """The cycle is over; ``result`` is None where it failed."""
        step = self.open
        step.armed = step.running = False
        number = step.number
        size: int | None = None
        try:
            if result is not None:
                if getattr(result, "can_run_cuda_graph", step.replayed):
                    size = self._target.graph_batch_size(scheduler)
                noted = (number, step.mode, step.batch_size, step.accepted, step.before)
                setattr(result, NOTE, tuple.__new__(Noted, noted))  # as Noted(...), without its frame
        finally:
            if step.leaf >= 0:
                step.leave()
            self._recorder.end_cycle(number, graph_batch_size=size)

    def _draft_tokens(self, scheduler: Any) -> int:
        """Tokens the draft proposes per request, where ``model_worker`` doesn't say: the draft worker, else the server's argument."""
        worker = getattr(scheduler, "model_worker", None) or getattr(scheduler, "draft_worker", None)
        verified = getattr(worker, "speculative_num_draft_tokens", None)
        if verified is None:
            verified = self._settings.get("speculative_num_draft_tokens") or 1
        return int(verified) - 1

    def delayed_sample(self) -> Weave:
        """``launch_batch_sample_if_needed(batch_result)``: sampling put off until a grammar is ready."""
        recorder = self._recorder

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not recorder.armed:
                    return original(*args, **kwargs)
                result = args[1] if len(args) > 1 else kwargs.get("batch_result")
                if getattr(result, "delay_sample_func", None) is None or capturing():
                    return original(*args, **kwargs)
                cycle = getattr(result, NOTE, None)
                phase = None if cycle is None else _PHASE_OF_MODE.get(cycle.mode)
                if phase is None:
                    return original(*args, **kwargs)
                token = recorder.begin_phase(phase)
                try:
                    return original(*args, **kwargs)
                finally:
                    recorder.end_phase(token)

            return hooked

        return Weave(make)

    # Its result

    def process_result(self) -> Weave:
        """``Scheduler.process_batch_result(batch, result)``: the tokens of a cycle reach the host."""
        recorder, step = self._recorder, self.open

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not recorder.armed or capturing():
                    return original(*args, **kwargs)
                noted: tuple[list[Any], Any, Noted | None, Progress] | None = None
                rows: list[int] | None = None
                watched = False
                end, token = 0, UNKNOWN
                try:
                    noted = self._unprocessed(args, kwargs)
                    if _ident() == step.thread:
                        rows, watched = recorder.stamps, recorder.watched
                        end = len(rows) + END
                        rows += (_now(), 0, UNKNOWN, _PROCESS)  # between cycles
                        if watched:
                            step.enter_range(_PROCESS)
                    else:  # no cycle was begun here yet
                        token = recorder.begin_phase("process_result")
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    fail(error)
                failed = True
                try:
                    outcome = original(*args, **kwargs)
                    failed = False
                finally:
                    if rows is not None:
                        rows[end] = _now()
                        if watched:
                            step.leave_range()
                    elif token >= 0:
                        recorder.end_phase(token)
                    if not failed and noted is not None:
                        try:
                            self._processed(*noted)
                        except Exception as error:  # noqa: BLE001  hook boundary: fail open
                            fail(error)
                return outcome

            return hooked

        return Weave(make)

    def _unprocessed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Any, Noted | None, Progress]:
        """The batch's requests, its result, the cycle it belongs to, and how far the requests were before it."""
        requests = list((args[1] if len(args) > 1 else kwargs["batch"]).reqs)
        result = args[2] if len(args) > 2 else kwargs["result"]
        cycle: Noted | None = getattr(result, NOTE, None)
        before = cycle.before if cycle is not None else None
        if before is None or len(before) != len(requests):
            before = progress_of(requests)
        return requests, result, cycle, before

    def _processed(self, requests: list[Any], result: Any, cycle: Noted | None, before: Progress) -> None:
        """Tell what a cycle committed, and which requests are over.

        None stands for tokens that were thrown away: under overlap scheduling a request may be over, or retracted, before the
        result of its last step is looked at.
        """
        recorder = self._recorder
        lengths: list[int | None] = []
        place = 0
        for request in requests:
            committed, over = before[place]
            place += 1
            stop = getattr(request, "finished_len", None)  # as progress_of, in this frame
            tokens = len(request.output_ids) if stop is None else stop
            if over:
                lengths.append(None)
                continue
            if request.finished():
                recorder.request_finished(request.rid, len(request.origin_input_ids), tokens)
            kept = tokens >= committed and not getattr(request, "is_retracted", False)
            lengths.append(tokens - committed if kept else None)
        if cycle is None:
            return
        number, mode, batch_size, counted, _ = cycle
        if mode != "idle" and batch_size == len(requests):
            accepted = accepted_of(result, counted, batch_size) if mode == "speculative" else None
            recorder.accept(number, lengths, accepted)
