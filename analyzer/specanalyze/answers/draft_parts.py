"""What the draft phase does once a cycle, and what it repeats with each forward of the draft model.

Where all forwards of a cycle are one graph replay (SGLang's draft graph), what runs outside that graph comes once: cache
slots, the tree. Inside it, what runs before the draft model's first module comes once, too: index tables of all steps.
What follows, between the forwards included, is taken as repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specanalyze.answers.bootstrap import Floats
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.window_work import WindowWork
from specanalyze.columns import Ints, how_many, integers
from specschema.phases import BUCKETS

DRAFT = PHASE_CODE["draft"]


@dataclass(frozen=True)
class DraftParts:
    """The draft phase of one window of one rank.

    Attributes:
        once_ns, all_ns: exposed time by bucket (in the order of BUCKETS): what comes once a cycle, and all.
        once, inside: activities inside graphs: those that come once a cycle, and all.
        replays, instances: graph replays, and ranges of the phase that have one.
    """

    once_ns: Ints
    all_ns: Ints
    once: int
    inside: int
    replays: int
    instances: int

    @classmethod
    def of(cls, work: WindowWork) -> DraftParts:
        none = np.zeros(len(BUCKETS), dtype=np.int64)
        mine = np.flatnonzero(work.phase == DRAFT)
        if not len(work.ranges) or not len(mine):
            return cls(none, none, 0, 0, 0, 0)
        bucket, exposed, call = (column[mine] for column in (work.bucket, work.exposed, work.call))
        in_graph = work.graph[call]
        once = ~in_graph | (in_graph & _before_modules(work, work.node[mine]))
        sums = [
            np.bincount(bucket[rows], weights=exposed[rows], minlength=len(BUCKETS)).astype(np.int64)
            for rows in (once, np.ones(len(mine), dtype=bool))
        ]
        replays, instances = how_many(call[in_graph]), how_many(work.range[mine][in_graph])
        return cls(sums[0], sums[1], int((once & in_graph).sum()), int(in_graph.sum()), replays, instances)


def _before_modules(work: WindowWork, node: NDArray[Any]) -> NDArray[np.bool_]:
    """Which nodes (rows of ``work.nodes``) lie before the first node of their graph that a module added."""
    if work.nodes is None or not work.nodes.height:
        return np.zeros(len(node), dtype=bool)
    graph, ordinal = (integers(work.nodes, name, -1) for name in ("graph_id", "node"))
    owned = work.nodes.get_column("module").is_not_null().to_numpy()
    graphs, number = np.unique(graph, return_inverse=True)
    first = np.full(len(graphs), -1, dtype=np.int64)
    if owned.any():
        least = np.full(len(graphs), np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(least, number[owned], ordinal[owned])
        first = np.where(least == np.iinfo(np.int64).max, -1, least)
    before: NDArray[np.bool_] = (node >= 0) & (ordinal < first[number])[node]
    return before


def once_shares(parts: Sequence[DraftParts]) -> Mapping[str, float]:
    """Share of the draft phase's time that comes once a cycle, by bucket.

    Returns:
        Bucket -> share of its exposed time; ``graph_gap`` -> share of the graph's activities. Empty where nothing tells them
        apart: no graph in the draft phase, or several replays a cycle (one for each forward).
    """
    replays, instances = sum(p.replays for p in parts), sum(p.instances for p in parts)
    if not replays or replays != instances:
        return {}
    once: Floats = np.sum([p.once_ns for p in parts], axis=0).astype(np.float64)
    whole: Floats = np.sum([p.all_ns for p in parts], axis=0).astype(np.float64)
    shares = {b: float(o / w) for b, o, w in zip(BUCKETS, once, whole, strict=True) if w}
    return {**shares, "graph_gap": sum(p.once for p in parts) / sum(p.inside for p in parts)}
