"""Lines beside a result, on stderr, so that a pipe of the result stays clean; without rich, which only tables need."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def warn(lines: Iterable[str]) -> None:
    """Warnings, each once."""
    for line in dict.fromkeys(lines):
        sys.stderr.write(f"warning: {line}\n")
