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
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from speccollect.bracket import Bracket
from speccollect.engines.vllm_identity import identity_of
from speccollect.engines.vllm_open_cycle import DRAFTING_MODES, GRAPH_PHASE, Cycle, Gate, extends_first, note_graph
from speccollect.engines.vllm_requests import RequestLedger
from speccollect.engines.vllm_step import Step, read_step
from speccollect.hooking import Recorder, argument

_NOTE: Final = "_speccollect_cycle"
"""Attribute of vLLM's result object that carries the cycle it belongs to."""

_LATE: Final = 32
"""Cycles after which a result that nobody asked for is given up: only one rank hands its results over."""

_LEAF_OF_MODE: Final = {"speculative": "verify", "decode": "decode", "prefill": "prefill", "mixed": "prefill"}
"""Leaf phase that a cycle begins with."""

logger: Final = logging.getLogger("speccollect")

Call = Callable[..., Any]


class CycleHooks:
    """Wrappers and brackets for vLLM's worker and model runners; one for each recorder. Used on the worker's main thread.

    Attributes:
        armed: whether a cycle is open: hooks of what runs within one have nothing to do otherwise.
        extending: whether the draft model's re-extend is under way.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.armed = False
        self.extending = Gate()
        self._recorder = recorder
        self._cycle: Cycle | None = None
        self._thread = 0
        self._recording = 0
        self._quiet = 0
        self._requests = RequestLedger()
        self._pending: deque[Cycle] = deque()

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

    def execute_model(self) -> Bracket:
        """``execute_model(scheduler_output, intermediate_tensors, dummy_run)``: a cycle begins."""
        return Bracket(self._planned, self._executed)

    def _planned(self, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cycle | None:
        dummy = kwargs.get("dummy_run", args[2] if len(args) > 2 else False)
        if self._quiet or dummy:
            return None
        output = argument("scheduler_output", 0, args, kwargs)
        step = read_step(output)
        if step is None:
            self._recorder.poll()  # as beginning a cycle does
        cycle = None if step is None else self._begin(runner, step)
        self._note_requests(runner, output)
        return cycle

    def _executed(self, cycle: Cycle, result: Any, failed: bool) -> None:
        # the last stages sample in a call of their own; a pooling model never does
        if failed or result is not None:
            self._end(cycle)
            self._settle(cycle)

    def sample_tokens(self) -> Bracket:
        """``sample_tokens(grammar_output)``: samples, drafts, and ends the cycle."""
        return Bracket(self._open_cycle, self._sampled, self)

    def _sampled(self, cycle: Cycle, result: Any, failed: bool) -> None:
        self._end(cycle)
        if failed:
            self._settle(cycle)
        elif hasattr(result, "get_output"):
            setattr(result, _NOTE, cycle)
            self._pending.append(cycle)
        else:
            self._commit(cycle, result)

    def get_output(self, wrapped: Call, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``get_output()`` of an async result, on whichever thread: the tokens have reached the host."""
        output = wrapped(*args, **kwargs)
        cycle = getattr(result, _NOTE, None)
        if cycle is not None and cycle.recording == self._recording:
            self._commit(cycle, output)
        return output

    def dispatch(self) -> Bracket:
        """V2's ``dispatch_cg_and_sync_dp``: the choice of the CUDA graph for a batch; a cycle's first is the target's.

        It returns a tuple that begins with a descriptor that has the mode.
        """
        return Bracket(self._open_cycle, self._dispatched, self)

    def _dispatched(self, cycle: Cycle, chosen: Any, failed: bool) -> None:
        if not failed and not cycle.dispatched:
            note_graph(cycle, chosen[0].cg_mode, chosen[0])

    def target_forward(self) -> Bracket:
        """V1's ``_model_forward``, with the graph that it replays."""
        return Bracket(self._forward_begins, self._forward_ended, self)

    def _forward_begins(self, runner: Any, args: Any, kwargs: Any) -> tuple[int, int | None] | None:
        cycle = self._open_cycle(runner, args, kwargs)
        if cycle is None:
            return None
        context = sys.modules["vllm.forward_context"].get_forward_context()
        note_graph(cycle, context.cudagraph_runtime_mode, context.batch_descriptor)
        token = self._recorder.begin_phase("target_forward")
        return token, None if cycle.graph is None else self._recorder.begin_phase(GRAPH_PHASE[cycle.graph])

    def _forward_ended(self, tokens: tuple[int, int | None], result: Any, failed: bool) -> None:
        forward, graph = tokens
        if graph is not None:
            self._recorder.end_phase(graph)
        self._recorder.end_phase(forward)

    def part(self, name: str) -> Bracket:
        """Bracket for a sub-phase of a cycle."""

        def before(instance: Any, args: Any, kwargs: Any) -> int | None:
            return None if self._open_cycle(instance, args, kwargs) is None else self._recorder.begin_phase(name)

        def after(token: int, result: Any, failed: bool) -> None:
            self._recorder.end_phase(token)

        return Bracket(before, after, self)

    def sample(self) -> Bracket:
        """``_sample`` of V1, ``sample`` of V2: logits to tokens, rejection included. The target's part ends with it."""
        return Bracket(self.part("sample").before, self._sample_ended, self)

    def _sample_ended(self, token: int, result: Any, failed: bool) -> None:
        self._recorder.end_phase(token)
        cycle = self._cycle
        if cycle is not None and cycle.drafting:
            self._leave(cycle)

    # The draft

    def propose(self, extends: bool | None) -> Bracket:
        """Bracket for the call that makes the drafts of the next step.

        Args:
            extends: whether its first forward runs the draft model over the tokens just accepted; None: ask V1's
                drafter (n-gram and suffix matching have no model, a parallel drafter has one forward for everything).
        """

        def before(instance: Any, args: Any, kwargs: Any) -> Cycle | None:
            cycle = self._open_cycle(instance, args, kwargs)
            if cycle is None or not cycle.drafting or cycle.leaf is not None:
                return None
            first = extends_first(instance.drafter) if extends is None else extends
            self.extending.armed = first
            self._enter(cycle, "draft_extend" if first else "draft")
            return cycle

        def after(cycle: Cycle, result: Any, failed: bool) -> None:
            self.extending.armed = False
            self._leave(cycle)

        return Bracket(before, after, self)

    def extended(self, after: bool) -> Bracket:
        """Bracket for a call that the drafter makes right after its re-extend; the draft proper begins.

        Args:
            after: with the end of that call; else before it.
        """
        if after:
            return Bracket(self._open_cycle, lambda cycle, result, failed: self._begin_draft(), self.extending)
        return Bracket(lambda instance, args, kwargs: self._begin_draft(), _nothing, self.extending)

    def _begin_draft(self) -> None:
        cycle = self._open_cycle()
        if cycle is not None and cycle.leaf == "draft_extend":
            self.extending.armed = False
            self._leave(cycle)
            self._enter(cycle, "draft")

    # What the wrappers share

    def _begin(self, runner: Any, step: Step) -> Cycle | None:
        size, context = len(step.request_ids), self._context_tokens(runner, step)
        number = self._opened(self._recorder.begin_cycle(step.mode, size, step.draft_tokens, step.request_ids, context))
        if number < 0:  # the control word said stop
            return None
        speculating = getattr(runner, "speculative_config", None) is not None
        cycle = Cycle(self._recording, number, step, speculating and step.mode in DRAFTING_MODES)
        self._cycle, self._thread, self.armed = cycle, threading.get_ident(), True
        if self._pending:
            self._give_up()
        self._enter(cycle, _LEAF_OF_MODE[step.mode])
        return cycle

    def _opened(self, number: int) -> int:
        """Forgets what an earlier recording left, with the first cycle of a new one."""
        if number == 0:
            self._recording += 1
            self._requests.clear()
            self._pending.clear()
        return number

    def _context_tokens(self, runner: Any, step: Step) -> int | None:
        """Tokens that the requests have so far, as far as the host has heard; of a prefill nothing is said."""
        if step.mode not in DRAFTING_MODES:
            return None
        if runner.vllm_config.scheduler_config.async_scheduling:  # the scheduler counts tokens that may be rejected
            return self._requests.context_tokens(step.request_ids)
        return step.computed_tokens + len(step.request_ids)  # the last token of each is yet to be computed

    def _end(self, cycle: Cycle) -> None:
        self._leave(cycle)
        if self._cycle is cycle:
            self._cycle, self.armed, self.extending.armed = None, False, False
        self._recorder.end_cycle(cycle.number, graph_batch_size=cycle.graph_batch_size)

    def _enter(self, cycle: Cycle, leaf: str) -> None:
        cycle.leaf = leaf
        cycle.token = self._recorder.begin_phase(leaf)

    def _leave(self, cycle: Cycle) -> None:
        if cycle.leaf is not None:
            cycle.leaf = None
            self._recorder.end_phase(cycle.token)

    def _open_cycle(self, instance: Any = None, args: Any = None, kwargs: Any = None) -> Cycle | None:
        """The open cycle, seen from the thread that opened it; None in dummy runs, which no cycle encloses."""
        return self._cycle if threading.get_ident() == self._thread else None

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
        step = cycle.step
        sampled = dict(zip(output.req_ids, tokens, strict=True))
        lengths: list[int | None] = []
        accepted: list[int | None] = []
        for request_id, drafts in zip(step.request_ids, step.drafts, strict=True):
            given = sampled.get(request_id, ())
            lengths.append(self._requests.commit(request_id, given))
            accepted.append(len(given) - 1 if drafts and given else None)
        self._recorder.accept(cycle.number, lengths, accepted if step.draft_tokens else None)
        if self._requests.ending:
            for told in self._requests.ended():
                self._recorder.request_finished(*told)

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


def _nothing(state: Any, result: Any, failed: bool) -> None: ...
