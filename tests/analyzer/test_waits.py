"""The table of matched collectives: by what they were matched, and the numbers of their match, the first one included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from specanalyze.breakdown import break_down
from specanalyze.load import open_trace

CASES = Path(__file__).resolve().parents[1] / "cases"


def collectives(folder: Path) -> pl.DataFrame:
    waits = break_down(open_trace([folder])).waits
    assert waits is not None
    return waits.collectives


def test_sequence_numbers_may_begin_at_0(tmp_path: Path) -> None:
    """Case 08 counted from 0 instead of 10: the fourth rank's window starts late, so it lacks the first collective."""

    def renumbered(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v - 10 if k == "Seq" else renumbered(v) for k, v in value.items()}
        return [renumbered(v) for v in value] if isinstance(value, list) else value

    for path in (CASES / "08-seq-numbers-when-a-rank-starts-late").glob("*.pt.trace.json"):
        (tmp_path / path.name).write_text(json.dumps(renumbered(json.loads(path.read_bytes()))))
    table = collectives(tmp_path)
    assert table["matched_by"].unique().to_list() == ["seq"]
    assert table["seq"].to_list() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert table["wait_ns"].to_list() == [38000, 18000, 0, 52000, 50000, 0, 21000, 11000, 36000, 35000, 0]
    assert table.select("replay", "position").null_count().row(0) == (11, 11)


def test_replays_and_their_kernels_are_counted_from_0() -> None:
    table = collectives(CASES / "07-cross-rank-wait-custom-allreduce")
    assert table.select("matched_by", "seq", "replay", "position", "rank").rows() == [
        ("replay", None, 0, position, rank) for position in (0, 1, 2) for rank in ("0", "1")
    ]
