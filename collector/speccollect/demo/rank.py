"""One rank of the embedded engine as a process: ``python -m speccollect.demo.rank`` with a RankTask as one line of standard input."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Final

import torch

import speccollect
from speccollect.demo.config import DemoConfig
from speccollect.demo.parallel import connect, disconnect, join_store
from speccollect.demo.request import Request, Sequence
from speccollect.demo.scheduler import Scheduler
from speccollect.demo.timing import phase_times
from speccollect.demo.worker import SpeculativeWorker
from speccollect.plugin import install_embedded
from speccollect.rank.recorder import get_recorder

WARM_UP_TOKENS: Final = 8
"""Completion tokens of the request that runs before anything is recorded: first calls load kernels and set up libraries."""


@dataclass(frozen=True)
class Way:
    """How requests are served."""

    speculate: bool
    eager: bool


@dataclass(frozen=True)
class RankTask:
    """What the launcher tells a rank."""

    rank: int
    port: int
    """Of the launcher's store on 127.0.0.1."""
    device: str
    """cuda or cpu."""
    config: DemoConfig
    requests: tuple[Request, ...]
    ways: tuple[Way, ...]
    """Each is served with all requests, in turn; recorded is all of it."""
    time_phases: bool = False
    """Whether each phase is timed by itself after the requests are served."""

    def encode(self) -> str:
        """JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> RankTask:
        """The task in a JSON text."""
        fields = json.loads(text)
        fields["config"] = DemoConfig(**fields["config"])
        fields["requests"] = tuple(Request(**{**r, "prompt": tuple(r["prompt"])}) for r in fields["requests"])
        fields["ways"] = tuple(Way(**way) for way in fields["ways"])
        return RankTask(**fields)


@dataclass(frozen=True)
class RankResult:
    """What a rank did in one way."""

    completions: list[list[int]]
    """Completion tokens of each request."""
    accept_lengths: list[list[int]]
    """Tokens committed by each cycle of each request after prefill."""
    seconds: float
    """From the first prefill to the last token."""
    phase_ns: dict[str, int]
    """Median duration of each phase by itself; empty unless asked for."""


def serve(task: RankTask) -> None:
    """Build the engine, tell the launcher, wait for its word, serve the requests, report."""
    device = torch.device(task.device, task.rank) if task.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    launcher = join_store(task.port)
    parallel = connect(task.rank, task.config.tp, task.port, device)
    recorder = get_recorder()
    recorder.identify(
        rank=task.rank,
        coordinates={"tensor": task.rank},
        server="embedded",
        server_version=speccollect.__version__,
        server_args={**asdict(task.config), "ways": [asdict(way) for way in task.ways]},
    )
    install_embedded()
    results: list[RankResult] = []
    with torch.inference_mode():
        for way in task.ways:
            worker = SpeculativeWorker(task.config, parallel, device, speculate=way.speculate, eager=way.eager)
            run(worker, [replace(r, max_tokens=min(r.max_tokens, WARM_UP_TOKENS)) for r in task.requests])
            if not results:
                launcher.set(f"ready/{task.rank}", "")
                launcher.wait(["go"])
            begun = time.perf_counter()
            served = run(worker, task.requests)
            seconds = time.perf_counter() - begun
            phase_ns = phase_times(worker, task.config.max_batch) if task.time_phases else {}
            lengths = [sequence.accept_lengths for sequence in served]
            results.append(RankResult([sequence.completion for sequence in served], lengths, seconds, phase_ns))
            worker.graphs.release()
    launcher.set(f"result/{task.rank}", json.dumps([asdict(result) for result in results]))
    # The launcher disarms once every rank is through; the poll sees it, and the recorder closes this rank's files.
    launcher.wait(["over"])
    recorder.poll()
    recorder.close()
    disconnect()


def run(worker: SpeculativeWorker, requests: list[Request] | tuple[Request, ...]) -> list[Sequence]:
    """Serve requests to their end."""
    scheduler = Scheduler(worker)
    sequences = scheduler.add(requests)
    scheduler.run()
    return sequences


def leave_with_launcher() -> None:
    """End this process when the launcher's end of standard input closes: a killed launcher leaves no rank behind."""

    def watch() -> None:
        # Unbuffered: a thread that holds the buffered reader's lock would break the interpreter's end.
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


if __name__ == "__main__":
    line = sys.stdin.readline()
    leave_with_launcher()
    serve(RankTask.decode(line))
