"""The kernels of one instance of a phase, in the order in which the host asked for them, with the module of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.analysis import WindowAnalysis, analyse_rank
from specanalyze.attribution.eager_modules import has_module_ranges
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.columns import Ints, distinct, factorize, integers, texts
from specanalyze.trace import RankSource, Trace
from specschema.phases import BUCKETS

COPY: Final = "(copy)"
FILL: Final = "(fill)"
_OF_TYPE: Final = {"memcpy": COPY, "memset": FILL}
"""A copy of a graph may run as a kernel (memcpy32_post), eagerly it is a copy: what does not compute is compared by its kind."""

KERNELS: Final = {
    "kernel": pl.String,
    "name": pl.String,
    "in_replay": pl.Boolean,
    "known": pl.Boolean,
    "module": pl.String,
    "module_class": pl.String,
    "bucket": pl.String,
    "subclass": pl.String,
}
"""Columns of ``KernelSequence.kernels``."""


@dataclass(frozen=True)
class KernelSequence:
    """One instance of a phase on one rank: that of the median number of activities.

    Attributes:
        rank: its key.
        kernels: columns of KERNELS, one row an activity. Work of graph replays is in the order in which its nodes were captured
            where the node map places it, all else in the order of its launch calls: on any number of streams the order of the
            model's code. kernel: what it is compared by; known: whether its module is known, which is null outside of modules.
        instances: instances of the phase with device work; alike: those with these very kernels and modules.
        replays, placed: graph replays of the phase's instances, and those whose every activity has its node.
        ranges: the recording has module ranges.
    """

    rank: str
    kernels: pl.DataFrame
    instances: int
    alike: int
    replays: int
    placed: int
    ranges: bool


def kernel_sequence(
    source: RankSource, trace: Trace, phase: str, phase_map: Mapping[str, str] | None = None
) -> KernelSequence:
    """The phase's kernels on one rank."""
    analysis = analyse_rank(source.read(), phase_map)
    ranges = has_module_ranges(analysis.trace.events)
    windows = [_Rows.of(window, phase, ranges) for window in analysis.windows]
    lengths = np.concatenate([window.lengths for window in windows])
    replays, placed = sum(w.replays for w in windows), sum(w.placed for w in windows)
    if not len(lengths):
        return KernelSequence(source.key, pl.DataFrame(schema=KERNELS), 0, 0, replays, placed, ranges)
    chosen = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    instances = [instance for window in windows for instance in window.instances()]
    kernels = instances[chosen]
    alike = sum(one.equals(kernels) for one in instances if one.height == kernels.height)
    return KernelSequence(source.key, kernels, len(instances), alike, replays, placed, ranges)


@dataclass(frozen=True)
class _Rows:
    """Kernels of all instances in one window, instance by instance.

    Attributes:
        table: columns of KERNELS.
        lengths: kernels of each instance.
    """

    table: pl.DataFrame
    lengths: Ints
    replays: int
    placed: int

    @staticmethod
    def of(window: WindowAnalysis, phase: str, ranges: bool) -> _Rows:
        acts = window.activities
        mine = np.flatnonzero(acts.phase == PHASE_CODE[phase])
        launch = acts.launch[mine]
        if acts.placement is None:
            node_row, nodes = np.full(len(mine), -1, dtype=np.int64), pl.DataFrame()
        else:
            node_row, nodes = acts.placement.node_row[mine], acts.placement.nodes
        in_replay = np.append(acts.launches.graph, False)[launch] & (launch >= 0)
        ordinal = np.append(integers(nodes, "node", -1), -1)[node_row]
        by_map = in_replay & (ordinal >= 0)
        start = acts.start[mine]
        asked = np.where(launch >= 0, np.append(acts.launches.start, 0)[launch], start)
        order = np.lexsort((start, np.where(by_map, ordinal, start), asked, acts.range[mine]))
        mine, node_row, in_replay, by_map = mine[order], node_row[order], in_replay[order], by_map[order]
        known = by_map | (~in_replay & ranges)
        node_row = np.where(known, node_row, -1)
        name = pl.Series([*acts.names, None], dtype=pl.String).gather(acts.name[mine])
        table = pl.DataFrame(
            {
                "kernel": _compared(name, acts.rows, acts.row[mine], nodes, np.where(by_map, node_row, -1)),
                "name": name,
                "in_replay": in_replay,
                "known": known,
                **{
                    column: pl.Series([*texts(nodes, column), None], dtype=pl.String).gather(
                        np.where(node_row < 0, nodes.height, node_row)
                    )
                    for column in ("module", "module_class")
                },
                "bucket": pl.Series(list(BUCKETS), dtype=pl.String).gather(acts.bucket[mine]),
                "subclass": pl.Series(list(acts.subclasses), dtype=pl.String).gather(acts.subclass[mine]),
            },
            schema=KERNELS,
        )
        whole = pl.DataFrame({"launch": acts.launch[mine][in_replay], "by_map": by_map[in_replay]})
        per_replay = whole.group_by("launch").agg(pl.col("by_map").all())
        placed = int(per_replay.get_column("by_map").sum())
        return _Rows(table, _counts(acts.range[mine]), per_replay.height, placed)

    def instances(self) -> list[pl.DataFrame]:
        ends = np.cumsum(self.lengths)
        return [
            self.table.slice(end - length, length)
            for end, length in zip(ends.tolist(), self.lengths.tolist(), strict=True)
        ]


def _counts(ranges: Ints) -> Ints:
    """Activities of each range, by the range's number."""
    used, place = distinct(ranges)
    return np.bincount(place, minlength=len(used)).astype(np.int64)


def _compared(
    name: pl.Series, rows: pl.DataFrame, row: Ints, nodes: pl.DataFrame, node_row: NDArray[np.int64]
) -> pl.Series:
    """What each activity is compared by: its name, or that it copies or fills."""
    code, kinds = factorize(rows, "kind")
    plain = pl.Series([_OF_TYPE.get(kind) for kind in [*kinds, ""]], dtype=pl.String).gather(
        np.where(code[row] < 0, len(kinds), code[row])
    )
    of_node = pl.Series([_OF_TYPE.get(kind or "") for kind in [*texts(nodes, "node_type"), None]], dtype=pl.String)
    captured = of_node.gather(np.where(node_row < 0, nodes.height, node_row))
    return pl.DataFrame([captured.alias("a"), plain.alias("b"), name.alias("c")]).select(pl.coalesce("a", "b", "c"))[
        "a"
    ]
