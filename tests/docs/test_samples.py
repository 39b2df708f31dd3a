"""What samples/README.md promises of each sample, and the notebook beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specanalyze.answers.accept import accepts_of_trace
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.breakdown_table import breakdown_json
from specanalyze.answers.calibration import calibrate
from specanalyze.formats.load import open_trace

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "samples").glob("*.parquet"))

WITHOUT_TAIL = {"sglang_tp4_mla61_eagle3_steps2"}
"""Recorded before the profiler stayed on until the device was through a window's last cycle: its last replay has no records."""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_promises(sample: Path) -> None:
    result = break_down(open_trace([sample]))
    document = breakdown_json(result)
    for rank in result.ranks:
        assert sum(ns for buckets in rank.buckets_ns.values() for ns in buckets.values()) == rank.window_ns
        assert (calibrate(rank, result.cycles).scale is None) == (sample.stem in WITHOUT_TAIL)
    assert document["unclassified_share"] < 0.01
    coverage = document["coverage"]
    lost = coverage["graph_launches"] - coverage["with_gpu_records"]
    assert lost == (len(result.ranks) if sample.stem in WITHOUT_TAIL else 0)
    assert coverage["with_gpu_records"] > 0


@pytest.mark.parametrize("sample", [path for path in SAMPLES if "plain" not in path.stem], ids=lambda path: path.stem)
def test_accept_lengths_are_the_servers(sample: Path) -> None:
    server = accepts_of_trace(open_trace([sample])).server
    assert server is not None
    assert server.difference == 0


def test_every_sample_has_its_column() -> None:
    page = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in SAMPLES if f"`{path.name}`" not in page] == []


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("altair")
    monkeypatch.chdir(ROOT / "samples")
    notebook = json.loads((ROOT / "samples" / "look_at_a_trace.ipynb").read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "look_at_a_trace.ipynb", "exec"), namespace)
    assert namespace["charts"]
