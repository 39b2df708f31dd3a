"""How long each phase takes by itself, for the self-check. Recording a run tells how they follow each other; this does not."""

from __future__ import annotations

import statistics
import time
from typing import Final

import torch

from speccollect.demo.worker import SpeculativeWorker

REPEATS: Final = 30


def phase_times(worker: SpeculativeWorker, count: int) -> dict[str, int]:
    """Median nanoseconds of each phase, the device waited for each time.

    Runs on whatever the rows hold, so call it after the requests are served; all ranks have to call it together.

    Args:
        worker: the worker.
        count: rows to run on.
    """
    size = worker.graphs.size_for(count)
    phases = (worker.draft, worker.verify, worker.draft_extend) if worker.speculate else (worker.decode,)
    medians = {}
    for phase in phases:
        spent = []
        for _ in range(REPEATS):
            _wait_for(worker.device)
            begun = time.perf_counter_ns()
            phase(count, size)
            _wait_for(worker.device)
            spent.append(time.perf_counter_ns() - begun)
        medians[phase.__name__] = int(statistics.median(spent))
    return medians


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
