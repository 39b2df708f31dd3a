"""Cycle numbers of ranks in step, of which one began to count a cycle before another (``rank.lockstep``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def cycles_later(parts: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, int]:
    """Rank -> cycles to add to its numbers, so that one number is one cycle on all ranks that are in step.

    Args:
        parts: rank and metadata sections of each file, a rank's last one last.
    """
    ahead: dict[int, int] = {}
    for rank, sections in parts:
        told = sections.get("recording", {}).get("ahead")
        if isinstance(told, int):
            ahead[rank] = told
    return {rank: max(ahead.values()) - cycles for rank, cycles in ahead.items()}


def renumbered(window: Mapping[str, Any], later: int) -> dict[str, Any]:
    """What a window's metadata says, its cycles numbered as in the merged trace."""
    if "warmup" in window:
        return {**window, "warmup": [cycle + later for cycle in window["warmup"]]}
    return {**window, "first_cycle": window["first_cycle"] + later} if "first_cycle" in window else dict(window)
