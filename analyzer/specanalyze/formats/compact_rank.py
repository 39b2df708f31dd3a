"""One rank as the breakdown needs it: a few narrow arrays instead of the event table, built piece by piece while it is read.

A device row takes about 20 bytes, a launch call 15, where a row of the event table takes 75. Rows that the breakdown does not look
at (CPU operators, marks) are not kept. What is unusual (times that no clock gives, control characters in names, ...) is judged in one
place, by the whole-table path: ``rank_collector`` raises OddRowsError, and the rank is read that way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints

Array = NDArray[Any]

MISSING: Final = int(np.iinfo(np.int64).min)
"""Stands for null in integer columns."""
COLLECTIVE_FACTS: Final = ("op", "dtype", "elements", "group", "group_ranks", "seq")
"""Columns of communication kernels that only few rows fill."""


class OddRowsError(Exception):
    """Rows that only the whole-table path can judge."""


def _nothing() -> Array:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class DeviceRows:
    """Device rows with a usable time, in order of start (equal starts in file order).

    Attributes:
        start: ns, int64.
        length: ns, uint32 where all fit, else int64.
        stream: index into ``CompactRank.streams``, uint16.
        look: index into ``CompactRank.looks``, uint16.
        id: correlation id less a number that is the same for all rows and calls, int32; NO_ID where unknown.
        told: what few rows tell of collectives: columns row (index into these arrays) and those of COLLECTIVE_FACTS that occur.
        invalid: rows dropped because they have no usable time.
        ran, node: the captured graph and its node that each row names, int32, -1 where it names none; empty where no row does, and
            where the rank has no captured graphs.
    """

    start: Ints
    length: Array
    stream: Array
    look: Array
    id: Array
    told: pl.DataFrame
    invalid: int
    ran: Array = field(default_factory=_nothing)
    node: Array = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Calls:
    """Launch calls, in file order; by start where two have one id, so that the outer one comes first.

    Attributes:
        start: ns.
        id: as that of device rows.
        thread: index into ``CompactRank.threads``, uint16.
        graph: graph launches.
    """

    start: Ints
    id: Array
    thread: Array
    graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class CompactRank:
    """One rank.

    Attributes:
        key, rank, source, host, world_size: as ``RankTrace``.
        events: phase, cycle, node, request and other host rows as the event table has them; and of every kind and window that the rank has
            one row, without a time, so that what is asked of a whole table (which windows, was a profiler there) is answered; that of
            operators has the name of one of torch's own, where there is any.
        looks: (name, kind, operation or None) of device rows.
        streams: stream id of each (device, stream).
        threads: (pid, tid).
        windows: number of each window -> its rows.
    """

    key: str
    rank: int
    source: str
    host: str | None
    world_size: int | None
    events: pl.DataFrame
    looks: list[tuple[str, str, str | None]]
    streams: list[int]
    threads: list[tuple[int, int]]
    windows: dict[int, tuple[DeviceRows, Calls]]
