"""Host stamps -> rows of kind ``phase`` and ``cycle``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from speccollect.cycles import segment as seg
from speccollect.cycles.segment import Segment
from speccollect.parts.slices import list_array
from speccollect.parts.table import coded, event_table, known
from specschema.events import EVENT_SCHEMA
from specschema.phases import CYCLE, range_name

COMMITTING_MODES: Final = ("speculative", "decode", "mixed")
"""Modes whose cycles commit tokens that ``accept`` tells of."""


class Origin:
    """Who recorded the rows.

    Attributes:
        rank: global rank.
        pid: process id.
        tid: host thread that runs the cycles.
    """

    __slots__ = ("pid", "rank", "tid")

    def __init__(self, rank: int, pid: int, tid: int) -> None:
        self.rank = rank
        self.pid = pid
        self.tid = tid


def phase_rows(segment: Segment, names: Sequence[str], origin: Origin) -> tuple[pa.Table, int]:
    """Phase rows of a segment, and how many ranges were never closed (left out)."""
    cells = segment.phases
    # an end before its start: the host's clock was set back in between (the recording says so)
    closed = cells[(cells[:, seg.END] > 0) & (cells[:, seg.END] >= cells[:, seg.START])]
    start = closed[:, seg.START]
    table = event_table(
        len(closed),
        {
            "kind": "phase",
            "rank": origin.rank,
            "pid": origin.pid,
            "tid": origin.tid,
            "name": coded(closed[:, seg.NAME], [range_name(n) for n in names]),
            "start_ns": start,
            "dur_ns": closed[:, seg.END] - start,
            "cycle": known(closed[:, seg.CYCLE], pa.int64()),
            "window": segment.window,
        },
    )
    return table, len(cells) - len(closed)


def cycle_rows(
    segment: Segment,
    names: Sequence[str],
    origin: Origin,
    *,
    measured: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
) -> tuple[pa.Table, int]:
    """Cycle rows of a segment, and how many cycles were never ended (left out).

    Args:
        segment: sealed; its lists are read.
        names: recorder's names, by code.
        origin: rank, pid and thread.
        measured: cycle numbers, starts and durations of the profiler's own cycle ranges, used instead of the stamps.
    """
    cells = segment.cycles
    count = len(cells)
    start = cells[:, seg.START].copy()
    duration = cells[:, seg.END] - start
    if measured is not None:
        numbers, starts, durations = measured
        start[numbers - segment.first_cycle] = starts
        duration[numbers - segment.first_cycle] = durations
    rows = np.flatnonzero((cells[:, seg.END] > 0) & (duration >= 0))

    listed = [segment.rows[i] for i in rows.tolist()]

    def lists(name: str, place: int) -> pa.Array:
        return list_array([row[place] or None for row in listed], EVENT_SCHEMA.field(name).type)

    kept = cells[rows]
    table = event_table(
        len(rows),
        {
            "kind": "cycle",
            "rank": origin.rank,
            "pid": origin.pid,
            "tid": origin.tid,
            "name": range_name(CYCLE),
            "start_ns": start[rows],
            "dur_ns": duration[rows],
            "cycle": segment.first_cycle + rows,
            "mode": coded(kept[:, seg.MODE], names),
            "batch_size": known(kept[:, seg.BATCH_SIZE], pa.int32()),
            "draft_tokens": known(kept[:, seg.DRAFT_TOKENS], pa.int32()),
            "graph_batch_size": known(kept[:, seg.GRAPH_BATCH_SIZE], pa.int32()),
            "context_tokens": known(kept[:, seg.CONTEXT_TOKENS], pa.int64()),
            "request_ids": lists("request_ids", seg.REQUEST_IDS),
            "accept_lengths": lists("accept_lengths", seg.ACCEPT_LENGTHS),
            "accepted_draft_tokens": lists("accepted_draft_tokens", seg.ACCEPTED_DRAFT_TOKENS),
            "window": segment.window,
        },
    )
    return table, count - len(rows)
