"""Files made to break the reader end in an answer or in one clear line, in bounded time and memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specanalyze import cli
from specanalyze.formats.event_bounds import LONGEST_NS
from specanalyze.formats.load import open_trace
from specanalyze.formats.plain_text import plain
from specanalyze.formats.trace_files import write_trace
from specschema import metadata
from specschema.events import EVENT_SCHEMA

SECONDS: Final = 20
MEMORY_BYTES: Final = 2 << 30
_RUN: Final = """
import resource, sys
from specanalyze.cli import run
code = run(sys.argv[1:])
sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")
sys.exit(code)
"""


class Result(NamedTuple):
    code: int
    output: str
    error: str


def run(*arguments: object) -> Result:
    """A command in this process, held to an answer or one line of error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run([str(argument) for argument in arguments])
    return held(Result(code, out.getvalue(), err.getvalue()))


def held(result: Result) -> Result:
    assert result.code in (0, 1, 2)
    if result.code:
        assert result.error.count("error: ") == 1
        last = result.error.rstrip("\n").splitlines()[-1]
        assert last.startswith("error: ")
        assert len(last) < 1100
    return result


def _children_seconds() -> float:
    """CPU seconds of the finished commands: other work on the machine does not stretch them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_apart(*arguments: object, **variables: str) -> Result:
    """A command in a process of its own, held to its bounds of time and memory as well."""
    began = _children_seconds()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=6 * SECONDS,
        env={**os.environ, **variables},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    error, _, peak = done.stderr.rpartition("peak ")
    assert int(peak) < MEMORY_BYTES, f"{int(peak) >> 20} MiB"
    assert _children_seconds() - began < SECONDS * int(os.environ.get("SPECANALYZE_SLOW_MACHINE", "1"))
    return held(Result(done.returncode, done.stdout, error))


def kernel(**members: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 20,
        "dur": 5,
        "args": {"correlation": 1, "stream": 7},
        **members,
    }


VERIFY: Final[list[dict[str, Any]]] = [
    {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": 4, "tid": 4, "ts": 0, "dur": 100},
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 4,
        "tid": 4,
        "ts": 10,
        "dur": 2,
        "args": {"correlation": 1},
    },
]


def written(folder: Path, rows: list[dict[str, Any]], **members: Any) -> Path:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, **members, "traceEvents": rows}))
    return path


START: Final = b'{"distributedInfo": {"rank": 0}, "traceEvents": ['
ROWS: Final = json.dumps([*VERIFY, kernel()])[1:-1].encode()

TEXTS: Final[dict[str, Callable[[], bytes]]] = {
    "an event of 40 MB": lambda: START + ROWS + b',{"ph":"X","name":"' + b"k" * (40 << 20) + b'"}]}',
    "a string that never ends": lambda: START + b'{"ph":"X","name":"' + b"k" * (40 << 20),
    "quotes with backslashes outside of strings": lambda: START + ROWS + b"},{" + b'\\"' * (4 << 20) + b"},{",
    "white space where events are closed": lambda: (
        START + ROWS + b"}" + b" " * (8 << 20) + b"x" + b"}" + b" " * (8 << 20)
    ),
    "ends of lists": lambda: START + ROWS + b'],"a":[{}' * 200_000,
    "beginnings of events": lambda: b'{"a":"' + b'"traceEvents":[' * 2_000_000,
    "a header without end": lambda: b'{"a":"' + b"b" * (80 << 20),
    "nothing but brackets": lambda: b"[" * (20 << 20),
    "nesting among events": lambda: START + ROWS + b',{"args":' + b"[" * 500_000 + b"]" * 500_000 + b"}]}",
    "nesting in the header": lambda: (
        b'{"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b',"traceEvents":[' + ROWS + b"]}"
    ),
    "nesting behind the events": lambda: START + ROWS + b'],"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "broken rows": lambda: START + b'{"a" b},' * 1_000_000 + ROWS + b"]}",
    "nothing but commas": lambda: START + b"," * (20 << 20) + b"]}",
    "empty objects": lambda: START + b"{}," * (8 << 20) + ROWS + b"]}",
    "zero bytes": lambda: b"\0" * (40 << 20),
}


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("salvage", [False, True])
def test_texts_made_to_be_slow_end_in_time(form: str, salvage: bool, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(TEXTS[form]())
    result = run_apart("breakdown", path, *(["--salvage"] if salvage else []))
    assert result.code in (0, 1)
    assert "rank0.json" in result.error or result.code == 0


def bomb(path: Path, piece: bytes, times: int) -> Path:
    with gzip.open(path, "wb", 9) as file:
        file.write(START + ROWS)
        for _ in range(times):
            file.write(piece)
    return path


MARKS: Final = b',{"ph":"i","ts":1,"pid":1,"tid":1}' * 30_000


@pytest.mark.parametrize("piece", [b" " * len(MARKS), MARKS, b"\0" * len(MARKS)], ids=["spaces", "marks", "zeros"])
def test_a_gzip_bomb_is_refused(piece: bytes, tmp_path: Path) -> None:
    result = run_apart("breakdown", bomb(tmp_path / "rank0.json.gz", piece, 300))
    assert result.code == 1
    assert "rank0.json.gz" in result.error


def test_a_gzip_bomb_of_events_is_refused_by_its_growth(tmp_path: Path) -> None:
    error = run_apart("breakdown", bomb(tmp_path / "rank0.json.gz", MARKS, 100)).error
    assert "rank0.json.gz unpacks to more than 100 times its size (limit 64 MiB)" in error
    assert "SPECANALYZE_ANY_EXPANSION=1" in error


def test_many_members_of_gzip_are_one_bomb(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(START + ROWS) + gzip.compress(MARKS) * 100)
    assert "unpacks to more than 100 times" in run_apart("breakdown", path).error


def test_the_limit_of_expansion_can_be_lifted(tmp_path: Path) -> None:
    path = bomb(tmp_path / "rank0.json.gz", MARKS, 70)
    with gzip.open(path, "ab") as file:
        file.write(b"]}")
    refused, read = run("breakdown", path), run_apart("breakdown", path, SPECANALYZE_ANY_EXPANSION="1")
    assert "unpacks to more than" in refused.error
    assert read.code == 0


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"baseTimeNanoseconds": 2**63}, "baseTimeNanoseconds 9223372036854775808 is no time"),
        ({"baseTimeNanoseconds": -5}, "baseTimeNanoseconds -5 is no time"),
        ({"baseTimeNanoseconds": "soon"}, "baseTimeNanoseconds soon is no time"),
        ({"baseTimeNanoseconds": 1.5}, "baseTimeNanoseconds 1.5 is no time"),
        ({"baseTimeNanoseconds": 1e300}, "baseTimeNanoseconds 1e+300 is no time"),
        ({"distributedInfo": {"rank": 2**40}}, "names no rank|rank 0"),
        ({"distributedInfo": []}, ""),
        ({"deviceProperties": 7}, ""),
        ({"deviceProperties": [{"name": 5, "totalGlobalMem": []}, {"name": {}, "totalGlobalMem": "x"}]}, ""),
        ({"distributedInfo": {"rank": 0, "pg_config": [{"ranks": "[9999999999]"}, 7]}}, ""),
    ],
)
def test_members_of_odd_values_are_left_out_or_named(members: dict[str, Any], said: str, tmp_path: Path) -> None:
    result = run("breakdown", written(tmp_path, [*VERIFY, kernel()], **members))
    assert result.code == (1 if "no time" in said else 0)
    assert not said or any(part in result.error or part in result.output for part in said.split("|"))


def test_a_start_that_no_clock_gives_is_refused_or_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, [*VERIFY, kernel(), kernel(ts=9223372036854775)])
    assert "1 of 4 events have no kind or a start that no clock gives" in run("breakdown", path).error
    salvaged = run("breakdown", path, "--salvage", "--json")
    assert salvaged.code == 0
    assert json.loads(salvaged.output)["ranks"]["0"]["phases"]["verify"]["total_ns"] == 100_000


def test_an_impossible_duration_makes_a_kernel_invalid(tmp_path: Path) -> None:
    path = written(tmp_path, [*VERIFY, kernel(), kernel(dur=LONGEST_NS // 1000 + 1)])
    result = run("breakdown", path, "--json")
    document = json.loads(result.output)["ranks"]["0"]
    assert document["invalid"]["count"] == 1
    assert document["phases"]["verify"]["total_ns"] == 100_000
    assert "1 event with a negative duration or one above 13 days" in result.error


def test_what_a_terminal_would_obey_is_made_visible(tmp_path: Path) -> None:
    evil = "k\x1b]0;owned\x07\x1b[2J\u202e[bold]"
    path = written(tmp_path, [*VERIFY, kernel(name=evil)], deviceProperties=[{"name": evil}])
    for command in ("kernels", "breakdown", "env", "validate", "phases"):
        result = run(command, path)
        assert not {"\x1b", "\x07", "\u202e"} & {*(result.output + result.error)}, command
    assert plain(evil) == r"k\x1b]0;owned\x07\x1b[2J\u202e[bold]"
    named = tmp_path / "rank0\x1b[31m.json"
    named.write_text("{")
    assert "\x1b" not in run("breakdown", named).error


CASES: Final = Path(__file__).resolve().parents[1] / "cases"
COLUMNS: Final[dict[str, list[Any]]] = {
    "kind": ["phase", "launch", "kernel"],
    "rank": [0, 0, 0],
    "pid": [4, 4, 4],
    "name": ["spec.verify", "cudaLaunchKernel", "k"],
    "start_ns": [0, 10, 20],
    "dur_ns": [100, 2, 5],
    "tid": [4, 4, None],
    "window": [0, 0, 0],
    "correlation": [None, 1, 1],
    "stream": [None, None, 7],
}


def parquet(folder: Path, columns: dict[str, Any] | None = None, **sections: Any) -> Path:
    """trace.parquet of a plain phase, launch and kernel, with some columns or metadata sections as given."""
    arrays = {name: pa.array(values, EVENT_SCHEMA.field(name).type) for name, values in COLUMNS.items()}
    arrays |= columns or {}
    keys = metadata.encode({"recording": {"source": "import"}})
    keys |= {f"specanalyze.{name}".encode(): json.dumps(value).encode() for name, value in sections.items()}
    path = folder / "trace.parquet"
    pq.write_table(pa.table({k: v for k, v in arrays.items() if v is not None}).replace_schema_metadata(keys), path)
    return path


def test_the_plain_parquet_is_read(tmp_path: Path) -> None:
    result = run("breakdown", parquet(tmp_path), "--json")
    assert json.loads(result.output)["ranks"]["0"]["phases"]["verify"]["total_ns"] == 100


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"start_ns": pa.array(["a", "b", "c"])}, "column start_ns holds text, not whole numbers"),
        ({"start_ns": pa.array([1.5, 2.5, 3.5])}, "column start_ns holds double, not whole numbers"),
        ({"name": pa.array([1, 2, 3])}, "column name holds whole numbers, not text"),
        ({"name": pa.array([b"\xff", b"a", b"b"])}, "column name holds binary, not text"),
        ({"kind": pa.array([{"a": 1}] * 3)}, "column kind holds struct<a: int64>, not text"),
        ({"dur_ns": pa.array([[1], [2], [3]])}, "column dur_ns holds lists of whole numbers, not whole numbers"),
        ({"accept_lengths": pa.array([[[1]], None, None])}, "column accept_lengths holds"),
        ({"accept_lengths": pa.array([["x"], None, None])}, "column accept_lengths holds lists of text"),
        ({"stream": pa.array([2**64 - 1] * 3, pa.uint64())}, "column stream holds numbers that do not fit"),
        ({"device": pa.array([2**40] * 3)}, "column device holds numbers that do not fit"),
        ({"start_ns": pa.array([None, 10, 20], pa.int64())}, "1 of 3 events have no kind or a start"),
        ({"kind": pa.array([None, "launch", "kernel"])}, "1 of 3 events have no kind"),
        ({"start_ns": pa.array([-(2**63), 10, 20])}, "a start that no clock gives"),
        ({"rank": pa.array([0, 1, 0])}, "holds several ranks"),
        ({"rank": pa.array([2**40] * 3)}, "holds no rank"),
        ({"rank": None}, "does not say its rank"),
        ({"name": pa.array([b"\xff\xfe", b"a", b"b"]).cast(pa.string(), safe=False)}, "is damaged"),
    ],
)
def test_parquet_columns_of_other_types_or_values_are_named(columns: dict[str, Any], said: str, tmp_path: Path) -> None:
    result = run("breakdown", parquet(tmp_path, columns))
    assert result.code == 1
    assert said in result.error
    assert "trace.parquet" in result.error


def test_kernels_without_a_name_are_unclassified(tmp_path: Path) -> None:
    result = run(
        "breakdown", parquet(tmp_path, {"name": pa.array(["spec.verify", "cudaLaunchKernel", None])}), "--json"
    )
    assert json.loads(result.output)["ranks"]["0"]["phases"]["verify"]["buckets_ns"]["other_compute"] == 5


def test_ranges_without_a_name_are_no_phases(tmp_path: Path) -> None:
    """Where no row had a name, the compiled passes met an index into nothing (found by fuzzing)."""
    seed, path = tmp_path / "seed.parquet", tmp_path / "trace.parquet"
    write_trace(open_trace([CASES / "01-graph-replay-one-correlation"]), seed)
    table = pq.read_table(seed)
    nameless = pa.array([None] * table.num_rows, pa.string()).dictionary_encode()
    table = table.set_column(table.column_names.index("name"), "name", nameless)
    pq.write_table(table.replace_schema_metadata(pq.read_metadata(seed).metadata), path)
    result = held(run("breakdown", path))
    assert result.code == 1
    assert "no phase ranges" in result.error


def test_negative_durations_in_parquet_are_invalid(tmp_path: Path) -> None:
    result = run("breakdown", parquet(tmp_path, {"dur_ns": pa.array([100, 2, -5])}), "--json")
    assert json.loads(result.output)["ranks"]["0"]["invalid"]["count"] == 1


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"recording": []}, "metadata recording is not an object"),
        ({"recording": {"windows": {}}}, "metadata recording.windows is not a list of objects"),
        ({"recording": {"windows": [7]}}, "metadata recording.windows is not a list of objects"),
        (
            {"recording": {"windows": [{"graph_replays": "x"}]}},
            "recording.windows[0].graph_replays is not a whole number",
        ),
        ({"recording": {"warnings": 5}}, "metadata recording.warnings is not a list"),
        ({"ranks": {"0": 1}}, "metadata ranks is not a list of objects"),
        ({"ranks": [{"rank": 0, "key": "0", "row_groups": [0, 10**9]}]}, "row groups 0 to 999999999 of 1"),
        ({"ranks": [{"rank": 0, "key": "0", "row_groups": "all"}]}, "ranks[0].row_groups is not first row group"),
        ({"ranks": [{"rank": -7}]}, "ranks[0].rank is not a rank"),
        ({"environment": [1]}, "metadata environment is not an object"),
        ({"environment": {"variables": ["NCCL"]}}, "metadata environment.variables is not an object of texts"),
        ({"environment": {"gpus": 7}}, "metadata environment.gpus is not a list"),
        ({"clock": "now"}, "metadata clock is not an object"),
    ],
)
def test_metadata_of_other_shapes_are_named(sections: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = parquet(tmp_path, **sections)
    for command in ("breakdown", "env"):
        result = run(command, path)
        assert result.code == 1
        assert said in result.error


def test_deep_metadata_are_no_json(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    table = pq.read_table(path)
    keys = {**metadata.encode({}), b"specanalyze.recording": b"[" * 100_000 + b"]" * 100_000}
    pq.write_table(table.replace_schema_metadata(keys), path)
    assert "metadata section 'recording' is not valid JSON" in run("breakdown", path).error


def test_a_parquet_bomb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Fifty million equal rows take half a megabyte; as events they would take gigabytes."""
    rows = 10_000_000
    table = pa.table(
        {
            "kind": pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array(["kernel"])),
            "rank": pa.repeat(pa.scalar(0, pa.int32()), rows),
            "start_ns": pa.repeat(pa.scalar(5, pa.int64()), rows),
        }
    )
    path = tmp_path / "trace.parquet"
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(5):
            writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata(metadata.encode({}))
    assert path.stat().st_size < 1_000_000
    result = run_apart("breakdown", path)
    assert result.code == 1
    assert "claims 50000000 rows or values in" in result.error


def test_long_lists_in_few_rows_are_a_bomb_too(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 8_000_000, 8_000_000, 8_000_000], pa.int32()), pa.repeat(pa.scalar(1, pa.int32()), 8_000_000)
    )
    assert "rows or values in" in run("breakdown", parquet(tmp_path, {"accept_lengths": lists})).error


def test_cells_that_share_one_long_text_stay_in_bounds(tmp_path: Path) -> None:
    """SQLite keeps a long text as a chain of pages, and a hostile file may hang one chain on every cell."""
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE StringIds ("id", "value")')
    connection.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ("start", "end", "globalPid", "correlationId")')
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 282574488338432, 1)")
    connection.execute("INSERT INTO StringIds VALUES (1, ?)", ["k" * (3 << 20)])
    connection.commit()
    connection.close()
    result = run("breakdown", path)
    assert result.code == 1
    assert "string or blob too big" in result.error


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rank0.cycles.json", "[" * 100_000, "rank0.cycles.json is no cycle log"),
        ("rank0.cycles.json", '{"results": [[1, 1, 99999999999999999999, 2, null]]}', "is no cycle log"),
        ("rank0.cycles.json", '{"results": [[1, 1, -5, 2, null]]}', "is no cycle log"),
        ("rank0.cycles.json", '{"results": [[1, 1, 5, 6, [4294967296]]]}', "is no cycle log"),
        ("rank0.cycles.json", '{"results": {}}', "is no cycle log"),
        ("rank0.nodemap.json", "{}", "is no node map"),
        ("rank0.nodemap.json", '[{"nodes": 1000000000000, "kinds": [0]}]', "has 1000000000000 nodes but 1 kinds"),
        (
            "rank0.nodemap.json",
            '[{"nodes": 1, "kinds": [0], "scopes": [["m", "M", -9, 99, 0]]}]',
            "graph 0 has a scope that begins before its first node",
        ),
    ],
)
def test_sidecars_of_other_shapes_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, [*VERIFY, kernel()])
    (tmp_path / name).write_text(text)
    result = run("breakdown", path)
    assert result.code == 1
    assert said in result.error


def test_a_phase_map_nested_too_deeply_is_no_json(tmp_path: Path) -> None:
    phases = tmp_path / "phases.json"
    phases.write_text("[" * 100_000)
    result = run("breakdown", written(tmp_path, [*VERIFY, kernel()]), "--phase-map", phases)
    assert result.code == 2
    assert "phases.json is not JSON" in result.error


def test_steps_out_of_range_are_named_by_line(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text('{"kind": "prefill"}\n{"kind": "verify", "num_committed": 99999999999}\n')
    result = run("accept", steps)
    assert result.code == 1
    assert "steps.jsonl line 2 is no step" in result.error


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    whole = gzip.compress(START + ROWS + b"]}")
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 0xFF]) + whole[21:])
    result = run("breakdown", path)
    assert result.code == 1
    assert "rank0.json.gz ends early" in result.error


def test_a_column_with_two_names_is_a_damaged_footer() -> None:
    """The schema and the row group of a file that fuzzing damaged name the same column differently."""
    found = Path(__file__).resolve().parents[1] / "fuzz" / "found" / "column_with_two_names.parquet"
    for options in ([], ["--salvage"]):
        result = held(run("breakdown", found, *options))
        assert result.code == 1
        assert "column_with_two_names.parquet has a damaged footer (column 13 has two names)" in result.error


@pytest.mark.parametrize("section", ["ranks", "recording", "environment", "clock"])
@pytest.mark.parametrize("command", ["accept", "breakdown", "validate", "env", "overhead"])
def test_sections_that_are_null_are_not_there(section: str, command: str, tmp_path: Path) -> None:
    """Found by fuzzing: accept took the ranks of such a file for a list."""
    result = held(run(command, parquet(tmp_path, **{section: None})))
    assert result.code in (0, 1)
