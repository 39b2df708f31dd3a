"""Whole numbers in texts that anybody may have written: a command line, a server's arguments."""

from __future__ import annotations

from typing import Any, Final

MOST: Final = 2**31 - 1
"""No count of steps, ranks, rows or cycles that somebody means is larger, and all of them fit any column."""


def whole_number(said: Any) -> int | None:
    """0 or more, at most MOST, from an int or decimal digits; None for anything else: signs, fractions, ``²``, endless digits."""
    if isinstance(said, bool):
        return None
    text = str(said) if isinstance(said, (int, str)) and not _endless(said) else ""
    number = int(text) if text.isascii() and text.isdecimal() else None
    return number if number is not None and number <= MOST else None


def _endless(said: int | str) -> bool:
    """More digits than Python turns into a number, or back, without complaint."""
    return len(said) > len(str(MOST)) if isinstance(said, str) else abs(said) > MOST
