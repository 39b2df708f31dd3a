"""Recordings in an object store: a real S3 server, the same answers as from disk, and only what is needed fetched."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("moto.server", reason="moto's S3 server is not installed (extra test)")

import object_store

from specanalyze.remote_path import RemotePath, path_of

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
STEPS2 = SAMPLES / "sglang_tp2_eagle3_steps2.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    log = tmp_path_factory.mktemp("s3") / "log"
    with object_store.serving(log) as environment:
        yield environment, log


def specanalyze(
    *arguments: object, environment: dict[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-m", "specanalyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": path},
        timeout=120,
        cwd=cwd,
    )


def rank_file(rank: int, ranks: int) -> bytes:
    """A profiler's file of one rank: one range, one launch, one kernel."""
    rows = [
        {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": 1, "tid": 1, "ts": 1, "dur": 50},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
        | {"args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5 + rank, "dur": 10}
        | {"args": {"correlation": 7, "device": 0, "stream": 7}},
    ]
    info = {"rank": rank, "world_size": ranks}
    return json.dumps({"distributedInfo": info, "traceEvents": rows}).encode()


def without_names(document: str, name: str) -> str:
    return document.replace(name, "trace.parquet")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_parquet_trace_reads_as_from_disk(server: tuple[dict[str, str], Path], jobs: int) -> None:
    environment, _ = server
    address = object_store.put(environment, "parquet/trace.parquet", STEPS2.read_bytes())
    local = specanalyze("breakdown", STEPS2, "--json", "--jobs", 1, environment=environment)
    there = specanalyze("breakdown", address, "--json", "--jobs", jobs, environment=environment)
    assert there.returncode == 0, there.stderr
    assert without_names(there.stdout, address) == without_names(local.stdout, str(STEPS2))
    assert there.stderr == local.stderr


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_profiler_files_reads_as_from_disk(
    server: tuple[dict[str, str], Path], tmp_path: Path, packed: bool
) -> None:
    environment, _ = server
    ending = ".json.gz" if packed else ".json"
    for rank in range(3):
        data = rank_file(rank, 3)
        data = gzip.compress(data) if packed else data
        (tmp_path / f"rank{rank}{ending}").write_bytes(data)
        object_store.put(environment, f"folder{ending}/rank{rank}{ending}", data)
    address = f"s3://{object_store.BUCKET}/folder{ending}"
    local = specanalyze("breakdown", tmp_path, "--json", environment=environment)
    there = specanalyze("breakdown", address, "--json", "--jobs", 2, environment=environment)
    assert there.returncode == 0, there.stderr
    assert without_names(there.stdout, address) == without_names(local.stdout, str(tmp_path))


def test_only_the_footer_is_fetched_where_only_it_is_asked_for(server: tuple[dict[str, str], Path]) -> None:
    environment, log = server
    address = object_store.put(environment, "big/trace.parquet", STEPS2.read_bytes())
    done = specanalyze("env", address, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    fetched = [asked for asked in object_store.asked_of(log, "big/trace.parquet") if asked.startswith("GET ")]
    assert 0 < len(fetched) < 6
    assert set(fetched) == {"GET 206"}  # ranges only, never the whole object


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"s3://{object_store.BUCKET}/nothing.parquet", r"error: s3://.*/nothing.parquet: no such file or folder"),
        ("s3://no-such-bucket/trace.parquet", r"error: s3://no-such-bucket/trace.parquet: no such file or folder"),
    ],
)
def test_what_is_not_there_is_one_line(server: tuple[dict[str, str], Path], address: str, said: str) -> None:
    done = specanalyze("breakdown", address, environment=server[0])
    assert done.returncode == 2
    assert re.fullmatch(said, done.stderr.strip())


def test_a_store_that_does_not_answer_is_one_line(server: tuple[dict[str, str], Path]) -> None:
    nobody = {**server[0], "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    done = specanalyze("breakdown", "s3://bucket/trace.parquet", environment=nobody)
    assert done.returncode == 2
    assert done.stderr.startswith("error: s3://bucket/trace.parquet can't be reached: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_damaged_object_is_said_as_a_damaged_file(server: tuple[dict[str, str], Path]) -> None:
    environment, _ = server
    address = object_store.put(environment, "cut/trace.parquet", STEPS2.read_bytes()[:-100])
    done = specanalyze("breakdown", address, environment=environment)
    assert done.returncode == 1
    assert "trace.parquet has no footer" in done.stderr


def test_pieces_of_an_object_are_its_bytes(
    server: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, _ = server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    data = bytes(range(256)) * 4096
    path = path_of(object_store.put(environment, "bytes/file.bin", data))
    assert isinstance(path, RemotePath)
    assert path.stat().st_size == len(data)
    assert (path.name, path.parent.is_dir(), path.is_file()) == ("file.bin", True, True)
    assert [str(p) for p in path.parent.iterdir()] == [str(path)]
    assert [p.name for p in path.parent.glob("*.bin")] == ["file.bin"]
    assert path.read_bytes() == data
    with path.open("rb") as file:
        file.seek(-300, os.SEEK_END)
        assert file.read() == data[-300:]
        assert file.read(5) == b""
        file.seek(70_000)
        assert [file.read(n) for n in (1, 0, 66_000, 3)] == [
            data[70_000:70_001],
            b"",
            data[70_001:136_001],
            data[136_001:136_004],
        ]
        assert file.tell() == 136_004


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (Path("s3://bucket/a/b.parquet"), "s3://bucket/a/b.parquet"),
        (Path("gs://bucket/a"), "gs://bucket/a"),
        (Path("s3"), "s3"),
        (Path("/s3:/x"), "/s3:/x"),
        (Path("http://host/x"), "http:/host/x"),
    ],
)
def test_names_of_stores_are_told_from_files(given: Path, shown: str) -> None:
    assert str(path_of(given)) == shown
    assert isinstance(path_of(given), RemotePath) == ("://" in shown)


def test_a_local_folder_of_that_name_stays_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not isinstance(path_of("s3://bucket"), RemotePath)
