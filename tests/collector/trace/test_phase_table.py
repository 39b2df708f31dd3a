"""The first look at a trace: host and device time of each phase, from a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from speccollect.parts.part_file import write_part
from speccollect.parts.table import event_table
from speccollect.trace.phase_table import phase_table

MS = 1_000_000


def row(kind: str, name: str, start_ms: float, dur_ms: float, **columns: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "rank": 0,
        "pid": 1,
        "name": name,
        "start_ns": int(start_ms * MS),
        "dur_ns": int(dur_ms * MS),
        **columns,
    }


def trace(path: Path, rows: list[dict[str, Any]]) -> Path:
    tables = [event_table(1, {k: [v] if isinstance(v, list) else v for k, v in r.items()}) for r in rows]
    write_part(path, pa.concat_tables(tables).unify_dictionaries(), {"recording": {}})
    return path


def cycle(number: int, start_ms: float, window: int | None = None, mode: str = "speculative") -> list[dict[str, Any]]:
    facts = {"cycle": number, "window": window}
    return [
        row("cycle", "spec.cycle", start_ms, 8, mode=mode, accept_lengths=[2 + number % 2], **facts),
        row("phase", "spec.draft", start_ms, 1, tid=1, **facts),
        row("phase", "spec.verify", start_ms + 1, 3, tid=1, **facts),
        row("phase", "spec.sample", start_ms + 2, 1, tid=1, **facts),
    ]


def test_untraced_cycles_give_host_times(tmp_path: Path) -> None:
    rows = [r for number in range(4) for r in cycle(number, 10 * number)] + cycle(4, 100, window=0)
    table = phase_table(trace(tmp_path / "t.parquet", rows))
    assert table is not None
    assert (table.rank, table.mode, table.cycles, table.traced) == (0, "speculative", 4, False)
    assert table.cycle_ms == 10.0
    assert table.host_ms == {"draft": 1.0, "verify": 3.0}
    assert table.device_ms == {}
    assert table.accept_length == pytest.approx((2 + 3 + 2 + 3 + 2) / 5)


def test_what_is_left_of_a_cycle_is_never_negative(tmp_path: Path) -> None:
    rows = [r for number in range(3) for r in cycle(number, 10 * number)]
    # the last one before a window is slow; how long it lasted to the next one is not known, so it counts for neither
    slow = [row("phase", "spec.verify", 31, 90, tid=1, cycle=3), row("cycle", "spec.cycle", 30, 95, cycle=3)]
    slow[1]["mode"] = "speculative"
    table = phase_table(trace(tmp_path / "t.parquet", rows + slow + cycle(4, 200, window=0)))
    assert table is not None
    assert (table.cycle_ms, table.host_ms) == (10.0, {"draft": 1.0, "verify": 3.0})
    assert sum(table.host_ms.values()) <= table.cycle_ms


def test_device_work_belongs_to_the_phase_that_launched_it(tmp_path: Path) -> None:
    rows = cycle(0, 0) + cycle(1, 10) + cycle(2, 100, window=0)
    rows += [
        row("launch", "cudaGraphLaunch", 101.5, 0.1, tid=1, correlation=7, window=0),
        row("launch", "cudaLaunchKernel", 100.5, 0.1, tid=1, correlation=9, window=0),
        # two overlapping kernels of verify, 3 ms together, one of the draft; one nobody launched
        row("kernel", "a", 102, 2, correlation=7, device=0, stream=1, window=0),
        row("kernel", "b", 103, 2, correlation=7, device=0, stream=2, window=0),
        row("kernel", "c", 101, 0.5, correlation=9, device=0, stream=1, window=0),
        row("kernel", "d", 106, 1, correlation=8, device=0, stream=1, window=0),
    ]
    table = phase_table(trace(tmp_path / "t.parquet", rows))
    assert table is not None
    assert table.device_ms == {"draft": 0.5, "verify": 3.0}


def test_only_traced_cycles_are_said_to_be_slow(tmp_path: Path) -> None:
    table = phase_table(trace(tmp_path / "t.parquet", cycle(0, 0, 0) + cycle(1, 10, 0)))
    assert table is not None
    assert table.traced


def test_plain_decoding(tmp_path: Path) -> None:
    rows = cycle(0, 0, mode="decode") + cycle(1, 12, mode="decode") + cycle(5, 500, mode="decode")
    table = phase_table(trace(tmp_path / "t.parquet", rows))
    assert table is not None
    # the pause between cycle 1 and cycle 5 is no cycle
    assert (table.mode, table.cycle_ms) == ("decode", 12.0)


def test_no_cycles(tmp_path: Path) -> None:
    assert phase_table(trace(tmp_path / "t.parquet", [row("phase", "spec.idle", 0, 1, tid=1)])) is None
