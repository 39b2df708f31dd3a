"""Takes the rows of a rank apart, piece by piece while they are read, into a ``compact_rank.CompactRank``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

import numpy as np
import polars as pl

from specanalyze.attribution.activities import GRAPH_LAUNCH
from specanalyze.columns import Ints, again, distinct
from specanalyze.formats.compact_rank import (
    COLLECTIVE_FACTS,
    MISSING,
    Array,
    Calls,
    CompactRank,
    DeviceRows,
    OddRowsError,
)
from specanalyze.formats.event_bounds import EARLIEST_NS, LATEST_NS, LONGEST_NS
from specanalyze.formats.event_frame import table
from specanalyze.formats.plain_text import plain, plain_columns
from specanalyze.native.collect import (
    DONE,
    NEW_LOOK,
    NEW_STREAM,
    NEW_THREAD,
    NO_ID,
    Batch,
    Column,
    Columns,
    address,
)
from specschema.events import DEVICE_KINDS, KINDS

_DROPPED: Final = ("op", "mark", "collective")
TORCH_OPERATOR: Final = "aten::"
"""What the names of torch's own operators begin with."""
_COLUMNS: Final = {
    "start": "start_ns",
    "length": "dur_ns",
    "stream": "stream",
    "device": "device",
    "pid": "pid",
    "tid": "tid",
    "id": "correlation",
}
"""Member of a batch -> column of the event table."""
_PLACED: Final = {"ran": "graph_id", "node": "node"}
"""The same of ranks with captured graphs."""
_WITHOUT_ROW: Final = (*_DROPPED, "launch", *DEVICE_KINDS)
"""Kinds whose rows are not in ``CompactRank.events``."""
_MOST: Final = (1 << 16) - 1
"""Looks that 16 bits can number."""
_MOST_PAIRS: Final = 512
"""Streams, and threads, that are looked up one after another."""


class HostRows(Protocol):
    """Host rows of a piece."""

    @staticmethod
    def joined(parts: Sequence[Any]) -> pl.DataFrame:
        """The rows of several in columns of the event table; any types that hold them.

        Raises:
            OddRowsError: they can't be read.
        """


class Piece(Protocol):
    """Some rows of one rank, in file order."""

    def __len__(self) -> int: ...

    def integers(self, name: str) -> Ints | None:
        """A column, MISSING where it is null; None where no row has it."""

    def column(self, name: str) -> Column | None:
        """The same where it lies, for the compiled half; valid as long as the piece."""

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        """A text column as codes (int32, -1: null) into its texts; the same list of texts as long as they are the same."""

    def has(self, name: str) -> bool:
        """Whether the piece has this column."""

    def tells(self, name: str) -> bool:
        """Whether any of its rows has a value there."""

    @property
    def constant(self) -> Mapping[str, int]:
        """Integer columns that have this one value in all rows."""

    def host(self, rows: Array) -> HostRows:
        """Some rows with all their columns, kept as they are until all are there."""

    def facts(self, rows: Array, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of some rows, in the event table's types."""


@dataclass
class _Parts:
    """Rows of one window."""

    columns: Columns
    told: list[pl.DataFrame] = field(default_factory=list)


class _Pairs:
    """Numbered pairs of integers, as the compiled half looks them up."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._array = np.empty((0, 2), dtype=np.int64)

    def add(self, first: int, second: int) -> None:
        """Number a new pair.

        Raises:
            OddRowsError: too many.
        """
        self.pairs.append((first, second))
        if len(self.pairs) > _MOST_PAIRS:
            raise OddRowsError
        self._array = np.array(self.pairs, dtype=np.int64)

    def point(self, batch: Batch, name: str) -> None:
        setattr(batch, f"{name}s", address(self._array))
        setattr(batch, f"{name}_count", len(self.pairs))


class Collector:
    """Collects the rows of one rank, piece by piece, in file order.

    Args:
        compiled: of ``native.collect``.
        nodes: the pieces have all that there is of captured graphs; without it rows of kind ``node`` are odd.
    """

    def __init__(self, compiled: ctypes.CDLL, *, nodes: bool = False) -> None:
        self._c = compiled
        self._nodes = nodes
        self._columns = _COLUMNS | _PLACED if nodes else _COLUMNS
        self._looks: dict[tuple[str, str, str | None], int] = {}
        self._streams, self._threads = _Pairs(), _Pairs()
        self._windows: dict[int | None, _Parts] = {}
        self._host: list[HostRows] = []
        self._seen: set[tuple[str, int | None]] = set()
        self._operator: str | None = None
        self._call_names: set[str] = set()
        self._tables: tuple[Any, ...] = ()
        self._range = (0, 0)

    @property
    def device_rows(self) -> int:
        """Device rows so far, invalid ones included."""
        return sum(parts.columns.rows + parts.columns.invalid for parts in self._windows.values())

    def add(self, piece: Piece) -> None:
        """Append rows.

        Raises:
            OddRowsError: see above; nothing that was collected is of use then.
        """
        if not len(piece):
            return
        kind, kinds = piece.codes("kind")
        if not piece.has("start_ns"):
            raise OddRowsError
        if not self._nodes and "node" in kinds and bool((kind == kinds.index("node")).any()):
            raise OddRowsError
        window = None if "window" in piece.constant else piece.integers("window")
        numbers: list[int | None] = [piece.constant.get("window")]
        if window is not None:
            low, high = int(window.min()), int(window.max())
            found = [low] if low == high else distinct(window)[0].tolist()
            numbers = [None if number == MISSING else number for number in found]
            window = window if len(numbers) > 1 else None
        batch, held = self._batch(piece, kind, kinds)
        host = held[-1]
        facts = [name for name in COLLECTIVE_FACTS if piece.tells(name)]
        device_row = np.empty(len(piece), dtype=np.uint32) if facts else None
        batch.device_row = address(device_row)
        if window is not None:
            batch.window.values = address(window)
        for number in numbers:
            parts = self._windows.get(number)
            if parts is None:
                parts = self._windows[number] = _Parts(Columns(self._c))
            batch.at = batch.device_rows = 0
            batch.wanted = MISSING if number is None else number
            before = parts.columns.rows
            self._take(parts.columns, batch, piece)
            if device_row is not None and batch.device_rows:
                self._add_told(piece, parts, device_row[: batch.device_rows], facts, before)
        self._range = int(batch.earliest), int(batch.latest)
        self._note_kinds(kind, kinds, window, numbers)
        if self._operator is None and "op" in kinds:
            self._operator = _operator(kind == kinds.index("op"), *piece.codes("name"))
        if batch.hosts:
            rows = host[: batch.hosts]
            self._host.append(piece.host(np.sort(rows) if len(numbers) > 1 else rows))

    def _batch(self, piece: Piece, kind: Array, kinds: Sequence[str]) -> tuple[Batch, list[Any]]:
        """What the compiled half takes, and the arrays it points to, that of the host rows last."""
        (name, names), (op, ops) = piece.codes("name"), piece.codes("op")
        if not self._tables or any(a is not b for a, b in zip(self._tables, (kinds, names, ops), strict=False)):
            if not KINDS.keys() >= {*kinds}:
                raise OddRowsError
            group = np.array([_group(text) for text in kinds], dtype=np.int8)
            graph = np.array([False, *(bool(GRAPH_LAUNCH.match(text)) for text in names)], dtype=bool)
            look_of = np.full((len(ops) + 1) * (len(names) + 1) * len(kinds), -1, dtype=np.int32)
            self._tables = (kinds, names, ops, group, graph, look_of)
            self._call_names.update(names)
        *_, group, graph, look_of = self._tables
        host = np.empty(len(piece), dtype=np.uint32)
        batch = Batch(rows=len(piece), kinds=len(kinds), names=len(names), ops=len(ops))
        batch.most_start, batch.most_length = LATEST_NS, LONGEST_NS
        batch.earliest, batch.latest = self._range
        held: list[Any] = [piece]
        for member, column in self._columns.items():
            where = None if column in piece.constant else piece.column(column)
            if where is not None:
                setattr(batch, member, where)
        for member, array in (
            ("kind", kind),
            ("name", name),
            ("op", op if len(ops) else None),
            ("group", group),
            ("graph", graph),
            ("look_of", look_of),
            ("host", host),
        ):
            setattr(batch, member, address(array))
            held.append(array)
        batch.one_device, batch.one_pid = piece.constant.get("device", 0), piece.constant.get("pid", 0)
        self._streams.point(batch, "stream")
        self._threads.point(batch, "thread")
        return batch, held

    def _take(self, columns: Columns, batch: Batch, piece: Piece) -> None:
        """Take a batch's rows, numbering what is new."""
        kinds, names, ops, _, _, look_of = self._tables
        while (why := columns.take(batch)) != DONE:
            row = int(batch.at)
            if why == NEW_LOOK:
                k, n = int(piece.codes("kind")[0][row]), int(piece.codes("name")[0][row]) + 1
                o = int(piece.codes("op")[0][row]) + 1 if len(ops) else 0
                look = (names[n - 1] if n else "", kinds[k], ops[o - 1] if o else None)
                number = self._looks.setdefault(look, len(self._looks))
                if number > _MOST:
                    raise OddRowsError
                look_of[(o * (len(names) + 1) + n) * len(kinds) + k] = number
            elif why == NEW_STREAM:
                self._streams.add(_value(piece, "device", row, 0), _value(piece, "stream", row, -1))
                self._streams.point(batch, "stream")
            elif why == NEW_THREAD:
                self._threads.add(_value(piece, "pid", row, 0), _value(piece, "tid", row, 0))
                self._threads.point(batch, "thread")
            else:
                raise OddRowsError

    def _note_kinds(self, kind: Array, kinds: Sequence[str], window: Ints | None, numbers: list[int | None]) -> None:
        """Remember which kinds that leave no row behind were in which window."""
        for number in numbers:
            if all((text, number) in self._seen for text in kinds if text in _WITHOUT_ROW):
                continue
            mine = kind if window is None else kind[window == (MISSING if number is None else number)]
            codes = np.unique(mine).tolist()
            self._seen.update((kinds[code], number) for code in codes if kinds[code] in _WITHOUT_ROW)

    def _add_told(self, piece: Piece, parts: _Parts, rows: Array, facts: Sequence[str], before: int) -> None:
        frame = piece.facts(rows, facts).with_row_index("row", offset=before)
        frame = frame.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in facts))
        if frame.height:
            parts.told.append(frame.with_columns(pl.col("row").cast(pl.Int64)))

    def finished(
        self,
        key: str,
        rank: int,
        source: str,
        *,
        host: str | None = None,
        world_size: int | None = None,
        base_ns: int = 0,
    ) -> CompactRank:
        """The rank; what was collected is handed over.

        Args:
            base_ns: added to every time.

        Raises:
            OddRowsError: names that a terminal would obey, or device work in no window of a rank that has some.
        """
        if self._range[0] + base_ns < EARLIEST_NS or self._range[1] + base_ns > LATEST_NS:
            raise OddRowsError
        specimens = pl.DataFrame(
            sorted(self._seen, key=repr),
            schema={"kind": pl.String, "window": pl.Int64},
            orient="row",
        ).with_columns(name=pl.when(pl.col("kind") == "op").then(pl.lit(self._operator, dtype=pl.String)))
        frames = [_joined([*rows]) for _, rows in groupby(self._host, key=type)]
        self._host.clear()
        specimens = specimens.with_columns(pl.col("kind", "name").cast(pl.Categorical))
        events = pl.concat([*frames, specimens], how="diagonal_relaxed")
        if base_ns and "start_ns" in events.columns:
            events = events.with_columns(pl.col("start_ns") + base_ns)
        if "start_ns" in events.columns and "name" in events.columns and events["name"].null_count():
            name = pl.col("name").cast(pl.String)
            name = pl.when(pl.col("start_ns").is_not_null()).then(name.fill_null("")).otherwise(name)
            events = events.with_columns(name.cast(events.schema["name"]).alias("name"))
        typed = table(events)
        if any(typed[c].null_count() != events[c].null_count() for c in events.columns if c in typed.columns):
            raise OddRowsError
        events = typed
        texts = [*self._call_names, *(text for look in self._looks for text in look if text)]
        if plain_columns(events) is not events or any(plain(text) != text for text in texts):
            raise OddRowsError
        known = [number for number in self._windows if number is not None]
        nowhere = self._windows.get(None)
        if known and nowhere is not None and nowhere.columns.rows + nowhere.columns.invalid:
            raise OddRowsError
        if known:
            numbers = {number: self._windows[number] for number in sorted(known)}
        else:
            numbers = {0: self._windows.get(None) or _Parts(Columns(self._c))}
        self._windows = {}
        return CompactRank(
            key=key,
            rank=rank,
            source=source,
            host=host,
            world_size=world_size,
            events=events,
            looks=list(self._looks),
            streams=[stream for _, stream in self._streams.pairs],
            threads=self._threads.pairs,
            windows={number: (_device(parts, base_ns), _calls(parts, base_ns)) for number, parts in numbers.items()},
        )


def _operator(mine: Array, name: Array, names: Sequence[str]) -> str | None:
    """One of torch's own operators among some rows, None where there is none; ranges of libraries (gloo:broadcast) are operators by kind, too."""
    codes = np.unique(name[mine]).tolist()
    return next((names[code] for code in codes if code >= 0 and names[code].startswith(TORCH_OPERATOR)), None)


def _joined(parts: Sequence[HostRows]) -> pl.DataFrame:
    """Host rows of one type."""
    return parts[0].joined(parts)


def _group(kind: str) -> int:
    """What collect.c does with a kind."""
    if kind in DEVICE_KINDS:
        return 2
    return 1 if kind == "launch" else -1 if kind in _DROPPED else 0


def _value(piece: Piece, column: str, row: int, otherwise: int) -> int:
    if column in piece.constant:
        return piece.constant[column]
    values = piece.integers(column)
    found = MISSING if values is None else int(values[row])
    return otherwise if found == MISSING else found


def _device(parts: _Parts, base_ns: int) -> DeviceRows:
    columns = parts.columns.device()
    columns["start"] += base_ns
    told = pl.concat(parts.told, how="diagonal_relaxed") if parts.told else pl.DataFrame(schema={"row": pl.Int64})
    return DeviceRows(**columns, told=told, invalid=parts.columns.invalid)


def _calls(parts: _Parts, base_ns: int) -> Calls:
    columns = parts.columns.calls()
    columns["start"] += base_ns
    start, ids = columns["start"], columns["id"]
    if bool((start[1:] < start[:-1]).any()) and again(ids, NO_ID).any():
        order = np.argsort(start, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    return Calls(**columns)
