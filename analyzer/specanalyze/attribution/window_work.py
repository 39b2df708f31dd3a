"""The device activities of one window in narrow columns, with what the partition gave each: what is said of single kernels comes from here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.activities import BUCKET_CODE, compute_code
from specanalyze.attribution.analysis import WindowAnalysis
from specanalyze.attribution.compact_nodes import RankNodes
from specanalyze.attribution.compact_window import JoinedWindow, Looks, WindowSums
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.columns import Ints
from specanalyze.native.timeline import Array, Stretches
from specschema.phases import OUTSIDE, UNATTRIBUTED


@dataclass(frozen=True)
class WindowWork:
    """One window of one rank; integers are as narrow as they came.

    Attributes:
        window: its number.
        ranges: recognised ranges; without any there is no partition, and nothing is exposed.
        length: ns of each activity.
        exposed: ns that the partition gave it.
        gap, gap_range: ns of the graph gap that ends where it begins, and the range of that gap's launch call (-1: none).
        name: code into ``names``.
        bucket, phase: codes of BUCKET_CODE and PHASE_CODE.
        subclass: code into ``subclasses``.
        classified: False where neither map nor table knew it.
        range: index of the recognised range it belongs to, -1 where none.
        call: number of its launch call, -1 where none was recorded.
        graph: of each launch call, whether it is a graph launch; one False more, for -1.
        node: row of ``nodes``, -1 where none is known.
        nodes: the node rows; None of a rank without captured graphs.
        whole: of each range, whether all its records are there (``complete`` of ``instances.instance_table``); one True more, for -1.
    """

    window: int
    ranges: Ranges
    length: Array
    exposed: Array
    gap: Ints
    gap_range: Array
    name: Array
    names: list[str]
    bucket: Array
    phase: Array
    subclass: Array
    subclasses: list[str]
    classified: NDArray[np.bool_]
    range: Array
    call: Array
    graph: NDArray[np.bool_]
    node: Array
    nodes: pl.DataFrame | None = field(default=None)
    whole: NDArray[np.bool_] = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.length)

    @property
    def in_whole(self) -> NDArray[np.bool_]:
        """Activities of instances whose records are whole, and of none."""
        return self.whole[self.range]

    @property
    def in_graph(self) -> NDArray[np.bool_]:
        """Activities of graph replays."""
        return self.graph[self.call]

    @property
    def gap_phase(self) -> Ints:
        """Phase code of each one's gap; meaningless where there is none."""
        return np.append(self.ranges.phase, PHASE_CODE[OUTSIDE])[self.gap_range]


def analysed_work(window: WindowAnalysis, whole: NDArray[np.bool_] | None = None) -> WindowWork:
    """Of a window that was analysed through whole tables.

    Args:
        window: of ``analysis.analyse_rank``.
        whole: ranges whose records are whole; None where all are.
    """
    acts, part = window.activities, window.partition
    exposed, gap = np.zeros(len(acts), dtype=np.int64), np.zeros(len(acts), dtype=np.int64)
    gap_range = np.full(len(acts), -1, dtype=np.int64)
    if part is not None:
        length = part.end - part.start
        held = part.activity >= 0
        np.add.at(exposed, part.activity[held], length[held])
        # A gap inside a replay is the time its next activity had to wait for.
        gaps = np.flatnonzero(part.bucket == BUCKET_CODE["graph_gap"])
        gaps = gaps[gaps < len(length) - 1]
        gaps = gaps[held[gaps + 1]]
        after = part.activity[gaps + 1]
        gap[after], gap_range[after] = length[gaps], part.range[gaps]
    placement = acts.placement
    return WindowWork(
        window.window,
        window.ranges,
        acts.end - acts.start,
        exposed,
        gap,
        gap_range,
        acts.name,
        list(acts.names),
        acts.bucket,
        acts.phase,
        acts.subclass,
        list(acts.subclasses),
        acts.classified,
        acts.range,
        acts.launch,
        np.append(acts.launches.graph, False),
        np.full(len(acts), -1, dtype=np.int64) if placement is None else placement.node_row,
        None if placement is None else placement.nodes,
        whole=np.append(np.ones(len(window.ranges), dtype=bool) if whole is None else whole, True),
    )


def joined_work(window: JoinedWindow, sums: WindowSums, looks: Looks, nodes: RankNodes | None) -> WindowWork:
    """Of a window of a compact rank, summed with its stretches kept."""
    device, calls, ranges = window.device, window.calls, window.ranges
    rows = len(device)
    kept = None if sums.partition is None else sums.partition.stretches
    if kept is None:
        none = np.full(rows, -1, dtype=np.int32)
        kept = Stretches(np.zeros_like(device.length), np.zeros(rows, dtype=np.int64), none)
    called = window.call >= 0
    of_range = np.append(window.call_range, np.int32(-1))[window.call]
    range_phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE]).astype(np.uint8)
    phase = np.where(called, range_phase[of_range], np.uint8(PHASE_CODE[UNATTRIBUTED]))
    subclasses = list(dict.fromkeys(looks.subclass))
    code = {text: i for i, text in enumerate(subclasses)}
    none_known = np.empty(0, dtype=np.uint16)
    subclass = np.array([code[s] for s in looks.subclass], dtype=np.uint16)[device.look] if rows else none_known
    classified = looks.classified[device.look] if rows else np.empty(0, dtype=bool)
    node = np.broadcast_to(np.int32(-1), (rows,))
    if nodes is not None and window.placed is not None and window.by_map is not None:
        node = window.placed.node
        classified = classified | window.by_map
        decided = np.flatnonzero(window.by_map & compute_code(window.bucket))
        own, subclasses = nodes.subclasses(subclasses)
        subclass[decided] = own[node[decided], window.bucket[decided]]
    return WindowWork(
        window.number,
        ranges,
        device.length,
        kept.exposed,
        kept.gap,
        kept.gap_range,
        device.look,
        [name for name, _, _ in looks.looks],
        window.bucket,
        phase,
        subclass,
        subclasses,
        classified,
        of_range,
        window.call,
        np.append(calls.graph, False),
        node,
        None if nodes is None else nodes.map.rows,
        whole=np.append((sums.lost == 0) & ~sums.off, True),
    )
