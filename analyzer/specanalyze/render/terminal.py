"""Tables in the terminal: units in the header, shares as bars, warnings below."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from specanalyze.render.table_fit import BAR, GAP, fit, shorten
from specanalyze.whole_number import whole_number
from specschema.figures import rounded, signed

BAR_WIDTH = 16
PIPE_WIDTH = 120
"""Columns when stdout is no terminal and COLUMNS is not set: a file has no edge, but a reader has."""
TERMINAL_WIDTH = 80
"""Columns of a terminal that does not say how wide it is."""
NARROWEST_TERMINAL = 40
"""Columns below which nothing is narrowed: the terminal breaks the lines, but no figure loses a digit."""

_UNIT = r"(?:%|[num]?s|[KMG]?i?B|tok/s|GB/s)(?![\w/])"


def console() -> Console:
    """Console on stdout: colour only on terminals and without NO_COLOR (rich decides), as wide as COLUMNS, or the terminal, says."""
    width = whole_number(os.environ.get("COLUMNS", "")) or _terminal_width() or PIPE_WIDTH
    out = Console(highlight=False, width=max(width, NARROWEST_TERMINAL))
    out.push_render_hook(_BlanksOff())
    return out


def _terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None for files and pipes. A terminal that does not know its width tells 0."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or TERMINAL_WIDTH
    except OSError:
        return TERMINAL_WIDTH


@dataclass(frozen=True)
class _Trimmed:
    """What is drawn, without the blanks that rich fills each line up with: they wrap in a narrower terminal, and no file wants them."""

    drawn: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blanks: list[Segment] = []
        for segment in console.render(self.drawn, options):
            if segment.control:
                yield segment
                continue
            for at, part in enumerate(segment.text.split("\n")):
                if at:
                    blanks.clear()
                    yield Segment.line()
                kept = part.rstrip(" ")
                if kept:
                    yield from blanks
                    blanks.clear()
                    yield Segment(kept, segment.style)
                if len(kept) < len(part):
                    blanks.append(Segment(part[len(kept) :], segment.style))
        yield from blanks  # of a line that goes on


class _BlanksOff(RenderHook):
    """See ``_Trimmed``."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Trimmed(drawn) for drawn in renderables]


def share_bar(share: float | None, width: int = BAR_WIDTH) -> Text:
    """A share (0..1) as a bar of block characters, eighths of a column."""
    if share is None:
        return Text("")
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return Text("█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8], style="cyan")


def table(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str | Text]],
    caption: str = "",
    spare: Sequence[str] = (),
) -> RenderableType:
    """A table that fits the terminal; columns without room are named below it.

    Args:
        title: shown above, left.
        columns: (header with unit, side): ``right`` for numbers; ``left`` for text; ``name`` and ``path`` for text on one line
            that may lose its end, or its beginning; BAR for bars. All but the first and bars have a header.
        rows: cells; strings are taken literally, never as markup.
        caption: shown below.
        spare: headers of columns that a narrow terminal may lose, the first one first.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    headers, sides = [c[0] for c in columns], [c[1] for c in columns]
    if any(not header and side != BAR for header, side in columns[1:]):
        raise ValueError(f"{title}: a column that a narrow terminal may lose must have a name to say so")
    width = console().width
    fitted = fit(headers, sides, cells, spare, width)
    lost = [h.replace("\n", " ") for at, h in enumerate(headers) if at not in fitted.kept and h]
    below = [caption] if caption else []
    if lost:
        below.append(f"no room at {width} columns for: {', '.join(dict.fromkeys(lost))}")
    drawn = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        header_style="dim",
    )
    for at in fitted.kept:
        narrowed = fitted.narrowed.get(at)
        drawn.add_column(
            escape(headers[at]),
            justify="right" if sides[at] == "right" else "left",
            no_wrap=narrowed is None or sides[at] in ("name", "path"),
            width=narrowed,
            overflow="fold",
        )
    for row in cells:
        drawn.add_row(
            *(
                shorten(row[at], sides[at], fitted.narrowed[at]) if at in fitted.narrowed else row[at]
                for at in fitted.kept
            )
        )
    return Group(drawn, *(Prose(line, "dim italic") for line in below)) if below else drawn


@dataclass(frozen=True)
class Prose:
    """A sentence, broken into lines where it must be, but never between a figure and its unit."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glued = re.sub(rf"(?<=\d) (?={_UNIT})", "\xa0", self.text)
        # textwrap breaks at ASCII spaces only; rich would break at the glue, too.
        lines = textwrap.wrap(glued, max(options.max_width, 1), break_on_hyphens=False) or [""]
        yield Text("\n".join(lines).replace("\xa0", " "), style=self.style)


def milliseconds(ns: float | None) -> str:
    """Nanoseconds as ms with three decimals (one microsecond); a dash where there is no number."""
    return rounded(None if ns is None else ns / 1e6, 3)


def signed_ms(ns: float | None) -> str:
    """A difference in nanoseconds as ms: ``+0.121``, ``0.000``; a dash where there is no number."""
    return signed(None if ns is None else ns / 1e6)


def notes(out: Console, lines: Iterable[str]) -> None:
    """Remarks under a table, each on its own line(s)."""
    for line in lines:
        out.print(Prose(f"· {line}", "dim"))
