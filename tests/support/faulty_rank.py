"""The embedded engine in a process that takes its orders, and its faults, from a test: one JSON object a line.

usage: faulty_rank.py RANK SIZE PORT, with SPECANALYZE_DIR set. The hooks, the recorder and the engine are the real ones; what
breaks is replaced inside this process by a function that raises. Each order is answered by one line; an engine that pauses
answers ``{"paused": CYCLE}`` from inside verify and takes orders until ``{"do": "go"}``.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
import torch

from speccollect.cycles import recording
from speccollect.demo.config import DemoConfig
from speccollect.demo.parallel import connect
from speccollect.demo.request import Batch, Request, Sequence
from speccollect.demo.scheduler import Scheduler
from speccollect.demo.shape import build_requests
from speccollect.demo.worker import SpeculativeWorker
from speccollect.engines import embedded
from speccollect.hooks import stamps
from speccollect.hooks.guard import guarded
from speccollect.plugin import install_embedded
from speccollect.rank.recorder import get_recorder

CONFIG = DemoConfig(
    layers=1,
    hidden=128,
    heads=8,
    kv_heads=4,
    experts=2,
    top_k=1,
    intermediate=16,
    vocab=64,
    steps=2,
    max_batch=1,
    max_context=256,
)
"""The smallest engine that drafts, verifies and re-extends."""


PROMPT = 20
"""Tokens of a prompt."""


class Lines(logging.Handler):
    """What the collector logged since it was last asked."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Counting(Scheduler):
    """Counts decode cycles, and profiles some of them as a server's own /start_profile would."""

    profile: tuple[int, int] | None = None

    def __init__(self, worker: SpeculativeWorker) -> None:
        super().__init__(worker)
        self.cycles = 0
        self.theirs: Any = None
        self.their_events = 0

    def next_batch(self) -> Batch:
        batch = super().next_batch()
        if batch.mode != "prefill":
            if self.profile is not None and self.cycles == self.profile[0]:
                self.theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                self.theirs.start()
            if self.theirs is not None and self.profile is not None and self.cycles == self.profile[1]:
                self.theirs.stop()
                self.their_events = len(self.theirs.events())
                self.theirs = None
            self.cycles += 1
        return batch


class Rank:
    """The engine and its orders."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        self.log = Lines()
        logging.getLogger("speccollect").addHandler(self.log)
        self.recorder = get_recorder()
        self.recorder.identify(rank=rank, server="embedded", server_version="1")
        install_embedded()
        self.config = replace(CONFIG, tp=size)
        self.worker = SpeculativeWorker(self.config, connect(rank, size, port, device), device)
        self.undo: list[Any] = []
        self.pause_at: int | None = None
        self.scheduler = Counting(self.worker)
        inner = self.worker._run

        def run(name: str, *arguments: Any) -> None:
            if name == "verify" and self.scheduler.cycles - 1 == self.pause_at:
                answer({"paused": self.pause_at})
                self.pause_at = None
                self.take_orders()
            inner(name, *arguments)

        self.worker._run = run  # type: ignore[method-assign,assignment]  # inside the hooked phase: its range is open

    def serve(self, max_tokens: int, name: str = "demo-0") -> list[Sequence]:
        self.scheduler = Counting(self.worker)
        served: list[Request] = [
            replace(request, request_id=name) for request in build_requests(self.config, 1, PROMPT, max_tokens)
        ]
        sequences = self.scheduler.add(served)
        self.scheduler.run()
        return sequences

    # ---- orders

    def do_serve(
        self, max_tokens: int, pause_at: int | None = None, profile: list[int] | None = None
    ) -> dict[str, Any]:
        self.pause_at = pause_at
        Counting.profile = (profile[0], profile[1]) if profile else None
        sequences = self.serve(max_tokens)
        return {
            "tokens": [s.completion for s in sequences],
            "accept_lengths": [s.accept_lengths for s in sequences],
            "their_events": self.scheduler.their_events,
        }

    def do_attach(self, folder: str) -> dict[str, Any]:
        self.recorder.attach_to(Path(folder))
        self.recorder.poll()
        return {}

    def do_poll(self, times: int = 1) -> dict[str, Any]:
        """What a server's idle loop does, through the same guard."""
        idle = guarded("idle", lambda wrapped, *_: wrapped(), self.recorder, polls=True)
        for _ in range(times):
            idle(lambda: None, None, (), {})
        return {"armed": self.recorder.armed}

    def do_close(self) -> dict[str, Any]:
        self.recorder.close()
        return {}

    def do_log(self) -> dict[str, Any]:
        return {"log": self.log.taken(), "armed": self.recorder.armed}

    def do_break(self, targets: list[str], after: int = 0) -> dict[str, Any]:
        """Let ``module:Class.method`` raise from its call number ``after`` on."""
        for target in targets:
            self._break(target, after)
        return {}

    def _break(self, target: str, after: int) -> None:
        module, _, path = target.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        original = getattr(owner, name)
        calls = 0

        @functools.wraps(original)
        def broken(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise RuntimeError(f"injected into {path}")
            return original(*arguments, **named)

        setattr(owner, name, broken)
        self.undo.append(functools.partial(setattr, owner, name, original))

    def do_heal(self) -> dict[str, Any]:
        while self.undo:
            self.undo.pop()()
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            torch.autograd._disable_profiler()  # type: ignore[attr-defined]  # of a stop that was made to raise
        return {}

    def do_step_clock(self, by_ns: int) -> dict[str, Any]:
        for module in (recording, stamps, embedded):
            self.undo.append(functools.partial(setattr, module, "_now", time.time_ns))
            module._now = lambda: time.time_ns() + by_ns  # type: ignore[attr-defined]
        return {}

    def do_soak(self, cycles: int, seconds: float) -> dict[str, Any]:
        """Serve requests until so many cycles ran or so much time has passed; resident bytes once a hundredth of it."""
        process = psutil.Process()
        done, tokens, requests = 0, 0, 0
        resident: list[list[int]] = []
        begun = time.monotonic()
        while done < cycles and time.monotonic() - begun < seconds:
            served = self.serve(200, f"soak-{requests}")
            requests += 1
            done += self.scheduler.cycles
            tokens += sum(len(s.completion) for s in served)
            if done >= len(resident) * cycles // 100:
                resident.append([done, process.memory_info().rss])
        took = time.monotonic() - begun
        return {"cycles": done, "tokens": tokens, "requests": requests, "resident": resident, "seconds": took}

    def take_orders(self) -> None:
        """Until ``go``, or the end of standard input."""
        for line in iter(sys.stdin.readline, ""):
            order = json.loads(line)
            name = order.pop("do")
            if name == "go":
                return
            answer(getattr(self, f"do_{name}")(**order))
        sys.exit(0)


def answer(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    rank = Rank(*(int(argument) for argument in sys.argv[1:]))
    answer({"ready": True})
    with torch.inference_mode():
        rank.take_orders()
