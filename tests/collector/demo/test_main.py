"""The embedded engine in processes of its own, recorded like a server: the trace says what the engine says."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from speccollect.config import WindowSettings
from speccollect.demo.config import DemoConfig
from speccollect.demo.launcher import run_ranks
from speccollect.demo.main import DemoResult, fitting_windows, run_demo
from speccollect.demo.rank import RankTask, Way
from speccollect.demo.request import Request
from speccollect.demo.selfcheck import check, first_difference
from speccollect.demo.shape import build_requests
from specschema.errors import UsageError

SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 128,
    "experts": 4,
    "top_k": 2,
    "intermediate": 32,
    "vocab": 512,
    "prompt_tokens": 20,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """Two ranks, three requests over two rows, two profiler windows."""
    return run_demo(
        tmp_path_factory.mktemp("demo") / "trace.parquet",
        tp=2,
        batch_size=2,
        requests=3,
        max_tokens=60,
        device="cpu",
        windows=WindowSettings(skip=6, warmup=1, record=4, repeat=2, gap=5),
        **SMALL,
    )


@pytest.fixture(scope="module")
def events(recorded: DemoResult) -> pa.Table:
    assert recorded.output is not None
    return pq.read_table(recorded.output)


def rows(events: pa.Table, kind: str, rank: int) -> list[dict[str, object]]:
    chosen: pa.Table = events.filter(pc.and_(pc.equal(events["kind"], kind), pc.equal(events["rank"], rank)))
    return sorted(chosen.to_pylist(), key=lambda row: row["start_ns"])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_trace_has_the_accept_lengths_of_the_engine(recorded: DemoResult, events: pa.Table, rank: int) -> None:
    traced: dict[str, list[int]] = {}
    for cycle in rows(events, "cycle", rank):
        if cycle["mode"] == "prefill":
            assert cycle["accept_lengths"] == [1]
            continue
        assert cycle["mode"] == "speculative"
        assert cycle["draft_tokens"] == 2
        assert cycle["graph_batch_size"] is None
        for request, length, accepted in zip(
            cycle["request_ids"],  # type: ignore[call-overload]
            cycle["accept_lengths"],
            cycle["accepted_draft_tokens"],
            strict=True,
        ):
            traced.setdefault(request, []).append(length)
            assert length <= accepted + 1  # less only where the limit cut
    assert traced == {f"demo-{n}": lengths for n, lengths in enumerate(recorded.accept_lengths)}
    assert [sum(lengths) + 1 for lengths in recorded.accept_lengths] == [60, 60, 60]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_totals_equal_the_completions(recorded: DemoResult, events: pa.Table, rank: int) -> None:
    finished = {row["request_ids"][0]: row for row in rows(events, "request", rank)}  # type: ignore[index]
    assert {name: row["completion_tokens"] for name, row in finished.items()} == {f"demo-{n}": 60 for n in range(3)}
    assert {name: row["prompt_tokens"] for name, row in finished.items()} == {f"demo-{n}": 20 + 7 * n for n in range(3)}
    assert recorded.merged is not None
    totals = recorded.merged.recording["totals"][str(rank)]
    assert totals["equal"] is True
    assert totals["compared_requests"] == 3
    assert recorded.merged.problems == []


@pytest.mark.parametrize("rank", [0, 1])
def test_every_cycle_has_its_phases_in_order(events: pa.Table, rank: int) -> None:
    phases = rows(events, "phase", rank)
    for cycle in rows(events, "cycle", rank):
        start, end = cycle["start_ns"], cycle["start_ns"] + cycle["dur_ns"]  # type: ignore[operator]
        inside = [p["name"] for p in phases if start <= p["start_ns"] < end]  # type: ignore[operator]
        expected = (
            ["spec.prefill"] if cycle["mode"] == "prefill" else ["spec.draft", "spec.verify", "spec.draft_extend"]
        )
        assert inside == expected, cycle


def test_windows_hold_the_operators_of_the_models(recorded: DemoResult, events: pa.Table) -> None:
    for rank in (0, 1):
        operators = rows(events, "op", rank)
        assert {row["window"] for row in operators} == {0, 1}
        names = {str(row["name"]) for row in operators}
        assert {"aten::topk", "aten::bmm", "aten::scaled_dot_product_attention"} <= names
        assert any("all_reduce" in name or "allreduce" in name for name in names)
    assert recorded.merged is not None
    assert recorded.merged.recording["device"] == "cpu"


def test_recording_changes_no_token(recorded: DemoResult) -> None:
    """Two ranks recorded, one rank not recorded, and plain decoding: the same answer."""
    for speculate in (True, False):
        other = run_demo(None, batch_size=2, requests=3, max_tokens=60, device="cpu", speculate=speculate, **SMALL)
        assert other.tokens == recorded.tokens
        assert other.merged is None


def test_plain_decoding_is_recorded_as_a_baseline(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "trace.parquet", max_tokens=12, device="cpu", speculate=False, windows="off", **SMALL)
    assert result.output is not None
    events = pq.read_table(result.output)
    cycles = rows(events, "cycle", 0)
    assert [cycle["mode"] for cycle in cycles] == ["prefill"] + ["decode"] * 11
    assert all(cycle["accept_lengths"] == [1] for cycle in cycles)
    assert {row["name"] for row in rows(events, "phase", 0)} >= {"spec.prefill", "spec.decode"}
    assert result.accept_lengths == [[1] * 11]


@pytest.mark.parametrize("tp", [1, 2])
def test_the_self_check_finds_every_promise_kept(tp: int) -> None:
    config = DemoConfig(layers=2, hidden=128, vocab=512, max_batch=2, max_context=128, tp=tp)
    lines: list[str] = []
    assert check(config, build_requests(config, 3, 20, 20), device="cpu", say=lines.append) == []
    assert [line.split(":")[0] for line in lines] == ["plain", "speculative"]
    assert "verify" in lines[1]


def test_the_self_check_would_find_a_broken_promise() -> None:
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == "in request 1 at token 1"
    assert first_difference([[1, 2, 3]], [[1, 2]]) == "in request 0 at token 2"
    assert first_difference([[1, 2]], [[1, 2]]) is None


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_graphs_and_eager_give_the_tokens_of_plain_decoding(dtype: str) -> None:
    config = DemoConfig(max_batch=3, dtype=dtype)
    assert check(config, build_requests(config, 4, 64, 200), device="cuda", say=print) == []


def test_the_engine_holds_no_instrumentation() -> None:
    """Serving imports nothing of the collector: the hooks come from outside, as with a server."""
    code = (
        "import sys, speccollect.demo.scheduler\n"
        "loaded = {n for n in sys.modules if n.startswith('speccollect') and not n.startswith('speccollect.demo')}\n"
        "assert loaded == {'speccollect'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rank_that_fails_is_named_with_its_reason() -> None:
    request = Request("long", tuple(range(100)), 100)
    task = RankTask(
        0, 0, "cpu", DemoConfig(layers=1, hidden=128, max_context=128, tp=2), (request,), (Way(True, False),)
    )
    with pytest.raises(RuntimeError, match=r"(?s)rank [01] of the embedded engine ended.*needs 203 cache positions"):
        run_ranks(task, {}, before=lambda: None, after=lambda: None)


def running(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
def test_a_killed_launcher_leaves_no_rank_behind() -> None:
    code = (
        "from speccollect.demo import launcher\n"
        "from speccollect.demo.config import DemoConfig\n"
        "from speccollect.demo.rank import RankTask, Way\n"
        "task = RankTask(0, 0, 'cpu', DemoConfig(layers=1, hidden=128, tp=2), (), (Way(True, False),))\n"
        "ranks = launcher.Ranks(task, {})\n"
        "print(*(process.pid for process in ranks.processes), flush=True)\n"
        "ranks.wait_for('never')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ranks = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(ranks) == 2
    deadline = time.monotonic() + 60
    while any(running(pid) for pid in ranks):
        assert time.monotonic() < deadline, "a rank outlived its launcher"
        time.sleep(0.1)


def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    there = tmp_path / "there.parquet"
    there.touch()
    with pytest.raises(UsageError, match="exists"):
        run_demo(there)
    with pytest.raises(UsageError, match="kv_heads 4 can't be split over 3 ranks"):
        run_demo(None, tp=3)
    with pytest.raises(UsageError, match="prompt of more than 16 tokens"):
        run_demo(None, prompt_tokens=4)
    with pytest.raises(UsageError, match="99 ranks need 99 GPUs"):
        run_demo(None, tp=99, device="cuda")


@pytest.mark.parametrize("max_tokens", [4, 30, 200, 5000])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_windows_fit_the_request(max_tokens: int, steps: int) -> None:
    windows = fitting_windows(DemoConfig(steps=steps), max_tokens, speculate=True)
    fewest_cycles = -(-(max_tokens - 1) // (steps + 1))
    assert windows.repeat == 0 or windows.last_cycle <= fewest_cycles
    if max_tokens >= 200:
        assert windows.repeat == 2
        assert windows.skip >= 8
