"""Ranks as tasks of a real Ray cluster of two workers: the same answers, also when a worker is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")

import object_store

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
STEPS2, STEPS5 = SAMPLES / "sglang_tp2_eagle3_steps2.parquet", SAMPLES / "sglang_tp2_eagle3_steps5.parquet"
PATH = os.pathsep.join(path for path in sys.path if path)

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a command that finds an S3 server; empty where none can be started."""
    try:
        import moto.server  # noqa: F401
    except ModuleNotFoundError:
        yield {}
        return
    with object_store.serving(tmp_path_factory.mktemp("s3") / "log") as environment:
        yield environment


@pytest.fixture(scope="module")
def cluster(stored: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a command that finds a running cluster of two workers by RAY_ADDRESS."""
    folder = tmp_path_factory.mktemp("ray")
    port = free_port()
    environment = {**os.environ, **stored, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": PATH, "HOME": str(folder)}
    start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    options = [f"--port={port}", "--num-cpus=2", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    with (folder / "log").open("wb") as log:
        head = subprocess.Popen(
            [*start, *options], env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
    address = f"127.0.0.1:{port}"
    until = time.monotonic() + 120
    while b"Ray runtime started" not in (folder / "log").read_bytes():
        assert head.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < until
        time.sleep(0.2)
    yield {**environment, "RAY_ADDRESS": address}
    os.killpg(head.pid, signal.SIGTERM)
    try:
        head.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def specanalyze(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specanalyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize(
    "command",
    [("breakdown", STEPS2), ("ranks", STEPS2), ("compare", STEPS2, STEPS5)],
    ids=lambda command: str(command[0]),
)
def test_a_cluster_gives_the_same_answer(command: tuple[object, ...], cluster: dict[str, str]) -> None:
    alone = specanalyze(*command, "--json", "--jobs", 1, environment=cluster)
    spread = specanalyze(*command, "--json", "--engine", "ray", environment=cluster)
    assert (spread.returncode, spread.stdout, spread.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert json.loads(spread.stdout)


def test_relative_names_are_those_of_the_command(cluster: dict[str, str]) -> None:
    command = [sys.executable, "-m", "specanalyze", "breakdown", STEPS2.name, "--json", "--engine", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, env=cluster, timeout=300, cwd=SAMPLES)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trace"] == STEPS2.name


def test_workers_read_from_an_object_store(cluster: dict[str, str], stored: dict[str, str]) -> None:
    if not stored:
        pytest.skip("moto's S3 server is not installed (extra test)")
    address = object_store.put(stored, "run/trace.parquet", STEPS2.read_bytes())
    alone = specanalyze("breakdown", STEPS2, "--json", "--jobs", 1, environment=cluster)
    spread = specanalyze("breakdown", address, "--json", "--engine", "ray", environment=cluster)
    assert spread.returncode == 0, spread.stderr
    assert spread.stdout.replace(address, str(STEPS2)) == alone.stdout


def test_a_worker_killed_in_the_middle_changes_nothing(cluster: dict[str, str], tmp_path: Path) -> None:
    script = f"""
import dataclasses, json, os, pickle, sys
from pathlib import Path
import rank_functions
from specanalyze.answers.breakdown import combined, break_down
from specanalyze.answers.breakdown_table import breakdown_json
from specanalyze.engines.choice import with_engine
from specanalyze.engines.engine import each_rank
from specanalyze.formats.load import open_trace
trace = open_trace([Path({str(STEPS2)!r})])
spread = combined(trace, each_rank(with_engine(trace, "ray"), rank_functions.killed_once, {str(tmp_path)!r}))
alone = break_down(open_trace([Path({str(STEPS2)!r})]))
documents = [breakdown_json(found, "all") for found in (spread, alone)]
assert documents[0] == documents[1]
for a, b in zip(spread.ranks, alone.ranks, strict=True):
    assert a.buckets_ns == b.buckets_ns and a.phase_instances.equals(b.phase_instances)
assert spread.waits.collectives.equals(alone.waits.collectives)
print("equal")
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=cluster, timeout=300)
    assert done.stdout == "equal\n", done.stderr
    killed = int((tmp_path / "killed").read_text())
    assert not Path(f"/proc/{killed}").exists()


def test_a_rank_that_kills_every_worker_is_one_line(cluster: dict[str, str]) -> None:
    script = f"""
import os, sys
import rank_functions, specanalyze.answers.breakdown
from specanalyze.cli import run
real = specanalyze.answers.breakdown.each_rank
specanalyze.answers.breakdown.each_rank = lambda trace, function, *a, **k: real(trace, rank_functions.killed_at, "0")
code = run(["breakdown", {str(STEPS2)!r}, "--engine", "ray"])
sys.stdout.flush()
os._exit(code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=cluster, timeout=300)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {STEPS2}: rank 0 was not finished on the Ray cluster in 4 tries: "
    )
    assert "Traceback" not in done.stderr


def test_damaged_data_is_the_same_line(cluster: dict[str, str], tmp_path: Path) -> None:
    rows = [{"ph": "X", "cat": "cpu_op", "name": "add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    for rank in range(2):
        text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": rows})
        (tmp_path / f"rank{rank}.json").write_text(text)
    alone = specanalyze("breakdown", tmp_path, "--jobs", 1, environment=cluster)
    spread = specanalyze("breakdown", tmp_path, "--engine", "ray", environment=cluster)
    assert (spread.returncode, spread.stderr) == (alone.returncode, alone.stderr)
    assert spread.stderr.startswith("error: rank0.json: no GPU activity")


def test_no_cluster_at_the_address_is_one_line(cluster: dict[str, str]) -> None:
    nowhere = {**cluster, "RAY_ADDRESS": f"127.0.0.1:{free_port()}"}
    done = specanalyze("breakdown", STEPS2, "--engine", "ray", environment=nowhere)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no Ray cluster at {nowhere['RAY_ADDRESS']} (RAY_ADDRESS): ")


def test_a_cluster_of_its_own_starts_and_ends_with_the_command(cluster: dict[str, str]) -> None:
    own = {name: value for name, value in cluster.items() if name != "RAY_ADDRESS"}
    alone = specanalyze("breakdown", STEPS2, "--json", "--jobs", 1, environment=own)
    spread = specanalyze("breakdown", STEPS2, "--json", "--engine", "ray", environment=own)
    assert (spread.returncode, spread.stdout, spread.stderr) == (0, alone.stdout, alone.stderr)


def test_jobs_are_for_the_local_engine(cluster: dict[str, str]) -> None:
    done = specanalyze("breakdown", STEPS2, "--engine", "ray", "--jobs", 2, environment=cluster)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --jobs is for --engine local")
