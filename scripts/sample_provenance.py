"""What the samples' own metadata says of where they come from, as a Markdown table. Used by render_docs.py."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

PLAIN = "plain decoding"


def _metadata(path: Path) -> dict[str, Any]:
    stored = pq.read_schema(path).metadata or {}
    return {
        key.decode().removeprefix("specanalyze."): json.loads(value)
        for key, value in stored.items()
        if key.startswith(b"specanalyze.")
    }


def _speculation(environment: dict[str, Any]) -> str:
    """Algorithm and draft steps as the server was told; ``plain decoding`` where it was told none."""
    told = environment.get("server_args") or {}
    if environment.get("server") == "embedded":
        return f"embedded engine, {told['steps']} draft steps"
    algorithm = told.get("speculative_algorithm")
    if not algorithm:
        return PLAIN
    return f"{algorithm}, {told['speculative_num_steps']} steps, top-k {told['speculative_eagle_topk']}"


def _acceptance(environment: dict[str, Any]) -> str:
    """Whose accept lengths they are."""
    simulated = environment["variables"].get("SGLANG_SIMULATE_ACC_LEN")
    if _speculation(environment) == PLAIN:
        return "–"
    return f"simulated, {simulated}" if simulated else "the drafts' own"


def _facts(path: Path) -> list[tuple[str, str]]:
    found = _metadata(path)
    environment, recording = found["environment"], found["recording"]
    started = datetime.datetime.fromtimestamp(recording["started_ns"] / 1e9, tz=datetime.timezone.utc)
    model = environment.get("model") or {}
    settings = recording["settings"]
    shape = environment["server_args"] if environment["server"] == "embedded" else {}
    return [
        ("recorded", f"{started:%Y-%m-%d %H:%M} UTC, by {recording['tool']} {recording['version']}"),
        ("server", f"{environment['server']} {environment['server_version']}, tensor parallel {len(found['ranks'])}"),
        ("decoding", _speculation(environment)),
        ("acceptance", _acceptance(environment)),
        ("GPUs", f"{environment['gpu_count']} x {environment['gpu']}, driver {environment['driver']}"),
        (
            "software",
            f"torch {environment['torch']}, CUDA {environment['cuda']}, NCCL {environment['nccl']['version']}",
        ),
        (
            "model",
            f"{model['architectures'][0]}, {model['num_hidden_layers']} layers, hidden {model['hidden_size']}, "
            f"{model['num_experts']} experts, random weights"
            if model
            else f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['experts']} experts",
        ),
        ("windows", ", ".join(f"{name} {settings[name]}" for name in ("skip", "warmup", "record", "repeat", "gap"))),
        ("events", f"{pq.read_metadata(path).num_rows:,}"),
    ]


def provenance(folder: Path) -> str:
    """A table with a row a fact and a column a sample."""
    paths = sorted(folder.glob("*.parquet"))
    columns = [dict(_facts(path)) for path in paths]
    lines = [["", *(f"`{path.name}`" for path in paths)], ["---"] * (len(paths) + 1)]
    lines += [[name, *(column[name] for column in columns)] for name in columns[0]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
