"""Choices made by the bytes of an input: the same bytes make the same file again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Reads choices off ``data``; when it is used up, every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, n: int) -> int:
        """A whole number 0 <= x < n."""
        size = 1 if n <= 256 else 2 if n <= 65536 else 4
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % n if n > 0 else 0

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def one_in(self, n: int) -> bool:
        """True about once in n; False when the bytes are used up."""
        return self.below(n) == n - 1

    def rest(self) -> bytes:
        left = self._data[self._at :]
        self._at = len(self._data)
        return left
