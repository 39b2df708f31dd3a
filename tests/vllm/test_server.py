"""vLLM's OpenAI server on a CPU, recorded by `speccollect request` while it streams one long answer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from counting_models import accept_lengths, accepted_drafts, counts_up
from vllm_engine import Recorded, speccollect

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOKENS = 200
PROMPT = list(range(100, 110))  # what `speccollect request --input-ids 10` sends
FIRST = 110  # what the target says next


def specanalyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specanalyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_only_the_worker_announces_itself(recorded: Recorded) -> None:
    """The API server, the engine core and the process that inspects model classes load the plugin, too."""
    states = [json.loads(path.read_text()) for path in recorded.collected.glob("*.json")]
    assert [(state["rank"], state["state"]) for state in states if "state" in state] == [(0, "idle")]
    assert "speccollect could not" not in recorded.server.log.read_text()


@dataclass
class Session:
    """One recorded request, and the server's counters around it."""

    trace: Path
    counted: dict[str, float]
    printed: str


@pytest.fixture(scope="module")
def session(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Session:
    output = tmp_path_factory.mktemp("recorded_server") / "trace.parquet"
    request = ["request", "--url", recorded.server.url, "--api", "completions", "--input-ids", str(len(PROMPT))]
    request += ["--max-tokens", str(TOKENS), "--ignore-eos", "--ranks", "1", "-o", str(output)]
    # windows of CPU operators, which stand in for kernels in a trace without a device
    request += ["--windows", "skip=15,warmup=2,record=8,repeat=2,gap=10", "--cpu-ops"]
    before = recorded.server.counters()
    printed = speccollect(*request, folder=recorded.collected)
    after = recorded.server.counters()
    return Session(output, {name: after[name] - before.get(name, 0) for name in after}, printed)


def cycles(trace: Path) -> pl.DataFrame:
    return pl.read_parquet(trace).filter(pl.col("kind") == "cycle").sort("cycle")


def test_the_trace_equals_what_is_known_and_what_the_server_counts(session: Session) -> None:
    steps = cycles(session.trace).filter(pl.col("mode") == "speculative")
    accepted = accepted_drafts(FIRST, 3, TOKENS - 1)
    assert steps["accept_lengths"].to_list() == [[n] for n in accept_lengths(FIRST, 3, TOKENS - 1)]
    assert steps["accepted_draft_tokens"].to_list() == [[n] for n in accepted]
    assert session.counted == {
        "drafts_total": steps.height,
        "draft_tokens_total": 3 * steps.height,
        "accepted_tokens_total": sum(accepted),
    }


def test_the_answer_counts_the_same_tokens(session: Session) -> None:
    requests = pl.read_parquet(session.trace).filter(pl.col("kind") == "request")
    told = requests.select("name", "prompt_tokens", "completion_tokens").sort("name").rows()
    assert told == [("client.request", len(PROMPT), TOKENS), ("server.request", len(PROMPT), TOKENS)]
    totals = json.loads(pl.read_parquet_metadata(session.trace)["specanalyze.recording"])["totals"]["0"]
    assert (totals["told_by"], totals["equal"]) == ("server", True)
    assert "accept lengths add up to the server's 200 tokens" in session.printed


def test_nothing_changes_in_the_tokens(recorded: Recorded) -> None:
    """The server's own list of accepted drafts, step by step, is a count that shares nothing with the collector's."""
    answers = [recorded.server.complete(PROMPT, TOKENS)]
    speccollect("arm", "--windows", "skip=5,warmup=1,record=5,repeat=2,gap=5", folder=recorded.collected)
    answers.append(recorded.server.complete(PROMPT, TOKENS))
    speccollect("disarm", folder=recorded.collected)
    answers.append(recorded.server.complete(PROMPT, TOKENS))
    for answer in answers:
        assert answer["choices"][0]["token_ids"] == counts_up(FIRST, TOKENS)
        assert answer["usage"]["completion_tokens"] == TOKENS
        steps = answer["metrics"]["speculative_decoding"]["per_step_accepted"]
        assert steps == accepted_drafts(FIRST, 3, TOKENS - 1)


def test_breakdown_says_what_a_trace_of_a_cpu_is(session: Session) -> None:
    done = specanalyze("breakdown", str(session.trace), "--json")
    assert done.returncode == 0, done.stderr
    rank = json.loads(done.stdout)["ranks"]["0"]
    phases = rank["phases"]
    assert (rank["device"], rank["windows"]) == ("cpu", 2)
    assert [phases[name]["instances"] for name in ("verify", "draft_extend", "draft")] == [16, 16, 16]
    # by name: operators of a CPU belong to no captured graph
    assert {"attention", "moe", "gemm"} <= phases["verify"]["buckets_ns"].keys()
    assert sum(sum(phase["buckets_ns"].values()) for phase in phases.values()) == rank["window_ns"]
    assert (phases["verify"]["graph_launch_ns"], phases["verify"]["graph_replay_ns"]) == (0, 0)
    said = " ".join(specanalyze("breakdown", str(session.trace)).stdout.split())
    assert "graph replay, launch time, overlap and waiting on a GPU cannot be read from it" in said
