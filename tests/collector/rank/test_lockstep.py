"""Two ranks in step, armed while they are busy: one of them a cycle later than the other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.cycles.numbers import cycles_later, renumbered
from speccollect.rank.lockstep import place_in_step
from speccollect.trace.merge import merge

RANK = """
import sys, time
import torch
from speccollect.rank.recorder import get_recorder
torch.set_num_threads(1)
recorder = get_recorder()
matrix = torch.ones(8, 8)
recorder.poll()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        recorder.poll()
        recorder.close()
        break
    number = recorder.begin_cycle("speculative", 1, 2, ["a"])
    with recorder.phase("verify"):
        matrix @ matrix
    recorder.end_cycle(number)
    if number >= 0:
        recorder.accept(number, [2], [1])
    print(number, flush=True)
"""

SETTINGS = WindowSettings(skip=20, warmup=1, record=4, repeat=2, gap=5)
CYCLE_SECONDS = 0.03


class Rank:
    """A rank that runs a cycle when it is told to."""

    def __init__(self, folder: Path, rank: int) -> None:
        environment = {
            "SPECANALYZE_DIR": str(folder),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ended(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.mark.parametrize("late", [0, 1])
def test_windows_are_of_the_same_cycles_whichever_rank_was_armed_first(tmp_path: Path, late: int) -> None:
    ranks = [Rank(tmp_path, number) for number in (0, 1)]

    def cycle() -> None:
        for rank in ranks:
            rank.tell("cycle")
        assert all(rank.answer() for rank in ranks)
        time.sleep(CYCLE_SECONDS)

    for _ in range(3):
        cycle()
    # the late rank has begun its cycle when the word comes
    ranks[late].tell("cycle")
    assert ranks[late].answer() == "-1"
    command = word.arm(tmp_path, SETTINGS)
    ranks[1 - late].tell("cycle")
    assert ranks[1 - late].answer() == "0"
    time.sleep(CYCLE_SECONDS)
    for _ in range(SETTINGS.last_cycle + 6):
        cycle()
    word.disarm(tmp_path)
    for rank in ranks:
        rank.tell("end")
    assert [rank.ended() for rank in ranks] == [0, 0]
    assert wait_for_ranks(tmp_path, command.recording, 10) == []
    merged = merge(tmp_path, tmp_path / "trace.parquet")
    windows = {
        number: [(w["first_cycle"], w["cycles"]) for w in merged.recording["windows"] if w["rank"] == number]
        for number in (0, 1)
    }
    assert windows[0] == windows[1] == [(22, 4), (32, 4)]
    table = pq.read_table(merged.path).unify_dictionaries()
    cycles = table.filter(pc.equal(table["kind"], "cycle"))
    starts: dict[int, dict[int, int]] = {}
    for number in (0, 1):
        own = cycles.filter(pc.equal(cycles["rank"], number)).sort_by("cycle")
        starts[number] = dict(zip(own["cycle"].to_pylist(), own["start_ns"].to_pylist(), strict=True))
    assert min(starts[late]) == 1
    assert min(starts[1 - late]) == 0
    both = sorted(starts[0].keys() & starts[1].keys())
    assert len(both) >= SETTINGS.last_cycle
    apart = np.array([starts[0][cycle] - starts[1][cycle] for cycle in both])
    assert np.median(np.abs(apart)) < CYCLE_SECONDS * 1e9 / 2


def test_a_rank_out_of_step_is_left_alone() -> None:
    starts = np.arange(20) * 1000
    assert place_in_step(starts, starts[:8] + 10) == 0
    assert place_in_step(starts, starts[2:10] - 50) == 2
    held = starts[1:9] + np.array([0, 0, 900, 0, 0, -400, 0, 0])  # single cycles may be late
    assert place_in_step(starts, held) == 1
    assert place_in_step(starts, starts[:8] + 500) is None
    assert place_in_step(starts, starts[8:16]) is None


def test_numbers_follow_the_rank_that_counted_first() -> None:
    parts: list[tuple[int, dict[str, Any]]] = [
        (0, {"recording": {"ahead": None}}),
        (0, {"recording": {"ahead": 1}}),
        (1, {"recording": {"ahead": 0}}),
        (2, {}),
    ]
    assert cycles_later(parts) == {0: 0, 1: 1}
    assert cycles_later([]) == {}
    assert renumbered({"warmup": [5, 7]}, 1) == {"warmup": [6, 8]}
    assert renumbered({"window": 0, "first_cycle": 7}, 2) == {"window": 0, "first_cycle": 9}
