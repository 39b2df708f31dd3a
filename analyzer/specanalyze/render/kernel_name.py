"""The name of a kernel, short enough for a table."""

from __future__ import annotations

import re


def readable(name: str) -> str:
    """``void (anonymous namespace)::k<4>(int)`` -> ``k<4>(int)``: without what tells no kernel from another."""
    return name.removeprefix("void ").replace("(anonymous namespace)::", "")


def bare(name: str) -> str:
    """``void k<4>(int)`` -> ``k``: also without template arguments and parameters; ``(copy)`` stays."""
    plain = readable(name)
    return plain[:1] + re.split(r"[<(]", plain[1:], maxsplit=1)[0]
