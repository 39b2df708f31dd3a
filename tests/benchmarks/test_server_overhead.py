"""A benchmark that is told to end leaves no server behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "server_overhead.py"

SERVER = """
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"],
                        stdout=subprocess.PIPE)
rank.stdout.readline()
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {rank.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
"""A server that never answers, with a rank that does not mind SIGTERM."""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_the_benchmark(tmp_path: Path, number: signal.Signals) -> None:
    program, pids = tmp_path / "server.py", tmp_path / "pids"
    program.write_text(SERVER)
    benchmark = subprocess.Popen(
        [
            *(sys.executable, PROGRAM, "--url", "http://127.0.0.1:9", "--starts", "0", "--rounds", "1"),
            *("--start-command", shlex.join([sys.executable, str(program), str(pids)])),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        until = time.monotonic() + 120
        while not pids.exists():
            assert benchmark.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        server = [int(pid) for pid in pids.read_text().split()]
        assert all(running(pid) for pid in server)
        benchmark.send_signal(number)
        assert benchmark.wait(timeout=120) != 0
        assert not any(running(pid) for pid in server)
    finally:
        benchmark.kill()
        benchmark.wait()
