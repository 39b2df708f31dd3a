"""Markdown for the documentation pages that are generated from the schema."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def escape(text: str) -> str:
    """Text as a table cell; a bar would end the cell, inside code too."""
    return text.replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines)


def write_page(page: Callable[[], str], module: str) -> None:
    """Write a page to the path given on the command line, the whole command line of ``python -m module PATH``."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {module} PATH")
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
