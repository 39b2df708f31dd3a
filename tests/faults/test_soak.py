"""A long run of the smallest engine: memory stays flat, nothing is lost, and the engine's own totals agree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ordered_rank import Starter

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.trace.merge import merge

CYCLES = 100_000
SECONDS = float(os.environ.get("SPECANALYZE_SOAK_SECONDS", "100"))
"""Whichever comes first; at 3 to 9 ms a cycle on a shared core 100 s are 11 000 to 33 000 cycles. 1000 s are enough for all."""

SETTLED = 5_000
"""Cycles after which every buffer has been in use."""

ROOM = 36_000_000
"""Bytes by which resident memory goes up and down while files are written (11 MB seen over 100 000 cycles, 25.2 MB where other work
kept the writer waiting); rows of 95 000 cycles that were kept would be 47 MB, those of the pool's written segments 40 MB."""

GROWTH = 60.0
"""Resident bytes a cycle that are still flat over the last two thirds of a whole run: a shorter one can't tell them from going up and
down (half a run gave 119, a whole one -6). What a cycle records takes
about 500 bytes in memory (three phases, its facts, two lists): a recorder that kept it would show."""


@pytest.mark.slow
def test_soak(start: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (rank,) = start(folder)
    word.arm(folder, WindowSettings())
    told = rank.ask("soak", cycles=CYCLES, seconds=SECONDS)
    (tmp_path / "told.json").write_text(json.dumps(told))
    word.disarm(folder)
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

    samples = np.array(told["resident"], dtype=np.float64)
    settled = samples[samples[:, 0] > SETTLED]
    assert len(settled) > 1, f"only {told['cycles']} cycles in {SECONDS} s: too slow a machine to tell"
    assert np.ptp(settled[:, 1]) < ROOM
    if told["cycles"] >= CYCLES:
        later = samples[samples[:, 0] > CYCLES // 3]
        slope = np.polyfit(later[:, 0], later[:, 1], 1)[0]
        assert slope < GROWTH, f"{slope:.1f} bytes a cycle over {told['cycles']} cycles"
