"""Writes trace.parquet: whole or not at all, one rank after another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from specanalyze.formats.event_frame import DTYPES
from specanalyze.native.heap import give_back
from specanalyze.trace import RankTrace, Trace
from specschema import metadata
from specschema.errors import UsageError
from specschema.events import EVENT_SCHEMA

ROWS_PER_GROUP: Final = 1 << 20
"""A larger rank gets several row groups, so that neither writer nor reader holds more than this many rows twice."""
_EDGES: Final = 2
"""A run of rows in the middle of others has so many."""
_DELTA: Final = ("start_ns", "correlation", "cycle", "node")
_SPLIT: Final = ("dur_ns",)
"""The smallest on real traces: 4.7 to 5.9 bytes an event, against 5.4 to 6.8 with DELTA_BINARY_PACKED for both."""
_HASHED: Final = re.compile(r"[0-9a-f]{12,64}")


def write_trace(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Write a trace, rank by rank, as one file that only its owner may read (mode 0600).

    The file gets its name when it is whole. Host names are hashed, as the format promises; equal hosts stay equal. The trace's
    warnings, those of reading included, are kept in the metadata.

    Args:
        trace: what to write. Event columns that the format does not have are refused.
        path: where to. Its folder must exist.
        force: replace an existing file.

    Raises:
        UsageError: the file exists and ``force`` is false, or it can't be written there.
        TraceError: a rank can't be read.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists: give another name, or --force to overwrite it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no such folder {path.parent}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            _write(trace, file)
        give_name(temporary, path, force=force)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def give_name(temporary: Path, path: Path, *, force: bool) -> None:
    """Give a finished file its name; a file that appeared there meanwhile is not replaced without force.

    Raises:
        UsageError: there is one.
        OSError: it can't have that name.
    """
    if not force:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise UsageError(f"{path} exists: give another name, or --force to overwrite it") from None
        except OSError:
            pass  # a file system without hard links
        else:
            return
    os.replace(temporary, path)


def _write(trace: Trace, file: Any) -> None:
    known = {str(entry.get("key", entry.get("rank"))): entry for entry in trace.metadata.get("ranks") or []}
    entries: list[dict[str, Any]] = []
    groups = 0
    with pq.ParquetWriter(
        file,
        EVENT_SCHEMA,
        compression="zstd",
        compression_level=3,
        use_dictionary=[
            f.name for f in EVENT_SCHEMA if f.name not in (*_DELTA, *_SPLIT) and not pa.types.is_list(f.type)
        ],
        column_encoding={
            **dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_SPLIT, "BYTE_STREAM_SPLIT"),
        },
    ) as writer:

        def write(rank: RankTrace) -> dict[str, Any]:
            nonlocal groups
            first = groups
            for rows in _pieces(rank):
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))
                groups += 1
            return {
                **known.get(rank.key, {}),
                "key": rank.key,
                "rank": rank.rank,
                "host": _hashed(rank.host),
                "device": rank.device,
                "world_size": rank.world_size,
                "row_groups": [first, groups - first],
            }

        for entry in map(write, trace.ranks()):  # a loop variable would hold a rank while the next one is read
            entries.append(entry)
            give_back()
        # Reading the ranks brought up the last warnings, so the metadata come last.
        sections = {key: value for key, value in trace.metadata.items() if key in metadata.SECTIONS}
        sections["recording"] = {**(sections.get("recording") or {}), "warnings": list(trace.warnings)}
        writer.add_key_value_metadata(metadata.encode({**sections, "ranks": entries}))


def _pieces(rank: RankTrace) -> Iterator[pa.Table]:
    unknown = [c for c in rank.events.columns if c not in DTYPES]
    if unknown:
        raise ValueError(f"columns that the format does not have: {', '.join(unknown)}")
    for start, end in pairwise(_bounds(rank.events)):
        # One chunk has one dictionary; where a second one begins, the Parquet writer writes texts in full.
        rows = rank.events.slice(start, end - start).rechunk()
        arrow = rows.select(pl.col(c).cast(DTYPES[c]) for c in rows.columns).to_arrow()
        arrays = [
            arrow[f.name].cast(f.type) if f.name in arrow.column_names else pa.nulls(arrow.num_rows, f.type)
            for f in EVENT_SCHEMA
        ]
        yield pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def _bounds(events: pl.DataFrame) -> list[int]:
    """Where row groups begin, and the end. Nodes of captured graphs that lie together get their own, as in the collector's files: of
    the others the statistics then say that they have none of the columns of nodes, which need not be read."""
    edges = [0, events.height]
    if "kind" in events.columns:
        is_node = (events.get_column("kind") == "node").to_numpy()
        changes = (np.flatnonzero(is_node[1:] != is_node[:-1]) + 1).tolist()
        edges = [0, *(changes if len(changes) <= _EDGES else []), events.height]
    return [*(start for low, high in pairwise(edges) for start in range(low, high, ROWS_PER_GROUP)), events.height]


def _hashed(host: str | None) -> str | None:
    if host is None or _HASHED.fullmatch(host):
        return host
    return hashlib.sha256(host.encode()).hexdigest()[:12]
