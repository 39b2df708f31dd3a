"""The generated inputs of the benchmarks: made once, by seed, in a cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specanalyze-benchmarks"
VERSION: Final = "1"
"""Part of every name; raise it when a generator changes what it writes."""


def kineto(data: Path, megabytes: int, *, ranks: int = 1, compressed: bool = False) -> list[Path]:
    """Rank files of ``megabytes`` 10**6 bytes of JSON each."""
    folder = data / f"kineto-{VERSION}-{megabytes}mb-{ranks}{'-gz' if compressed else ''}"
    files = [folder / f"rank{rank}.json{'.gz' if compressed else ''}" for rank in range(ranks)]
    if not all(path.exists() for path in files):
        options = ["--megabytes", str(megabytes), "--ranks", str(ranks), *(["--gzip"] if compressed else [])]
        _make("benchmarks.kineto_text", str(folder), *options)
    return files


def events(data: Path, million: int, *, ranks: int, node_map: str | None = None) -> Path:
    """A trace.parquet of ``million`` 10**6 events; ``node_map`` as in ``event_table.rank_events``."""
    nodes = "" if node_map is None else f"-{node_map}"
    path = data / f"events-{VERSION}-{million}m-{ranks}{nodes}" / "trace.parquet"
    if not path.exists():
        more = [] if node_map is None else ["--node-map", node_map]
        _make("benchmarks.event_table", str(path), "--million", str(million), "--ranks", str(ranks), *more)
    return path


def _make(module: str, *arguments: str) -> None:
    """In a process of its own: whoever measures must stay small."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, cwd=Path(__file__).parents[1])
