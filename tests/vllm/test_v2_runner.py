"""vLLM's V2 runner, the default on GPUs: on a CPU, its Triton kernels run by Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from counting_models import counts_up
from vllm_engine import Engine
from vllm_trace import LEAVES, PROMPT, check_asynchronous, check_every_step, check_nesting, cycles, lists, phases

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

WITHIN_VERIFY = ("sample",)
"""The V2 runner calls an eager model directly: there is no method of its own around the target's forward."""


@pytest.fixture(autouse=True)
def interpreted(engine: Engine) -> None:
    if not engine.triton.is_dir():
        pytest.skip("no Triton beside vLLM: make the environment anew with scripts/vllm_cpu_environment.sh")


def test_every_step_commits_what_is_known_beforehand(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    result = engine.generate([200], [PROMPT], v2=True, method="eagle3", trace=trace)
    assert "Using V2 Model Runner" in result["log"]
    check_every_step(trace, result, WITHIN_VERIFY)


def test_asynchronous_scheduling_tells_the_same_tokens(engine: Engine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    result = engine.generate([60], [PROMPT], v2=True, method="eagle3", asynchronous=True, trace=trace)
    check_asynchronous(trace, result, 60)


@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_other_draft_models_have_the_same_phases(engine: Engine, tmp_path: Path, method: str) -> None:
    trace = tmp_path / "trace.parquet"
    engine.generate([20], [PROMPT], v2=True, method=method, drafts=2, trace=trace)
    check_nesting(trace, 0, LEAVES, WITHIN_VERIFY)
    if method == "mtp":  # dummy weights: never right
        assert lists(cycles(trace), "accept_lengths") == [[1]] * 19


def test_ngram_drafts_what_the_prompt_says(engine: Engine, tmp_path: Path) -> None:
    """The prompt holds the answer's tokens once already, so every draft is right, and no model makes it."""
    trace = tmp_path / "trace.parquet"
    prompt = [*range(60), *range(10)]
    result = engine.generate([31], [prompt], v2=True, method="ngram_gpu", drafts=2, trace=trace)
    assert result["tokens"] == [counts_up(10, 31)]
    steps = cycles(trace).filter(pl.col("mode") == "speculative")
    assert steps["accept_lengths"].to_list() == [[3]] * 10
    check_nesting(trace, 0, ("verify", "draft"), WITHIN_VERIFY)
    assert "draft_extend" not in set(phases(trace)["name"])
