"""Tables in the terminal: units in the header, shares as bars, warnings below."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 16
PIPE_WIDTH = 120
"""Columns when stdout is no terminal and COLUMNS is not set: a file has no edge, but a reader has."""


def console() -> Console:
    """Console on stdout: colour only on terminals and without NO_COLOR (rich decides), never wider than the terminal."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    import os

    width = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH
    return Console(highlight=False, width=max(width, 40))


def share_bar(share: float | None, width: int = BAR_WIDTH) -> Text:
    """A share (0..1) as a bar of block characters, eighths of a column."""
    if share is None:
        return Text("")
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return Text("█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8], style="cyan")


def table(
    title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | Text]], caption: str = ""
) -> Table:
    """A table.

    Args:
        title: shown above, left.
        columns: (header with unit, ``left`` or ``right``).
        rows: cells; strings are taken literally, never as markup.
        caption: shown below.
    """
    drawn = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        caption=escape(caption) if caption else None,
        caption_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for header, side in columns:
        drawn.add_column(
            escape(header), justify="right" if side == "right" else "left", no_wrap=side == "right", overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return drawn


def milliseconds(ns: float | None) -> str:
    """Nanoseconds as ms with three decimals (one microsecond); a dash where there is no number."""
    return "–" if ns is None else f"{ns / 1e6:.3f}"


def percent(share: float | None) -> str:
    """A share (0..1) as a percentage with one decimal; a dash where there is no number."""
    return "–" if share is None else f"{share * 100:.1f} %"


def notes(out: Console, lines: Iterable[str]) -> None:
    """Remarks under a table, each on its own line(s)."""
    for line in lines:
        out.print(Text(f"· {line}", style="dim"))


def warn(lines: Iterable[str]) -> None:
    """Warnings on stderr, so that a pipe of the result stays clean."""
    for line in dict.fromkeys(lines):
        sys.stderr.write(f"warning: {line}\n")
