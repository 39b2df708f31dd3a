"""What each hook of an engine costs where the caches were emptied before it, as a server's step does between any two of them.

    python benchmarks/cold_hooks.py [--engine sglang] [--requests 1] [--rounds 7] [--cycles 60] [--cold-mb 4] [--json FILE]

``tier_cost.py`` empties the caches between two cycles; within one the hooks still find what the hook before them used. Here every hooked
method walks memory when it begins and before it ends. A clock around each hook, and one around what it wraps: the difference
is the hook's own time. Ways: none (the clocks alone), idle, phases; us a cycle, first quartile
over cycles, less none; median over rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from empty_cycles import ENGINES

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.rank.recorder import Recorder

HOOKED: Final = {
    "embedded": (
        *(("speccollect.demo.worker", f"SpeculativeWorker.{m}") for m in ("forward_batch", "draft", "verify")),
        ("speccollect.demo.worker", "SpeculativeWorker.draft_extend"),
        ("speccollect.demo.scheduler", "Scheduler.process_result"),
    ),
    "sglang": (
        ("sglang.srt.managers.scheduler_components.request_receiver", "SchedulerRequestReceiver.recv_requests"),
        *(("sglang.srt.managers.scheduler", f"Scheduler.{m}") for m in ("run_batch", "process_batch_result")),
        ("sglang.srt.managers.scheduler", "Scheduler.launch_batch_sample_if_needed"),
        ("sglang.srt.managers.tp_worker", "TpModelWorker.forward_batch_generation"),
        ("sglang.srt.speculative.eagle_worker_v2", "EagleDraftWorker.draft"),
        ("sglang.srt.speculative.eagle_worker_v2", "EagleDraftWorker._draft_extend_for_decode"),
        ("sglang.srt.speculative.eagle_worker_v2", "EAGLEWorkerV2.verify"),
        ("sglang.srt.speculative.eagle_utils", "eagle_sample"),
        ("sglang.srt.speculative.eagle_worker_common", "build_eagle_verify_input"),
    ),
}
WAYS: Final = ("none", "idle", "phases")

Spent = dict[str, list[int]]
"""Target -> ns of each cycle."""


def held(module: str, qualname: str) -> list[tuple[Any, str]]:
    """Where a method or function is looked up: its class, or all modules of the package that bind it by name."""
    *classes, name = qualname.split(".")
    owner: Any = sys.modules[module]
    for part in classes:
        owner = getattr(owner, part)
    if classes:
        return [(owner, name)]
    function = getattr(owner, name)
    package = module.split(".")[0] + "."
    modules = [m for n, m in list(sys.modules.items()) if n.startswith(package) and isinstance(m, ModuleType)]
    return [(m, name) for m in modules if getattr(m, name, None) is function]


@contextmanager
def replaced(target: tuple[str, str], make: Callable[[Any], Any]) -> Iterator[None]:
    """``make(original)`` in a target's place."""
    places = held(*target)
    original = getattr(*places[0])
    replacement = make(original)
    for owner, name in places:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name in places:
            setattr(owner, name, original)


def clocked(spent: Spent, name: str, sign: int, walked: np.ndarray[Any, Any] | None) -> Callable[[Any], Any]:
    """Adds the call's time to the cycle's last cell; with ``walked`` the caches are emptied within it, at both ends."""
    clock = time.perf_counter_ns

    def make(original: Any) -> Any:
        @functools.wraps(original)  # hooks look at its parameters
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = clock()
            if walked is not None:
                walked.__iadd__(1)
            try:
                return original(*args, **kwargs)
            finally:
                if walked is not None:
                    walked.__iadd__(1)
                spent[name][-1] += sign * (clock() - begun)

        return call

    return make


def turn(cycle: Callable[[], None], cycles: int, spent: Spent) -> dict[str, float]:
    """Target -> us of a cycle: first quartile, which other work on the machine disturbs least."""
    for _ in range(cycles):
        for cells in spent.values():
            cells.append(0)
        cycle()
    return {name: statistics.quantiles(cells[-cycles:], n=4)[0] / 1e3 for name, cells in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="sglang")
    parser.add_argument("--requests", type=int, default=1, help="requests in the batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=60, help="cycles of each turn")
    parser.add_argument("--cold-mb", type=int, default=4, help="memory walked at both ends of each hooked method")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    walked = np.zeros(options.cold_mb << 17, dtype=np.int64)
    targets = HOOKED[options.engine]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        cycle, install = ENGINES[options.engine](stack, options.requests)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = Recorder(folder)
        stack.callback(recorder.close)
        for number in range(options.rounds + 1):
            for way in WAYS:
                spent: Spent = {target[1]: [0] for target in targets}
                with ExitStack() as once:
                    for target in targets:
                        once.enter_context(replaced(target, clocked(spent, target[1], -1, walked)))
                    if way != "none":
                        once.callback(install(recorder).remove)
                        recorder.poll()
                    for target in targets:
                        once.enter_context(replaced(target, clocked(spent, target[1], 1, None)))
                    if way == "phases":
                        word.arm(folder, PHASES_ONLY)
                        recorder.poll()
                    turn(cycle, 5, spent)
                    figures = turn(cycle, options.cycles, spent)
                    if way == "phases":
                        word.disarm(folder)
                        recorder.poll()
                        recorder.close()
                if number:  # the first round warms up
                    found[way].append(figures)
    print(f"{options.engine}: {options.rounds} rounds of {options.cycles} cycles, own us a cycle less the clocks'")
    rows: dict[str, dict[str, float]] = {}
    for _, name in targets:
        rows[name] = {
            way: statistics.median(
                mine[name] - none[name] for mine, none in zip(found[way], found["none"], strict=True)
            )
            for way in WAYS[1:]
        }
    rows["sum"] = {
        way: statistics.median(
            sum(mine.values()) - sum(none.values()) for mine, none in zip(found[way], found["none"], strict=True)
        )
        for way in WAYS[1:]
    }
    for name, row in rows.items():
        print(f"{name:44s} idle {row['idle']:7.2f}   phases {row['phases']:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
