"""vLLM's offline engine on a CPU, recorded: every method, several requests, two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from counting_models import accept_lengths, counts_up
from vllm_engine import Engine
from vllm_trace import PROMPT, check_asynchronous, check_every_step, check_nesting, cycles, lists, phases, totals

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def recorded_eagle3(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    trace = tmp_path_factory.mktemp("recorded_offline") / "trace.parquet"
    return trace, engine.generate([200], [PROMPT], method="eagle3", trace=trace)


def test_every_step_commits_what_is_known_beforehand(recorded_eagle3: tuple[Path, Any]) -> None:
    check_every_step(*recorded_eagle3)


def test_a_draft_model_that_stands_alone_is_recorded_alike(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    check_every_step(trace, engine.generate([200], [PROMPT], method="draft_model", trace=trace))


def test_eagle_is_recorded_as_eagle3_is(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    check_every_step(trace, engine.generate([200], [PROMPT], method="eagle", trace=trace))


def test_what_ran_is_in_the_trace(recorded_eagle3: tuple[Path, Any]) -> None:
    environment = json.loads(pl.read_parquet_metadata(recorded_eagle3[0])["specanalyze.environment"])
    assert environment["server"] == "vllm"
    arguments = environment["server_args"]
    named = ("tensor_parallel_size", "enforce_eager", "max_model_len", "speculative_config.method")
    assert [arguments[name] for name in named] == [1, True, 2048, "eagle3"]
    assert arguments["speculative_config.num_speculative_tokens"] == 3


def test_multi_token_prediction_has_the_same_phases(engine: Engine, tmp_path: Path) -> None:
    """Dummy weights: the draft is never right, so each step commits the bonus token alone."""
    trace = tmp_path / "trace.parquet"
    engine.generate([30], [PROMPT], method="mtp", drafts=2, trace=trace)
    assert lists(cycles(trace), "accept_lengths") == [[1]] * 29
    assert lists(cycles(trace), "accepted_draft_tokens") == [[0]] * 29
    check_nesting(trace, 0, ("verify", "draft_extend", "draft"))


def test_ngram_drafts_what_the_prompt_says(engine: Engine, tmp_path: Path) -> None:
    """The prompt holds the answer's tokens once already, so every draft is right, and no model makes it."""
    trace = tmp_path / "trace.parquet"
    result = engine.generate([31], [[*range(60), *range(10)]], method="ngram", drafts=2, trace=trace)
    assert result["tokens"] == [counts_up(10, 31)]
    assert lists(cycles(trace), "accept_lengths") == [[3]] * 10
    assert lists(cycles(trace), "accepted_draft_tokens") == [[2]] * 10
    check_nesting(trace, 0, ("verify", "draft"))
    assert "draft_extend" not in set(phases(trace)["name"])


def test_plain_decoding_for_a_baseline(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    result = engine.generate([50], [PROMPT], trace=trace)
    assert result["tokens"] == [counts_up(10, 50)]
    found = cycles(trace)
    assert found["mode"].to_list() == ["prefill"] + ["decode"] * 49
    assert (lists(found, "accept_lengths", "decode"), found["draft_tokens"].to_list()) == ([[1]] * 49, [0] * 50)
    assert set(phases(trace)["name"]) == {"prefill", "decode", "target_forward", "sample", "process_result"}


def test_requests_of_different_lengths_in_one_batch(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    lengths = [60, 40, 50]
    result = engine.generate(lengths, [[0, 1, 2, 3], [7, 8, 9], [50, 51]], method="eagle3", trace=trace)
    assert result["tokens"] == [counts_up(first, n) for first, n in zip((4, 10, 52), lengths, strict=True)]
    steps = cycles(trace).filter(pl.col("mode") == "speculative")
    each = steps.select("cycle", "request_ids", "accept_lengths").explode("request_ids", "accept_lengths")
    by_request = dict(each.group_by("request_ids").agg("accept_lengths").iter_rows())
    found = {request.split("-")[0]: values for request, values in by_request.items()}
    expected = {
        str(i): accept_lengths(first, 3, n - 1) for i, (first, n) in enumerate(zip((4, 10, 52), lengths, strict=True))
    }
    assert found == expected
    assert (totals(trace)["compared_requests"], totals(trace)["equal"]) == (3, True)


def test_a_prefill_beside_a_verify_is_a_mixed_step(engine: Engine, tmp_path: Path) -> None:
    """Eight tokens a step at most: the second prompt is computed in pieces while the first request verifies."""
    trace = tmp_path / "trace.parquet"
    limit = {"max_num_batched_tokens": 8, "max_num_seqs": 2}
    result = engine.generate([40, 20], [[1, 2], list(range(100, 130))], method="eagle3", trace=trace, more=limit)
    assert result["tokens"] == [counts_up(3, 40), counts_up(130, 20)]
    mixed = cycles(trace).filter(pl.col("mode") == "mixed")
    assert mixed.height >= 3
    for row in mixed.iter_rows(named=True):
        assert row["batch_size"] == 2
        verified = [i for i, accepted in enumerate(row["accepted_draft_tokens"]) if accepted is not None]
        assert len(verified) == 1
        # the last piece of a prompt gives the request's first token
        [prefilled] = {0, 1} - set(verified)
        assert row["accept_lengths"][prefilled] in (0, 1)
    assert (totals(trace)["compared_requests"], totals(trace)["difference"]) == (2, 0)


def test_two_ranks_are_recorded_and_merged(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    result = engine.generate([120], [PROMPT], processes=True, method="eagle3", tensor_parallel=2, trace=trace)
    assert result["tokens"] == [counts_up(10, 120)]
    for rank in range(2):
        assert lists(cycles(trace, rank), "accept_lengths") == [[n] for n in accept_lengths(10, 3, 119)]
        check_nesting(trace, rank, ("verify", "draft_extend", "draft"))
    ranks = json.loads(pl.read_parquet_metadata(trace)["specanalyze.ranks"])
    assert [(rank["rank"], rank["tensor"], rank["world_size"]) for rank in ranks] == [(0, 0, 2), (1, 1, 2)]
    [pids] = pl.read_parquet(trace).select(pl.col("pid").n_unique()).row(0)
    assert pids == 2


def test_asynchronous_scheduling_tells_the_same_tokens(engine: Engine, tmp_path: Path) -> None:
    """A step is launched before the last one's tokens are known, and one more after the last token."""
    trace = tmp_path / "trace.parquet"
    result = engine.generate([100], [PROMPT], method="eagle3", asynchronous=True, trace=trace)
    check_asynchronous(trace, result, 100)
