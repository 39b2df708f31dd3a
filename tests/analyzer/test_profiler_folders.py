"""Folders of SGLang's and vLLM's profilers, and traces that SGLang merged from all ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specanalyze.formats.load import open_trace
from specanalyze.formats.profiler_folders import merged_ranks
from specanalyze.formats.recordings import rank_in_name

CASES = Path(__file__).resolve().parents[1] / "cases"
WAIT = CASES / "07-cross-rank-wait-custom-allreduce"


def merge(files: dict[str, Path], target: Path) -> Path:
    """What SGLang's merger does: every row's process gets the rank's label, the other members are those of the first file."""
    whole: dict[str, Any] = {"traceEvents": []}
    for label, file in files.items():
        document = json.loads(file.read_text())
        for row in document["traceEvents"]:
            whole["traceEvents"].append(row | {"pid": f"{label} {row['pid']}"})
        whole |= {key: value for key, value in document.items() if key not in whole}
    target.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return target


def rank_files() -> list[Path]:
    return sorted(WAIT.glob("*-TP-*.trace.json"))


def plain(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.select(
        pl.col(c).cast(pl.List(pl.String)).list.join(",") if isinstance(kind, pl.List) else pl.col(c).cast(pl.String)
        for c, kind in frame.schema.items()
    ).rows()


def test_a_merged_trace_holds_the_same_ranks(tmp_path: Path) -> None:
    labelled = {f"[TP{i:02d}]": file for i, file in enumerate(rank_files())}
    assert len(labelled) > 1
    merged = open_trace([merge(labelled, tmp_path / "merged-1756600000.1.trace.json.gz")])
    apart = open_trace(rank_files())
    assert [s.key for s in merged.sources] == [s.key for s in apart.sources]
    for one, other in zip(merged.ranks(), apart.ranks(), strict=True):
        assert one.rank == other.rank
        assert one.events.columns == other.events.columns
        assert plain(one.events) == plain(other.events)
    assert merged.warnings[0].startswith(f"merged-1756600000.1.trace.json.gz merges {len(labelled)} ranks")


def test_labels_that_the_tensor_rank_does_not_tell_apart(tmp_path: Path) -> None:
    first, second, *_ = rank_files()
    path = merge({"[TP00-PP00]": first, "[TP00-PP01]": second}, tmp_path / "all.json.gz")
    assert [(r.key, r.rank) for r in merged_ranks(path)] == [("TP00-PP00", -1), ("TP00-PP01", -1)]
    assert [r.key for r in open_trace([path]).ranks()] == ["TP00-PP00", "TP00-PP01"]


def test_a_merged_trace_beside_its_ranks_is_left_out(tmp_path: Path) -> None:
    for file in rank_files():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    merge({f"[TP{i:02d}]": file for i, file in enumerate(rank_files())}, tmp_path / "merged-1756600000.1.trace.json.gz")
    trace = open_trace([tmp_path])
    assert [s.key for s in trace.sources] == [str(i) for i in range(len(rank_files()))]
    assert trace.warnings == [
        "merged-1756600000.1.trace.json.gz holds the ranks that lie beside it once more: left out"
    ]


def test_a_trace_of_one_process_is_not_searched_for_labels() -> None:
    assert merged_ranks(rank_files()[0]) == []


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1756600000.1-TP-3.trace.json.gz", 3),
        ("1756600000.1-TP-1-DP-0-PP-0-EP-1.trace.json.gz", 1),
        ("1756600000.1-TP-0-DECODE.trace.json.gz", 0),
        ("d1f0-rank-5.1790000000.pt.trace.json.gz", 5),
        ("dp1_pp0_tp0_dcp0_ep1_rank1.1790000000.pt.trace.json.gz", 1),
        ("nodeA_700.1790000000.pt.trace.json.gz", None),
    ],
)
def test_rank_in_the_names_that_servers_give(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
