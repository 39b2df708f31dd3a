"""One rank, summed while it is read and from its whole tables: what both ways have to agree on."""

from __future__ import annotations

from dataclasses import fields, replace

import polars as pl

from specanalyze.attribution.compact_talk import CompactTalk
from specanalyze.attribution.rank_result import RankResult, rank_result
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
    whole = RankSource("0", "a test", lambda: RankTrace("0", 0, "a test", events))
    summed = replace(whole, compact=lambda: compact(events, pieces))
    trace = Trace("a test", (whole,))
    results = rank_result(summed, trace), rank_result(whole, trace)
    assert isinstance(results[0].communication, CompactTalk), "it was not read compactly"
    return results


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
