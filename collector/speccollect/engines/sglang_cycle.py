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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from speccollect.bracket import Bracket
from speccollect.engines.sglang_batch import (
    accepted_list,
    accepted_of,
    committed,
    graph_batch_size_of,
    mode_of,
    place_of,
    progress_of,
    replica_rank,
    settings_of,
)
from speccollect.hooking import Recorder, argument

_NOTE: Final = "_speccollect_cycle"
"""Attribute of SGLang's result object that carries the cycle it belongs to."""

_PHASE_OF_MODE: Final = {"decode": "decode", "prefill": "prefill", "mixed": "prefill", "idle": "idle"}
"""Leaf phase that covers a whole cycle; a speculative cycle has phases of its own."""

_PLAIN: Final = (str, int, float, bool, list, tuple, type(None))
"""Types of server arguments that are worth a line in the trace's metadata."""

logger: Final = logging.getLogger("speccollect")

Call = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass
class _Cycle:
    """The cycle that ``run_batch`` is in."""

    number: int
    mode: str
    batch_size: int
    leaf: str | None = None
    """Leaf phase open on the worker's thread."""
    accepted: list[int] | None = None
    """Accepted drafts per request, from the v1 verifier."""
    replayed: bool = False
    """Whether the target's graph ran (for releases whose result doesn't say)."""
    before: list[tuple[int, bool]] | None = None
    """Per request: tokens committed and whether it is over, before the cycle; None under overlap scheduling."""


_Leaf = tuple[_Cycle, "str | None", int]
"""A leaf phase, or a part of one, that is open: its cycle, the leaf around it, its token."""


class CycleHooks:
    """Wrappers for SGLang's scheduler and workers; one for each recorder. Used on the scheduler's main thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._settings: dict[str, Any] = {}
        self._cycle: _Cycle | None = None
        self._thread = 0

    # The scheduler

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

    def receive(self) -> Bracket:
        """``recv_requests``: passed by the loop on every turn, idle or not; only the poll matters."""

        def before(instance: Any, args: Args, kwargs: Kwargs) -> None:
            self._recorder.poll()

        return Bracket(before, _nothing)

    def run_batch(self) -> Bracket:
        """``Scheduler.run_batch(batch)``: one cycle."""

        def before(scheduler: Any, args: Args, kwargs: Kwargs) -> tuple[_Cycle, Any, int | None] | None:
            batch = argument("batch", 0, args, kwargs)
            mode = mode_of(batch)
            if mode is None:
                return None
            requests = batch.reqs
            speculative = mode == "speculative"
            number = self._recorder.begin_cycle(
                mode,
                len(requests),
                self._draft_tokens(scheduler) if speculative else 0,
                [request.rid for request in requests],
                sum(request.seqlen for request in requests) if mode in ("speculative", "decode") else None,
            )
            if number < 0:  # the control word said stop
                return None
            cycle = _Cycle(number, mode, len(requests), _PHASE_OF_MODE.get(mode))
            if not scheduler.enable_overlap:
                # The v1 worker commits tokens within run_batch. Under overlap the previous batch's result is yet to be
                # processed and would be counted here, so there the count starts when this batch's result comes.
                cycle.before = progress_of(requests)
            self._cycle, self._thread = cycle, threading.get_ident()
            return cycle, scheduler, self._begun(cycle.leaf)

        def after(state: tuple[_Cycle, Any, int | None], result: Any, failed: bool) -> None:
            cycle, scheduler, token = state
            self._cycle = None
            size: int | None = None
            try:
                if not failed:
                    size = graph_batch_size_of(scheduler, result, cycle.replayed)
                    setattr(result, _NOTE, cycle)
            finally:
                if token is not None:
                    self._recorder.end_phase(token)
                self._recorder.end_cycle(cycle.number, graph_batch_size=size)

        return Bracket(before, after)

    def delayed_sample(self) -> Bracket:
        """``launch_batch_sample_if_needed(batch_result)``: sampling put off until a grammar is ready."""

        def before(scheduler: Any, args: Args, kwargs: Kwargs) -> int | None:
            result = argument("batch_result", 0, args, kwargs)
            cycle = getattr(result, _NOTE, None)
            if cycle is None or result.delay_sample_func is None:
                return None
            return self._begun(_PHASE_OF_MODE.get(cycle.mode))

        return Bracket(before, self._end)

    def process_result(self) -> Bracket:
        """``Scheduler.process_batch_result(batch, result)``: the tokens of a cycle reach the host."""

        def before(scheduler: Any, args: Args, kwargs: Kwargs) -> tuple[list[Any], Any, list[tuple[int, bool]], int]:
            requests = list(argument("batch", 0, args, kwargs).reqs)
            result = argument("result", 1, args, kwargs)
            cycle = getattr(result, _NOTE, None)
            progress = progress_of(requests)
            if cycle is not None and cycle.before is not None and len(cycle.before) == len(requests):
                progress = cycle.before
            return requests, result, progress, self._recorder.begin_phase("process_result")

        def after(state: tuple[list[Any], Any, list[tuple[int, bool]], int], outcome: Any, failed: bool) -> None:
            requests, result, progress, token = state
            self._recorder.end_phase(token)
            if not failed:
                self._processed(requests, result, progress)

        return Bracket(before, after)

    def _processed(self, requests: list[Any], result: Any, before: list[tuple[int, bool]]) -> None:
        """Tell what a cycle committed, and which requests are over."""
        after = progress_of(requests)
        for request, (_, over), (tokens, finished) in zip(requests, before, after, strict=True):
            if finished and not over:
                self._recorder.request_finished(request.rid, len(request.origin_input_ids), tokens)
        cycle = getattr(result, _NOTE, None)
        if cycle is not None and cycle.mode != "idle" and cycle.batch_size == len(requests):
            lengths = [
                committed(request, then, now) for request, then, now in zip(requests, before, after, strict=True)
            ]
            accepted = accepted_of(result, cycle.accepted, len(requests)) if cycle.mode == "speculative" else None
            self._recorder.accept(cycle.number, lengths, accepted)

    # The workers

    def leaf(self, name: str) -> Bracket:
        """A leaf phase of a speculative cycle: draft, verify, draft_extend. Passes through elsewhere."""

        def before(instance: Any, args: Args, kwargs: Kwargs) -> _Leaf | None:
            cycle = self._own_cycle()
            return None if cycle is None or cycle.mode != "speculative" else self._enter_leaf(cycle, name)

        return Bracket(before, self._end_leaf)

    def part(self, name: str) -> Bracket:
        """A sub-phase of a speculative cycle."""

        def before(instance: Any, args: Args, kwargs: Kwargs) -> int | None:
            cycle = self._own_cycle()
            return None if cycle is None or cycle.mode != "speculative" else self._recorder.begin_phase(name)

        return Bracket(before, self._end)

    def verify_tree(self) -> Bracket:
        """``EagleVerifyInput.verify`` of the v1 worker: samples, accepts, and brings the counts to the host itself."""

        def before(instance: Any, args: Args, kwargs: Kwargs) -> tuple[_Cycle, int] | None:
            cycle = self._own_cycle()
            if cycle is None or cycle.mode != "speculative":
                return None
            return cycle, self._recorder.begin_phase("sample")

        def after(state: tuple[_Cycle, int], outcome: Any, failed: bool) -> None:
            cycle, token = state
            self._recorder.end_phase(token)
            if not failed:
                cycle.accepted = accepted_list(outcome)

        return Bracket(before, after)

    def target_forward(self) -> Bracket:
        """``TpModelWorker.forward_batch_generation``: the target's forward.

        Within verify it is a sub-phase. In a speculative cycle whose worker has no hook points here (n-gram, DFlash,
        ...) it is the verify phase.
        """

        def before(instance: Any, args: Args, kwargs: Kwargs) -> _Leaf | None:
            cycle = self._own_cycle()
            if cycle is None or cycle.mode != "speculative":
                return None
            if cycle.leaf is None:
                return self._enter_leaf(cycle, "verify")
            if cycle.leaf == "verify":
                return cycle, cycle.leaf, self._recorder.begin_phase("target_forward")
            return None

        return Bracket(before, self._end_leaf)

    def replay(self) -> Bracket:
        """``CudaGraphRunner.replay`` of releases whose result doesn't say whether a graph ran."""

        def before(instance: Any, args: Args, kwargs: Kwargs) -> None:
            cycle = self._own_cycle()
            if cycle is not None:
                cycle.replayed = True

        return Bracket(before, _nothing)

    def _begun(self, name: str | None) -> int | None:
        return None if name is None else self._recorder.begin_phase(name)

    def _end(self, token: int, result: Any, failed: bool) -> None:
        self._recorder.end_phase(token)

    def _enter_leaf(self, cycle: _Cycle, name: str) -> _Leaf:
        outer, cycle.leaf = cycle.leaf, name
        return cycle, outer, self._recorder.begin_phase(name)

    def _end_leaf(self, state: _Leaf, result: Any, failed: bool) -> None:
        cycle, outer, token = state
        self._recorder.end_phase(token)
        cycle.leaf = outer

    def _draft_tokens(self, scheduler: Any) -> int:
        """Tokens the draft proposes per request: the worker's own number (it may adapt), else the server's argument."""
        worker = getattr(scheduler, "model_worker", None) or getattr(scheduler, "draft_worker", None)
        verified = getattr(worker, "speculative_num_draft_tokens", None)
        if verified is None:
            verified = self._settings.get("speculative_num_draft_tokens") or 1
        return int(verified) - 1

    def _own_cycle(self) -> _Cycle | None:
        """The open cycle, seen from the thread that opened it; None in warm-up runs, which no cycle encloses."""
        return self._cycle if threading.get_ident() == self._thread else None


def _nothing(state: Any, result: Any, failed: bool) -> None:
    """After a call that needs nothing afterwards."""
