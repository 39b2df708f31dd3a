"""Writes NVTXT, the text that Nsight Systems' ImportNvtxt turns into a report.

What the importer does was found by running it (2022.4, 2023.4, 2024.2) and comparing what came out to the nanosecond:

- times pass through a double, so they are written from an origin and stay below 2**53;
- process and thread ids must be below 2**24, or the whole import fails; thread names must be unique in the file;
- a range must be longer than 0 ns, or it is skipped; a text has no escape for a quotation mark;
- only push/pop ranges are drawn on a thread's row; payloads, categories, counters and arrows are not drawn at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints, integers
from specanalyze.exports.export_events import ExportedRank
from specanalyze.exports.tracks import REQUESTS, process_id, tracks
from specschema.errors import TraceError

_LARGEST_ID: Final = (1 << 24) - 1
_CHUNK: Final = 1 << 17
"""Slices whose begins and ends are put in order together."""
_LINES: Final = 1 << 14
"""Lines whose texts are in memory at once."""

_HEAD: Final = """SetFileDisplayName, "{title}"
@NameProcess, ProcessId, Name
@NameOsThread, ProcessId, ThreadId, Name
@RangePush, Time, ProcessId, ThreadId, Color, Message
@RangePop, Time, ProcessId, ThreadId
@RangeStartEnd, Start, End, ProcessId, ThreadId, Color, Message
@Marker, Time, ProcessId, ThreadId, Color, Message
TimeBase = Manual
"""

CLASS_COLOURS: Final = {
    "attention": "MediumPurple",
    "moe": "SeaGreen",
    "gemm": "SteelBlue",
    "other_compute": "LightSlateGray",
    "graph_unresolved": "Tan",
    "allreduce": "Firebrick",
    "other_comm": "IndianRed",
    "memcpy": "Goldenrod",
    "graph_gap": "DarkOrange",
    "launch": "Orange",
    "host": "LightGray",
}
"""Bucket -> colour, as .NET names them."""

RANGE_COLOURS: Final = {
    "spec.cycle": "DimGray",
    "spec.draft": "LightGreen",
    "spec.verify": "CornflowerBlue",
    "spec.draft_extend": "Khaki",
    "spec.prefill": "Plum",
    "spec.decode": "SkyBlue",
    "spec.idle": "Gainsboro",
}
_PLAIN: Final = {"launch": "Orange", "collective": "Firebrick", "op": "Silver", "request": "Teal", "mark": "DarkOrange"}


class Nvtxt:
    """Writes ranks one after another.

    Args:
        file: where to.
        title: name of the recording, shown in the GUI.
        origin_ns: Unix time of the report's time 0; no event may be earlier.
    """

    def __init__(self, file: BinaryIO, title: str, origin_ns: int) -> None:
        self._file = file
        self._origin = origin_ns
        self._processes: set[int] = set()
        self.events = 0
        file.write(_HEAD.format(title=_plain(title)).encode())

    def write(self, rank: ExportedRank) -> None:
        """Write one rank: a process of its own, a thread a row."""
        process = process_id(rank, self._processes, _LARGEST_ID)
        self._line(f'NameProcess, {process}, "{_plain(_process_name(rank))}"')
        if rank.number == 0:
            self._line(f'Marker, 0, {process}, 1, DarkOrange, "time 0 = {self._origin} ns since 1970-01-01 UTC"')
            self.events += 1
        for thread, track in enumerate(tracks(rank), 1):
            self._line(f'NameOsThread, {process}, {thread}, "{_plain(track.name)} | {_plain(rank.label)}"')
            for slices in track.pieces(_CHUNK):
                self._slices(track.kind, slices, process, thread)

    def _line(self, text: str) -> None:
        self._file.write(text.encode() + b"\n")

    def _slices(self, kind: str, slices: pl.DataFrame, process: int, thread: int) -> None:
        place = f"{process}, {thread}"
        self.events += slices.height
        start = integers(slices, "start_ns", 0) - self._origin
        end = start + integers(slices, "dur_ns", 0)
        told = slices.select(
            pl.Series("start", start),
            pl.Series("end", end),
            pl.format(f'{place}, {{}}, "{{}}"', _colour(), _message()).alias("tail"),
        )
        instants, ranges = np.flatnonzero(start == end), np.flatnonzero(start < end)
        self._text(told, instants, pl.format("Marker, {}, {}", "start", "tail"))
        if kind == REQUESTS:
            self._text(told, ranges, pl.format("RangeStartEnd, {}, {}, {}", "start", "end", "tail"))
            return
        push = pl.format("RangePush, {}, {}", "start", "tail")
        pop = pl.format(f"RangePop, {{}}, {place}", "end")
        number, begins = boundaries(start[ranges], end[ranges])
        self._text(told, ranges[number], pl.when("begins").then(push).otherwise(pop), begins=begins)

    def _text(self, told: pl.DataFrame, rows: Ints, line: pl.Expr, **flags: NDArray[np.bool_]) -> None:
        """One line for each of some rows, in that order."""
        for low in range(0, len(rows), _LINES):
            part = slice(low, low + _LINES)
            some = told[rows[part]].with_columns(pl.Series(name, flag[part]) for name, flag in flags.items())
            some.select(line.alias("line")).write_csv(self._file, include_header=False, quote_style="never")


def boundaries(start: Ints, end: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Begins and ends of nested ranges in the order in which a stack takes them: at one instant ends come before begins, inner ends
    and outer begins first.

    Args:
        start, end: by start.

    Returns:
        Number of the range of each, and whether it is its begin.
    """
    number = np.arange(len(start))
    length = end - start
    begins = np.repeat([True, False], len(start))
    order = np.lexsort(
        (
            np.concatenate([number, -number]),
            np.concatenate([-length, length]),
            begins,
            np.concatenate([start, end]),
        )
    )
    return np.tile(number, 2)[order], begins[order]


def _plain(text: str) -> str:
    return " ".join(text.replace('"', "'").split())


def _message() -> pl.Expr:
    """Name and facts, without what NVTXT can't hold in a text."""
    both = pl.concat_str(
        "name", pl.when(pl.col("detail") != "").then(pl.format("[{}]", "detail")), separator=" ", ignore_nulls=True
    )
    return both.str.replace_all('"', "'", literal=True).str.replace_all(r"[\x00-\x1f\x7f]+", " ")


def _colour() -> pl.Expr:
    by_range = pl.col("name").replace_strict(RANGE_COLOURS, default=None, return_dtype=pl.String)
    by_class = pl.col("bucket").replace_strict(CLASS_COLOURS, default=None, return_dtype=pl.String)
    by_kind = pl.col("kind").replace_strict(_PLAIN, default="SlateGray", return_dtype=pl.String)
    return pl.coalesce(by_class, by_range, by_kind)


def _process_name(rank: ExportedRank) -> str:
    return rank.label if rank.trace.host is None else f"{rank.label} on {rank.trace.host}"


def write_nvtxt(
    file: BinaryIO, title: str, ranks: Iterable[ExportedRank], origin_ns: int | None = None
) -> tuple[int, int]:
    """Write all ranks.

    Args:
        file: where to.
        title: name of the recording.
        ranks: one after another, so that only one is in memory.
        origin_ns: Unix time of the report's time 0; the start of the first rank when None.

    Returns:
        Unix time of time 0, and the number of ranges and marks.

    Raises:
        EarlierRankError: a later rank begins before time 0.
    """
    report = _Report(file, title, origin_ns)
    for _ in map(report.write, ranks):  # a loop variable would hold a rank while the next one is read
        pass
    if report.writer is None or report.origin_ns is None:
        raise TraceError(f"{title} holds no event that could be drawn")
    return report.origin_ns, report.writer.events


@dataclass
class _Report:
    """The writer, begun with the first rank that has an event."""

    file: BinaryIO
    title: str
    origin_ns: int | None
    writer: Nvtxt | None = None

    def write(self, rank: ExportedRank) -> None:
        start = rank.start_ns
        if start is None:
            return
        if self.origin_ns is None:
            self.origin_ns = start
        if start < self.origin_ns:
            raise EarlierRankError(start)
        self.writer = self.writer or Nvtxt(self.file, self.title, self.origin_ns)
        self.writer.write(rank)


class EarlierRankError(Exception):
    """A rank begins before the origin that was taken from the first one: write again, from ``origin_ns``."""

    def __init__(self, origin_ns: int) -> None:
        super().__init__(origin_ns)
        self.origin_ns = origin_ns
