"""Parquet files whose rows say less than they should, or say it twice: what is read, and what is said of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.native import collect, timeline
from specanalyze.native.library import library
from specanalyze.trace import Trace
from specschema.errors import TraceError

CASES = Path(__file__).parents[1] / "cases"
MOE = "fused_moe_kernel"


@pytest.fixture(params=["compiled passes", "whole tables"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways of reading and summing a rank."""
    if request.param == "whole tables":
        monkeypatch.setenv("SPECANALYZE_NATIVE", "0")
    caches = (library, timeline.compiled, collect.compiled)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def rewritten(folder: Path, column: str, new: Callable[[dict[str, Any]], Any]) -> Path:
    """A small recording of one window in which some cells of a column are others."""
    write_trace(open_trace([CASES / "13-no-distributed-info/1756600000.1-TP-3.trace.json"]), folder / "whole.parquet")
    table = pq.read_table(folder / "whole.parquet")
    rows = [row | {column: new(row)} for row in table.to_pylist()]
    keys = pq.read_metadata(folder / "whole.parquet").metadata
    kept = {key: value for key, value in keys.items() if key.startswith(b"specanalyze.")}
    path = folder / "trace.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema.with_metadata(kept)), path)
    (folder / "whole.parquet").unlink()
    return path


def buckets(trace: Trace) -> dict[str, int]:
    return break_down(trace).ranks[0].buckets_ns["verify"]


def test_device_work_in_no_window_is_refused(engine: None, tmp_path: Path) -> None:
    path = rewritten(tmp_path, "window", lambda row: None if row["name"] == MOE else row["window"])
    with pytest.raises(
        TraceError, match=r"^trace\.parquet: 1 device activity in no window, although the recording has"
    ):
        break_down(open_trace([path]))
    salvaged = open_trace([path], salvage=True)
    assert "moe" not in buckets(salvaged)
    assert any("1 device activity in no window" in line for line in salvaged.warnings)


def test_a_recording_without_windows_is_one(engine: None, tmp_path: Path) -> None:
    trace = open_trace([rewritten(tmp_path, "window", lambda row: None)])
    assert buckets(trace)["moe"] == 50_000
    assert trace.warnings == []


def test_an_unknown_kind_is_told(engine: None, tmp_path: Path) -> None:
    trace = open_trace([rewritten(tmp_path, "kind", lambda row: "kernelx" if row["name"] == MOE else row["kind"])])
    assert buckets(trace)["graph_gap"] == 53_000
    assert trace.warnings == ["trace.parquet: 1 event of kinds that this reader does not know (kernelx): left out"]


def test_events_without_a_name_are_told(engine: None, tmp_path: Path) -> None:
    trace = open_trace([rewritten(tmp_path, "name", lambda row: None if row["name"] == MOE else row["name"])])
    assert buckets(trace)["other_compute"] == 50_000
    assert any(line.startswith("trace.parquet: 1 event without a name") for line in trace.warnings)


def test_one_table_of_a_rank_twice_is_refused(tmp_path: Path) -> None:
    one = CASES / "43-parquet-truncated/kernels.rank0.parquet"
    shutil.copy(one, tmp_path / "kernels.rank0.parquet")
    assert open_trace([tmp_path]).sources[0].read().events.height == 400
    shutil.copy(one, tmp_path / "kernels.rank1.parquet")
    with pytest.raises(
        TraceError, match=r"kernels\.rank0\.parquet and kernels\.rank1\.parquet both hold the kernel table"
    ):
        open_trace([tmp_path])


def test_a_folder_of_foreign_files_names_them(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(TraceError, match=r"^none of other\.parquet is a trace of ours"):
        open_trace([tmp_path])


def test_files_that_were_never_finished_are_told(tmp_path: Path) -> None:
    shutil.copy(CASES / "13-no-distributed-info/1756600000.1-TP-3.trace.json", tmp_path)
    (tmp_path / "1756600000.1-TP-4.trace.json.tmp").write_text("{")
    (tmp_path / ".trace.parquet.0123.tmp").write_text("")  # of an import that was stopped: no rank
    assert [line.split(",")[0] for line in open_trace([tmp_path]).warnings] == [
        "1756600000.1-TP-4.trace.json.tmp was never finished"
    ]
