"""A long run of the smallest engine: memory stays flat, nothing is lost, and the engine's own totals agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ordered_rank import Starter

from speccollect import control
from speccollect.config import WindowSettings
from speccollect.merge import merge

CYCLES = 100_000
SECONDS = 100.0
"""Whichever comes first; at 2 to 6 ms a cycle on a shared core this is 17 000 to 50 000 cycles."""

GROWTH = 20.0
"""Resident bytes a cycle that are still flat: 2 MB over 100 000 cycles. A cycle leaves about 200 bytes of columns behind, so a
recorder that kept them would show."""


@pytest.mark.slow
def test_soak(start: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (rank,) = start(folder)
    control.arm(folder, WindowSettings())
    told = rank.ask("soak", cycles=CYCLES, seconds=SECONDS)
    control.disarm(folder)
    rank.ask("poll")
    rank.ask("close")
    assert rank.ask("log")["log"] == []
    merged = merge(folder, tmp_path / "trace.parquet")
    assert merged.problems == []
    assert set(merged.recording["lost"]["0"].values()) == {0}
    totals = merged.recording["totals"]["0"]
    assert (totals["completion_tokens"], totals["equal"], totals["difference"]) == (told["tokens"], True, 0)

    table = pq.read_table(merged.path, columns=["kind", "mode", "cycle", "accept_lengths"]).unify_dictionaries()
    cycles = table.filter(pc.equal(table["kind"], "cycle"))
    assert np.array_equal(np.sort(cycles["cycle"].to_numpy()), np.arange(told["cycles"] + told["requests"]))
    decode = cycles.filter(pc.equal(cycles["mode"], "speculative"))
    assert decode.num_rows == told["cycles"]
    # the first token of each request comes from its prefill
    assert pc.sum(pc.list_flatten(decode["accept_lengths"])).as_py() == told["tokens"] - told["requests"]

    resident = np.array(told["resident"][len(told["resident"]) // 3 :], dtype=np.float64)
    slope = np.polyfit(resident[:, 0], resident[:, 1], 1)[0]
    assert slope < GROWTH, f"{slope:.1f} bytes a cycle over {told['cycles']} cycles"
