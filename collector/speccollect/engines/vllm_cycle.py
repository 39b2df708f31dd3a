"""What a vLLM worker says about its steps, phases and tokens, read where it is on the host already.

One cycle is one ``execute_model`` with the ``sample_tokens`` that follows it. vLLM verifies first and drafts at the end
of the same step: target forward and rejection sampling (verify), the draft model's first forward over what was accepted
(draft_extend), its further forwards (draft). Between the two calls the worker waits for its executor; verify spans that
wait. The tokens are on the host when ``sample_tokens`` returns, or, under async scheduling, when ``get_output`` of its
result does, on another thread and maybe after later steps: until then the cycle travels on the result object itself.
Nothing here reads a device tensor or waits for the device. Dummy, profiling and warm-up runs are no cycles.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from speccollect.cycles.phase_codes import CODES
from speccollect.engines.vllm_identity import identity_of
from speccollect.engines.vllm_open_cycle import DRAFTING_MODES, Cycle, OpenStep
from speccollect.engines.vllm_requests import RequestLedger
from speccollect.engines.vllm_step import Step, read_step
from speccollect.hooks.points import Recorder
from speccollect.hooks.stamps import Fail, Weave

_NOTE: Final = "_speccollect_cycle"
"""Attribute of vLLM's result object that carries the cycle it belongs to."""

_LATE: Final = 32
"""Cycles after which a result that nobody asked for is given up: only one rank hands its results over."""

_LEAF_OF_MODE: Final = {
    "speculative": CODES["verify"],
    "decode": CODES["decode"],
    "prefill": CODES["prefill"],
    "mixed": CODES["prefill"],
}
"""Leaf phase that a cycle begins with."""

logger: Final = logging.getLogger("speccollect")

Call = Callable[..., Any]


class CycleHooks:
    """Hooks of vLLM's worker and of a step's two calls; one for each recorder. Used on the worker's main thread.

    Attributes:
        open: the step under way, for the hooks of what runs within one (``vllm_parts``).
    """

    def __init__(self, recorder: Recorder) -> None:
        self.open = OpenStep(recorder)
        self._recorder = recorder
        self._recording = 0
        self._quiet = 0
        self._requests = RequestLedger()
        self._pending: deque[Cycle] = deque()
        self._runner: Callable[[], Any] = lambda: None
        self._speculating = False
        self._asynchronous = False
        self._plain_result: type | None = None

    # The worker

    def started(self, wrapped: Call, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Worker.load_model``: tells the recorder which rank this is, and that it is there."""
        try:
            self._recorder.identify(**identity_of(worker))
            self._recorder.poll()
        except Exception:
            logger.warning("speccollect: vLLM's rank and arguments could not be read", exc_info=True)
        return wrapped(*args, **kwargs)

    def quiet(self, wrapped: Call, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Worker.compile_or_warm_up_model``: runs made-up requests through the very calls that serve real ones."""
        self._quiet += 1
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._quiet -= 1

    def idle(self, wrapped: Call, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Worker.execute_dummy_batch``: an idle step of a data-parallel rank, for the others' collectives."""
        number = self._opened(self._recorder.begin_cycle("idle", 0, 0, []))
        token = self._recorder.begin_phase("idle")
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._recorder.end_phase(token)
            self._recorder.end_cycle(number)

    # The model runner

    def execute_model(self) -> Weave:
        """``execute_model(scheduler_output, intermediate_tensors, dummy_run)``: a cycle begins."""
        recorder, step = self._recorder, self.open

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not recorder.armed:
                    recorder.poll()
                    if not recorder.armed:
                        if step.armed:  # the recording ended within a step
                            step.stop()
                        return original(*args, **kwargs)
                cycle: Cycle | None = None
                try:
                    cycle = self._planned(args, kwargs)
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    fail(error)
                if cycle is None:
                    return original(*args, **kwargs)
                failed = True
                result = None
                try:
                    result = original(*args, **kwargs)
                    failed = False
                finally:
                    # the last stages sample in a call of their own; a pooling model never does
                    if failed or result is not None:
                        self._ended(cycle, fail)
                return result

            return hooked

        return Weave(make)

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cycle | None:
        dummy = args[3] if len(args) > 3 else kwargs and kwargs.get("dummy_run")
        if self._quiet or dummy or self.open.capturing():
            return None
        output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
        step = read_step(output)
        cycle = None
        if step is None:
            self._recorder.poll()  # as beginning a cycle does
        else:
            cycle = self._begin(args[0], step)
        if output.finished_req_ids or output.scheduled_new_reqs:
            self._note_requests(args[0], output)
        return cycle

    def _ended(self, cycle: Cycle, fail: Fail) -> None:
        try:
            self._end()
            self._settle(cycle)
        except Exception as error:  # noqa: BLE001  hook boundary: fail open
            fail(error)

    def sample_tokens(self) -> Weave:
        """``sample_tokens(grammar_output)``: samples, drafts, and ends the cycle."""
        step = self.open

        def make(original: Call, fail: Fail) -> Call:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not step.here():
                    return original(*args, **kwargs)
                failed = True
                result = None
                try:
                    result = original(*args, **kwargs)
                    failed = False
                finally:
                    try:
                        self._sampled(result, failed)
                    except Exception as error:  # noqa: BLE001  hook boundary: fail open
                        fail(error)
                return result

            return hooked

        return Weave(make)

    def _sampled(self, result: Any, failed: bool) -> None:
        cycle = self._end()
        if cycle is None:
            return
        if failed:
            self._settle(cycle)
        elif type(result) is self._plain_result or not hasattr(result, "get_output"):
            self._plain_result = type(result)  # asking in vain for an attribute takes longer
            self._commit(cycle, result)
        else:
            setattr(result, _NOTE, cycle)
            self._pending.append(cycle)

    def get_output(self, wrapped: Call, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``get_output()`` of an async result, on whichever thread: the tokens have reached the host."""
        output = wrapped(*args, **kwargs)
        cycle = getattr(result, _NOTE, None)
        if cycle is not None and cycle.recording == self._recording:
            self._commit(cycle, output)
        return output

    # What they share

    def _begin(self, runner: Any, step: Step) -> Cycle | None:
        if self._runner() is not runner:
            self._meet(runner)
        mode, request_ids, _, draft_tokens, computed_tokens = step
        context: int | None = None  # of a prefill nothing is said
        drafting = mode in DRAFTING_MODES
        if drafting and self._asynchronous:  # the scheduler counts tokens that may be rejected
            context = self._requests.context_tokens(request_ids)
        elif drafting:
            context = computed_tokens + len(request_ids)  # the last token of each is yet to be computed
        number = self._recorder.begin_cycle(mode, len(request_ids), draft_tokens, request_ids, context)
        if number <= 0:
            if number < 0:  # the control word said stop
                return None
            self._opened(number)
        cycle = Cycle(self._recording, number, step)
        self.open.start(cycle, drafting and self._speculating, _LEAF_OF_MODE[mode])
        if self._pending:
            self._give_up()
        return cycle

    def _meet(self, runner: Any) -> None:
        self._runner = weakref.ref(runner)
        self._speculating = getattr(runner, "speculative_config", None) is not None
        self._asynchronous = bool(runner.vllm_config.scheduler_config.async_scheduling)

    def _opened(self, number: int) -> int:
        """Forgets what an earlier recording left, with the first cycle of a new one."""
        if number == 0:
            self._recording += 1
            self._requests.clear()
            self._pending.clear()
        return number

    def _end(self) -> Cycle | None:
        step = self.open
        if step.leaf >= 0:
            step.leave()
        cycle = step.stop()
        if cycle is not None:
            self._recorder.end_cycle(cycle.number, graph_batch_size=step.graph_batch_size)
        return cycle

    # Tokens

    def _note_requests(self, runner: Any, output: Any) -> None:
        for request_id in output.finished_req_ids:
            tokens = self._requests.finish(request_id)
            if tokens is not None:
                self._recorder.request_finished(request_id, *tokens)
        for request in output.scheduled_new_reqs:
            if request.sampling_params is not None and request.prompt_token_ids is not None:
                self._requests.add(
                    request.req_id, len(request.prompt_token_ids), request.sampling_params, runner.max_model_len
                )

    def _commit(self, cycle: Cycle, output: Any) -> None:
        """The step's tokens are known: how many each request keeps, and what the verifier accepted."""
        cycle.settled = True
        tokens = getattr(output, "sampled_token_ids", None)
        if not tokens:
            self._recorder.accept(cycle.number, (), None)
            return
        _, request_ids, drafts, draft_tokens, _ = cycle.step
        if list(request_ids) != output.req_ids:  # the runner's batch may be in another order than the plan
            sampled = dict(zip(output.req_ids, tokens, strict=True))
            tokens = [sampled.get(request_id, ()) for request_id in request_ids]
        lengths, accepted = self._requests.commit(request_ids, drafts, tokens)
        self._recorder.accept(cycle.number, lengths, accepted if draft_tokens else None)
        if self._requests.ending:
            for ended in self._requests.ended():
                self._recorder.request_finished(*ended)

    def _settle(self, cycle: Cycle) -> None:
        """Nothing more will be heard of the cycle's tokens."""
        if not cycle.settled:
            cycle.settled = True
            self._recorder.accept(cycle.number, (), None)

    def _give_up(self) -> None:
        """Cycles whose results nobody asked for in _LATE steps: on this rank their tokens stay unknown."""
        while len(self._pending) > _LATE:
            cycle = self._pending.popleft()
            if cycle.recording == self._recording:
                self._settle(cycle)
