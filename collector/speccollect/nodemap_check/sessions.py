"""Profiler sessions of ``nodemap_check``, one after another in one process, and what they show of graph replays.

With TEARDOWN_CUPTI=1 Kineto detaches at the end of the first CUDA call after a session, on a thread of its own. A session
that begins before that is detached in its middle and returns nothing: sessions that followed each other at once were empty
by turns (torch 2.11, H200). So calls are made and time passes between two, and an empty session is said and repeated.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as distributed
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from speccollect.kineto.columns import KinetoColumns, read_columns

DEVICE_TYPES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
TRIES: Final = 4
SETTLE_CALLS: Final = 10
SETTLE_SECONDS: Final = 0.05


def settle() -> None:
    """CUDA calls with pauses, so that an earlier session's end is over."""
    for _ in range(SETTLE_CALLS):
        torch.cuda.synchronize()
        time.sleep(SETTLE_SECONDS)


def fewest(count: int) -> int:
    """The smallest ``count`` of all ranks: they must agree whether to repeat what holds a collective."""
    if not distributed.is_initialized():
        return count
    least = torch.tensor([count], device="cuda")
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least.item())


def profiled(work: Callable[[], object], say: Callable[[str], None], *, ranges: bool = False) -> KinetoColumns:
    """Kineto's events of ``work``, which is repeated while a session shows no device activity on some rank."""
    activities = [ProfilerActivity.CUDA] + ([ProfilerActivity.CPU] if ranges else [])
    for attempt in range(1, TRIES + 1):
        settle()
        with profile(activities=activities) as profiler:
            work()
            torch.cuda.synchronize()
        kineto: Any = profiler.profiler
        events = read_columns(kineto.kineto_results.events(), pause=None)
        if fewest(int(events.of_type(*DEVICE_TYPES).sum())) > 0:
            break
        say(f"      a profiler session returned no device activity (try {attempt} of {TRIES})")
    return events


def replays_of(events: KinetoColumns) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """(start of the launch call, rows of its activities by start) of each graph launch, in order."""
    device = np.flatnonzero(events.of_type(*DEVICE_TYPES))
    launches = np.flatnonzero(
        events.of_type("cuda_runtime", "cuda_driver") & events.name_mask(lambda name: "GraphLaunch" in name)
    )
    found = []
    for launch in launches[np.argsort(events.start[launches])]:
        rows = device[events.correlation[device] == events.correlation[launch]]
        if len(rows):  # a runtime call may be recorded beside the driver call that it makes
            found.append((int(events.start[launch]), rows[np.argsort(events.start[rows], kind="stable")]))
    return found


def streams_of(events: KinetoColumns) -> int:
    """The most streams that one replay's activities lie on: across streams the order of starts promises nothing."""
    return max((len(np.unique(events.resource[members])) for _, members in replays_of(events)), default=0)


@torch.no_grad()
def eager_kernels(model: nn.Module, x: torch.Tensor, say: Callable[[str], None]) -> dict[str, collections.Counter[str]]:
    """Kernel names by module path, from an eager run: the innermost module range around each launch call."""
    open_ranges: list[Any] = []
    paths = {module: f"Model.{name}" if name else "Model" for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        open_ranges.append(record_function("module " + paths[module]))
        open_ranges[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = [h for m in model.modules() for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    events = profiled(lambda: model(x), say, ranges=True)
    for handle in handles:
        handle.remove()
    ranges = np.flatnonzero(
        events.of_type("user_annotation", "cpu_op") & events.name_mask(lambda name: name.startswith("module "))
    )
    begins, ends = events.start[ranges], events.start[ranges] + events.duration[ranges]
    launches = np.flatnonzero(events.of_type("cuda_runtime", "cuda_driver"))
    launched = dict(zip(events.correlation[launches].tolist(), events.start[launches].tolist(), strict=True))
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in np.flatnonzero(events.of_type(*DEVICE_TYPES)):
        at = launched.get(int(events.correlation[row]))
        if at is None:
            continue
        around = np.flatnonzero((begins <= at) & (at < ends))
        if len(around):
            inner = ranges[around[np.argmax(begins[around])]]
            path = events.names[events.name[inner]].removeprefix("module ")
            found[path][events.names[events.name[row]]] += 1
    return found
