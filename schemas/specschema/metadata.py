"""File metadata: JSON values under ``specanalyze.*`` keys of the Parquet footer, and the schema version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from specschema.errors import TraceError

SCHEMA_VERSION: Final = 1
"""Raised whenever a column changes its meaning, type or name. Readers accept all older versions and refuse newer ones."""

KEY_PREFIX: Final = "specanalyze."
VERSION_KEY: Final = "specanalyze.schema_version"

SECTIONS: Final = {
    "recording": "tool and version, source (collector or import), device (cuda or cpu), tiers, windows, what was lost",
    "clock": "unit and epoch of the times, and per rank the host clock they were read from",
    "ranks": "list: rank, pid, host (hashed unless asked for), and its tensor, pipeline, data and expert coordinates",
    "environment": "GPU model, count and links, driver, CUDA, the NCCL library loaded, torch, server and its arguments, "
    "model config digest, NCCL_/CUDA_/SGLANG_/VLLM_ variables (never secrets), clocks and power limit",
}
"""Metadata section -> what it holds. Each is one JSON document under ``specanalyze.<section>``."""


def encode(sections: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Key-value metadata for a Parquet file.

    Args:
        sections: section name (a key of SECTIONS) -> JSON-serialisable value.

    Returns:
        Metadata with the schema version added, ready for ``pa.Schema.with_metadata``.

    Raises:
        KeyError: a section that is not in SECTIONS.
    """
    encoded = {VERSION_KEY.encode(): str(SCHEMA_VERSION).encode()}
    for section, value in sections.items():
        if section not in SECTIONS:
            raise KeyError(section)
        encoded[(KEY_PREFIX + section).encode()] = json.dumps(value, separators=(",", ":")).encode()
    return encoded


def decode(metadata: Mapping[bytes, bytes] | None, path: str) -> dict[str, Any]:
    """Sections of a Parquet file's key-value metadata, after the version check.

    Args:
        metadata: the file's key-value metadata, or None.
        path: the file's name, for the error.

    Returns:
        section -> value for each section present, and ``schema_version`` (int).

    Raises:
        TraceError: no schema version (not a trace of ours), a version newer than this reader, or a section that is not JSON.
    """
    metadata = metadata or {}
    text = metadata.get(VERSION_KEY.encode())
    if text is None:
        raise TraceError(f"{path} has no {VERSION_KEY} in its metadata: it is not a specanalyze trace")
    try:
        version = int(text)
        if version < 0:
            raise ValueError
    except ValueError:
        raise TraceError(f"{path}: schema version {text.decode(errors='replace')!r} is not a whole number") from None
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"{path} was written with schema version {version}; this specanalyze reads up to {SCHEMA_VERSION}: "
            "update specanalyze"
        )
    decoded: dict[str, Any] = {"schema_version": version}
    for section in SECTIONS:
        value = metadata.get((KEY_PREFIX + section).encode())
        if value is not None:
            try:
                decoded[section] = json.loads(value)
            except (ValueError, RecursionError):
                raise TraceError(f"{path}: metadata section {section!r} is not valid JSON") from None
    return decoded
