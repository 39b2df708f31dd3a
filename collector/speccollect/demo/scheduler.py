"""The scheduler: which requests run, and what each cycle's outcome means for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from speccollect.demo.config import POSITION_LAG
from speccollect.demo.request import Batch, Request, Sequence
from speccollect.demo.worker import CycleResult, SpeculativeWorker


class Scheduler:
    """Continuous batching: a waiting request is prefilled as soon as a row is free, and joins the running batch.

    All ranks run the same scheduler over the same requests and come to the same decisions.
    """

    def __init__(self, worker: SpeculativeWorker) -> None:
        self.worker = worker
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, requests: Iterable[Request]) -> list[Sequence]:
        """Queue requests.

        Raises:
            ValueError: a prompt is too short, or prompt and completion don't fit the cache.
        """
        config = self.worker.config
        added = []
        for request in requests:
            if len(request.prompt) <= POSITION_LAG:
                raise ValueError(f"{request.request_id}: the prompt needs more than {POSITION_LAG} tokens")
            if request.max_tokens < 1:
                raise ValueError(f"{request.request_id}: max_tokens must be at least 1")
            needed = len(request.prompt) + request.max_tokens + config.steps + 1
            if needed > config.max_context:
                raise ValueError(
                    f"{request.request_id} needs {needed} cache positions, a row holds {config.max_context}"
                )
            added.append(Sequence(request))
        self.waiting.extend(added)
        return added

    def run(self) -> None:
        """Serve until nothing is left."""
        while self.waiting or self.running:
            batch = self.next_batch()
            self.process_result(batch, self.worker.forward_batch(batch))

    def next_batch(self) -> Batch:
        """A prefill if a request waits and a row is free, else one cycle of all running requests."""
        if self.waiting and len(self.running) < self.worker.config.max_batch:
            self.running.append(self.waiting.popleft())
            return Batch("prefill", (self.running[-1],), row=len(self.running) - 1)
        return Batch("speculative" if self.worker.speculate else "decode", tuple(self.running))

    def process_result(self, batch: Batch, result: CycleResult) -> list[int]:
        """Commit a cycle's tokens and let finished requests go.

        Returns:
            Tokens committed for each request of the batch: those after a stop token or beyond the limit are not.
        """
        committed = [sequence.commit(tokens) for sequence, tokens in zip(batch.sequences, result.tokens, strict=True)]
        for sequence, count in zip(batch.sequences, committed, strict=True):
            if batch.mode != "prefill":
                sequence.accept_lengths.append(count)
            if sequence.finished:
                self.finish(sequence)
        return committed

    def finish(self, sequence: Sequence) -> None:
        """Free a finished request's row; the last running request moves into it."""
        row, last = self.running.index(sequence), len(self.running) - 1
        if row != last:
            self.worker.move_row(last, row)
            self.running[row] = self.running[last]
        self.running.pop()
