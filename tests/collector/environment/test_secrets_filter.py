"""Planted secrets: none may reach a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from speccollect.environment.fingerprint import chosen_variables, environment
from speccollect.environment.secrets_filter import clean_arguments, clean_mapping, clean_text, secret_name

PLANTED = "S3cr3tPlanted"


@pytest.mark.parametrize(
    "name",
    [
        "--api-key",
        "VLLM_API_KEY",
        "hf_token",
        "HF_TOKEN",
        "adminApiKey",
        "--ssl-keyfile-password",
        "NCCL_SECRET",
        "SGLANG_AUTH",
        "db.password",
        "AWS_SESSION_TOKEN",
        "VLLM_CREDENTIALS",
        "--system-prompt",
        "SGLANG_PRIVATE_VALUE",
        "cookie",
    ],
)
def test_secret_names(name: str) -> None:
    assert secret_name(name, PLANTED)
    assert clean_mapping({name: PLANTED, "tp": 2}) == {"tp": 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--speculative-num-draft-tokens", "6"),
        ("max_total_tokens", 32768),
        ("tokenizer_path", "/models/k2"),
        ("NCCL_PROTO", "LL"),
        ("skip_tokenizer_init", True),
        ("eos_token_id", 2),
        ("kv_cache_dtype", "auto"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
    ],
)
def test_settings_stay(name: str, value: object) -> None:
    assert not secret_name(name, value)
    assert clean_mapping({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--api-key", PLANTED, "--tp", "2"], ["--tp", "2"]),
        ([f"--api-key={PLANTED}", "--tp=2"], ["--tp=2"]),
        (["--api-key", "12345"], []),
        (["--api-key", PLANTED, PLANTED + "2"], []),
        (["--url", f"https://user:{PLANTED}@host.example/x"], None),
        (["--dataset", f"s3://key:{PLANTED}@bucket/x"], ["--dataset", "s3://bucket/x"]),
        (["--extra", f'{{"api_key": "{PLANTED}", "a": [1]}}'], ["--extra", '{"a": [1]}']),
        (
            ["--download", f"https://x.example/y?sig={PLANTED}&v=1"],
            ["--download", "https://x.example/y?sig=<withheld>&v=1"],
        ),
        (["--note", f"Authorization: Bearer {PLANTED}"], None),
        (["--model", "m", f"hf_{PLANTED}{PLANTED}"], ["--model", "m", "<withheld>"]),
        (["--temperature", "-1", "--seed", "1"], ["--temperature", "-1", "--seed", "1"]),
    ],
)
def test_command_lines(arguments: list[str], expected: list[str] | None) -> None:
    cleaned = clean_arguments(arguments)
    assert PLANTED not in " ".join(cleaned)
    if expected is not None:
        assert cleaned == expected


def test_host_names_are_hashed_and_ports_kept() -> None:
    cleaned = clean_arguments(["--host", "0.0.0.0", "--dist-init-addr", "node17.cluster:5000", "--port", "30000"])
    assert cleaned[:3] == ["--host", "0.0.0.0", "--dist-init-addr"]
    assert "node17" not in cleaned[3]
    assert cleaned[3].endswith(":5000")
    assert cleaned[4:] == ["--port", "30000"]


@pytest.mark.parametrize(
    "text",
    [
        f"sk-{PLANTED}{PLANTED}",
        f"password={PLANTED}",
        f"http://u:{PLANTED}@h/",
        f"Bearer {PLANTED}",
        f"api_key: {PLANTED}",
        f"?access_token={PLANTED}",
    ],
)
def test_free_text(text: str) -> None:
    assert PLANTED not in clean_text(text)


def test_only_the_four_families_of_variables_are_recorded() -> None:
    variables = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SGLANG_ENABLE_SPEC_V2": "1",
        "VLLM_API_KEY": PLANTED,
        "NCCL_AUTH_TOKEN": PLANTED,
        "SGLANG_PROXY_URL": f"http://u:{PLANTED}@proxy.example:3128",
        "OPENAI_API_KEY": PLANTED,
        "HOME": "/home/somebody",
    }
    chosen = chosen_variables(variables)
    assert PLANTED not in json.dumps(chosen)
    assert {k: v for k, v in chosen.items() if k != "SGLANG_PROXY_URL"} == {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SGLANG_ENABLE_SPEC_V2": "1",
    }


def test_engine_arguments_and_model_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["X"], "num_hidden_layers": 61, "auth": 1}')
    facts = environment(
        {
            "server": "sglang",
            "server_version": "0.5.17",
            "server_args": {"tp_size": 2, "api_key": PLANTED, "nested": {"password": PLANTED, "steps": 2}},
            "model_path": str(tmp_path),
        }
    )
    assert PLANTED not in json.dumps(facts)
    assert facts["server_args"] == {"tp_size": 2, "nested": {"steps": 2}}
    assert (facts["model"]["num_hidden_layers"], len(facts["model"]["config_digest"])) == (61, 16)
    assert (facts["server"], facts["server_version"], facts["gpu_count"]) == ("sglang", "0.5.17", facts["gpu_count"])


def test_no_planted_secret_reaches_a_trace_file(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from speccollect.control import word
from speccollect.config import PHASES_ONLY
from speccollect.trace.merge import merge
from speccollect.rank.recorder import get_recorder
folder = Path(sys.argv[1])
recorder = get_recorder()
recorder.identify(server="sglang", server_args={"admin_api_key": "S3cr3tPlanted"})
recorder.poll()
word.arm(folder, PHASES_ONLY)
recorder.end_cycle(recorder.begin_cycle("decode", 1, 0, ["a"]))
word.disarm(folder)
recorder.poll()
recorder.close()
merge(folder, folder / "trace.parquet")
"""
    environment = {
        "SPECANALYZE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": "/usr/bin:/bin",
        "VLLM_API_KEY": PLANTED,
        "NCCL_TOKEN": PLANTED,
        "NCCL_ALGO": "Ring",
    }
    command = [sys.executable, "-c", code, str(tmp_path), "--api-key", PLANTED, f"--hf-token={PLANTED}", "--tp", "2"]
    subprocess.run(command, check=True, env=environment, timeout=60)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) >= 4
    assert not [p.name for p in files if PLANTED.encode() in p.read_bytes()]
    section = json.loads(pq.read_schema(tmp_path / "trace.parquet").metadata[b"specanalyze.environment"])
    assert section["variables"] == {"NCCL_ALGO": "Ring"}
    assert section["command_line"][-2:] == ["--tp", "2"]
