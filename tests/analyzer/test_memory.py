"""Whatever a file holds, a command stays under its limit of memory: it answers, or ends with one line."""

from __future__ import annotations

import gzip
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specanalyze import memory
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.phase_names import read_phase_map
from specschema.errors import UsageError

CASES: Final = Path(__file__).resolve().parents[1] / "cases"
LIMIT: Final = 320 << 20
ROOM: Final = 32 << 20
"""What can be taken between two looks of the thread: it looks after the time in which 8 GiB/s would fill the room, at least 5 ms."""
EVENT: Final = b'{"ph":"X","cat":"kernel","ts":%d,"dur":1,"name":"k","args":{"correlation":%d}}'


def plain_trace() -> dict[str, object]:
    document = json.loads((CASES / "01-graph-replay-one-correlation" / "trace.json").read_bytes())
    assert isinstance(document, dict)
    return document


def dense_events(folder: Path) -> Path:
    """Four million events of 34 bytes each."""
    dice = random.Random(1)
    blocks = [b",".join(b'{"ph":"X","ts":%d,"dur":1}' % dice.randrange(10**9) for _ in range(1000)) for _ in range(40)]
    path = folder / "dense.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(100):
            file.write(b",".join(blocks) + b",")
        file.write(b'{"ph":"X","ts":1,"dur":1}]}')
    return path


def dense_kernels(folder: Path, count: int = 1_000_000) -> Path:
    """So many kernels with a launch each, in one phase."""
    blocks = (
        b",".join(
            b'{"ph":"X","cat":"kernel","name":"k%d","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"device":0,"stream":7,"correlation":%d}},'
            b'{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"correlation":%d}}'
            % (at % 5000, 2 * at, at, 2 * at, at)
            for at in range(begin, min(begin + 10_000, count + 1))
        )
        for begin in range(1, count + 1, 10_000)
    )
    path = folder / "kernels.json"
    with path.open("wb") as file:
        file.write(
            b'{"traceEvents":[{"ph":"X","cat":"user_annotation","name":"spec.verify","pid":1,"tid":1,"ts":0,"dur":3000000}'
        )
        for block in blocks:
            file.write(b"," + block)
        file.write(b"]}")
    return path


def equal_rows(folder: Path) -> Path:
    """A trace of which the rows are there 4 million times."""
    seed = folder / "seed.parquet"
    write_trace(open_trace([CASES / "01-graph-replay-one-correlation"]), seed)
    table = pq.read_table(seed)
    count = 4_000_000 // table.num_rows
    whole = pa.concat_tables([table] * count).combine_chunks()
    keys = {k: v for k, v in (pq.read_metadata(seed).metadata or {}).items() if k.startswith(b"specanalyze.")}
    sections = json.loads(keys[b"specanalyze.ranks"])
    sections[0]["row_groups"] = [0, 1]
    keys[b"specanalyze.ranks"] = json.dumps(sections).encode()
    path = folder / "rows.parquet"
    pq.write_table(whole.replace_schema_metadata(keys), path, row_group_size=1 << 26, compression="zstd")
    seed.unlink()
    return path


def lists_before_the_events(folder: Path) -> Path:
    path = folder / "header.json"
    path.write_bytes(b'{"odd":[' + b"{}," * 20_000_000 + b'{}],"traceEvents":[]}')
    return path


def lists_beside_the_trace(folder: Path) -> Path:
    path = folder / "plain.json"
    path.write_text(json.dumps(plain_trace()))
    (folder / "plain.cycles.json").write_bytes(b'{"results":[' + b"[]," * 30_000_000 + b"[]]}")
    return path


def many_rows_of_nsight(folder: Path) -> Path:
    path = folder / "report.sqlite"
    connection = sqlite3.connect(path)
    columns = "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, graphNodeId, graphId"
    connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
    connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    connection.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    connection.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1)")
    connection.execute("INSERT INTO StringIds VALUES (1, 'k')")
    connection.execute(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000000) "
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT x, x + 1, 0, 1, 7, x, 282574488338432, 1, 1, NULL, NULL FROM n"
    )
    connection.commit()
    connection.close()
    return path


def one_name_each(folder: Path) -> Path:
    """A name of its own for each of half a million events."""
    path = folder / "names.json"
    with path.open("wb") as file:
        file.write(b'{"traceEvents":[')
        for begin in range(0, 500_000, 1000):
            file.write(
                b",".join(b'{"ph":"X","ts":%d,"dur":1,"name":"%0300d"}' % (n, n) for n in range(begin, begin + 1000))
                + b","
            )
        file.write(b'{"ph":"X","ts":1,"dur":1,"name":"k"}]}')
    return path


MEASURED: Final = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "specanalyze", *sys.argv[1:]])
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
"""
"""A small process between this one and the command: a child's peak begins with the memory of the process that it is a copy of."""


def peak(command: list[str], **environment: str) -> tuple[int, str, str, int]:
    """Exit code, stdout, stderr and most resident bytes of a command."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    output, _, told = done.stdout.rstrip("\n").rpartition("\n")
    code, most = told.split()
    return int(code), output, done.stderr, int(most)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is kept where Linux tells of memory")
@pytest.mark.parametrize(
    "made",
    [
        dense_events,
        dense_kernels,
        equal_rows,
        lists_before_the_events,
        lists_beside_the_trace,
        many_rows_of_nsight,
        one_name_each,
    ],
)
@pytest.mark.parametrize("native", ["1", "0"])
def test_no_input_takes_more_than_the_limit(made: Callable[[Path], Path], native: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    code, output, error, most = peak(
        ["breakdown", str(path)],
        SPECANALYZE_MEMORY=str(LIMIT),
        SPECANALYZE_NATIVE=native,
        SPECANALYZE_ANY_EXPANSION="1",
    )
    assert most < LIMIT + ROOM, f"{most >> 20} MiB; {error[-300:]}"
    assert code in (0, 1), error
    if code:
        assert error.count("\n") == 1
        assert error.startswith("error: ")
        assert output == ""


def test_steps_are_weighed_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"[]," * 5_000_000)
    code, output, error, most = peak(["accept", str(path)], SPECANALYZE_MEMORY="256M")
    assert (code, output) == (1, "")
    assert error == (
        f"error: {path} needs more than 256 MiB of memory (SPECANALYZE_MEMORY); set SPECANALYZE_MEMORY, such as 16G, to allow more\n"
    )
    assert most < 256 << 20


def test_a_phase_map_is_small(tmp_path: Path) -> None:
    path = tmp_path / "phases.json"
    path.write_bytes(b'["' + b"a" * (2 << 20) + b'"]')
    with pytest.raises(UsageError, match=r"takes 2 MiB: a phase map is a JSON object, regular expression -> phase"):
        read_phase_map(path)


@pytest.mark.parametrize("asked", ["lots", "-4G", "4.5G", "1M", "0", "4GG"])
def test_an_odd_limit_is_a_usage_error(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.SETTING, asked)
    with pytest.raises(UsageError, match=r"give a size of at least 256M, such as 4G"):
        memory.limit_bytes()


@pytest.mark.parametrize(
    ("asked", "size"),
    [("4G", 4 << 30), ("800M", 800 << 20), ("800 MiB", 800 << 20), ("1000000000", 10**9), ("1t", 1 << 40)],
)
def test_sizes(asked: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.SETTING, asked)
    assert memory.limit_bytes() == size


def test_workers_share_the_limit(tmp_path: Path) -> None:
    """One of two ranks is too much for its share; the other one's answer is not given either."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank, count in enumerate((1_000_000, 10)):
        dense_kernels(tmp_path, count).rename(ranks / f"trace_rank{rank}.json")
    code, output, error, _ = peak(
        ["breakdown", str(ranks), "--jobs", "2"], SPECANALYZE_MEMORY=str(2 * (200 << 20)), SPECANALYZE_NATIVE="0"
    )
    assert code == 1
    assert output == ""
    assert error == (
        "error: trace_rank0.json needs more than 200 MiB of memory (SPECANALYZE_MEMORY, shared by 2 processes); "
        "set SPECANALYZE_MEMORY, such as 16G, to allow more\n"
    )
