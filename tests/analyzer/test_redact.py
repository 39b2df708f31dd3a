"""A redacted trace holds no planted name in any of its bytes, and gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specanalyze.cli import run
from specanalyze.exports.redact import REDACTED, redact
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.trace import RankSource, RankTrace, Trace

SECRETS: Final = (
    "alice",
    "Acme-70B",
    "acme",
    "gpu-node-17",
    "10.1.2.3",
    "req-4711",
    "/home/",
    "hunter2",
    "secretrun",
    "chat-model",
    "31337",
    "GPU-8a1b",
)
"""What is planted below; none may be left."""

EVENTS: Final[dict[str, list[Any]]] = {
    "kind": ["phase", "launch", "kernel", "op", "mark", "request", "cycle"],
    "rank": [0] * 7,
    "pid": [4] * 7,
    "name": [
        "spec.verify",
        "cudaLaunchKernel",
        "void gemm<float>(float*, int)",
        "load /home/alice/models/Acme-70B/weights.bin",
        "POST http://gpu-node-17:8000/v1 for acme/Acme-70B",
        "req-4711",
        "spec.cycle",
    ],
    "start_ns": [0, 10, 20, 30, 31, 0, 0],
    "dur_ns": [100, 2, 5, 3, 0, 100, 100],
    "tid": [4, 4, None, 4, 4, 4, 4],
    "window": [0] * 7,
    "correlation": [None, 1, 1, None, None, None, None],
    "stream": [None, None, 7, None, None, None, None],
    "group": [None, None, "tp:0", "alice-group", None, None, None],
    "request_ids": [None, None, None, None, None, ["req-4711"], ["req-4711", "req-4712"]],
}
METADATA: Final[dict[str, Any]] = {
    "recording": {
        "tool": "speccollect",
        "source": "collector",
        "device": "cuda",
        "warnings": ["could not read /home/alice/x"],
        "note": "secretrun",
        "windows": [{"window": 0, "rank": 0, "path": "/home/alice/w"}],
    },
    "clock": {"unit": "ns", "epoch": "unix", "ranks": {"0": {"clock": "CLOCK_REALTIME", "host": "gpu-node-17"}}},
    "ranks": [{"rank": 0, "key": "0", "host": "gpu-node-17", "pid": 4}],
    "environment": {
        "gpu": "NVIDIA H200",
        "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-8a1b", "clock_sm": 1980}],
        "nccl": {"path": "/home/alice/venv/lib/libnccl.so.2", "version": "2.28.9"},
        "host": "gpu-node-17",
        "command_line": ["python", "-m", "sglang", "--model", "acme/Acme-70B", "--api-key", "hunter2"],
        "model": {"name": "Acme-70B", "config_digest": "acme", "torch_dtype": "bfloat16"},
        "server": "sglang",
        "server_version": "0.5.17",
        "server_args": {
            "model_path": "/home/alice/models/Acme-70B",
            "served_model_name": "chat-model",
            "host": "10.1.2.3",
            "port": 31337,
            "attention_backend": "triton",
            "tp_size": 2,
            "chat_template": "hunter2",
            "lora_paths": {"/home/alice/lora": "acme"},
        },
        "variables": {
            "NCCL_PROTO": "LL",
            "NCCL_COMM_ID": "10.1.2.3:4000",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "CUDA_HOME": "/home/alice/cuda",
            "SGLANG_RUN_ID": "secretrun",
            "SGLANG_SIMULATE_ACC_LEN": "2.0",
            "VLLM_CACHE_ROOT": "~/alice",
        },
    },
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rank = RankTrace("0", 0, "/home/alice/trace.json", pl.DataFrame(EVENTS, strict=False), host="gpu-node-17")
    trace = Trace("t", (RankSource("0", rank.source, lambda: rank),), METADATA, ["a warning of /home/alice"])
    target = tmp_path / "alice.parquet"
    write_trace(trace, target)
    return target


def everything(path: Path, folder: Path) -> str:
    """All bytes of a file, once its columns are neither compressed nor encoded; dictionaries with entries nobody uses included."""
    whole = pq.ParquetFile(path)
    flat = {whole.schema.column(i).path for i in range(len(whole.schema))}
    texts = [f.name for f in whole.schema_arrow if f.name in flat and pa.types.is_dictionary(f.type)]
    parts = [repr(whole.metadata.metadata)]
    table = pq.ParquetFile(path, read_dictionary=texts).read()
    for column in table.columns:
        parts += [
            repr(chunk.dictionary.to_pylist() if hasattr(chunk, "dictionary") else chunk.to_pylist())
            for chunk in column.chunks
        ]
    plain = folder / "plain.parquet"
    pq.write_table(table, plain, compression="none")
    parts.append(plain.read_bytes().decode("latin-1"))
    return "\n".join(parts)


def test_no_planted_name_is_left(path: Path, tmp_path: Path) -> None:
    before, target = everything(path, tmp_path), tmp_path / "out.parquet"
    assert [s for s in SECRETS if s not in before and s not in ("gpu-node-17",)] == [], "planted"
    assert run(["redact", str(path), "-o", str(target)]) == 0
    after = everything(target, tmp_path)
    assert [secret for secret in SECRETS if secret in after] == []


def test_kernels_times_and_harmless_settings_stay(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    assert run(["redact", str(path), "-o", str(target)]) == 0
    before, after = open_trace([path]), open_trace([target])
    old, new = before.sources[0].read().events, after.sources[0].read().events
    kept = ["kind", "rank", "pid", "start_ns", "dur_ns", "tid", "correlation", "stream"]
    assert new.select(kept).equals(old.select(kept))
    assert new["name"].cast(pl.String).to_list() == [
        "spec.verify",
        "cudaLaunchKernel",
        "void gemm<float>(float*, int)",
        "load <path>",
        "POST <address> for <name>",
        "request",
        "spec.cycle",
    ]
    assert new["request_ids"].to_list()[-2:] == [["request1"], ["request1", "request2"]]
    assert new["group"].cast(pl.String).to_list()[2:4] == ["tp:0", "group1"]
    environment = after.metadata["environment"]
    assert environment["variables"] == {
        "NCCL_PROTO": "LL",
        "NCCL_COMM_ID": REDACTED,
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_HOME": REDACTED,
        "SGLANG_RUN_ID": REDACTED,
        "SGLANG_SIMULATE_ACC_LEN": "2.0",
        "VLLM_CACHE_ROOT": REDACTED,
    }
    assert environment["nccl"] == {"path": "libnccl.so.2", "version": "2.28.9"}
    assert environment["gpus"] == [{"name": "NVIDIA H200", "uuid": REDACTED, "clock_sm": 1980}]
    args = environment["server_args"]
    assert (args["attention_backend"], args["tp_size"], args["port"], args["model_path"]) == (
        "triton",
        2,
        None,
        REDACTED,
    )


def test_the_command_says_what_it_took_out_and_what_is_left(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["redact", str(path), "-o", str(tmp_path / "out.parquet"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["redacted"]["request ids"] == 2
    assert told["redacted"]["hosts"] == 1
    assert any(line.startswith("kernel names") for line in told["leaves"])


def test_an_existing_file_is_kept(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    target.write_text("mine")
    assert run(["redact", str(path), "-o", str(target)]) == 2
    assert target.read_text() == "mine"


def test_a_sample_of_a_real_server_gives_the_same_breakdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).resolve().parents[2] / "samples" / "sglang_v1_tp1_eagle3_steps2.parquet"
    target = tmp_path / "out.parquet"
    assert run(["redact", str(sample), "-o", str(target)]) == 0
    capsys.readouterr()
    found = []
    for path in (sample, target):
        assert run(["breakdown", str(path), "--json"]) == 0
        ranks = json.loads(capsys.readouterr().out)["ranks"]
        found.append({key: {k: v for k, v in rank.items() if k != "source"} for key, rank in ranks.items()})
    assert found[0] == found[1]
    text = json.dumps(open_trace([target]).metadata)
    assert "/models" not in text
    assert "Qwen" not in text
    assert "127.0.0.1" not in text


def test_redacting_twice_changes_nothing_more(path: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.parquet", tmp_path / "twice.parquet"
    assert run(["redact", str(path), "-o", str(once)]) == 0
    assert run(["redact", str(once), "-o", str(twice)]) == 0
    a, b = open_trace([once]), open_trace([twice])
    assert a.sources[0].read().events.equals(b.sources[0].read().events)
    assert redact(a)[1].counts["names with paths or addresses"] == 0
