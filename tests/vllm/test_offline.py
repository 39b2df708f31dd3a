"""vLLM's offline engine on a CPU, recorded: every method, several requests, two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from counting_models import accept_lengths, accepted_drafts, counts_up
from vllm_engine import Engine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = list(range(10))


def cycles(trace: Path, rank: int = 0) -> pl.DataFrame:
    events = pl.read_parquet(trace)
    return events.filter(pl.col("kind") == "cycle", pl.col("rank") == rank).sort("cycle")


def phases(trace: Path, rank: int = 0) -> pl.DataFrame:
    events = pl.read_parquet(trace)
    found = events.filter(pl.col("kind") == "phase", pl.col("rank") == rank).sort("start_ns", "dur_ns")
    return found.with_columns(name=pl.col("name").cast(pl.String).str.strip_prefix("spec."))


def lists(frame: pl.DataFrame, column: str, mode: str = "speculative") -> list[list[int]]:
    found: list[list[int]] = frame.filter(pl.col("mode") == mode)[column].to_list()
    return found


def totals(trace: Path, rank: int = 0) -> Any:
    metadata = pl.read_parquet_metadata(trace)
    return json.loads(metadata["specanalyze.recording"])["totals"][str(rank)]


def check_nesting(trace: Path, rank: int, leaves: tuple[str, ...]) -> None:
    """Each speculative cycle holds its leaves once and in order, apart from each other; sub-phases lie in a leaf or cycle."""
    steps = cycles(trace, rank).filter(pl.col("mode") == "speculative")
    found = phases(trace, rank).filter(pl.col("cycle").is_in(steps["cycle"].implode()))
    parts = found.filter(pl.col("name").is_in(leaves)).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    by_cycle = parts.group_by("cycle", maintain_order=True).agg(
        "name",
        first="start_ns",
        last=pl.col("end_ns"),
        apart=(pl.col("start_ns").shift(-1) >= pl.col("end_ns")).all(),
        total=pl.col("dur_ns").sum(),
    )
    joined = steps.select("cycle", "start_ns", "dur_ns").join(by_cycle, on="cycle", how="left")
    assert joined["name"].to_list() == [list(leaves)] * steps.height
    assert joined["apart"].all()
    assert (joined["first"].list.first() >= joined["start_ns"]).all()
    assert (joined["last"].list.last() <= joined["start_ns"] + joined["dur_ns"]).all()
    # what no leaf covers is bookkeeping, a small part
    assert (joined["total"] <= joined["dur_ns"]).all()
    assert 4 * int(joined["total"].sum()) > 3 * int(joined["dur_ns"].sum())
    inner = found.filter(pl.col("name").is_in(("target_forward", "sample")))
    verify = parts.filter(pl.col("name") == "verify").select("cycle", from_ns="start_ns", to_ns="end_ns")
    within = inner.join(verify, on="cycle")
    assert within.height == inner.height == 2 * steps.height
    assert (within["start_ns"] >= within["from_ns"]).all()
    assert (within["start_ns"] + within["dur_ns"] <= within["to_ns"]).all()


@pytest.fixture(scope="module")
def recorded_eagle3(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    trace = tmp_path_factory.mktemp("recorded_offline") / "trace.parquet"
    return trace, engine.generate([200], [PROMPT], method="eagle3", trace=trace)


def check_every_step(trace: Path, result: Any) -> None:
    assert result["tokens"] == [counts_up(10, 200)]
    found = cycles(trace)
    lengths, accepted = accept_lengths(10, 3, 199), accepted_drafts(10, 3, 199)
    # prefill gives token 10, the steps the other 199
    assert lists(found, "accept_lengths", "prefill") == [[1]]
    assert lists(found, "accept_lengths") == [[n] for n in lengths]
    assert lists(found, "accepted_draft_tokens") == [[n] for n in accepted]
    assert found["draft_tokens"].to_list() == [0] + [3] * len(lengths)
    assert found["context_tokens"].to_list()[1:] == [11 + sum(lengths[:step]) for step in range(len(lengths))]
    check_nesting(trace, 0, ("verify", "draft_extend", "draft"))
    # vLLM's own counters count what the verifier accepted, before the last step is cut
    assert result["counters"] == {
        "vllm:spec_decode_num_drafts": len(accepted),
        "vllm:spec_decode_num_draft_tokens": 3 * len(accepted),
        "vllm:spec_decode_num_accepted_tokens": sum(accepted),
    }
    told = totals(trace)
    assert (told["told_by"], told["completion_tokens"], told["equal"]) == ("server", 200, True)


def test_every_step_commits_what_is_known_beforehand(recorded_eagle3: tuple[Path, Any]) -> None:
    check_every_step(*recorded_eagle3)


def test_a_draft_model_that_stands_alone_is_recorded_alike(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    check_every_step(trace, engine.generate([200], [PROMPT], method="draft_model", trace=trace))


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
