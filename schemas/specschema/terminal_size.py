"""What the environment says of the terminal's size, so that nonsense in it cannot end a command."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

SIZES: Final = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
"""Variables that rich and typer read as numbers: rich takes ``²`` for one, typer any text at all, and both then end in a traceback."""
_MOST_DIGITS: Final = 4
"""More columns than that are no terminal, and boxes as wide fill the disk."""


def forget_odd_sizes(environment: MutableMapping[str, str]) -> None:
    """Take sizes out that are no whole number from 1 to 9999, as if they had never been set.

    Args:
        environment: ``os.environ`` of a command line, before it imports what draws.
    """
    for name in SIZES:
        text = environment.get(name)
        if text is not None and not _is_size(text):
            del environment[name]


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0
