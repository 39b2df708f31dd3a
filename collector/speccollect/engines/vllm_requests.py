"""How many tokens each request of a vLLM worker has committed, with tokens after its end left out (rule D8).

A worker hands every token that the verifier let through to the scheduler, and the scheduler cuts a request's last step at
its stop token or length limit, in another process under tensor parallelism. So the same rule is applied here, to the
tokens that the worker has on the host anyway. Releases read: 0.15.1 to 0.33.0 (``vllm/v1/core/sched/utils.py``,
``check_stop``). Not known to a worker: stop strings (the front end aborts the request some tokens later) and repetition
detection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_FOREVER: Final = 2**62

_REMEMBERED: Final = 1024
"""Requests whose end is remembered: the result of a step launched ahead may come after the news that its request is over."""


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    limit: int
    """Output tokens at which the request ends."""
    stops: frozenset[int]
    committed: int = 0
    over: bool = False
    told: bool = False


class RequestLedger:
    """Requests that a worker was handed since the recording began.

    Written by the thread that runs the steps; ``commit`` alone may be called from the thread that hands results over,
    one result at a time and in order.

    Attributes:
        ending: requests that their last step has ended and ``ended`` has not told of.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._finished: deque[str] = deque(maxlen=_REMEMBERED)
        self.ending: list[str] = []

    def clear(self) -> None:
        """A new recording begins: what was counted before it has gaps."""
        self._requests = {}
        self._finished.clear()
        self.ending.clear()

    def add(self, request_id: str, prompt_tokens: int, sampling: Any, max_model_len: int) -> None:
        """A request begins. One that comes back after a preemption keeps its count.

        Args:
            sampling: vLLM's ``SamplingParams``.
            max_model_len: prompt and output tokens that fit.
        """
        if request_id in self._requests:
            return
        limit = _FOREVER if sampling.max_tokens is None else sampling.max_tokens
        stops = sampling.stop_token_ids if sampling.ignore_eos else sampling.all_stop_token_ids
        self._requests[request_id] = _Request(
            prompt_tokens, min(limit, max_model_len - prompt_tokens), frozenset(stops or ())
        )

    def ended(self) -> list[tuple[str, int, int]]:
        """Name, prompt and completion tokens of the requests in ``ending``; each is told once."""
        told = []
        while self.ending:
            request_id = self.ending.pop(0)
            request = self._requests.get(request_id)
            if request is not None:
                request.told = True
                told.append((request_id, request.prompt_tokens, request.committed))
        return told

    def finish(self, request_id: str) -> tuple[int, int] | None:
        """The scheduler is done with a request.

        Returns:
            Its prompt and completion tokens, where ``ended`` has not told them (it was aborted), its beginning was seen and
            this rank has heard of its tokens: under async scheduling one rank alone does.
        """
        self._finished.append(request_id)
        request = self._requests.pop(request_id, None)
        if request is None or request.told or not request.committed:
            return None
        return request.prompt_tokens, request.committed

    def context_tokens(self, request_ids: Sequence[str]) -> int | None:
        """Prompt and committed tokens of these requests together; None where one's beginning was not seen."""
        total = 0
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                return None
            total += request.prompt_tokens + request.committed
        return total

    def commit(
        self, request_ids: Sequence[str], drafts: Sequence[int], given: Sequence[Sequence[int]]
    ) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """Tokens of one step that each request keeps, and drafts of it that the verifier let through.

        Args:
            drafts: draft tokens that were verified, per request.
            given: what the step gave each request, bonus token included.

        Returns:
            Tokens kept: None where the request was over before (a step launched ahead of the news); of a request whose
            beginning was not seen, all. Accepted drafts: None where nothing was verified.
        """
        requests = self._requests
        lengths: list[int | None] = []
        accepted: list[int | None] = []
        for request_id, count, tokens in zip(request_ids, drafts, given, strict=True):
            kept = len(tokens)
            accepted.append(kept - 1 if count and kept else None)
            request = requests.get(request_id)
            if request is None:
                lengths.append(None if request_id in self._finished else kept)
            elif request.over:
                lengths.append(None)
            else:
                if request.committed + kept >= request.limit or not request.stops.isdisjoint(tokens):
                    kept = self._last(request, tokens)
                    if request.over:
                        self.ending.append(request_id)
                request.committed += kept
                lengths.append(kept)
        return tuple(lengths), tuple(accepted)

    @staticmethod
    def _last(request: _Request, tokens: Sequence[int]) -> int:
        kept = 0
        for token in tokens:
            kept += 1
            if token in request.stops or request.committed + kept >= request.limit:
                request.over = True
                break
        return kept
