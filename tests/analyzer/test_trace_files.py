"""trace.parquet: exact round trip, one rank at a time, and what damaged or foreign files say."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from specanalyze.formats import trace_writer
from specanalyze.formats.event_frame import ALWAYS, DTYPES, table
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import read_trace, write_trace
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema import metadata
from specschema.errors import TraceError, UsageError
from specschema.events import EVENT_SCHEMA

CASES = Path(__file__).parents[1] / "cases"


def trace_of(*ranks: RankTrace, **sections: Any) -> Trace:
    sources = tuple(RankSource(key=r.key, source=r.source, read=lambda r=r: r) for r in ranks)  # type: ignore[misc]
    return Trace(name="made up", sources=sources, metadata=sections)


def rank_of(rank: int, rows: list[dict[str, Any]], **more: Any) -> RankTrace:
    frame = pl.DataFrame(rows, schema={key: DTYPES[key] for key in (rows[0] if rows else {})})
    events = (
        table(frame.with_columns(pl.lit(rank).alias("rank")))
        if rows
        else table(pl.DataFrame(schema={"rank": pl.Int32}))
    )
    return RankTrace(key=str(rank), rank=rank, source="made up", events=events, **more)


_CYCLE = {
    "kind": "cycle",
    "name": "spec.cycle",
    "pid": 7,
    "start_ns": 1790857026000000001,
    "dur_ns": 4_600_000,
    "tid": 7,
    "cycle": 3,
    "mode": "speculative",
    "request_ids": ["r1", "r2"],
    "accept_lengths": [3, None],
    "accepted_draft_tokens": [],
    "window": None,
}
_KERNEL = {
    "kind": "kernel",
    "name": "flash",
    "pid": 7,
    "start_ns": 5,
    "dur_ns": None,
    "device": 1,
    "stream": 7,
    "window": 0,
}


def test_round_trip_keeps_every_value(tmp_path: Path) -> None:
    rows = [{**dict.fromkeys({**_CYCLE, **_KERNEL}), **row} for row in (_CYCLE, _KERNEL)]
    written = [rank_of(1, rows, host="0123456789ab", world_size=2), rank_of(0, rows[1:], device="cpu", world_size=2)]
    recording = {"source": "import", "device": "cuda"}
    trace = trace_of(*written, recording=recording, clock={"unit": "ns"}, environment={"gpu": ["NVIDIA H200"]})
    trace.warnings.append("trace.json names no rank")
    path = tmp_path / "trace.parquet"

    write_trace(trace, path)
    read = read_trace([path])

    assert [source.key for source in read.sources] == ["0", "1"]
    ranks = {rank.key: rank for rank in read.ranks()}
    for rank in written:
        found = ranks[rank.key]
        assert_frame_equal(found.events, rank.events, categorical_as_str=False)
        assert found.source == str(path)
        assert (found.rank, found.host, found.world_size) == (rank.rank, rank.host, rank.world_size)
    assert read.warnings == ["trace.json names no rank"]
    assert read.metadata["environment"] == {"gpu": ["NVIDIA H200"]}
    assert read.metadata["clock"] == {"unit": "ns"}
    assert read.metadata["recording"] == {**recording, "warnings": read.warnings}


_INT = st.none() | st.integers(-(2**63), 2**63 - 1)
_STR = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_LIST = st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["kernel", "launch", "cycle", "node"]),
                "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
                "start_ns": st.integers(-(2**63), 2**63 - 1),
                **dict.fromkeys(("dur_ns", "pid", "tid", "correlation", "node", "cycle", "seq"), _INT),
                **dict.fromkeys(("op", "module", "grid"), _STR),
                **dict.fromkeys(("accept_lengths", "group_ranks"), _LIST),
            }
        ),
        max_size=20,
    )
)
def test_round_trip_of_any_values(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    rank = rank_of(0, rows)
    path = tmp_path / "trace.parquet"
    write_trace(trace_of(rank), path, force=True)
    (found,) = read_trace([path]).ranks()
    assert_frame_equal(found.events, rank.events)


@pytest.mark.parametrize(
    "case", ["06-comm-kernel-names", "08-seq-numbers-when-a-rank-starts-late", "15-invalid-timestamps-and-durations"]
)
def test_round_trip_of_imported_traces(tmp_path: Path, case: str) -> None:
    trace = open_trace([CASES / case])
    write_trace(trace, tmp_path / "trace.parquet")
    for before, after in zip(trace.ranks(), read_trace([tmp_path / "trace.parquet"]).ranks(), strict=True):
        assert_frame_equal(after.events, before.events)
        assert (after.key, after.rank, after.world_size, after.device) == (
            before.key,
            before.rank,
            before.world_size,
            before.device,
        )


def test_real_traces_round_trip_in_ten_bytes_an_event(reference: Path, tmp_path: Path) -> None:
    trace = open_trace(sorted((reference / "traces/sglang_h200/tp2").glob("e2_m17_rank*.json.gz")))
    path = tmp_path / "trace.parquet"
    write_trace(trace, path)
    events = 0
    for before, after in zip(trace.ranks(), read_trace([path]).ranks(), strict=True):
        assert_frame_equal(after.events, before.events)
        events += before.events.height
    assert path.stat().st_size < 10 * events


def test_file_is_private_whole_and_of_the_format_s_schema(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(open_trace([CASES / "07-cross-rank-wait-custom-allreduce"]), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["trace.parquet"]
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(EVENT_SCHEMA)
    assert {file.metadata.row_group(g).column(0).compression for g in range(file.num_row_groups)} == {"ZSTD"}
    assert [file.read_row_group(g)["rank"].unique().to_pylist() for g in range(file.num_row_groups)] == [[0], [1]]


def test_large_rank_has_several_row_groups_and_none_holds_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "ROWS_PER_GROUP", 4)
    path = tmp_path / "trace.parquet"
    trace = open_trace([CASES / "07-cross-rank-wait-custom-allreduce"])
    write_trace(trace, path)
    file = pq.ParquetFile(path)
    ranks = [file.read_row_group(g)["rank"].unique().to_pylist() for g in range(file.num_row_groups)]
    assert ranks == [[0], [0], [0], [1], [1], [1]]
    for before, after in zip(trace.ranks(), read_trace([path]).ranks(), strict=True):
        assert_frame_equal(after.events, before.events)


def test_texts_of_a_frame_in_pieces_are_written_by_number(tmp_path: Path) -> None:
    """An import puts a node map before the events: two pieces, of other texts each."""
    pieces = [
        traces.events([traces.kernel(f"{letter * 400}{i}", i, i + 1, 1) for i in range(4)] * 500) for letter in "ab"
    ]
    events = pl.concat([table(piece) for piece in pieces], rechunk=False)
    assert events.n_chunks() == 2
    path = tmp_path / "trace.parquet"
    write_trace(Trace("made", (RankSource("0", "made", lambda: RankTrace("0", 0, "made", events)),)), path)
    group = pq.read_metadata(path).row_group(0)
    (name,) = (c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "name")
    assert name.total_uncompressed_size < 8 * 400 + 4000
    assert_frame_equal(read_trace([path]).sources[0].read().events.select("name"), events.select("name"))


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        ("nnkkk", [2, 3]),
        ("kkknn", [3, 2]),
        ("knnkkkkkk", [1, 2, 4, 2]),
        ("nknkk", [4, 1]),  # scattered: nothing would be won
        ("nnnnn", [4, 1]),
        ("", []),
    ],
)
def test_nodes_that_lie_together_have_a_row_group_of_their_own(
    kinds: str, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "ROWS_PER_GROUP", 4)
    node = {"kind": "node", "name": "kernel", "dur_ns": 0, "node_type": "kernel", "graph_id": 0}
    rows = [node | {"start_ns": i} if kind == "n" else traces.kernel("k", i, i + 1, 1) for i, kind in enumerate(kinds)]
    events = table(traces.events(rows))
    path = tmp_path / "trace.parquet"
    write_trace(Trace("made", (RankSource("0", "made", lambda: RankTrace("0", 0, "made", events)),)), path)
    file = pq.read_metadata(path)
    assert [file.row_group(i).num_rows for i in range(file.num_row_groups)] == groups
    (rank,) = read_trace([path]).ranks()
    assert_frame_equal(rank.events.select("kind", "start_ns"), events.select("kind", "start_ns"))


def test_host_names_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(open_trace([CASES / "09-clock-skew-two-hosts"]), path)
    hosts = [rank.host for rank in read_trace([path]).ranks()]
    assert hosts == [hashlib.sha256(name).hexdigest()[:12] for name in (b"nodeA", b"nodeB")]
    assert b"nodeA" not in path.read_bytes()
    write_trace(read_trace([path]), tmp_path / "again.parquet")  # a hash stays as it is
    assert [rank.host for rank in read_trace([tmp_path / "again.parquet"]).ranks()] == hosts


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_text("precious")
    trace = open_trace([CASES / "26-top-level-list"])
    with pytest.raises(UsageError, match=r"trace\.parquet exists: give another name, or --force to overwrite it"):
        write_trace(trace, path)
    assert path.read_text() == "precious"
    write_trace(trace, path, force=True)
    assert [source.key for source in read_trace([path]).sources] == ["0"]
    with pytest.raises(UsageError, match="no such folder"):
        write_trace(trace, tmp_path / "none" / "trace.parquet")


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no GPU activity"):
        write_trace(open_trace([CASES / "27-cpu-only-trace"]), tmp_path / "trace.parquet")
    assert list(tmp_path.iterdir()) == []


def test_ranks_are_read_apart(tmp_path: Path) -> None:
    """A rank is read though another one's row group is damaged."""
    path = tmp_path / "trace.parquet"
    write_trace(open_trace([CASES / "07-cross-rank-wait-custom-allreduce"]), path)
    group = pq.read_metadata(path).row_group(1)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    data = bytearray(path.read_bytes())
    start = columns["start_ns"].data_page_offset
    data[start : start + 12] = b"\xff" * 12
    path.write_bytes(data)

    first, second = read_trace([path]).sources
    assert first.read().events.height == 10
    with pytest.raises(
        TraceError, match=r"^trace\.parquet: row group 1 of rank 1 \(10 rows\) is damaged .*--salvage reads"
    ):
        second.read()
    salvaged = read_trace([path], salvage=True)
    assert [rank.events.height for rank in salvaged.ranks()] == [10, 0]
    assert [line.startswith("lost: trace.parquet: row group 1 of rank 1 (10 rows)") for line in salvaged.warnings] == [
        True
    ]


def _file(path: Path, rows: pa.Table, version: int = 1, **sections: Any) -> Path:
    keys = {**metadata.encode(sections), b"specanalyze.schema_version": str(version).encode()}
    pq.write_table(rows.replace_schema_metadata(keys), path)
    return path


def _rows(rank: int, start_ns: int = 1) -> pa.Table:
    return pa.table(
        {"kind": ["kernel"], "rank": pa.array([rank], pa.int32()), "name": ["k"], "start_ns": [start_ns], "dur_ns": [2]}
    )


def test_unknown_columns_are_ignored_and_missing_ones_are_null(tmp_path: Path) -> None:
    rows = _rows(3).append_column("flags", [["new"]])
    (rank,) = read_trace([_file(tmp_path / "a.parquet", rows)]).ranks()
    assert rank.events.columns == list(ALWAYS)
    assert rank.events.row(0, named=True) == {
        **dict.fromkeys(ALWAYS),
        "kind": "kernel",
        "rank": 3,
        "name": "k",
        "start_ns": 1,
        "dur_ns": 2,
    }


def test_newer_version_is_refused_before_anything_else(tmp_path: Path) -> None:
    file = _file(tmp_path / "a.parquet", pa.table({"whatever": [1]}), version=2)
    with pytest.raises(
        TraceError, match=r"^a\.parquet was written with schema version 2; this specanalyze reads up to 1"
    ):
        read_trace([file])


def test_finished_windows_of_one_recording_are_read_as_one(tmp_path: Path) -> None:
    recording = {"id": 4, "started_ns": 99, "device": "cpu", "missing_ranks": [2], "problems": ["rank 0 lost 3 rows"]}
    files = [
        _file(tmp_path / "rank0.window0.parquet", _rows(0, 1), recording={**recording, "windows": [{"index": 0}]}),
        _file(tmp_path / "rank0.window1.parquet", _rows(0, 5), recording={**recording, "windows": [{"index": 1}]}),
        _file(
            tmp_path / "rank1.window0.parquet",
            _rows(1, 7),
            recording=recording,
            ranks=[{"rank": 1, "host": "ab", "world_size": 3}],
        ),
    ]
    trace = read_trace(files)
    assert {rank.key: rank.events["start_ns"].to_list() for rank in trace.ranks()} == {"0": [1, 5], "1": [7]}
    assert [(rank.host, rank.world_size) for rank in trace.ranks()] == [(None, None), ("ab", 3)]
    assert trace.warnings == ["rank 0 lost 3 rows", "ranks missing from the recording: 2"]
    assert trace.metadata["recording"]["windows"] == [{"index": 0}, {"index": 1}]


def test_two_recordings_are_refused(tmp_path: Path) -> None:
    files = [_file(tmp_path / f"{i}.parquet", _rows(0), recording={"id": i, "started_ns": 99}) for i in range(2)]
    with pytest.raises(TraceError, match=r"^two recordings: rank 0 is in 0\.parquet and 1\.parquet"):
        read_trace(files)
    files.append(_file(tmp_path / "2.parquet", _rows(0), recording={"id": 2, "started_ns": 99}))
    with pytest.raises(TraceError, match=r"^3 recordings: rank 0 is in 0\.parquet, 1\.parquet and 2\.parquet"):
        read_trace(files)


def test_row_group_of_two_ranks_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path / "a.parquet", pa.concat_tables([_rows(0), _rows(1)]))
    with pytest.raises(TraceError, match=r"^a\.parquet: row group 0 holds several ranks"):
        read_trace([file])


def test_file_of_something_else(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(TraceError, match=r"^a\.parquet has no specanalyze\.schema_version in its metadata"):
        read_trace([tmp_path / "a.parquet"])


def test_damaged_files_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refusal:
        read_trace(sorted((CASES / "43-parquet-truncated").glob("*.parquet")))
    assert str(refusal.value) == (
        "3 of 4 files can't be read: "
        "kernels.rank1.parquet has no footer: its writer was killed before closing it, or the file was cut; "
        "kernels.rank2.parquet has no footer: its writer was killed before closing it, or the file was cut; "
        "kernels.rank3.parquet is empty: its writer was killed before closing it. "
        "Readable: rank 0; --salvage goes on with that"
    )


def test_metadata_are_json_under_the_format_s_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(open_trace([CASES / "14-metadata-after-events"]), path)
    keys = pq.read_metadata(path).metadata
    (entry,) = json.loads(keys[b"specanalyze.ranks"])
    assert {name: entry[name] for name in ("key", "rank", "world_size", "row_groups", "device")} == {
        "key": "1",
        "rank": 1,
        "world_size": 2,
        "row_groups": [0, 1],
        "device": "cuda",
    }
    assert keys[b"specanalyze.schema_version"] == b"1"


def test_a_window_without_device_activity_is_told_from_an_idle_device(tmp_path: Path) -> None:
    windows = [
        {"rank": 0, "window": 0, "device_records": 900, "graph_replays": 3},
        {"rank": 1, "window": 0, "device_records": 0, "graph_replays": 3},
        {"rank": 1, "window": 1, "device_records": 0, "graph_replays": 0},
        {"rank": 1, "window": 2},
    ]
    write_trace(trace_of(rank_of(0, [_CYCLE]), recording={"windows": windows}), tmp_path / "trace.parquet")
    assert read_trace([tmp_path / "trace.parquet"]).warnings == [
        "rank 1, window 0: no device activity was recorded although 3 graphs were replayed; its phases have host time "
        "only, not an idle device"
    ]
