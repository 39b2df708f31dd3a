"""How many worker processes repay their start."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specanalyze.engines.engine import Unit
from specanalyze.memory import free_bytes
from specanalyze.remote_path import path_of

BYTES_A_SECOND: Final = {".gz": 20e6, ".json": 300e6, ".parquet": 15e6}
"""Bytes of a file that a core analyses in a second, by its ending: breakdown does more, the other commands less."""
MEMORY_A_BYTE: Final = {".gz": 16.0, ".json": 1.0, ".parquet": 120.0}
"""Peak memory of a worker for each byte of its rank, where the command keeps the whole rank (breakdown mostly does not)."""
OTHER: Final = ".json"
START_BYTES: Final = 200e6
"""Memory of a worker before it reads anything."""
WORTH_S: Final = 1.0
"""Work that repays a worker: starting one takes 0.4 s of a core."""
MEMORY_SHARE: Final = 0.7


def cores() -> int:
    """Cores that this process may use: its affinity, and its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def sensible(units: Sequence[Unit]) -> int:
    """As many as there are cores, ranks, memory, and seconds of work to share; 1 for small inputs."""
    if len(units) < 2 or cores() < 2:
        return 1
    return repaid(units, cores(), free_bytes())


def repaid(units: Sequence[Unit], cores: int, free: int | None) -> int:
    """``sensible`` on a machine with so many cores and bytes of free memory (None: unknown)."""
    sizes = _sizes(units)
    seconds = sum(size / BYTES_A_SECOND[_ending(path)] for path, size in sizes.items())
    most = min(cores, len(units), int(seconds / WORTH_S))
    if free is None or most < 2:
        return max(1, most)
    ranks = Counter(unit.source.source for unit in units)
    heaviest = max(size / ranks[path] * MEMORY_A_BYTE[_ending(path)] for path, size in sizes.items())
    return max(1, min(most, int(free * MEMORY_SHARE / (heaviest + START_BYTES))))


def _ending(path: str) -> str:
    return next((ending for ending in BYTES_A_SECOND if path.endswith(ending)), OTHER)


def _sizes(units: Sequence[Unit]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for unit in units:
        path = unit.source.source
        if path not in sizes:
            try:
                found = path_of(path)
                files = [found] if not found.is_dir() else [p for p in found.iterdir() if p.is_file()]
                sizes[path] = sum(p.stat().st_size for p in files)
            except OSError:
                sizes[path] = 0
    return sizes
