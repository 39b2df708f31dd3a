"""Ranks in worker processes: the same answers to the nanosecond, the same errors, and nothing left running."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest
import rank_functions

from specanalyze.cli import run
from specanalyze.engines.choice import with_engine
from specanalyze.engines.engine import Unit, WorkerError, each_rank, ranks_of
from specanalyze.engines.jobs import repaid
from specanalyze.formats.load import open_trace
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.errors import TraceError, UsageError

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"
STEPS2, STEPS5 = SAMPLES / "sglang_tp2_eagle3_steps2.parquet", SAMPLES / "sglang_tp2_eagle3_steps5.parquet"
PLAIN = SAMPLES / "sglang_tp2_plain.parquet"


def four_ranks(folder: Path) -> Trace:
    """A recording of four ranks, from a profiler's files: one kernel each, one range."""
    for rank in range(4):
        rows = [
            {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": 1, "tid": 1, "ts": 1, "dur": 50},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
            | {"args": {"correlation": 7}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5 + rank, "dur": 10}
            | {"args": {"correlation": 7, "device": 0, "stream": 7}},
        ]
        text = json.dumps({"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": rows})
        (folder / f"rank{rank}.json").write_text(text)
    return open_trace([folder])


@pytest.mark.parametrize(
    "command",
    [
        ("breakdown", STEPS2),
        ("phases", STEPS2),
        ("layers", STEPS2),
        ("kernels", STEPS2),
        ("ranks", STEPS2),
        ("accept", STEPS2),
        ("overhead", STEPS2),
        ("diagnose", STEPS2, "--baseline", PLAIN),
        ("validate", STEPS2),
        ("compare", STEPS2, STEPS5),
        ("sweep", STEPS2, STEPS5),
        ("breakeven", STEPS2, "--baseline", PLAIN),
        ("whatif", STEPS2, "--scale", "allreduce=0.7"),
    ],
    ids=lambda command: str(command[0]),
)
def test_two_processes_give_the_same_answer(command: tuple[object, ...], capfd: pytest.CaptureFixture[str]) -> None:
    words = [*map(str, command), "--json"]
    codes = [run([*words, "--jobs", jobs]) for jobs in ("1",)]
    alone = capfd.readouterr()
    codes.append(run([*words, "--jobs", "2"]))
    assert capfd.readouterr() == alone
    assert codes[0] == codes[1]
    assert alone.out


def test_a_recording_arrives_whole_with_its_warnings_and_its_reading_connected() -> None:
    trace = open_trace([STEPS2], progress=lambda done, total: None)
    arrived = pickle.loads(pickle.dumps(trace))
    for here, there in zip(trace.sources, arrived.sources, strict=True):
        assert here.read().events.equals(there.read().events)
    assert arrived.warnings == trace.warnings


def test_each_worker_has_one_rank_at_a_time_and_results_come_in_order(tmp_path: Path) -> None:
    trace = with_engine(four_ranks(tmp_path), jobs=2)
    found = list(each_rank(trace, rank_functions.key_and_pid))
    assert [key for key, _, _ in found] == ["0", "1", "2", "3"]
    workers = {pid for _, _, pid in found}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert not any(psutil.pid_exists(pid) for pid in workers)


def test_ranks_of_several_recordings_share_the_workers() -> None:
    traces = [with_engine(open_trace([path]), jobs=3) for path in (STEPS2, STEPS5, PLAIN)]
    found = [list(ranks) for ranks in ranks_of(traces, rank_functions.key_and_pid)]
    assert [[(key, name) for key, name, _ in ranks] for ranks in found] == [
        [(key, str(path)) for key in ("0", "1")] for path in (STEPS2, STEPS5, PLAIN)
    ]
    assert len({pid for ranks in found for _, _, pid in ranks}) == 3


def test_the_first_damaged_rank_is_the_one_that_is_named_and_earlier_warnings_stay(tmp_path: Path) -> None:
    trace = four_ranks(tmp_path)
    before = list(trace.warnings)
    with pytest.raises(TraceError, match=r"^rank 1 is damaged$"):
        list(each_rank(with_engine(trace, jobs=4), rank_functions.complains_at, ("1", "2", "3")))
    assert trace.warnings == [*before, "rank 0 was looked at", "rank 1 was looked at"]


def test_a_damaged_rank_is_one_line_from_a_worker_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    four_ranks(tmp_path)
    rows = [{"ph": "X", "cat": "cpu_op", "name": "add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    (tmp_path / "rank2.json").write_text(json.dumps({"distributedInfo": {"rank": 2}, "traceEvents": rows}))
    said = []
    for jobs in ("1", "3"):
        assert run(["breakdown", str(tmp_path), "--jobs", jobs]) == 1
        out, err = capfd.readouterr()
        assert not out
        said.append(err)
    assert said[0] == said[1]
    assert said[0].startswith("error: rank2.json: no GPU activity")
    assert len(said[0].splitlines()) == 1


def test_a_killed_worker_is_one_line_that_names_its_rank(tmp_path: Path) -> None:
    trace = with_engine(four_ranks(tmp_path), jobs=2)
    with pytest.raises(WorkerError) as caught:
        list(each_rank(trace, rank_functions.killed_at, "2"))
    assert str(caught.value) == (
        f"{tmp_path}: the process that read rank 2 was killed (SIGKILL): out of memory? Fewer --jobs than 2 need less"
    )


def test_a_bug_in_a_worker_keeps_its_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = with_engine(four_ranks(tmp_path), jobs=2)
    with pytest.raises(WorkerError, match=r"rank [01] ended with exit code 1"):
        list(each_rank(trace, rank_functions.divides_by_zero))
    err = capfd.readouterr().err
    assert "ZeroDivisionError" in err
    assert "in divides_by_zero" in err


def begun(folder: Path, number: int) -> list[int]:
    """Processes that have begun a rank, once there are so many."""
    until = time.monotonic() + 60
    while len(found := list(folder.glob("begun-*"))) < number:
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(path.name.split("-")[2]) for path in found]


def gone(pids: list[int]) -> bool:
    """Whether all these processes are gone soon."""
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def sleeping_command(folder: Path) -> subprocess.Popen[str]:
    """``breakdown --jobs 2`` whose workers go on for a minute, leader of its own process group as in a terminal."""
    script = f"""
import os, sys
import rank_functions, specanalyze.answers.breakdown
specanalyze.answers.breakdown.rank_result = rank_functions.sleeps
from specanalyze.cli import run
code = run(["breakdown", {str(STEPS2)!r}, "--jobs", "2"])
sys.stdout.flush()
os._exit(code)
"""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "RANK_FUNCTIONS_FOLDER": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def test_ctrl_c_ends_the_command_and_its_workers_without_a_traceback(tmp_path: Path) -> None:
    command = sleeping_command(tmp_path)
    workers = begun(tmp_path, 2)
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=30)
    assert command.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in out + err
    assert gone(workers)


def test_workers_end_when_the_command_is_killed(tmp_path: Path) -> None:
    command = sleeping_command(tmp_path)
    workers = begun(tmp_path, 2)
    command.kill()
    command.communicate(timeout=30)
    assert gone(workers)


def test_progress_grows_and_is_whole_only_at_the_end() -> None:
    told: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        told.append((done, total))

    alone: list[tuple[int, int]] = []
    for source in open_trace([STEPS2], progress=lambda done, total: alone.append((done, total))).sources:
        source.read()
    trace = with_engine(open_trace([STEPS2], progress=report), jobs=2, report=report)
    list(each_rank(trace, rank_functions.killed_at, "none"))
    assert told == sorted(told)
    assert told[-1] == alone[-1]
    assert all(done < total for done, total in told[:-1])


def units(folder: Path, sizes: list[int], ending: str) -> list[Unit]:
    """Ranks in files of these sizes, empty but for their length."""
    sources = []
    for rank, size in enumerate(sizes):
        path = folder / f"rank{rank}{ending}"
        with path.open("wb") as file:
            file.truncate(size)
        sources.append(RankSource(str(rank), str(path), read=_never))
    trace = Trace("t", tuple(sources))
    return [Unit(trace, place) for place in range(len(sizes))]


def _never() -> RankTrace:
    raise AssertionError


@pytest.mark.parametrize(
    ("sizes", "ending", "cores", "free", "jobs"),
    [
        ([100_000_000] * 8, ".json", 16, None, 2),  # 2.7 s of work
        ([1_000_000_000] * 8, ".json", 16, None, 8),
        ([1_000_000_000] * 8, ".json", 4, None, 4),
        ([1_000_000_000] * 8, ".json", 8, 4_000_000_000, 2),  # each needs 1.2 GB of 2.8
        ([1_000_000_000] * 8, ".json", 8, 1_000_000_000, 1),
        ([1_000_000] * 8, ".json", 16, None, 1),
        ([10_000_000] * 8, ".json.gz", 16, None, 4),
        ([6_000_000] * 8, ".parquet", 16, None, 3),
    ],
)
def test_there_are_as_many_workers_as_work_cores_and_memory_repay(
    tmp_path: Path, sizes: list[int], ending: str, cores: int, free: int | None, jobs: int
) -> None:
    assert repaid(units(tmp_path, sizes, ending), cores, free) == jobs


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda trace: with_engine(trace, jobs=0), "--jobs 0: give the number of processes, 1 or more"),
        (lambda trace: with_engine(trace, "spark"), "--engine spark: use local or ray"),
    ],
)
def test_what_cannot_be_is_refused(choose: Callable[[Trace], Trace], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(Trace("t", ()))
    assert str(caught.value) == said


def test_a_trace_made_by_hand_needs_no_engine(tmp_path: Path) -> None:
    trace = replace(four_ranks(tmp_path), engine=None)
    assert [key for key, _, _ in each_rank(trace, rank_functions.key_and_pid)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["breakdown", STEPS2], "--engine ray: ray is not installed; run: pip install"),
        (["compare", STEPS2, PLAIN], "--engine ray: ray is not installed; run: pip install"),
        (["compare", STEPS2, "absent.parquet"], "absent.parquet: no such file or folder"),
        (["breakeven", STEPS2, "--baseline", "absent.parquet"], "absent.parquet: no such file or folder"),
        (["sweep", STEPS2, "absent.parquet"], "absent.parquet: no such file or folder"),
        (["whatif", STEPS2, "--steps", "3", "--with", "absent.parquet"], "absent.parquet: no such file or folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_without_ray_files_are_complained_of_first(
    words: list[str | Path],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run([*map(str, words), "--engine", "ray"]) == 2
    error = capsys.readouterr().err
    assert (error.startswith(f"error: {said}"), error.count("\n")) == (True, 1), error
