"""One rank, summed while it is read and from its whole tables: what both ways have to agree on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import polars as pl

from specanalyze.answers.draft_parts import DraftParts
from specanalyze.answers.instance_kernels import InstanceKernels, rank_instances
from specanalyze.answers.kernels import KernelTimes, rank_kernels
from specanalyze.answers.layers import window_layers
from specanalyze.attribution.compact_talk import CompactTalk
from specanalyze.attribution.rank_result import RankResult, rank_result, read_rank
from specanalyze.attribution.window_work import WindowWork
from specanalyze.formats.compact_rank import CompactRank, OddRowsError
from specanalyze.formats.frame_piece import FramePiece
from specanalyze.formats.rank_collector import Collector
from specanalyze.native import collect
from specanalyze.trace import RankSource, RankTrace, Trace

COLLECT = collect.compiled()
"""The compiled half; None where this machine has no compiler, or it is switched off."""


def compact(events: pl.DataFrame, pieces: int, *, nodes: bool = True) -> CompactRank | None:
    """A compact rank of events that come in so many pieces."""
    assert COLLECT is not None
    collector = Collector(COLLECT, nodes=nodes)
    rows = max(1, -(-events.height // pieces))
    try:
        for first in range(0, events.height, rows):
            collector.add(FramePiece(events.slice(first, rows), {}))
        return collector.finished("0", 0, "a test")
    except OddRowsError:
        return None


def both(events: pl.DataFrame, pieces: int) -> tuple[RankResult, RankResult]:
    """What a rank comes to: summed while it is read, and from its whole tables."""
    summed, trace = both_sources(events, pieces)
    results = rank_result(summed, trace), rank_result(replace(summed, compact=None), trace)
    assert isinstance(results[0].communication, CompactTalk), "it was not read compactly"
    return results


def both_sources(events: pl.DataFrame, pieces: int) -> tuple[RankSource, Trace]:
    """A rank that can be read both ways, and its recording."""
    whole = RankSource("0", "a test", lambda: RankTrace("0", 0, "a test", events))
    return replace(whole, compact=lambda: compact(events, pieces)), Trace("a test", (whole,))


def assert_same_windows(source: RankSource, trace: Trace) -> None:
    """What is told of single activities and of the starts of cycles is the same both ways, and so is what is made of them."""
    got, want = (read_rank(s, trace, look=looked) for s in (source, replace(source, compact=None)))
    for (one, kernels, instances, draft, layers), (other, more_kernels, more_instances, more_draft, more_layers) in zip(
        got.looked, want.looked, strict=True
    ):
        assert one.equals(other)
        assert instances == more_instances
        assert draft == more_draft
        assert layers == more_layers
        assert kernels == more_kernels
    for mine, theirs in zip(got.marks, want.marks, strict=True):
        assert mine.window == theirs.window
        for column in ("range_end", "instants", "before"):
            assert getattr(mine, column).tolist() == getattr(theirs, column).tolist(), column


def looked(work: WindowWork) -> tuple[pl.DataFrame, list[Any], list[Any], list[Any], list[Any]]:
    """A window's activities in no order, and its kernels, in all and by instance, draft phase and layers."""
    has_gap = work.gap > 0
    rows = pl.DataFrame(
        {
            "length": work.length.astype(np.int64),
            "exposed": work.exposed.astype(np.int64),
            "gap": work.gap,
            "gap_range": np.where(has_gap, work.gap_range, -1),
            "gap_phase": np.where(has_gap, work.gap_phase, -1),
            "name": [work.names[n] for n in work.name.tolist()],
            "bucket": work.bucket.astype(np.int64),
            "phase": work.phase.astype(np.int64),
            "subclass": [work.subclasses[n] for n in work.subclass.tolist()],
            "classified": work.classified,
            "range": work.range.astype(np.int64),
            "called": work.call >= 0,
            "in_graph": work.in_graph,
            "node": work.node.astype(np.int64),
        },
        schema_overrides={"name": pl.String, "subclass": pl.String},
    )
    kernels = rank_kernels("0", [KernelTimes.of(work)])
    layers = [window_layers(work, phase) for phase in ("verify", "draft", "outside", "unattributed")]
    draft = DraftParts.of(work)
    instances = rank_instances([InstanceKernels.of(work)])
    by_instance = instances.times.join(instances.keys.with_row_index("kernel"), on="kernel", how="left").drop("kernel")
    return (
        rows.sort(rows.columns).with_columns(window=pl.lit(work.window)),
        kernels.sort(kernels.columns).rows(),
        by_instance.sort(by_instance.columns).rows(),
        [*draft.once_ns.tolist(), *draft.all_ns.tolist(), draft.once, draft.inside, draft.replays, draft.instances],
        [(w.times.sort(w.times.columns).rows(), w.placed, w.replays, w.unplaced_ns, w.nodes_known) for w in layers],
    )


def assert_same(got: RankResult, want: RankResult) -> None:
    for field in fields(want.breakdown):
        one, other = getattr(got.breakdown, field.name), getattr(want.breakdown, field.name)
        if isinstance(other, pl.DataFrame):
            assert one.schema == other.schema
            assert one.equals(other), field.name
        else:
            assert one == other, field.name
    assert got.cycles.equals(want.cycles)
    assert got.communication is not None
    assert want.communication is not None
    assert got.communication.replays.keys() == want.communication.replays.keys()
    for phase, sizes in want.communication.replays.items():
        assert got.communication.replays[phase].tolist() == sizes.tolist()
    order = ["start_ns", "end_ns", "name", "phase", "replay", "position"]
    columns = [c for c in want.communication.kernels.columns if c != "index"]
    one, other = (r.communication.kernels.select(columns).sort(order) for r in (got, want))  # type: ignore[union-attr]
    assert one.equals(other)
