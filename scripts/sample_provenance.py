"""What the samples' own metadata says of where they come from, as a Markdown table. Used by render_docs.py."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

PLAIN = "plain decoding"


def _metadata(path: Path) -> dict[str, Any]:
    stored = pq.read_metadata(path).metadata or {}  # the footer; the Arrow schema does not always repeat it
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
    if told.get("speculative_config.method"):
        return f"{told['speculative_config.method']}, {told['speculative_config.num_speculative_tokens']} drafts"
    algorithm = told.get("speculative_algorithm")
    if not algorithm:
        return PLAIN
    all_reduce = ", all-reduce by NCCL" if told.get("disable_custom_all_reduce") else ""
    if environment["variables"].get("NCCL_P2P_DISABLE") == "1":
        all_reduce += " without P2P"
    return f"{algorithm}, {told['speculative_num_steps']} steps, top-k {told['speculative_eagle_topk']}{all_reduce}"


def _acceptance(environment: dict[str, Any]) -> str:
    """Whose accept lengths they are."""
    simulated = environment["variables"].get("SGLANG_SIMULATE_ACC_LEN")
    if _speculation(environment) == PLAIN:
        return "–"
    told = environment.get("server_args") or {}
    if told.get("speculative_config.rejection_sample_method") == "synthetic":
        return f"simulated, {1 + sum(told['speculative_config.synthetic_acceptance_rates'])}"
    return f"simulated, {simulated}" if simulated else "the drafts' own"


def _facts(path: Path) -> list[tuple[str, str]]:
    found = _metadata(path)
    environment, recording = found["environment"], found["recording"]
    started = datetime.datetime.fromtimestamp(recording["started_ns"] / 1e9, tz=datetime.timezone.utc)
    model = environment.get("model") or {}
    settings = recording["settings"]
    shape = environment["server_args"] if environment["server"] == "embedded" else {}
    return [
        ("recorded", f"{started:%Y-%m-%d %H:%M} UTC"),
        (
            "recorder",
            f"{recording['tool']} {recording['version']}, {'cupti-python' if settings.get('cupti') else 'torch.profiler'}",
        ),
        ("server", f"{environment['server']} {environment['server_version']}, tensor parallel {len(found['ranks'])}"),
        ("decoding", _speculation(environment)),
        ("acceptance", _acceptance(environment)),
        ("GPUs", f"{environment['gpu_count']} x {environment['gpu']}"),
        (
            "software",
            f"torch {environment['torch']}, CUDA {environment['cuda']}, NCCL {environment['nccl']['version']}, driver {environment['driver']}",
        ),
        (
            "model",
            f"{model['architectures'][0]}, {model['num_hidden_layers']} layers, hidden {model['hidden_size']}, "
            f"{model.get('num_experts') or model['n_routed_experts']} experts, random weights"
            if model
            else f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['experts']} experts",
        ),
        ("windows", "/".join(str(settings[name]) for name in ("skip", "warmup", "record", "repeat", "gap"))),
        ("events", f"{pq.read_metadata(path).num_rows:,}"),
    ]


def provenance(folder: Path) -> str:
    """A table with a row a sample, those of the story last, and below it what is the same for all."""
    paths = [path for part in ("", "eager/", "story/") for path in sorted(folder.glob(f"{part}*.parquet"))]
    rows = [dict(_facts(path)) for path in paths]
    alike = [name for name in rows[0] if len({row[name] for row in rows}) == 1]
    columns = [name for name in rows[0] if name not in alike]
    lines = [["sample", *columns], ["---"] * (len(columns) + 1)]
    lines += [
        [f"`{path.relative_to(folder)}`", *(row[name] for name in columns)]
        for path, row in zip(paths, rows, strict=True)
    ]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return text + "\nThe same for all: " + "; ".join(f"{name}: {rows[0][name]}" for name in alike) + ".\n"
