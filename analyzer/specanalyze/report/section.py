"""What a page is made of: sections of figures, each figure with its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MOST_ROWS: Final = 200
"""Rows of one table on the page; whole tables come from the commands."""


@dataclass(frozen=True)
class Table:
    """Figures as text.

    Attributes:
        columns: (header with unit, True for numbers, which stand at the right).
        rows: cells, as shown.
        left_out: rows beyond MOST_ROWS.
        whole: the command that gives all rows.
    """

    columns: tuple[tuple[str, bool], ...]
    rows: list[list[str]]
    left_out: int = 0
    whole: str = ""


def table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], whole: str = "") -> Table:
    """A table of at most MOST_ROWS rows; a column without a header would have no name for who cannot see it."""
    if not all(header for header, _ in columns):
        raise ValueError("every column of a report's table needs a header")
    shown = [list(row) for row in rows[:MOST_ROWS]]
    return Table(tuple(columns), shown, max(len(rows) - MOST_ROWS, 0), whole)


@dataclass(frozen=True)
class Figure:
    """A plot and its table.

    Attributes:
        title: what is seen.
        alt: the same in words for who cannot see it.
        spec: Vega-Lite specification; None for a table alone.
        table: the plot's numbers.
        hint: how to use it, shown on screen only.
        wide: True takes the whole width also beside others.
    """

    title: str
    alt: str
    spec: dict[str, Any] | None
    table: Table
    hint: str = ""
    wide: bool = True


_SHORT: Final = {
    "breakdown": "Time",
    "timeline": "One cycle",
    "layers": "Layers",
    "waits": "Waiting",
    "acceptance": "Acceptance",
    "cycle-times": "Cycle times",
    "sweep": "Sweep",
}


@dataclass(frozen=True)
class Section:
    """One question.

    Attributes:
        key: anchor on the page.
        title: its heading.
        question: what it answers, one line.
        figures: plots.
        notes: how to read them, one line each.
        missing: what this recording lacks, and which data would fill it, one line each.
    """

    key: str
    title: str
    question: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    @property
    def short(self) -> str:
        """The title as the bar of links has room for it."""
        return _SHORT.get(self.key, self.title)
