"""How a table survives a narrow terminal: which columns go, and which one gives way.

rich narrows every column that may wrap, to nothing if need be: at 80 columns names became one letter a line and whole
columns vanished. Numbers must stay whole, so columns named as spare go first, and one text column takes what is left; where
that is not enough, others go as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

BAR: Final = "bar"
"""Side of a column that draws a figure which stands beside it: it goes before any other, and nothing is lost."""
GAP = 2
"""Blanks between two columns."""
LEAST = 14
"""Columns that the text column keeps as long as there are others that can go."""
NARROWEST = 6
"""Columns that it keeps where nothing else can go: were it wider than the terminal leaves, rich would cut the numbers."""


@dataclass(frozen=True)
class Fit:
    """Columns to draw."""

    kept: tuple[int, ...]
    """Positions of the columns that are drawn."""
    elastic: int | None
    """Position of the text column that gives way."""
    elastic_width: int | None
    """Its width, None where everything fits."""


def fit(
    headers: Sequence[str], sides: Sequence[str], cells: Sequence[Sequence[Text]], spare: Sequence[str], width: int
) -> Fit:
    """Choose columns for a terminal.

    Args:
        headers: one a column; a line break makes a header of two lines.
        sides: ``left``, ``right``, ``name``, ``path`` or BAR a column; all but ``right`` and BAR are texts.
        cells: rows.
        spare: headers of columns that may go, the first one first.
        width: columns of the terminal.
    """
    widths = [
        max([max(len(line) for line in header.split("\n")), *(row[at].cell_len for row in cells)])
        for at, header in enumerate(headers)
    ]
    kept = list(range(len(headers)))
    texts = [at for at in kept if sides[at] not in ("right", BAR) and headers[at] not in spare]
    elastic = max(texts, key=lambda at: widths[at], default=None)
    for header in (None, *spare):
        kept = [at for at in kept if headers[at] != header]
        fixed = sum(widths[at] for at in kept if at != elastic) + GAP * (len(kept) - 1)
        room = width - fixed
        needed = 0 if elastic is None else widths[elastic]
        if room >= needed or (room >= LEAST * 2 and header == (spare[-1] if spare else None)):
            break
    least = min(LEAST, needed)
    while room < least:  # cut numbers would be other numbers: whole columns go, bars first, then from the right
        others = [at for at in kept[1:] if at != elastic]
        if len(others) < 2:
            break
        gone = next((at for at in reversed(others) if sides[at] == BAR), others[-1])
        kept.remove(gone)
        room += widths[gone] + GAP
    if elastic is None or room >= needed:
        return Fit(tuple(kept), elastic, None)
    return Fit(tuple(kept), elastic, max(room, min(NARROWEST, needed)))


def shorten(cell: Text, side: str, width: int) -> Text:
    """One line of at most ``width`` columns: a name keeps its beginning, a path its end."""
    if cell.cell_len <= width or side not in ("name", "path"):
        return cell
    plain = cell.plain
    return Text(plain[: width - 1] + "…" if side == "name" else "…" + plain[1 - width :], style=cell.style)
