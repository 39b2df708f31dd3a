"""What a recording lacks is told with advice that fits where it came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import traces

import specanalyze
from specanalyze.answers.advice import ACCEPTS, CYCLES, NODE_MAP, SETTINGS, advice
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.layers import layers
from specanalyze.answers.measured import measure
from specanalyze.answers.validate import validate
from specanalyze.diagnosis.diagnose import diagnose
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.trace import Trace
from specschema.errors import TraceError

COLLECTED = {"recording": {"tool": "speccollect", "source": "collector", "device": "cuda"}}
ON_A_CPU = {"recording": {"tool": "speccollect", "source": "collector", "device": "cpu"}}
IMPORTED = {"recording": {"tool": "specanalyze", "source": "import"}}


def of(metadata: dict[str, dict[str, str]]) -> Trace:
    return Trace("trace.parquet", (), metadata)


@pytest.mark.parametrize("lacking", [ACCEPTS, CYCLES, NODE_MAP, SETTINGS])
def test_nobody_is_told_to_do_what_made_this_recording(lacking: str) -> None:
    for metadata in (COLLECTED, ON_A_CPU):
        assert "record with the collector" not in advice(of(metadata), lacking)
    for metadata in (IMPORTED, {}):
        assert advice(of(metadata), lacking).startswith("record with the collector")


def test_what_may_be_given_instead_comes_last() -> None:
    assert advice(of({}), NODE_MAP, "give --node-map FILE") == "record with the collector; or give --node-map FILE"
    assert advice(of(ON_A_CPU), NODE_MAP).startswith("it was recorded on a CPU, where no CUDA graph is captured")


def test_no_message_of_the_analyzer_goes_round_the_advice() -> None:
    """A literal in a message is printed on every recording, the collector's own included."""
    package = Path(specanalyze.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        if path.name != "advice.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if "record with the collector" in line and '"' in line
    ]
    assert found == []


def test_layers_and_diagnose_of_the_collectors_own_recording() -> None:
    """Layers of a recording without a node map, and what diagnose could not check."""
    sample = Path(__file__).parents[2] / "samples" / "embedded_tp2.parquet"
    trace = open_trace([sample])
    said = diagnose(trace).not_checked.values()
    assert [line for line in said if "record with the collector" in line] == []
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaGraphLaunch", 1, 7),
        traces.kernel("k", 10, 50, 7, graph_id=1, node=0),
    ]
    bare = traces.trace(traces.rank_trace(rows))
    with pytest.raises(TraceError, match="must be in the server from its start"):
        layers(Trace(bare.name, bare.sources, COLLECTED))
    with pytest.raises(TraceError, match=r"record with the collector; or give --node-map FILE"):
        layers(bare)


def test_a_recording_without_windows_is_said_to_have_none(tmp_path: Path) -> None:
    """Host ranges alone: breakdown used to show `host 100 %` without a word, and diagnose found everything in order."""
    rows = [
        *(traces.phase("spec.cycle", at, at + 100, cycle=at, mode="speculative") for at in (0, 100, 200)),
        *(traces.phase("spec.verify", at, at + 80, cycle=at) for at in (0, 100, 200)),
    ]
    bare = traces.trace(traces.rank_trace(rows))
    (said,) = [line for line in break_down(bare).warnings if "profiler window" in line]
    assert said.startswith("rank 0: no device work was recorded, for want of a profiler window: record with windows")
    frame, _ = validate(bare)
    assert frame.filter(frame["check"] == "device work recorded")["result"].to_list() == ["warning"]
    with pytest.raises(TraceError, match="no whole decode cycle with device records"):
        measure(bare)
    write_trace(bare, tmp_path / "trace.parquet")
    command = [sys.executable, "-m", "specanalyze", "kernels", "trace.parquet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "for want of a profiler window" in done.stderr
