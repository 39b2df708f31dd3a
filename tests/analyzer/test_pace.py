"""tok/s and inter-token latency."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.answers.pace import inter_token, pace_of, token_pairs
from specanalyze.attribution.cycles import cycle_table


def cycles(*rows: tuple[int, str, dict[str, Any]]) -> pl.DataFrame:
    made = [
        traces.phase("spec.cycle", at, at + 1, cycle=n, mode=mode, **more) for n, (at, mode, more) in enumerate(rows)
    ]
    return cycle_table(traces.trace(traces.rank_trace(made)))


def test_speculative_cycles_share_their_step_among_their_tokens() -> None:
    both: dict[str, Any] = {"request_ids": ["a", "b"]}
    table = cycles(
        (0, "speculative", {**both, "accept_lengths": [1, 3]}),
        (30, "speculative", {**both, "accept_lengths": [2, 2]}),
        (50, "speculative", {**both, "accept_lengths": [9, 9]}),  # no step: the last one
    )
    found = pace_of(table)
    assert (found.cycles, found.tok_s, found.tok_s_request) == (2, 8e9 / 50, 8e9 / 100)
    # a: 30 once, 10 twice; b: 10 three times, 10 twice
    assert found.inter_token_ns == (10.0, 30.0, 30.0)
    assert token_pairs(table).select("request", "committed", "step_ns").rows()[:2] == [("a", 1, 30), ("b", 3, 30)]


def test_plain_decoding_of_an_unknown_batch_still_has_a_speed_a_request() -> None:
    found = pace_of(cycles((0, "decode", {}), (10, "decode", {}), (30, "decode", {})))
    assert found.tok_s is None
    assert found.tok_s_request == 2e9 / 30
    assert found.inter_token_ns == (10.0, 20.0, 20.0)
    assert found.step_ns == pytest.approx((11.0, 15.0, 19.0))


def test_cycles_that_do_not_decode_or_do_not_tell_are_no_speed() -> None:
    found = pace_of(cycles((0, "prefill", {}), (10, "prefill", {}), (20, "speculative", {}), (30, "speculative", {})))
    assert (found.cycles, found.tok_s, found.tok_s_request, found.inter_token_ns) == (1, None, None, None)
    assert pace_of(cycles()).to_json() == {
        "cycles": 0,
        "step_ns": None,
        "tok_s": None,
        "tok_s_request": None,
        "inter_token_ns": None,
    }


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), min_size=1))
def test_latency_quantiles_against_a_list_of_tokens(pairs: list[tuple[int, int]]) -> None:
    tokens = sorted(step / n for n, step in pairs for _ in range(n))
    found = inter_token(pl.DataFrame(pairs, schema={"committed": pl.Int64, "step_ns": pl.Int64}, orient="row"))
    if not tokens:
        assert found is None
        return
    assert found is not None
    for quantile, value in zip((0.5, 0.9, 0.99), found, strict=True):
        assert sum(t <= value for t in tokens) >= quantile * len(tokens)
        assert sum(t < value for t in tokens) < quantile * len(tokens)
