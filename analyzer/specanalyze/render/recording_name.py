"""The name of a recording, short enough for a title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath


def short_name(name: str) -> str:
    """``/a/b/rank0.json, /a/b/rank1.json`` -> ``rank0.json and 1 more``."""
    return distinct_names([name])[0]


def distinct_names(names: Sequence[str]) -> list[str]:
    """Each name without the folders that none of the others needs to be told from it.

    ``/runs/a/trace.parquet`` and ``/runs/b/trace.parquet`` -> ``a/trace.parquet`` and ``b/trace.parquet``. The same recording twice
    keeps its whole name.
    """
    parts = [PurePath(name.split(", ")[0]).parts or (name,) for name in names]
    taken = [1] * len(names)
    while True:
        shown = [_ending(part, n) for part, n in zip(parts, taken, strict=True)]
        counts = Counter(shown)
        longer = [at for at, short in enumerate(shown) if counts[short] > 1 and taken[at] < len(parts[at])]
        if not longer:
            break
        for at in longer:
            taken[at] += 1
    return [short + _others(name) for short, name in zip(shown, names, strict=True)]


def _ending(parts: Sequence[str], n: int) -> str:
    return str(PurePath(*parts[-n:]))


def _others(name: str) -> str:
    more = name.count(", ")
    return f" and {more} more" if more else ""
