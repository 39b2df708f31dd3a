"""Latency figures from chunk arrivals, by hand."""

from __future__ import annotations

from speccollect.request.latency import Streamed, percentiles, summarise

MS = 1_000_000


def streamed(sent_ms: int, chunks: list[tuple[int, int | None]], completion: int | None, ended_ms: int) -> Streamed:
    return Streamed("r", sent_ms * MS, [(t * MS, n) for t, n in chunks], ended_ms * MS, 5, completion)


def test_several_tokens_in_a_chunk_share_its_gap() -> None:
    # gaps 30 ms for 3 tokens, 10 ms for 1 token, 20 ms for 2 tokens
    summary = summarise([streamed(0, [(100, 1), (130, 4), (140, 5), (160, 7)], 7, 200)])
    assert summary["first_token_ms"] == {"p50": 100.0, "p90": 100.0, "p99": 100.0}
    assert summary["chunk_gap_ms"] == {"p50": 20.0, "p90": 30.0, "p99": 30.0}
    assert summary["token_gap_ms"] == {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    assert summary["tokens_per_chunk"] == 2.0
    assert summary["tokens_per_second"] == 7 / 0.2
    assert summary["decode_tokens_per_second"] == 6 / 0.06


def test_uncounted_chunks_give_no_token_figures() -> None:
    summary = summarise([streamed(0, [(10, None), (20, None)], 9, 30)])
    assert summary["token_gap_ms"] is None
    assert summary["tokens_per_chunk"] is None
    assert summary["chunk_gap_ms"] == {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    # the first chunk holds at least one token: 8 of 9 came in the 10 ms after it
    assert summary["decode_tokens_per_second"] == 8 / 0.01


def test_failed_and_unknown_requests() -> None:
    failed = Streamed("x", 0, [], MS, error="broke")
    unknown = streamed(0, [(1, None)], None, 2)
    assert summarise([failed])["tokens_per_second"] is None
    both = summarise([failed, unknown])
    assert (both["requests"], both["failed"], both["completion_tokens"], both["tokens_per_second"]) == (
        2,
        1,
        None,
        None,
    )


def test_requests_side_by_side_share_the_clock() -> None:
    summary = summarise([streamed(0, [(10, 1), (50, 5)], 5, 50), streamed(0, [(20, 1), (100, 5)], 5, 100)])
    assert summary["tokens_per_second"] == 10 / 0.1


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([1.0, 2.0, 10.0], [1, 8, 1]) == {"p50": 2.0, "p90": 2.0, "p99": 10.0}
    assert percentiles([]) is None
