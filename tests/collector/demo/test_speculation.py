"""Speculative decoding of the embedded engine gives the tokens of plain decoding, and leaves the same caches behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from speccollect.demo.config import DemoConfig
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.request import Request, Sequence
from speccollect.demo.scheduler import Scheduler
from speccollect.demo.speculation import accepted_drafts
from speccollect.demo.worker import SpeculativeWorker

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, much slower where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(*, seed: int = 0, steps: int = 2, max_batch: int = 1) -> DemoConfig:
    return DemoConfig(
        layers=2,
        hidden=128,
        experts=4,
        top_k=2,
        intermediate=32,
        vocab=512,
        max_context=192,
        seed=seed,
        steps=steps,
        max_batch=max_batch,
    )


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 512, (length,), generator=generator).tolist())


def serve(
    config: DemoConfig, requests: list[Request], *, speculate: bool = True
) -> tuple[list[Sequence], SpeculativeWorker]:
    with torch.inference_mode():
        worker = SpeculativeWorker(config, TensorParallel(), CPU, speculate=speculate)
        scheduler = Scheduler(worker)
        sequences = scheduler.add(requests)
        scheduler.run()
    return sequences, worker


@pytest.mark.parametrize(
    ("drafts", "verified", "accepted"),
    [
        ([7, 8], [7, 8, 9], 2),
        ([7, 8], [7, 5, 9], 1),
        ([7, 8], [5, 8, 9], 0),  # a match behind a miss was scored after the wrong tokens
        ([7, 7], [8, 7, 7], 0),
    ],
)
def test_a_draft_token_counts_only_after_accepted_ones(drafts: list[int], verified: list[int], accepted: int) -> None:
    assert accepted_drafts(torch.tensor([drafts]), torch.tensor([verified])).tolist() == [accepted]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("max_batch", [1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_speculation_gives_the_tokens_of_plain_decoding(seed: int, max_batch: int, steps: int) -> None:
    """Requests of different lengths, more of them than rows, so that rows are freed, moved and taken again."""
    config = small(seed=seed, steps=steps, max_batch=max_batch)
    requests = [Request(f"r{n}", prompt(20 + 9 * n, seed), 60 - 11 * n) for n in range(max_batch + 1)]
    speculative, _ = serve(config, requests)
    plain, _ = serve(config, requests, speculate=False)

    assert [s.completion for s in speculative] == [s.completion for s in plain]
    assert [len(s.completion) for s in plain] == [r.max_tokens for r in requests]
    for sequence in speculative:
        assert sum(sequence.accept_lengths) == len(sequence.completion) - 1
        assert all(1 <= length <= steps + 1 for length in sequence.accept_lengths)
        assert len(sequence.accept_lengths) < len(sequence.completion) - 1


def test_rejected_drafts_leave_no_trace_in_the_caches() -> None:
    """Both caches hold what one pass over the finished text puts there, whatever was drafted and rejected on the way."""
    config = small(steps=5)
    (sequence,), worker = serve(config, [Request("r", prompt(30), 100)])
    assert min(sequence.accept_lengths) < 6  # some were rejected
    committed = int(worker.state.lengths[0])
    with torch.inference_mode():
        fresh = SpeculativeWorker(config, TensorParallel(), CPU)
        fresh.prefill(sequence.tokens[: committed + 1], 0)
        # the first committed tokens only: the limit cut off what the last cycle chose beyond it
        count = len(sequence.tokens) - 1
        for mine, right in (
            (worker.target_cache, fresh.target_cache),
            (worker.draft_cache, fresh.draft_cache),
        ):
            torch.testing.assert_close(mine.keys[:, 0, :count], right.keys[:, 0, :count], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(mine.values[:, 0, :count], right.values[:, 0, :count], atol=1e-4, rtol=1e-4)


def test_a_stop_token_ends_the_completion_within_a_cycle() -> None:
    config = small(steps=5)
    (full,), _ = serve(config, [Request("r", prompt(30), 60)])
    ends, place = [], 1  # where each cycle's tokens end; the first token is prefill's
    for length in full.accept_lengths:
        place += length
        ends.append(place)
    middle = next(
        end - 2
        for end, length in zip(ends, full.accept_lengths, strict=True)
        if length >= 3 and full.completion.index(full.completion[end - 2]) == end - 2
    )
    stop = full.completion[middle]
    (stopped,), _ = serve(config, [Request("r", prompt(30), 60, stop_token=stop)])

    assert stopped.completion == full.completion[: middle + 1]
    assert sum(stopped.accept_lengths) == len(stopped.completion) - 1


def test_accept_lengths_vary_and_are_the_same_each_time() -> None:
    (sequence,), _ = serve(small(), [Request("r", prompt(30), 150)])
    (again,), _ = serve(small(), [Request("r", prompt(30), 150)])

    assert sequence.accept_lengths == again.accept_lengths
    assert set(sequence.accept_lengths[:-1]) == {1, 2, 3}
    assert 1.8 <= sum(sequence.accept_lengths) / len(sequence.accept_lengths) <= 2.6


def test_a_draft_of_noise_is_hardly_ever_right() -> None:
    """Acceptance comes out of the draft model's forward passes: without its weights there is none."""
    config = small()
    with torch.inference_mode():
        worker = SpeculativeWorker(config, TensorParallel(), CPU)
        worker.draft_model.input_proj.weight.normal_(generator=torch.Generator().manual_seed(1))
        scheduler = Scheduler(worker)
        (sequence,) = scheduler.add([Request("r", prompt(30), 60)])
        scheduler.run()
    plain, _ = serve(config, [Request("r", prompt(30), 60)], speculate=False)

    assert sequence.completion == plain[0].completion
    assert sum(sequence.accept_lengths) / len(sequence.accept_lengths) < 1.2


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request("short", prompt(16), 10), "short: the prompt needs more than 16 tokens"),
        (Request("long", prompt(100), 100), "long needs 203 cache positions, a row holds 192"),
        (Request("none", prompt(20), 0), "none: max_tokens must be at least 1"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(request_: Request, reason: str) -> None:
    with torch.inference_mode():
        scheduler = Scheduler(SpeculativeWorker(small(), TensorParallel(), CPU))
        with pytest.raises(ValueError, match=reason):
            scheduler.add([request_])
