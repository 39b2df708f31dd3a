"""What the phase tier itself costs: an engine's hooks around methods that do nothing, in microseconds a cycle.

    python benchmarks/tier_cost.py [--engine sglang] [--requests 1] [--rounds 15] [--cycles 300] [--cold-mb 8] [--json FILE]

A cycle of the embedded engine is forward_batch with draft, verify and draft_extend in it, then process_result; SGLang's is a turn of the
overlap loop of 0.5.17 with EAGLE-3 (``empty_cycles``). Ways: none (no hooks), idle (hooks in place, not armed), phases (armed, no profiler), and phases with NVTX ranges where a tool listens. All take turns in one
process. ``hot``: cycles back to back, so that the hooks' code stays in the processor's caches. ``cold``: between two cycles memory is
walked that the caches can't hold beside it, as a server's step does; on a server the hooks run cold. ``other threads`` is CPU time that
the writer thread took meanwhile, a cycle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from empty_cycles import ENGINES

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.rank.recorder import Recorder

WAYS = ("none", "idle", "phases")


def turn(cycle: Callable[[], None], cycles: int, cold: np.ndarray[Any, Any] | None) -> tuple[float, float]:
    """(median cycle, CPU of other threads a cycle), us."""
    times = []
    clock = time.perf_counter_ns
    others = time.process_time_ns() - time.thread_time_ns()
    for _ in range(cycles):
        if cold is not None:
            cold += 1
        begun = clock()
        cycle()
        times.append(clock() - begun)
    others = time.process_time_ns() - time.thread_time_ns() - others
    return statistics.median(times) / 1e3, others / cycles / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--requests", type=int, default=1, help="requests in the batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cycles", type=int, default=300, help="cycles of each turn")
    parser.add_argument("--cold-mb", type=int, default=8, help="memory walked between two cold cycles")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, list[tuple[float, float]]]] = {"hot": {}, "cold": {}}
    walked = np.zeros(options.cold_mb << 17, dtype=np.int64)
    with ExitStack() as stack:
        cycle, install = ENGINES[options.engine](stack, options.requests)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = Recorder(folder)
        stack.callback(recorder.close)
        for number in range(options.rounds + 1):
            for heat, cold in (("hot", None), ("cold", walked)):
                for way in WAYS:
                    with ExitStack() as once:
                        if way != "none":
                            once.callback(install(recorder).remove)
                            recorder.poll()
                        if way == "phases":
                            word.arm(folder, PHASES_ONLY)
                            recorder.poll()
                        turn(cycle, 30, cold)
                        told = turn(cycle, options.cycles, cold)
                        if way == "phases":
                            word.disarm(folder)
                            recorder.poll()
                            recorder.close()  # its files are written before the next way's turn
                    if number:  # the first round warms up
                        figures[heat].setdefault(way, []).append(told)
    print(
        f"{options.engine}: {options.rounds} rounds of {options.cycles} cycles, us a cycle: median of the rounds' medians (least .. most)"
    )
    rows: dict[str, Any] = {}
    for heat, ways in figures.items():
        for way, turns in ways.items():
            over = [mine[0] - base[0] for mine, base in zip(turns, ways["none"], strict=True)]
            row = rows[f"{way}, {heat}"] = {
                "over_none_us": statistics.median(over),
                "least_us": min(over),
                "most_us": max(over),
                "other_threads_us": statistics.median(t[1] for t in turns),
            }
            print(
                f"{way:8s} {heat:5s} {statistics.median(t[0] for t in turns):8.2f}   over none {row['over_none_us']:7.2f} "
                f"({row['least_us']:.2f} .. {row['most_us']:.2f})   other threads {row['other_threads_us']:6.2f}"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
