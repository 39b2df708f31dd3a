"""Which of a step's tokens a request keeps."""

from __future__ import annotations

from types import SimpleNamespace

from speccollect.engines.vllm_requests import RequestLedger


def sampling(
    max_tokens: int | None = 100, stop: tuple[int, ...] = (), eos: int = 2, ignore_eos: bool = False
) -> object:
    return SimpleNamespace(
        max_tokens=max_tokens, stop_token_ids=list(stop), all_stop_token_ids={eos, *stop}, ignore_eos=ignore_eos
    )


def commit(ledger: RequestLedger, request_id: str, tokens: list[int]) -> int | None:
    (kept,), _ = ledger.commit([request_id], [3], [tokens])
    return kept


def test_tokens_after_a_stop_token_are_not_committed() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(stop=(7,)), 1000)
    assert [commit(ledger, "a", tokens) for tokens in ([5], [5, 6, 5], [5, 7, 6])] == [1, 3, 2]
    assert ledger.ended() == [("a", 10, 6)]
    assert ledger.ended() == []  # told once
    assert ledger.finish("a") is None


def test_the_end_of_sequence_token_ends_unless_it_is_ignored() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(), 1000)
    ledger.add("b", 10, sampling(ignore_eos=True), 1000)
    assert (commit(ledger, "a", [1, 2, 3]), commit(ledger, "b", [1, 2, 3])) == (2, 3)


def test_limits_of_tokens_and_of_the_model_cut_the_last_step() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(max_tokens=5), 1000)
    ledger.add("b", 10, sampling(max_tokens=None), 13)
    assert [commit(ledger, "a", [1] * 4), commit(ledger, "a", [1] * 4)] == [4, 1]
    assert commit(ledger, "b", [1] * 4) == 3


def test_a_step_launched_before_the_end_was_known_commits_nothing() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(max_tokens=3), 1000)
    assert (commit(ledger, "a", [1, 1, 1, 1]), commit(ledger, "a", [1, 1])) == (3, None)
    ledger.finish("a")
    assert commit(ledger, "a", [1]) is None


def test_an_aborted_request_is_told_with_what_it_had() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(), 1000)
    commit(ledger, "a", [1, 1])
    assert ledger.ended() == []
    assert ledger.finish("a") == (10, 2)


def test_a_request_that_began_before_the_recording_keeps_all_its_tokens() -> None:
    ledger = RequestLedger()
    ledger.add("b", 4, sampling(), 1000)
    assert commit(ledger, "old", [1, 2, 3]) == 3
    assert (ledger.context_tokens(["b"]), ledger.context_tokens(["old", "b"])) == (4, None)
    assert ledger.finish("old") is None


def test_a_request_that_comes_back_after_a_preemption_keeps_its_count() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(max_tokens=3), 1000)
    commit(ledger, "a", [1, 1])
    ledger.add("a", 10, sampling(max_tokens=3), 1000)
    assert commit(ledger, "a", [1, 1]) == 1


def test_a_rank_that_heard_of_no_token_tells_of_no_request() -> None:
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(), 1000)
    assert ledger.finish("a") is None


def test_accepted_drafts_are_what_the_verifier_let_through() -> None:
    """Before the cut at the stop token; of a request without drafts, or without tokens, nothing is said."""
    ledger = RequestLedger()
    ledger.add("a", 10, sampling(stop=(7,)), 1000)
    given = [[5, 7, 6], [1], []]
    assert ledger.commit(["a", "b", "c"], [3, 0, 3], given) == ((2, 1, 0), (2, None, None))
