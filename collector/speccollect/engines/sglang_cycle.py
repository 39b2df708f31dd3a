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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from speccollect.hooking import Recorder, argument

_NOTE: Final = "_speccollect_cycle"
"""Attribute of SGLang's result object that carries the cycle it belongs to."""

_ACCEPTED_FIELDS: Final = (
    "num_correct_drafts_per_req_cpu",  # 0.5.12 and later
    "num_accepted_drafts_per_req_cpu",  # 0.5.11
    "accept_length_per_req_cpu",  # up to 0.5.10; the bonus token is not in it
)
"""Accepted drafts per request, host list, bonus token not counted; newest name first."""

_PHASE_OF_MODE: Final = {"decode": "decode", "prefill": "prefill", "mixed": "prefill", "idle": "idle"}
"""Leaf phase that covers a whole cycle; a speculative cycle has phases of its own."""

_PLAIN: Final = (str, int, float, bool, list, tuple, type(None))
"""Types of server arguments that are worth a line in the trace's metadata."""

logger: Final = logging.getLogger("speccollect")

Call = Callable[..., Any]


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
        settings = self._settings = _settings(scheduler.server_args)
        place = _place(scheduler)
        self._recorder.identify(
            rank=_replica_rank(settings, place),
            coordinates={name: value for name, value in place.items() if value is not None},
            server="sglang",
            server_version=getattr(sys.modules.get("sglang"), "__version__", None),
            server_args={key: value for key, value in settings.items() if isinstance(value, _PLAIN)},
            model_path=settings.get("model_path"),
        )

    def receive(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``recv_requests``: passed by the loop on every turn, idle or not; only the poll before it matters."""
        return wrapped(*args, **kwargs)

    def run_batch(self, wrapped: Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Scheduler.run_batch(batch)``: one cycle."""
        batch = argument("batch", 0, args, kwargs)
        mode = _mode(batch)
        if mode is None:
            return wrapped(*args, **kwargs)
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
            return wrapped(*args, **kwargs)
        cycle = _Cycle(number, mode, len(requests), _PHASE_OF_MODE.get(mode))
        if not scheduler.enable_overlap:
            # The v1 worker commits tokens within run_batch. Under overlap the previous batch's result is yet to be
            # processed and would be counted here, so there the count starts when this batch's result comes.
            cycle.before = _progress(requests)
        self._cycle, self._thread = cycle, threading.get_ident()
        token = None if cycle.leaf is None else self._recorder.begin_phase(cycle.leaf)
        size: int | None = None
        try:
            result = wrapped(*args, **kwargs)
            size = _graph_batch_size(scheduler, result, cycle)
            setattr(result, _NOTE, cycle)
            return result
        finally:
            self._cycle = None
            if token is not None:
                self._recorder.end_phase(token)
            self._recorder.end_cycle(number, graph_batch_size=size)

    def delayed_sample(self, wrapped: Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``launch_batch_sample_if_needed(batch_result)``: sampling put off until a grammar is ready."""
        result = argument("batch_result", 0, args, kwargs)
        cycle = getattr(result, _NOTE, None)
        leaf = None if cycle is None or result.delay_sample_func is None else _PHASE_OF_MODE.get(cycle.mode)
        return self._within(leaf, wrapped, args, kwargs)

    def process_result(self, wrapped: Call, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Scheduler.process_batch_result(batch, result)``: the tokens of a cycle reach the host."""
        requests = list(argument("batch", 0, args, kwargs).reqs)
        result = argument("result", 1, args, kwargs)
        cycle = getattr(result, _NOTE, None)
        before = _progress(requests)
        if cycle is not None and cycle.before is not None and len(cycle.before) == len(requests):
            before = cycle.before
        outcome = self._within("process_result", wrapped, args, kwargs)
        after = _progress(requests)
        for request, (_, over), (tokens, finished) in zip(requests, before, after, strict=True):
            if finished and not over:
                self._recorder.request_finished(request.rid, len(request.origin_input_ids), tokens)
        if cycle is not None and cycle.mode != "idle" and cycle.batch_size == len(requests):
            lengths = [
                _committed(request, then, now) for request, then, now in zip(requests, before, after, strict=True)
            ]
            accepted = _accepted(result, cycle, len(requests)) if cycle.mode == "speculative" else None
            self._recorder.accept(cycle.number, lengths, accepted)
        return outcome

    # The workers

    def leaf(self, name: str) -> Callable[..., Any]:
        """Wrapper for a leaf phase of a speculative cycle: draft, verify, draft_extend. Passes through elsewhere."""

        def wrapper(wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            cycle = self._own_cycle()
            if cycle is None or cycle.mode != "speculative":
                return wrapped(*args, **kwargs)
            outer, cycle.leaf = cycle.leaf, name
            try:
                return self._within(name, wrapped, args, kwargs)
            finally:
                cycle.leaf = outer

        return wrapper

    def part(self, name: str) -> Callable[..., Any]:
        """Wrapper for a sub-phase of a speculative cycle."""

        def wrapper(wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            cycle = self._own_cycle()
            inside = cycle is not None and cycle.mode == "speculative"
            return self._within(name if inside else None, wrapped, args, kwargs)

        return wrapper

    def verify_tree(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``EagleVerifyInput.verify`` of the v1 worker: samples, accepts, and brings the counts to the host itself."""
        cycle = self._own_cycle()
        if cycle is None or cycle.mode != "speculative":
            return wrapped(*args, **kwargs)
        outcome = self._within("sample", wrapped, args, kwargs)
        cycle.accepted = _first_list(outcome)
        return outcome

    def target_forward(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``TpModelWorker.forward_batch_generation``: the target's forward.

        Within verify it is a sub-phase. In a speculative cycle whose worker has no hook points here (n-gram, DFlash,
        ...) it is the verify phase.
        """
        cycle = self._own_cycle()
        if cycle is None or cycle.mode != "speculative":
            return wrapped(*args, **kwargs)
        if cycle.leaf is None:
            return self.leaf("verify")(wrapped, instance, args, kwargs)
        return self._within("target_forward" if cycle.leaf == "verify" else None, wrapped, args, kwargs)

    def replay(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``CudaGraphRunner.replay`` of releases whose result doesn't say whether a graph ran."""
        cycle = self._own_cycle()
        if cycle is not None:
            cycle.replayed = True
        return wrapped(*args, **kwargs)

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

    def _within(self, name: str | None, wrapped: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name is None:
            return wrapped(*args, **kwargs)
        token = self._recorder.begin_phase(name)
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._recorder.end_phase(token)


def _place(scheduler: Any) -> dict[str, int | None]:
    """Coordinates of this scheduler; where they are kept moved twice."""
    context = sys.modules.get("sglang.srt.runtime_context")
    holder = getattr(scheduler, "ps", None)  # 0.5.13 to 0.5.20
    if holder is None:
        told = hasattr(scheduler, "tp_rank")  # up to 0.5.12; else the context of 0.5.21 and later
        holder = context.get_parallel() if context is not None and not told else scheduler
    names = {"tensor": "tp_rank", "pipeline": "pp_rank", "data": "dp_rank", "expert": "moe_ep_rank"}
    return {ours: getattr(holder, theirs, None) for ours, theirs in names.items()}


def _settings(server_args: Any) -> dict[str, Any]:
    """The server's arguments by name, as resolved; later releases keep what the user typed apart from that."""
    resolved = getattr(server_args, "resolved_dict", None)
    return dict(resolved() if resolved is not None else vars(server_args))


def _replica_rank(settings: dict[str, Any], place: dict[str, int | None]) -> int | None:
    """Rank over all replicas of plain data parallelism, whose process groups number each replica from 0; else None."""
    if settings["dp_size"] <= 1 or settings.get("enable_dp_attention") or place["data"] is None:
        return None
    tensor = int(settings["tp_size"])
    within = (place["pipeline"] or 0) * tensor + (place["tensor"] or 0)
    return place["data"] * tensor * int(settings.get("pp_size", 1)) + within


def _mode(batch: Any) -> str | None:
    """Mode of the cycle that runs ``batch``; None where no forward runs (a prefill taken over from another server)."""
    mode = batch.forward_mode
    if mode.is_idle():
        return "idle"
    if mode.is_mixed():
        return "mixed"
    if mode.is_decode():
        return "decode" if batch.spec_algorithm.is_none() else "speculative"
    if mode.is_extend():
        return "prefill"
    return None


def _graph_batch_size(scheduler: Any, result: Any, cycle: _Cycle) -> int | None:
    """Batch size of the target's CUDA graph that ran, from its runner; None when the forward was eager."""
    if not getattr(result, "can_run_cuda_graph", cycle.replayed):
        return None
    worker = scheduler.tp_worker
    model_runner = getattr(worker, "worker", worker).model_runner  # TpModelWorkerClient wraps the worker up to 0.5.3
    for name in ("decode_cuda_graph_runner", "graph_runner", "cuda_graph_runner"):
        runner = getattr(model_runner, name, None)
        if runner is not None:
            return getattr(runner, "bs", None)
    return None


def _progress(requests: Sequence[Any]) -> list[tuple[int, bool]]:
    """Per request: tokens committed so far, those after a stop token left out, and whether it is over."""
    progress = []
    for request in requests:
        stop = getattr(request, "finished_len", None)
        progress.append((len(request.output_ids) if stop is None else stop, request.finished()))
    return progress


def _committed(request: Any, before: tuple[int, bool], after: tuple[int, bool]) -> int | None:
    """Tokens that a step committed; None where they were thrown away.

    Under overlap scheduling a request may be over, or retracted, before the result of its last step is looked at.
    """
    if before[1] or getattr(request, "is_retracted", False) or after[0] < before[0]:
        return None
    return after[0] - before[0]


def _accepted(result: Any, cycle: _Cycle, batch_size: int) -> list[int] | None:
    """The verifier's own count of accepted drafts per request; None where this release doesn't bring it to the host."""
    accepted = cycle.accepted if cycle.accepted is not None else _first_list(result)
    if accepted is None:
        lengths = getattr(result, "accept_lens", None)  # overlap worker up to 0.5.6: the copy that the scheduler made
        if lengths is not None and not lengths.is_cuda:
            accepted = [length - 1 for length in lengths.tolist()]
    return accepted if accepted is not None and len(accepted) == batch_size else None


def _first_list(holder: Any) -> list[int] | None:
    for name in _ACCEPTED_FIELDS:
        values = getattr(holder, name, None)
        if values is not None:
            return list(values)
    return None
