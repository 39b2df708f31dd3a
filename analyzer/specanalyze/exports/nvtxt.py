"""Writes NVTXT, the text that Nsight Systems' ImportNvtxt turns into a report.

What the importer does was found by running it (2022.4, 2023.4, 2024.2) and comparing what came out to the nanosecond:

- times pass through a double, so they are written from an origin and stay below 2**53;
- process and thread ids must be below 2**24, or the whole import fails; thread names must be unique in the file;
- a range must be longer than 0 ns, or it is skipped; a text has no escape for a quotation mark;
- only push/pop ranges are drawn on a thread's row; payloads, categories, counters and arrows are not drawn at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Final

import polars as pl

from specanalyze.exports.export_events import ExportedRank
from specanalyze.exports.tracks import REQUESTS, Track, process_id, tracks
from specschema.errors import TraceError

_LARGEST_ID: Final = (1 << 24) - 1
_CHUNK: Final = 1 << 17
"""Slices that are turned into text at once."""

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
            for start in range(0, track.slices.height, _CHUNK):
                self._slices(track, track.slices[start : start + _CHUNK], process, thread)

    def _line(self, text: str) -> None:
        self._file.write(text.encode() + b"\n")

    def _slices(self, track: Track, slices: pl.DataFrame, process: int, thread: int) -> None:
        place = f"{process}, {thread}"
        start = pl.col("start_ns") - self._origin
        rows = slices.select(
            start.alias("start"),
            (start + pl.col("dur_ns")).alias("end"),
            pl.col("dur_ns").alias("length"),
            _colour().alias("colour"),
            _message().alias("message"),
        )
        tail = pl.format(f'{place}, {{}}, "{{}}"', "colour", "message")
        instants = rows.filter(pl.col("length") == 0)
        self._text(instants.select(pl.format("Marker, {}, {}", "start", tail)))
        ranges = rows.filter(pl.col("length") > 0)
        self.events += rows.height
        if track.kind == REQUESTS:
            self._text(ranges.select(pl.format("RangeStartEnd, {}, {}, {}", "start", "end", tail)))
            return
        self._text(
            boundaries(
                ranges, pl.format("RangePush, {}, {}", "start", tail), pl.format(f"RangePop, {{}}, {place}", "end")
            )
        )

    def _text(self, lines: pl.DataFrame) -> None:
        if lines.height:
            lines.write_csv(self._file, include_header=False, quote_style="never")


def boundaries(ranges: pl.DataFrame, push: pl.Expr, pop: pl.Expr) -> pl.DataFrame:
    """Begins and ends of nested ranges in the order in which a stack takes them.

    Args:
        ranges: columns start, end, length, by start.
        push, pop: what to give for each begin and end.

    Returns:
        One column: at one instant ends come before begins, inner ends and outer begins first.
    """
    numbered = ranges.with_row_index("number")
    begins = numbered.select(
        push.alias("line"),
        pl.col("start").alias("when"),
        pl.lit(1).alias("begins"),
        (-pl.col("length")).alias("tie"),
        pl.col("number").cast(pl.Int64),
    )
    ends = numbered.select(
        pop.alias("line"),
        pl.col("end").alias("when"),
        pl.lit(0).alias("begins"),
        pl.col("length").alias("tie"),
        -pl.col("number").cast(pl.Int64),
    )
    return pl.concat([begins, ends]).sort("when", "begins", "tie", "number").select("line")


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
    writer: Nvtxt | None = None
    for rank in ranks:
        start = rank.start_ns
        if start is None:
            continue
        if origin_ns is None:
            origin_ns = start
        if start < origin_ns:
            raise EarlierRankError(start)
        writer = writer or Nvtxt(file, title, origin_ns)
        writer.write(rank)
    if writer is None or origin_ns is None:
        raise TraceError(f"{title} holds no event that could be drawn")
    return origin_ns, writer.events


class EarlierRankError(Exception):
    """A rank begins before the origin that was taken from the first one: write again, from ``origin_ns``."""

    def __init__(self, origin_ns: int) -> None:
        super().__init__(origin_ns)
        self.origin_ns = origin_ns
