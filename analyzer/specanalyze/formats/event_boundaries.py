"""Where the text of a list of events may be cut."""

from __future__ import annotations

import re
from typing import Final

BOUNDARY: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string, or the beginning of one at the end of the text, or a bracket."""
COMMA: Final = re.compile(rb"\s*,\s*")
_TRIES: Final = 4
"""Likely cuts tried before the text is scanned token by token."""


def last_cuts(text: bytes) -> list[tuple[int, int]]:
    """The last few likely boundaries, last first: (end of an event, start of the next)."""
    for window in (1 << 14, 1 << 18, len(text)):
        start = max(0, len(text) - window)
        found = [(m.start() + 1, m.end()) for m in BOUNDARY.finditer(text, start)]
        if len(found) >= _TRIES or start == 0:
            return found[: -_TRIES - 1 : -1]
    return []


def scan(text: bytes) -> tuple[tuple[int, int] | None, int | None]:
    """Walk ``text`` token by token from the start of an event.

    Returns:
        The last boundary between events, and where the list of events is closed, if it is.
    """
    depth = 0
    end = before = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth < 0:
                return None, token.start()
            if depth == 0:
                before, end = end, token.end()
    for stop in (end, before):
        after = COMMA.match(text, stop)
        if stop and after:
            return (stop, after.end()), None
    return None, None
