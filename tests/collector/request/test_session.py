"""`speccollect request` against a real HTTP server with a real rank behind it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from speccollect.cli.render import show_session
from speccollect.config import PHASES_ONLY, WindowSettings
from speccollect.request.session import Session, record_requests, send
from speccollect.request.stream import find_endpoint, request_body, stream_request
from specschema.errors import TraceError, UsageError

SERVER = Path(__file__).parents[2] / "support" / "streaming_server.py"


class Server:
    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder / "collector"
        port_file = folder / "port"
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), str(port_file), *arguments],
            env={
                **os.environ,
                "SPECANALYZE_DIR": str(self.folder),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "AS_SGLANG": "1",
                **environment,
            },
        )
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port_file.read_text()}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


def record(
    server: Server,
    output: Path,
    api: str,
    count: int,
    tokens: int,
    concurrency: int = 1,
    windows: WindowSettings = PHASES_ONLY,
) -> Session:
    endpoint = find_endpoint(server.url, api, key=None, input_ids=False, timeout=30)
    bodies = [request_body(endpoint, "hello", tokens, ignore_eos=False, temperature=0)] * count
    return record_requests(
        server.folder, endpoint, bodies, output, windows=windows, concurrency=concurrency, timeout=20
    )


@pytest.mark.parametrize(("api", "counts"), [("generate", True), ("chat", False), ("completions", False)])
def test_one_request_becomes_a_trace(server: Server, tmp_path: Path, api: str, counts: bool) -> None:
    session = record(server, tmp_path / "trace.parquet", api, 1, 41)
    assert session.problems == []
    assert (session.summary["prompt_tokens"], session.summary["completion_tokens"]) == (7, 41)
    # 1 token from prefill, then 20 cycles of two tokens
    assert len(session.requests[0].chunks) == 21
    assert session.summary["tokens_per_chunk"] == (2 if counts else None)
    assert (session.summary["token_gap_ms"] is not None) is counts
    gap = session.summary["chunk_gap_ms"]
    assert 0 < gap["p50"] <= gap["p90"] <= gap["p99"]
    table = pq.read_table(session.merged.path)
    client = table.filter(pc.equal(table["name"], "client.request")).to_pylist()
    assert [(r["kind"], r["prompt_tokens"], r["completion_tokens"], r["rank"]) for r in client] == [
        ("request", 7, 41, 0)
    ]
    assert 0 < client[0]["first_token_ns"] < client[0]["dur_ns"]
    told = table.filter(pc.equal(table["name"], "server.request")).to_pylist()
    assert told[0]["request_ids"] == client[0]["request_ids"]
    totals = session.merged.recording["totals"]["0"]
    assert (totals["committed_tokens"], totals["first_tokens"], totals["equal"]) == (40, 1, True)
    assert not list(server.folder.glob("recording*"))


def test_several_requests_at_a_time(server: Server, tmp_path: Path) -> None:
    session = record(server, tmp_path / "trace.parquet", "generate", 5, 9, concurrency=3)
    assert [r.completion_tokens for r in session.requests] == [9] * 5
    assert session.merged.recording["totals"]["0"]["compared_requests"] == 5
    assert session.merged.recording["totals"]["0"]["equal"] is True
    assert session.summary["tokens_per_second"] > 0


def test_windows_inside_a_request(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    windows = WindowSettings(skip=10, warmup=1, record=5, repeat=2, gap=10)
    session = record(server, tmp_path / "trace.parquet", "generate", 1, 101, windows=windows)
    assert [w["cycles"] for w in session.merged.recording["windows"]] == [5, 5]
    assert session.problems == []
    written = io.StringIO()
    out = Console(file=written, width=400)
    show_session(session, out)
    printed = written.getvalue()
    assert "its profiler windows and the pauses after them included" in printed.split("per token:")[1]


def test_auto_takes_generate_where_the_server_is_sglang(server: Server) -> None:
    assert find_endpoint(server.url, "auto", key=None, input_ids=False, timeout=10).api == "generate"
    bare = find_endpoint(server.url.removeprefix("http://"), "auto", key=None, input_ids=True, timeout=10)
    assert bare.api == "generate"


def test_refused_request_is_told_and_nothing_is_overwritten(server: Server, tmp_path: Path) -> None:
    endpoint = find_endpoint(server.url, "completions", key=None, input_ids=False, timeout=10)
    body = request_body(endpoint, "fail", 5, ignore_eos=False, temperature=0)
    with pytest.raises(TraceError, match=r"no request succeeded: request 0: the server answers 400: .*no such thing"):
        record_requests(server.folder, endpoint, [body], tmp_path / "t.parquet", windows=PHASES_ONLY)
    (tmp_path / "t.parquet").write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        record_requests(server.folder, endpoint, [body], tmp_path / "t.parquet", windows=PHASES_ONLY)


def test_one_failed_request_of_two_keeps_the_other(server: Server, tmp_path: Path) -> None:
    endpoint = find_endpoint(server.url, "completions", key=None, input_ids=False, timeout=10)
    bodies = [request_body(endpoint, prompt, 5, ignore_eos=False, temperature=0) for prompt in ("fail", "hello")]
    session = record_requests(server.folder, endpoint, bodies, tmp_path / "t.parquet", windows=PHASES_ONLY, timeout=20)
    assert (session.summary["failed"], session.summary["completion_tokens"]) == (1, 5)
    assert any("request 0: the server answers 400" in problem for problem in session.problems)


def test_wrong_folder_is_told(server: Server, tmp_path: Path) -> None:
    endpoint = find_endpoint(server.url, "generate", key=None, input_ids=False, timeout=10)
    body = request_body(endpoint, "hello", 3, ignore_eos=False, temperature=0)
    with pytest.raises(TraceError, match="SPECANALYZE_DIR or `speccollect run`"):
        record_requests(tmp_path / "elsewhere", endpoint, [body], tmp_path / "t.parquet", windows=PHASES_ONLY)


def test_nobody_listens() -> None:
    with pytest.raises(TraceError, match=r"no server answers at http://127\.0\.0\.1:9"):
        find_endpoint("http://127.0.0.1:9", "auto", key=None, input_ids=False, timeout=5)


def test_key_is_sent_and_a_missing_one_is_told(tmp_path: Path) -> None:
    server = Server(tmp_path, "--api-key", "open-sesame")
    try:
        with pytest.raises(TraceError, match="--api-key"):
            find_endpoint(server.url, "auto", key=None, input_ids=False, timeout=10)
        endpoint = find_endpoint(server.url, "auto", key="open-sesame", input_ids=False, timeout=10)
        result = stream_request(endpoint, request_body(endpoint, "hello", 3, ignore_eos=False, temperature=0))
        assert (result.error, result.completion_tokens) == (None, 3)
    finally:
        server.stop()


def test_server_that_dies_in_the_stream_is_told(tmp_path: Path) -> None:
    server = Server(tmp_path)
    endpoint = find_endpoint(server.url, "generate", key=None, input_ids=False, timeout=10)
    body = request_body(endpoint, "hello", 100_000, ignore_eos=False, temperature=0)
    seen: list[int] = []

    def kill_later(tokens: int) -> None:
        seen.append(tokens)
        if len(seen) == 10:
            server.process.kill()

    (result,) = send(endpoint, [body], 1, kill_later)
    server.stop()
    # a stream that just stops is no error of HTTP: the tokens that came are what there is
    assert result.completion_tokens is not None
    assert result.completion_tokens < 100_000
    assert len(seen) >= 10


def test_token_ids_reach_each_api(server: Server) -> None:
    endpoint = find_endpoint(server.url, "generate", key=None, input_ids=True, timeout=10)
    assert request_body(endpoint, [5, 6], 3, ignore_eos=True, temperature=0.5) == {
        "input_ids": [5, 6],
        "sampling_params": {"max_new_tokens": 3, "temperature": 0.5, "ignore_eos": True},
        "stream": True,
    }
    completions = find_endpoint(server.url, "completions", key=None, input_ids=True, timeout=10)
    assert request_body(completions, [5, 6], 3, ignore_eos=True, temperature=0)["prompt"] == [5, 6]


def test_command_prints_usage_speed_and_the_phase_table(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "speccollect", "request", "--url", server.url, "--dir", str(server.folder)]
    command += ["--max-tokens", "31", "--windows", "off", "-o", str(tmp_path / "trace.parquet")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    for said in (
        "1 request (0 failed), 7 prompt tokens, 31 completion tokens",
        "time to first token: p50",
        "(2.00 tokens a chunk)",
        "accept lengths add up to the server's 31 tokens",
        "15 speculative cycles (untraced)",
        "accept length 2.000 tokens a step, bonus included",
        "next: specanalyze breakdown",
    ):
        assert said in done.stdout, done.stdout
    again = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert again.returncode == 2
    assert (
        again.stderr
        == f"speccollect: {tmp_path / 'trace.parquet'} exists: give another name with -o, or --force to overwrite it\n"
    )
