"""The name of a recording, short enough for a title."""

from __future__ import annotations

from pathlib import PurePath


def short_name(name: str) -> str:
    """``/a/b/rank0.json, /a/b/rank1.json`` -> ``rank0.json and 1 more``."""
    files = name.split(", ")
    first = PurePath(files[0]).name or files[0]
    return first if len(files) == 1 else f"{first} and {len(files) - 1} more"
