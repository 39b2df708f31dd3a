"""NVTX ranges: silent without a tool, and a tool that gets nothing is told of."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from speccollect.ranges import NvtxRanges, external_profiler


def test_nothing_is_loaded_without_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    ranges = NvtxRanges()
    assert not ranges.listening
    ranges.push("verify", 1)
    ranges.pop()
    ranges.unwind()
    assert ranges.depth == 0


def test_tool_that_gets_nothing_is_told_of_once() -> None:
    pytest.importorskip("nvtx")
    code = "from speccollect.ranges import NvtxRanges; NvtxRanges(); r = NvtxRanges(); print(r.listening)"
    variables = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": "/usr/bin:/bin",
        "NVTX_INJECTION64_PATH": "/nonexistent/libToolsInjection64.so",
        "NVTX_DISABLE": "1",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert done.stdout.strip() == "False"
    assert done.stderr.count("emits nothing to it") == 1
    assert "use nvtx 0.2.11" in done.stderr


@pytest.mark.parametrize("variable", ["NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"])
def test_what_shows_another_profiler(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert external_profiler() is None
    monkeypatch.setenv(variable, "x")
    assert external_profiler() == variable
