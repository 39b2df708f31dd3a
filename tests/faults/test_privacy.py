"""Secrets planted wherever a server has some: none may be found in a trace, in its bytes or in anything they decode to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SERVER = Path(__file__).parents[1] / "support" / "streaming_server.py"

KEY = "kPlantedKey0123456789"
PROMPT = "zPlantedPrompt what is the airspeed"
OUTPUT = "yPlantedOutput"
PLANTED = ("Planted", "airspeed")
"""In every secret, prompt and output below."""

VARIABLES = {
    "VLLM_API_KEY": KEY,
    "SGLANG_ADMIN_TOKEN": "vPlantedToken",
    "NCCL_AUTH_SECRET": "vPlantedSecret",
    "SGLANG_PROXY_URL": "http://user:vPlantedPassword@proxy.example:3128/?token=vPlantedQuery",
    "VLLM_WEBHOOK_HEADERS": "Authorization: Bearer vPlantedHeader",
    "SGLANG_EXTRA": '{"password": "vPlantedJson", "steps": 2}',
    "AWS_SECRET_ACCESS_KEY": "vPlantedCloud",
    "HF_TOKEN": "hf_vPlantedHub0123456789",
    "CUDA_NOTE": "sk-vPlantedShape0123456789",
}
ARGUMENTS = [
    *("--hf-token", "aPlantedArgument"),
    "--admin-api-key=aPlantedAssigned",
    *("--download-url", "https://user:aPlantedUrl@models.example/k2?sig=aPlantedSignature"),
    *("--extra-headers", '{"Authorization": "Bearer aPlantedHeader"}'),
    *("--system-prompt", "aPlantedSystem prompt"),
    *("--chat-template-text", "Bearer aPlantedBearer"),
]


def everything(path: Path) -> str:
    """All that a trace holds: metadata, and each column's values as text."""
    table = pq.read_table(path).unify_dictionaries()
    texts = [json.dumps({k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()})]
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type):
            texts += [json.dumps(chunk.dictionary.to_pylist()) for chunk in column.chunks]
        texts.append(json.dumps(column.to_pylist(), default=str))
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        for column in range(file.metadata.num_columns):
            statistics = file.metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                texts.append(f"{statistics.min} {statistics.max}")
    return "\n".join(texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded request with a secret in every place; its folder, with the trace and the ranks' own files."""
    place = tmp_path_factory.mktemp("private")
    port_file = place / "port"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPECANALYZE_DIR": str(place / "collector")}
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(port_file), "--api-key", KEY, *ARGUMENTS],
        env={**environment, **VARIABLES, "STREAMED_TEXT": OUTPUT},
    )
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        command = [sys.executable, "-m", "speccollect", "request", "--windows", "off", "--keep", "--max-tokens", "20"]
        url = f"http://127.0.0.1:{port_file.read_text()}"
        done = subprocess.run(
            [*command, "--url", url, "--prompt", PROMPT, "-o", str(place / "trace.parquet")],
            env={**environment, "OPENAI_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stderr
    (place / "said").write_text(done.stdout + done.stderr)
    return place


def test_the_search_would_find_them(folder: Path) -> None:
    """Guards the tests below: what may be recorded is found in the same way, and the secrets were really in use."""
    text = everything(folder / "trace.parquet")
    assert "SGLANG_PROXY_URL" in text
    assert "--download-url" in text
    assert "steps" in text
    assert "spec.verify" in text


def test_no_file_of_the_collector_holds_a_planted_secret(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "port"]
    assert len([path for path in files if path.suffix == ".parquet"]) >= 3
    found = [
        (path.name, word)
        for path in files
        for word in PLANTED
        if word.encode() in path.read_bytes() or (path.suffix == ".parquet" and word in everything(path))
    ]
    assert found == []


def test_hosts_are_hashed(folder: Path) -> None:
    text = everything(folder / "trace.parquet")
    for name in ("proxy.example", "models.example", socket.gethostname()):
        if len(name) > 3:  # a host that is called "vm" is in every other word
            assert name not in text
    hosts = [
        entry["host"] for entry in json.loads(pq.read_schema(folder / "trace.parquet").metadata[b"specanalyze.ranks"])
    ]
    assert all(len(host) == 12 and int(host, 16) >= 0 for host in hosts)
