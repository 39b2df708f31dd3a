"""How a table survives a narrow terminal: which columns go, and which texts give way.

rich narrows every column that may wrap, to nothing if need be: at 80 columns names became one letter a line and whole
columns vanished. Numbers must stay whole, so texts give way down to a readable width; then columns named as spare go, the
first one first; then the others. Columns go in one fixed order and each only when those that outrank it leave no room for it,
so that a wider terminal never shows fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

BAR: Final = "bar"
"""Side of a column that draws a figure which stands beside it: it goes before any other that is not spare, and nothing is lost."""
GAP: Final = 2
"""Blanks between two columns."""
READABLE: Final = 28
"""Columns that a text keeps as long as there are spare columns that can go: most kernels and modules are known by them."""
LEAST: Final = 14
"""Columns that it keeps as long as any other column can go."""
NARROWEST: Final = 6
"""Columns that it keeps where nothing else can go: were it wider than the terminal leaves, rich would cut the numbers."""


@dataclass(frozen=True)
class Fit:
    """Columns to draw."""

    kept: tuple[int, ...]
    """Positions of the columns that are drawn."""
    narrowed: Mapping[int, int]
    """Position -> width of the text columns among them that get less than they need."""


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
    needed = [
        max([cell_len(line) for line in header.split("\n")] + [_width(row[at]) for row in cells])
        for at, header in enumerate(headers)
    ]
    texts = [at for at, side in enumerate(sides) if side not in ("right", BAR)]
    for kept, least in _choices(headers, sides, spare, _subject(headers, texts, spare, needed)):
        giving = {at: needed[at] for at in kept if at in texts}
        room = width - GAP * (len(kept) - 1) - sum(needed[at] for at in kept if at not in giving)
        if room >= sum(min(own, least) for own in giving.values()):
            break
    return Fit(tuple(kept), _narrowed(giving, room, least))


def _subject(headers: Sequence[str], texts: Sequence[int], spare: Sequence[str], needed: Sequence[int]) -> int | None:
    """The text that a table is about, wherever it stands: it never goes."""
    return max((at for at in texts if headers[at] not in spare), key=lambda at: needed[at], default=None)


def _choices(
    headers: Sequence[str], sides: Sequence[str], spare: Sequence[str], subject: int | None
) -> Iterator[tuple[list[int], int]]:
    """(columns, least width of a text), best first: each has no column that the one before it has not."""
    kept = list(range(len(headers)))
    yield kept, READABLE
    for header in spare:
        if any(headers[at] == header for at in kept):
            kept = [at for at in kept if headers[at] != header]
            yield kept, READABLE
    yield kept, LEAST
    while len(others := [at for at in kept[1:] if at != subject]) > 1:
        # Cut numbers would be other numbers: whole columns go, bars first, then from the right.
        gone = next((at for at in reversed(others) if sides[at] == BAR), others[-1])
        kept = [at for at in kept if at != gone]
        yield kept, LEAST
    yield kept, NARROWEST


def _narrowed(needed: Mapping[int, int], room: int, least: int) -> dict[int, int]:
    """Widths of texts that share ``room`` columns: the widest give way first, to one level; the first ones get what is left over."""
    if sum(needed.values()) <= room:
        return {}
    fitting = (n for n in range(max(room, least), least, -1) if sum(min(own, n) for own in needed.values()) <= room)
    level = next(fitting, least)
    over = room - sum(min(own, level) for own in needed.values())
    widths = {}
    for at, own in needed.items():
        width = min(own, level + (over > 0))
        over -= width > level
        if width < own:
            widths[at] = width
    return widths


def _width(cell: Text) -> int:
    return max(cell_len(line) for line in cell.plain.split("\n"))


def shorten(cell: Text, side: str, width: int) -> Text:
    """One line of at most ``width`` columns: a name keeps its beginning, a path its end."""
    if side not in ("name", "path") or _width(cell) <= width:
        return cell
    letters = cell.plain.replace("\n", " ")
    kept = min(len(letters), width - 1)  # wide letters need two columns each
    while True:
        line = f"{letters[:kept]}…" if side == "name" else f"…{letters[len(letters) - kept :]}"
        if cell_len(line) <= width or not kept:
            return Text(line, style=cell.style)
        kept -= 1
