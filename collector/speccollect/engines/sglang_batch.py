"""What SGLang's objects say of a step on the host: mode, place, progress of requests, accepted drafts. Releases read: 0.4.6 to 0.5.23.

Nothing here reads a device tensor or waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

_ACCEPTED_FIELDS: Final = (
    "num_correct_drafts_per_req_cpu",  # 0.5.12 and later
    "num_accepted_drafts_per_req_cpu",  # 0.5.11
    "accept_length_per_req_cpu",  # up to 0.5.10; the bonus token is not in it
)
"""Accepted drafts per request, host list, bonus token not counted; newest name first."""
_NEWEST_FIELD: Final = _ACCEPTED_FIELDS[0]


_RUNNERS: Final = ("decode_cuda_graph_runner", "graph_runner", "cuda_graph_runner")
"""Attributes of the model runner that hold the target's graph runner, newest name first."""


def place_of(scheduler: Any) -> dict[str, int | None]:
    """Coordinates of this scheduler; where they are kept moved twice."""
    context = sys.modules.get("sglang.srt.runtime_context")
    holder = getattr(scheduler, "ps", None)  # 0.5.13 to 0.5.20
    if holder is None:
        told = hasattr(scheduler, "tp_rank")  # up to 0.5.12; else the context of 0.5.21 and later
        holder = context.get_parallel() if context is not None and not told else scheduler
    names = {"tensor": "tp_rank", "pipeline": "pp_rank", "data": "dp_rank", "expert": "moe_ep_rank"}
    return {ours: getattr(holder, theirs, None) for ours, theirs in names.items()}


def settings_of(server_args: Any) -> dict[str, Any]:
    """The server's arguments by name, as resolved; later releases keep what the user typed apart from that."""
    resolved = getattr(server_args, "resolved_dict", None)
    return dict(resolved() if resolved is not None else vars(server_args))


def replica_rank(settings: dict[str, Any], place: dict[str, int | None]) -> int | None:
    """Rank over all replicas of plain data parallelism, whose process groups number each replica from 0; else None."""
    if settings["dp_size"] <= 1 or settings.get("enable_dp_attention") or place["data"] is None:
        return None
    tensor = int(settings["tp_size"])
    within = (place["pipeline"] or 0) * tensor + (place["tensor"] or 0)
    return place["data"] * tensor * int(settings.get("pp_size", 1)) + within


def mode_of(batch: Any) -> str | None:
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


class TargetGraph:
    """The target's CUDA graph runner; where it is kept is looked up once for each worker."""

    __slots__ = ("_model_runner", "_name", "_worker")

    def __init__(self) -> None:
        self._worker: Any = None
        self._model_runner: Any = None
        self._name = _RUNNERS[0]

    def graph_batch_size(self, scheduler: Any) -> int | None:
        """Batch size of the target's graph that ran last; None where its runner doesn't say."""
        worker = scheduler.tp_worker
        if worker is not self._worker:
            # TpModelWorkerClient wraps the worker up to 0.5.3
            self._worker, self._model_runner = worker, getattr(worker, "worker", worker).model_runner
        runner = getattr(self._model_runner, self._name, None)
        if runner is None:
            for name in _RUNNERS:
                runner = getattr(self._model_runner, name, None)
                if runner is not None:
                    self._name = name
                    break
        return getattr(runner, "bs", None)


def progress_of(requests: Sequence[Any]) -> list[tuple[int, bool]]:
    """Per request: tokens committed so far, those after a stop token left out, and whether it is over."""
    progress = []
    for request in requests:
        stop = getattr(request, "finished_len", None)
        progress.append((len(request.output_ids) if stop is None else stop, request.finished()))
    return progress


def accepted_of(result: Any, counted: list[int] | None, batch_size: int) -> list[int] | None:
    """The verifier's own count of accepted drafts per request; None where this release doesn't bring it to the host."""
    accepted = counted if counted is not None else getattr(result, _NEWEST_FIELD, None)
    if accepted is None:
        accepted = accepted_list(result)
    if accepted is None:
        lengths = getattr(result, "accept_lens", None)  # overlap worker up to 0.5.6: the copy that the scheduler made
        if lengths is not None and not lengths.is_cuda:
            accepted = [length - 1 for length in lengths.tolist()]
    return accepted if accepted is not None and len(accepted) == batch_size else None


def accepted_list(holder: Any) -> list[int] | None:
    """The verifier's count where a result of the scheduler or of the verifier holds it as a host list; else None."""
    for name in _ACCEPTED_FIELDS:
        values = getattr(holder, name, None)
        if values is not None:
            return list(values)
    return None
