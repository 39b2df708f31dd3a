"""NVTX ranges: silent without a tool, and a tool that gets nothing is told of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from speccollect.cycles.ranges import NvtxRanges, external_profiler


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
    code = "from speccollect.cycles.ranges import NvtxRanges; NvtxRanges(); r = NvtxRanges(); print(r.listening)"
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


TOOL = Path(__file__).parents[2] / "support" / "nvtx_tool.c"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real NVTX tool, compiled here; skipped where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: an NVTX tool can't be built")
    library = tmp_path_factory.mktemp("nvtx") / "libnvtx_tool.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(TOOL)], check=True)
    return library


def packages_of(version: str, place: Path) -> list[str]:
    """Where a release of nvtx is: nowhere special for the installed one."""
    if version == "installed":
        pytest.importorskip("nvtx")
        return []
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(place),
        f"nvtx=={version}",
    ]
    if subprocess.run(command, capture_output=True, timeout=120).returncode != 0:
        pytest.skip(f"nvtx {version} can't be installed here")
    return [str(place)]


@pytest.mark.parametrize("version", ["installed", "0.2.11"])
def test_a_tool_sees_every_range_with_its_cycle(tool: Path, tmp_path: Path, version: str) -> None:
    """0.2.11 is the release that works under the older Nsight Systems; its domains have no push_range."""
    code = """
from speccollect.cycles.ranges import NvtxRanges
ranges = NvtxRanges()
assert ranges.listening
for cycle in (7, 8):
    ranges.push("cycle", cycle)
    ranges.push("verify", cycle)
    ranges.pop()
    ranges.pop()
ranges.push("draft", 9)
ranges.unwind()
ranges.pop()
assert ranges.depth == 0
"""
    path = [*packages_of(version, tmp_path / "packages"), *sys.path]
    seen = tmp_path / "seen"
    variables = {
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": "/usr/bin:/bin",
        "NVTX_INJECTION64_PATH": str(tool),
        "NVTX_TOOL_OUTPUT": str(seen),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in seen.read_text().splitlines() if not line.startswith("category")]
    one = ["push spec spec.cycle {}", "push spec spec.verify {}", "pop spec", "pop spec"]
    expected = [line.format(cycle) for cycle in (7, 8) for line in one] + ["push spec spec.draft 9", "pop spec"]
    assert lines == expected
    assert {f"category spec {name}" for name in ("cycle", "phase")} <= set(seen.read_text().splitlines())
