"""What a recording lacks is told with advice that fits where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces

import specanalyze
from specanalyze.advice import ACCEPTS, CYCLES, NODE_MAP, SETTINGS, advice
from specanalyze.diagnose import diagnose
from specanalyze.layers import layers
from specanalyze.load import open_trace
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
