"""Rows that a scanner holds as a ``rank_collector.Piece``: what ``kineto_columns.by_kind`` makes of them, without a frame of them.

Only rows without facts about collectives; the others go through the frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl

from specanalyze.columns import Ints
from specanalyze.formats.compact_rank import MISSING, Array, OddRowsError
from specanalyze.formats.event_frame import DTYPES
from specanalyze.formats.frame_piece import FrameRows
from specanalyze.formats.kineto_columns import NODE_MASK
from specanalyze.formats.kineto_scan import KINDS, Rows, Scanner
from specanalyze.native.collect import Column, address
from specschema.events import DEVICE_KINDS

_KINDS: Final = [*KINDS, "cycle"]
_MARK: Final = KINDS.index("mark")
_CYCLE_NAME: Final = "spec.cycle"


class ScannedPiece:
    """Some rows of one rank, valid until the scanner takes more.

    Args:
        nodes: with the graph and the node that device rows name.

    Raises:
        OddRowsError: device work of several processes, or host rows whose process has no number.
    """

    def __init__(self, scan: Scanner, rows: Rows, *, nodes: bool = False) -> None:
        self._rows = rows.last - rows.first
        kind, self._name = scan.codes(0, rows).copy(), scan.codes(1, rows)
        numbers = {name: scan.numbers(name, rows) for name in ("ts_ns", "dur_ns", "pid", "tid")}
        given = {name: scan.numbers(name, rows) for name in ("correlation", "device", "stream")}
        nothing = np.full(self._rows, MISSING, dtype=np.int64)
        ts, dur, pid, tid = (nothing if values is None else values for values in numbers.values())
        correlation = given["correlation"]
        of_kind = np.array([text in DEVICE_KINDS for text in _KINDS])
        device = of_kind[kind]
        timeless = ts == MISSING
        # What is no event becomes a mark, which nothing counts.
        useless = (timeless & ~device) | (
            np.isin(kind, [i for i, text in enumerate(_KINDS) if text == "launch"])
            & (True if correlation is None else correlation == MISSING)
        )
        kind[useless] = _MARK
        self._names = ["", *scan.names]
        called_cycle = [code for code, text in enumerate(scan.names) if text == _CYCLE_NAME]
        cycle = (kind == _KINDS.index("phase")) & np.isin(self._name, called_cycle)
        kind[cycle] = _KINDS.index("cycle")
        nameless = pid == MISSING
        hosts = np.isin(kind, [i for i, text in enumerate(_KINDS) if text in ("phase", "cycle", "launch")])
        if bool((nameless & hosts).any()) or bool((nameless & device & scan.in_words(rows)).any()):
            raise OddRowsError
        start = np.where(timeless, 0, ts)
        length = np.where((dur < 0) | (device & (start == 0)), MISSING, dur)
        self._kind = kind
        self._integers = {"start_ns": start, "dur_ns": length, "pid": pid, "tid": tid}
        if correlation is not None:
            self._integers["correlation"] = correlation
        for name, number in (("device", pid), ("stream", tid)):
            values = given[name]
            values = number if values is None else values
            lacking = (values == MISSING) & device
            self._integers[name] = np.where(lacking, number, values) if bool(lacking.any()) else values
        if nodes:
            self._add_nodes(scan.numbers("graph_id", rows), scan.numbers("node", rows), device)

    def _add_nodes(self, graph: Array | None, node: Array | None, device: Array) -> None:
        """Ids of device work in graphs, where any row has some."""
        told = graph if node is None else node
        if told is None:
            return
        if graph is not None and node is not None:
            told = np.where(node == MISSING, graph, node)
        graphed = device & (told != MISSING) & (told != 0)
        if graph is not None:
            self._integers["graph_id"] = np.where(graphed, graph, MISSING)
        if node is not None:
            self._integers["node"] = np.where(graphed & (node != MISSING), node & NODE_MASK, MISSING)

    def __len__(self) -> int:
        return self._rows

    @property
    def constant(self) -> Mapping[str, int]:
        return {"window": 0}

    def has(self, name: str) -> bool:
        return name in self._integers

    def tells(self, name: str) -> bool:
        return name in self._integers

    def integers(self, name: str) -> Ints | None:
        return self._integers.get(name)

    def column(self, name: str) -> Column | None:
        values = self._integers.get(name)
        return None if values is None else Column(values=address(values))

    @cached_property
    def _name_codes(self) -> Array:
        return np.ascontiguousarray(self._name + 1, dtype=np.int32)

    def codes(self, name: str) -> tuple[Array, Sequence[str]]:
        if name == "kind":
            return self._kind, _KINDS
        return (self._name_codes, self._names) if name == "name" else (np.full(self._rows, -1, dtype=np.int32), [])

    def host(self, rows: Array) -> FrameRows:
        texts = {"kind": (self._kind, _KINDS), "name": (self._name_codes, self._names)}
        columns = [
            pl.Series(name, values, dtype=pl.String).gather(codes[rows]) for name, (codes, values) in texts.items()
        ]
        for name in ("pid", "tid", "start_ns", "dur_ns"):
            values = self._integers[name][rows]
            missing = values == MISSING
            column = pl.Series(name, values)
            columns.append(column.set(pl.Series(missing), None) if bool(missing.any()) else column)
        frame = pl.DataFrame(columns).with_columns(pl.col("kind", "name").cast(pl.Categorical))
        return FrameRows(frame.with_columns(pl.lit(0, dtype=DTYPES["window"]).alias("window")))

    def facts(self, rows: Array, columns: Sequence[str]) -> pl.DataFrame:
        raise AssertionError(f"rows without facts have none of {columns}")
