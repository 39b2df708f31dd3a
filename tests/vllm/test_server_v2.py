"""vLLM's OpenAI server with the V2 runner in two tensor-parallel worker processes, recorded by `speccollect request`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from counting_models import accept_lengths, accepted_drafts
from vllm_engine import TWO_RANKS, Engine, environment, serve, speccollect
from vllm_trace import LEAVES, check_nesting, cycles, lists, totals

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOKENS = 60
FIRST = 110  # what the target says after the prompt that `speccollect request --input-ids 10` sends


def test_two_worker_processes_are_recorded_and_merged(engine: Engine, tmp_path: Path) -> None:
    if not engine.triton.is_dir():
        pytest.skip("no Triton beside vLLM: make the environment anew with scripts/vllm_cpu_environment.sh")
    collected, trace, log = tmp_path / "collected", tmp_path / "trace.parquet", tmp_path / "server.log"
    collected.mkdir()
    variables = environment(engine.folder / "cache", SPECANALYZE_DIR=str(collected), **engine.interpreted, **TWO_RANKS)
    with serve(engine.python, engine.models, log, variables, "--tensor-parallel-size", "2") as server:
        request = ["request", "--url", server.url, "--api", "completions", "--input-ids", "10", "--ranks", "2"]
        request += ["--max-tokens", str(TOKENS), "--ignore-eos", "--windows", "off", "-o", str(trace)]
        printed = speccollect(*request, folder=collected)
        counted = server.counters()
    assert "Using V2 Model Runner" in log.read_text()
    lengths, accepted = accept_lengths(FIRST, 3, TOKENS - 1), accepted_drafts(FIRST, 3, TOKENS - 1)
    assert counted == {
        "drafts_total": len(accepted),
        "draft_tokens_total": 3 * len(accepted),
        "accepted_tokens_total": sum(accepted),
    }
    for rank in range(2):
        check_nesting(trace, rank, LEAVES, ("sample",))
        assert cycles(trace, rank)["mode"].to_list() == ["prefill"] + ["speculative"] * len(lengths)
    assert lists(cycles(trace), "accept_lengths") == [[n] for n in lengths]
    assert lists(cycles(trace), "accepted_draft_tokens") == [[n] for n in accepted]
    assert (totals(trace)["told_by"], totals(trace)["equal"]) == ("server", True)
    # the V2 runner hands its tokens to the host on the rank that the scheduler listens to
    assert lists(cycles(trace, 1), "accept_lengths") == [None] * len(lengths)
    assert (totals(trace, 1)["cycles_without_lengths"], totals(trace, 1)["equal"]) == (len(lengths), None)
    ranks = json.loads(pl.read_parquet_metadata(trace)["specanalyze.ranks"])
    assert [(rank["rank"], rank["tensor"], rank["world_size"]) for rank in ranks] == [(0, 0, 2), (1, 1, 2)]
    [pids] = pl.read_parquet(trace).filter(pl.col("kind") == "cycle").select(pl.col("pid").n_unique()).row(0)
    assert pids == 2
    assert f"rank 0: accept lengths add up to the server's {TOKENS} tokens" in printed
    assert "differ" not in printed
