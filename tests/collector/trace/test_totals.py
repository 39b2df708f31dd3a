"""Accept lengths against the server's own count."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from speccollect.parts.table import event_table
from speccollect.trace.totals import all_totals, rank_totals


def cycle(
    mode: str, ids: list[str], lengths: list[int | None] | None, accepted: list[int | None] | None = None
) -> dict[str, Any]:
    lists = {"request_ids": [ids], "accept_lengths": [lengths], "accepted_draft_tokens": [accepted]}
    return {"kind": "cycle", "mode": mode, **lists}


def request(name: str, completion: int) -> dict[str, Any]:
    return {"kind": "request", "request_ids": [[name]], "completion_tokens": completion}


def totals(rows: list[dict[str, Any]], completion: int | None = None) -> dict[str, Any]:
    return rank_totals(pa.concat_tables([event_table(1, row) for row in rows]).unify_dictionaries(), completion)


BATCH = [cycle("prefill", ["a", "b"], None), cycle("speculative", ["a", "b"], [2, 3]), cycle("decode", ["b"], [1])]


def test_equal_per_request() -> None:
    result = totals([*BATCH, request("a", 3), request("b", 5)])
    assert (result["committed_tokens"], result["first_tokens"], result["completion_tokens"]) == (6, 2, 8)
    assert (result["told_by"], result["compared_requests"], result["difference"], result["equal"]) == (
        "server",
        2,
        0,
        True,
    )


def test_difference_is_told_in_tokens() -> None:
    result = totals([*BATCH, request("a", 3), request("b", 9)])
    assert (result["difference"], result["equal"]) == (4, False)


def test_request_begun_before_the_recording_is_not_compared() -> None:
    result = totals([*BATCH, cycle("speculative", ["old"], [2]), request("a", 3), request("old", 500)])
    assert (result["compared_requests"], result["completion_tokens"], result["equal"]) == (1, 3, True)


def test_chunked_prefill_gives_one_token() -> None:
    rows = [cycle("prefill", ["a"], None), cycle("prefill", ["a"], None), cycle("decode", ["a"], [1]), request("a", 2)]
    assert totals(rows)["equal"] is True


def test_prefill_that_tells_its_own_token() -> None:
    rows = [cycle("prefill", ["a"], [1]), cycle("decode", ["a"], [1]), request("a", 2)]
    result = totals(rows)
    assert (result["first_tokens"], result["equal"]) == (1, True)


def test_a_prefill_beside_a_verify_gives_one_token() -> None:
    """``b`` is computed in three pieces, the first beside the prefill of ``a``, the last with its first token."""
    rows = [
        cycle("prefill", ["a", "b"], [1, 0]),
        cycle("mixed", ["a", "b"], [2, 0], [1, None]),
        cycle("mixed", ["a", "b"], [3, 1], [2, None]),
        cycle("speculative", ["a", "b"], [1, 2], [0, 1]),
        request("a", 7),
        request("b", 3),
    ]
    assert (totals(rows)["compared_requests"], totals(rows)["difference"]) == (2, 0)


def test_a_request_that_was_verified_beside_a_prefill_is_not_prefilled_by_it() -> None:
    rows = [cycle("mixed", ["old", "b"], [2, None], [1, None]), request("old", 500), request("b", 1)]
    assert (totals(rows)["compared_requests"], totals(rows)["difference"]) == (1, 0)


def test_client_count_is_used_where_the_server_tells_none() -> None:
    result = totals(BATCH, 8)
    assert (result["told_by"], result["difference"], result["equal"]) == ("client", 0, True)


def test_unknown_lengths_are_counted_and_nothing_is_claimed() -> None:
    result = totals([cycle("speculative", ["a"], None), cycle("speculative", ["a", "b"], [2, None])])
    assert result["cycles_without_lengths"] == 2
    assert result["equal"] is None
    assert result["difference"] is None


def test_a_rank_that_heard_of_no_token_is_not_compared_where_another_did() -> None:
    heard = totals([cycle("prefill", ["a"], [1]), cycle("speculative", ["a"], [3]), request("a", 4)], 4)
    deaf = totals([cycle("prefill", ["a"], None), cycle("speculative", ["a"], None)], 4)
    assert (deaf["difference"], deaf["equal"]) == (3, False)
    both = all_totals({0: heard, 1: deaf})
    assert (both["0"]["equal"], both["1"]["equal"], both["1"]["cycles_without_lengths"]) == (True, None, 1)
    assert all_totals({0: deaf})["0"] == deaf  # nobody heard: that is told
