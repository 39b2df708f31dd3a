"""What an export says of each activity, and its partition: the same from narrow columns and from whole tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces
from both_ways import COLLECT, both_sources
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from timelines import some_replays, some_rows

from specanalyze.exports.export_events import EVENT, ExportedRank, exported_ranks
from specanalyze.exports.rank_labels import compact_labels
from specanalyze.formats.event_frame import table
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace

pytestmark = pytest.mark.skipif(COLLECT is None, reason="no C compiler on this machine, or switched off")

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def both(recording: Trace, cycles: tuple[int, int] | None = None) -> list[tuple[ExportedRank, ExportedRank]]:
    assert all(compact_labels(source, None) is not None for source in recording.sources), "not read compactly"
    whole = replace(recording, sources=tuple(replace(source, compact=None) for source in recording.sources))
    return list(zip(*(exported_ranks(trace, None, cycles) for trace in (recording, whole)), strict=True))


def assert_same(got: ExportedRank, want: ExportedRank) -> None:
    texts = ["bucket", "subclass", "phase"]
    for one, other in ((got.partition, want.partition), (all_rows(got), all_rows(want))):
        dull = [pl.col(c).cast(pl.String) for c in texts if c in one.columns]
        assert_frame_equal(one.with_columns(dull), other.with_columns(dull))


def all_rows(rank: ExportedRank) -> pl.DataFrame:
    frame = rank.rows(np.arange(rank.events.height))
    return frame.select(sorted(frame.columns))


@settings(max_examples=25, deadline=None)
@given(some_replays(), some_rows, st.integers(1, 4))
def test_random_timelines(replays: list[dict[str, Any]], rows: list[dict[str, Any]], pieces: int) -> None:
    rows = [row | {"dur_ns": None} if (row["dur_ns"] or 0) < 0 else row for row in rows]
    one = [traces.launch("cudaLaunchKernel", 130, 99), traces.kernel("fused_moe_kernel", 131, 140, 99)]
    source, recording = both_sources(traces.events([*replays, *rows, *one]), pieces)
    for got, want in both(replace(recording, sources=(source,))):
        assert_same(got, want)


@settings(max_examples=15, deadline=None)
@given(some_replays(), st.lists(st.sampled_from([0, 0, 1]), min_size=40, max_size=40))
def test_windows(replays: list[dict[str, Any]], windows: list[int]) -> None:
    numbered = [
        row | {"window": None if row["kind"] == "node" else windows[(row["correlation"] or 0) % 40]} for row in replays
    ]
    verify = [traces.phase("spec.verify", 0, 120, window=number) for number in (0, 1)]
    source, recording = both_sources(table(traces.events([*numbered, *verify])), 2)
    for got, want in both(replace(recording, sources=(source,))):
        assert_same(got, want)


@pytest.mark.parametrize("name", ["sglang_tp2_eagle3_steps2", "vllm_tp1_eagle3_steps2", "embedded_tp2"])
@pytest.mark.parametrize("cycles", [None, (3, 6)])
def test_real_recordings(name: str, cycles: tuple[int, int] | None) -> None:
    recording = open_trace([SAMPLES / f"{name}.parquet"])
    for got, want in both(recording, cycles):
        assert_same(got, want)
        assert got.rows(got.timed()).get_column(EVENT).is_sorted()
