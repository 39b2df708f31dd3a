"""Exports of Nsight Systems, table by table: small files whose whole content is shown, and the public ones."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nsys_export import call, global_pid, global_tid, kernel, nvtx, parquet_export, sqlite_export, strings

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_writer import write_trace
from specanalyze.trace import RankTrace, Trace
from specschema.errors import TraceError, UsageError

KERNEL, RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
STRINGS = strings("cudaGraphLaunch_v10000", "flash_fwd_kernel", "spec.verify", "cudaStreamIsCapturing_v10000")
ONE_VERIFY: dict[str, list[dict[str, Any]]] = {
    "StringIds": STRINGS,
    RUNTIME: [call(10, 30, 1, 900), call(35, 36, 4, 901)],
    KERNEL: [kernel(40, 70, 2, 900)],
    NVTX: [nvtx(0, 60, 3)],
}
"""One verify range, one replay of one kernel, and a call that puts no work on the device."""


def opened(*paths: Path, **options: Any) -> tuple[Trace, list[RankTrace]]:
    trace = open_trace(list(paths), **options)
    return trace, list(trace.ranks())


def rows(rank: RankTrace, *columns: str) -> list[tuple[Any, ...]]:
    return rank.events.select(
        pl.col(c).cast(pl.String) if rank.events.schema[c] == pl.Categorical else c for c in columns
    ).rows()


def test_rows_become_events(tmp_path: Path) -> None:
    _, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY))
    assert (rank.key, rank.rank) == ("pid111", -1)
    assert rows(rank, "kind", "name", "start_ns", "dur_ns", "tid", "correlation", "grid") == [
        ("phase", "spec.verify", 0, 60, 1, None, None),
        ("launch", "cudaGraphLaunch", 10, 20, 1, 900, None),
        ("kernel", "flash_fwd_kernel", 40, 30, None, 900, "132x1x1"),
    ]


def test_times_are_unix_times_where_the_session_says_when_it_began(tmp_path: Path) -> None:
    tables = ONE_VERIFY | {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_779_630_014_975_716_426}]}
    trace, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", tables))
    assert rank.events["start_ns"].to_list() == [1_779_630_014_975_716_426 + t for t in (0, 10, 40)]
    assert trace.warnings == []


def test_parquet_gives_the_same_events_as_sqlite(tmp_path: Path) -> None:
    _, (one,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY))
    _, (other,) = opened(parquet_export(tmp_path / "a_pqtdir", ONE_VERIFY))
    assert one.events.equals(other.events)


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()], ids=["texts", "numbers"])
@pytest.mark.parametrize("index", [pa.int8(), pa.int32(), pa.int64()], ids=str)
def test_a_dictionary_in_parquet_counts_as_its_values(tmp_path: Path, kind: pa.DataType, index: pa.DataType) -> None:
    """Found by fuzzing: polars makes no number of a dictionary of texts, and said so in a traceback."""
    _, (one,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY))
    export = parquet_export(tmp_path / "a_pqtdir", ONE_VERIFY)
    for path in export.iterdir():
        table = pq.read_table(path)
        coded = {
            name: pc.cast(table[name], pa.string() if pa.types.is_string(table[name].type) else kind)
            .combine_chunks()
            .dictionary_encode()
            .cast(pa.dictionary(index, pa.string() if pa.types.is_string(table[name].type) else kind))
            for name in table.column_names
        }
        pq.write_table(pa.table(coded), path)
    _, (other,) = opened(export)
    assert one.events.equals(other.events)


def test_a_footer_that_ended_the_process_is_refused(tmp_path: Path) -> None:
    """Found by fuzzing: pyarrow aborts when asked for the description of such a column, so the command runs apart."""
    found = Path(__file__).resolve().parents[1] / "fuzz" / "found" / "misdescribed_column.parquet"
    shutil.copy(found, tmp_path / f"{KERNEL}.parquet")
    command = [sys.executable, "-m", "specanalyze", "breakdown", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {KERNEL}.parquet is damaged (")


def test_texts_that_are_no_numbers_are_unknown(tmp_path: Path) -> None:
    export = parquet_export(tmp_path / "a_pqtdir", ONE_VERIFY)
    path = export / f"{KERNEL}.parquet"
    table = pq.read_table(path)
    words = pa.array(["seven"]).dictionary_encode()
    pq.write_table(table.set_column(table.column_names.index("streamId"), "streamId", words), path)
    _, (rank,) = opened(export)
    assert rows(rank, "kind", "correlation")[2] == ("kernel", 900)
    assert "stream" not in rank.events.columns  # null in every row


def test_the_first_schemas_lack_columns_and_name_their_calls_twice(tmp_path: Path) -> None:
    old_call = call(10, 30, 77, 900) | {"name": "cudaGraphLaunch_v10000"}
    tables = ONE_VERIFY | {RUNTIME: [old_call]}
    _, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", tables, schema="2.9.1"))
    assert rows(rank, "kind", "name")[1] == ("launch", "cudaGraphLaunch")


@pytest.mark.parametrize(
    ("node", "more", "want"),
    [
        (5, {"graphId": 2}, (2, 5)),
        ((9 << 32) | 7, {}, (9, 7)),
    ],
    ids=["graphId since 3.24", "in the node's id before"],
)
def test_graph_and_node(tmp_path: Path, node: int, more: dict[str, int], want: tuple[int, int]) -> None:
    tables = ONE_VERIFY | {KERNEL: [kernel(40, 70, 2, 900) | {"graphNodeId": node} | more]}
    _, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", tables))
    assert rows(rank, "graph_id", "node")[-1] == want


def test_rows_in_any_order(tmp_path: Path) -> None:
    two = [kernel(80, 90, 2, 900), kernel(40, 70, 2, 900)]
    _, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY | {KERNEL: two}))
    assert rank.events.filter(pl.col("kind").cast(pl.String) == "kernel")["start_ns"].to_list() == [40, 80]


DOMAIN = nvtx(0, None, "spec", eventType=75, domainId=3)


def ranges_of(tmp_path: Path, *ranges: dict[str, Any]) -> tuple[Trace, RankTrace]:
    trace, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY | {NVTX: list(ranges)}))
    return trace, rank


def test_names_in_our_domain_are_ours_and_their_payload_is_the_cycle(tmp_path: Path) -> None:
    pay = {"int64Value": None}
    _, rank = ranges_of(
        tmp_path,
        DOMAIN | pay,
        nvtx(1, 99, "spec.cycle", domainId=3) | {"int64Value": 12},
        nvtx(2, 9, "draft", domainId=3) | {"int64Value": 12},
        nvtx(10, 60, 3, domainId=3) | {"int64Value": 12},
        nvtx(61, 62, "draft", domainId=0) | {"int64Value": 5},
    )
    host = rank.events.filter(pl.col("kind").cast(pl.String).is_in(["phase", "cycle"]))
    assert host.select(pl.col("kind", "name").cast(pl.String), "cycle").rows() == [
        ("cycle", "spec.cycle", 12),
        ("phase", "spec.draft", 12),
        ("phase", "spec.verify", 12),
        ("phase", "draft", None),
    ]


def test_open_and_asynchronous_ranges_are_said_and_not_recognised(tmp_path: Path) -> None:
    trace, _ = ranges_of(
        tmp_path, nvtx(0, 60, 3), nvtx(70, None, "spec.draft"), nvtx(71, 80, "spec.draft", eventType=60, rangeId=1)
    )
    result = break_down(Trace(trace.name, trace.sources, trace.metadata, trace.warnings))
    assert result.ranks[0].instances == {"verify": 1}
    assert [line for line in trace.warnings if "rank pid111" in line] == [
        "rank pid111: 1 range was still open when the recording ended: not recognised as phases",
        "rank pid111: 1 start/end range (among them spec.draft) of no thread's stack left out: phases are push/pop ranges",
    ]


def test_operators_collectives_and_marks(tmp_path: Path) -> None:
    json = {"jsonText": None}
    _, rank = ranges_of(
        tmp_path,
        nvtx(0, None, "NCCL", eventType=75, domainId=4) | json,
        nvtx(1, 2, "aten::mul, op_id = 317177, sizes = [[2]]") | json,
        nvtx(3, 4, "ncclAllReduce", domainId=4)
        | {"jsonText": '{"NCCL communicator ID":"0x5af","Message size [bytes]":8192}'},
        nvtx(5, None, "accepted", eventType=34) | json,
    )
    assert rows(rank, "kind", "name", "op", "group")[:3] == [
        ("op", "aten::mul", None, None),
        ("collective", "ncclAllReduce", "allreduce", "0x5af"),
        ("mark", "accepted", None, None),
    ]


def test_replays_recorded_whole_and_node_by_node_in_one_report(tmp_path: Path) -> None:
    whole = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": global_pid(111), "graphId": 2, "graphExecId": 3}
    tables = ONE_VERIFY | {
        RUNTIME: [call(10, 20, 1, 900), call(21, 30, 1, 901)],
        GRAPH: [
            whole | {"start": 40, "end": 70, "correlationId": 900},
            whole | {"start": 80, "end": 95, "correlationId": 901},
        ],
    }
    trace, _ = opened(sqlite_export(tmp_path / "a.sqlite", tables))
    result = break_down(trace)
    assert result.ranks[0].buckets_ns["verify"] == {"attention": 30, "graph_unresolved": 15, "launch": 40, "host": 10}
    assert any(
        "1 graph replay was recorded as a whole" in line and "--cuda-graph-trace=node" in line
        for line in trace.warnings
    )


def test_ranks_are_known_where_mpi_or_the_servers_names_tell_them(tmp_path: Path) -> None:
    tables = ONE_VERIFY | {KERNEL: [kernel(40, 70, 2, 900), kernel(41, 71, 2, 900, pid=112)]}
    names = [
        {"globalPid": global_pid(111 + i), "pid": 111 + i, "name": f"sglang::scheduler_TP{1 - i}"} for i in range(2)
    ]
    _, ranks = opened(sqlite_export(tmp_path / "a.sqlite", tables | {"PROCESSES": names}))
    assert [(r.key, r.rank) for r in ranks] == [("pid112", 0), ("pid111", 1)]
    mpi = [{"globalTid": global_tid(111 + i, 5), "rank": 6 + i} for i in range(2)]
    _, ranks = opened(sqlite_export(tmp_path / "b.sqlite", tables | {"MPI_RANKS": mpi}))
    assert [(r.key, r.rank) for r in ranks] == [("pid111", 6), ("pid112", 7)]


def test_import_keeps_every_event_and_says_what_it_cannot_know(tmp_path: Path) -> None:
    trace, (rank,) = opened(sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY))
    write_trace(trace, tmp_path / "trace.parquet")
    again, (same,) = opened(tmp_path / "trace.parquet")
    assert same.key == "pid111"
    assert (
        same.events.select(pl.col(c).cast(pl.String) for c in rank.events.columns).rows()
        == rank.events.select(pl.all().cast(pl.String)).rows()
    )
    assert again.metadata["recording"]["unknown"] == ["accept lengths", "node map"]


SECOND = 1_000_000_000
BEGAN = 1_779_630_014 * SECOND


def session(began_ns: int, pid: int = 111, *, process: str = "python", begin_ns: int = 0) -> dict[str, Any]:
    """One verify of one process, ``begin_ns`` after its session began."""
    return {
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": began_ns}],
        "StringIds": STRINGS,
        "PROCESSES": [{"globalPid": global_pid(pid), "pid": pid, "name": process}],
        RUNTIME: [call(begin_ns + 10, begin_ns + 30, 1, 900, pid)],
        KERNEL: [kernel(begin_ns + 40, begin_ns + SECOND, 2, 900, pid)],
        NVTX: [nvtx(begin_ns, begin_ns + 60, 3, pid=pid)],
    }


def test_a_folder_of_exports_is_one_recording(tmp_path: Path) -> None:
    """A session a host, begun one after the other, at work together; a process id may be the same on two hosts."""
    sqlite_export(tmp_path / "node0.sqlite", session(BEGAN))
    sqlite_export(tmp_path / "node1.sqlite", session(BEGAN - 7 * SECOND, begin_ns=7 * SECOND + 500))
    (tmp_path / "node1.nsys-rep").write_bytes(b"beside its export")
    _, ranks = opened(tmp_path)
    assert [r.key for r in ranks] == ["node0:pid111", "node1:pid111"]


@pytest.mark.parametrize("write", [sqlite_export, parquet_export], ids=["sqlite", "parquet"])
def test_exports_of_several_recordings_are_not_read_as_one(write: Any, tmp_path: Path) -> None:
    """Found in use: a folder of downloaded exports was read as one recording of many ranks."""
    for name, began in (("b", BEGAN), ("c", BEGAN + SECOND // 2), ("a", BEGAN + 60 * SECOND)):
        write(tmp_path / name, session(began)).rename(tmp_path / f"{name}.sqlite")
    with pytest.raises(
        TraceError,
        match=r"^2 recordings, whose GPUs worked at different times: b\.sqlite and c\.sqlite \(2026-05-24 13:40:14 UTC\) and "
        r"a\.sqlite \(2026-05-24 13:41:14 UTC\); choose one: give its files alone$",
    ):
        opened(*sorted(tmp_path.iterdir()))
    assert len(opened(tmp_path / "b.sqlite", tmp_path / "c.sqlite")[1]) == 2


def test_one_session_exported_twice_does_not_count_twice(tmp_path: Path) -> None:
    sqlite_export(tmp_path / "a.sqlite", session(BEGAN))
    parquet_export(tmp_path / "a_pqtdir", session(BEGAN))
    with pytest.raises(TraceError, match=r"^a\.sqlite and a_pqtdir are exports of the same session"):
        opened(tmp_path / "a.sqlite", tmp_path / "a_pqtdir")


def test_exports_without_a_time_need_ranks_that_go_together(tmp_path: Path) -> None:
    def timeless(name: str, pid: int, process: str) -> Path:
        tables = session(0, pid, process=process)
        del tables["TARGET_INFO_SESSION_START_TIME"]
        return sqlite_export(tmp_path / name, tables)

    first, second = (timeless(f"{r}.sqlite", 111 + r, f"sglang::scheduler_TP{r}") for r in (0, 1))
    assert [r.rank for r in opened(second, first)[1]] == [0, 1]
    for other in (timeless("same.sqlite", 119, "sglang::scheduler_TP0"), timeless("python.sqlite", 120, "python")):
        with pytest.raises(
            TraceError, match=rf"^nothing shows that 0\.sqlite and {other.name} are of one recording \(0\.sqlite "
        ):
            opened(first, other)


def test_replicas_that_count_alike_have_no_ranks(tmp_path: Path) -> None:
    """As within one file: data parallel ranks of two hosts are both TP0."""
    for name, pid in (("a.sqlite", 111), ("b.sqlite", 112)):
        sqlite_export(tmp_path / name, session(BEGAN + pid, pid, process="sglang::scheduler_DP0_TP0"))
    assert [(r.key, r.rank) for r in opened(tmp_path)[1]] == [("pid111", -1), ("pid112", -1)]


def test_an_export_without_work_is_named_and_left_out(tmp_path: Path) -> None:
    sqlite_export(tmp_path / "a.sqlite", session(BEGAN))
    sqlite_export(tmp_path / "b.sqlite", {RUNTIME: [call(10, 30, 1, 900)], "StringIds": STRINGS})
    trace, (rank,) = opened(tmp_path)
    assert rank.key == "pid111"
    assert trace.warnings == ["b.sqlite: no GPU activity in any process of it, so it is no part of this recording"]


def test_public_exports_are_three_recordings(reference: Path) -> None:
    with pytest.raises(
        TraceError, match=r"^3 recordings, .* saxpy_mpi_schema_2\.9\.sqlite \(2023-06-26 21:00:58 UTC\)"
    ):
        open_trace([reference / "traces" / "nsys"])


def damaged_in_the_middle(path: Path) -> Path:
    many = [kernel(i * 100, i * 100 + 70, 2, 900) for i in range(20_000)]
    sqlite_export(path, ONE_VERIFY | {KERNEL: many})
    text = bytearray(path.read_bytes())
    middle = len(text) // 2 // 4096 * 4096
    text[middle : middle + 4096 * 8] = b"\xff" * (4096 * 8)
    path.write_bytes(text)
    return path


def test_damaged_files_are_refused_and_salvaged_as_far_as_they_go(tmp_path: Path) -> None:
    path = damaged_in_the_middle(tmp_path / "a.sqlite")
    with pytest.raises(TraceError, match=r"a\.sqlite is damaged: SQLite says"):
        opened(path)
    trace, (rank,) = opened(path, salvage=True)
    kernels = int((rank.events["kind"].cast(pl.String) == "kernel").sum())
    assert 1000 < kernels < 20_000
    (lost,) = [line for line in trace.warnings if line.startswith("lost: a.sqlite is damaged")]
    assert lost.endswith(f"{kernels} rows of {KERNEL} were read before it")


def view_of_kernels(path: Path) -> None:
    sqlite_export(path, {key: rows for key, rows in ONE_VERIFY.items() if key != KERNEL})
    with sqlite3.connect(path) as connection:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start FROM n"
        connection.execute(f"CREATE VIEW {KERNEL} AS {endless}")


def computed_column(path: Path) -> None:
    sqlite_export(path, {key: rows for key, rows in ONE_VERIFY.items() if key != "StringIds"})
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT AS (hex(zeroblob(1000000000))))")


def text_for_a_time(path: Path) -> None:
    sqlite_export(path, ONE_VERIFY)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {KERNEL} SET start = 'soon'")


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")


def no_end(path: Path) -> None:
    sqlite_export(path, ONE_VERIFY | {KERNEL: [{"start": 1, "globalPid": 1, "correlationId": 1}]})


def cut(path: Path) -> None:
    sqlite_export(path, ONE_VERIFY)
    path.write_bytes(path.read_bytes()[:9000])


def only_host_rows(path: Path) -> None:
    sqlite_export(path, {"StringIds": STRINGS, NVTX: [nvtx(0, 60, 3)]})


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def no_names(path: Path) -> None:
    sqlite_export(path, {key: rows for key, rows in ONE_VERIFY.items() if key != "StringIds"})


def test_names_that_are_not_among_the_strings_are_told(tmp_path: Path) -> None:
    no_names(tmp_path / "none.sqlite")
    trace, (rank,) = opened(tmp_path / "none.sqlite", salvage=True)
    nameless = rank.events["name"].cast(pl.String).is_in(["unnamed kernel", "unnamed call"]).sum()
    assert nameless == rank.events["kind"].cast(pl.String).is_in(["kernel", "launch"]).sum() > 0
    assert any(
        f"{nameless} rows of kernels and calls whose names are not in StringIds" in line for line in trace.warnings
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (view_of_kernels, "is a view, not a plain table"),
        (computed_column, "computed columns"),
        (text_for_a_time, "column start of CUPTI_ACTIVITY_KIND_KERNEL does not hold whole numbers"),
        (other_database, "no export of Nsight Systems: it holds users"),
        (no_end, "has no column end"),
        (cut, "is damaged"),
        (only_host_rows, "no GPU activity"),
        (nothing, "is empty: the export ended early"),
        (no_names, "has no table StringIds, so the names of its kernels and calls are unknown"),
    ],
)
def test_refusals_are_one_line_that_names_the_file(tmp_path: Path, make: Any, words: str) -> None:
    path = tmp_path / "report.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(TraceError) as refusal:
        opened(path)
    line = str(refusal.value)
    assert words in line
    assert "report.sqlite" in line
    assert "\n" not in line
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.sqlite"]


def test_forms_are_not_mixed(tmp_path: Path) -> None:
    path = sqlite_export(tmp_path / "a.sqlite", ONE_VERIFY)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UsageError, match="different forms"):
        open_trace([path, tmp_path / "b.json"])


def test_a_recording_without_device_work_is_read_on_request(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    only_host_rows(path)
    _, (rank,) = opened(path, device="cpu")
    assert (rank.key, rank.device, rank.events.height) == ("pid111", "cpu", 1)


@pytest.mark.parametrize(
    ("file", "want"),
    [
        ("h100_2gpu_1s.sqlite", {"pid111": (1721, 452, 11), "pid112": (1721, 452, 11)}),
        ("saxpy_mpi_schema_2.9.sqlite", {"pid1230493": (5, 15, 0)}),
        ("synthetic_schema.sqlite", {"pid4242": (9, 0, 0), "pid4243": (9, 0, 0)}),
    ],
)
def test_public_exports(reference: Path, file: str, want: dict[str, tuple[int, int, int]]) -> None:
    _, ranks = opened(reference / "traces" / "nsys" / file)
    got = {}
    for rank in ranks:
        kind = rank.events["kind"].cast(pl.String)
        got[rank.key] = tuple(int((kind == k).sum()) for k in ("kernel", "memcpy", "memset"))
    assert got == want
