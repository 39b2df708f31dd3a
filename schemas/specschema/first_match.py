"""The first pattern of a table that finds a name, compiling only patterns that may."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol


class Row(Protocol):
    """A row of a table of patterns: what is searched for, and whether in the whole name or in the function alone."""

    @property
    def pattern(self) -> str: ...
    @property
    def whole_name(self) -> bool: ...


def fingerprint(patterns: Iterable[str]) -> int:
    """Changes when a pattern does, or their order."""
    return zlib.crc32("\n".join(patterns).encode())


class FirstMatch:
    """Patterns of a table in their order, searched for without regard to case.

    Args:
        table: the rows.
        words: fingerprint of their patterns, and of each row the words one of which is in every name it finds (lower case), or
            None. Ignored where the fingerprint is of other patterns: then every pattern is tried, which finds the same.
    """

    def __init__(self, table: Sequence[Row], words: tuple[int, Sequence[Sequence[str] | None]]) -> None:
        self._table = table
        self._compiled: list[re.Pattern[str] | None] = [None] * len(table)
        known = words[0] == fingerprint(row.pattern for row in table)
        self._words = words[1] if known else [None] * len(table)

    def of(self, name: str, function: str) -> int | None:
        """Index of the first row whose pattern finds the name or function, or None."""
        texts = (function, name)
        # Beyond ASCII, letters exist that match others without being their lower case.
        lowered = (function.lower(), name.lower()) if name.isascii() else None
        for index, (row, words) in enumerate(zip(self._table, self._words, strict=True)):
            if lowered is not None and words is not None:
                text = lowered[row.whole_name]
                if not any(word in text for word in words):
                    continue
            pattern = self._compiled[index]
            if pattern is None:
                pattern = self._compiled[index] = re.compile(row.pattern, re.IGNORECASE)
            if pattern.search(texts[row.whole_name]):
                return index
        return None
