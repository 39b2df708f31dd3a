"""What the collector's own thread takes from a busy server right after arming, and later on.

    python benchmarks/arming_cost.py [--engine sglang] [--graphs 9] [--nodes 500] [--cycles 400] [--rounds 9] [--json FILE]

A step runs an engine's empty cycle (``empty_cycles``), then what stands for the server's host work: Python, and calls that let go of the
interpreter a hundred times a step, as launches do. Whenever it is free the collector's thread may take it, and a step that
is bound by its host waits. Stretches of equal length in turns: idle, the first cycles after arming, the ones that follow. Printed of each: mean
and median step, ratio of the means to idle of the same round, and CPU time that other threads took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from empty_cycles import ENGINES

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.rank.recorder import Recorder

_BLOCK = bytes(6000)
"""Bytes of a checksum: zlib lets go of the interpreter from 5 KiB on."""


class Stretch(NamedTuple):
    """Steps in a row."""

    mean_ms: float
    median_ms: float
    others_ms: float
    """CPU time of other threads, altogether."""


def host_work(calls: int) -> int:
    """Some 10 us of Python, and a call without the interpreter, so many times."""
    total = 0
    for _ in range(calls):
        for number in range(150):
            total += number & 3
        total ^= zlib.crc32(_BLOCK)
    return total


def stretch(cycle: Callable[[], None], cycles: int, calls: int) -> Stretch:
    times = []
    clock = time.perf_counter_ns
    others = time.process_time_ns() - time.thread_time_ns()
    for _ in range(cycles):
        begun = clock()
        cycle()
        host_work(calls)
        times.append(clock() - begun)
    others = time.process_time_ns() - time.thread_time_ns() - others
    return Stretch(statistics.mean(times) / 1e6, statistics.median(times) / 1e6, others / 1e6)


def note_graphs(recorder: Recorder, graphs: int, nodes: int) -> None:
    """A node map as a server's captures leave it."""
    for graph in range(graphs):
        places = range(nodes)
        recorder.note_graph(
            graph + 1,
            {
                "node_type": ["kernel"] * nodes,
                "module": [f"model.layers.{place // 10}.mlp.gate_up_proj" for place in places],
                "module_class": ["MergedColumnParallelLinear"] * nodes,
                "name": [f"void cutlass::Kernel2<tile_{place % 50}{'_x' * 60}>" for place in places],
                "op": [None] * nodes,
                "dtype": [None] * nodes,
                "elements": [None] * nodes,
                "group": [None] * nodes,
                "group_ranks": [None] * nodes,
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="sglang")
    parser.add_argument("--requests", type=int, default=1, help="requests in the batch")
    parser.add_argument("--graphs", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=500, help="nodes of each graph")
    parser.add_argument("--calls", type=int, default=100, help="times that a step lets go of the interpreter")
    parser.add_argument("--cycles", type=int, default=400, help="cycles of each stretch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    found: dict[str, list[Stretch]] = {"idle": [], "first": [], "later": []}
    with ExitStack() as stack:
        cycle, install = ENGINES[options.engine](stack, options.requests)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = Recorder(folder)
        stack.callback(recorder.close)
        note_graphs(recorder, options.graphs, options.nodes)
        stack.callback(install(recorder).remove)
        recorder.poll()
        for _ in range(options.rounds):
            found["idle"].append(stretch(cycle, options.cycles, options.calls))
            word.arm(folder, PHASES_ONLY)
            cycle()  # arms
            found["first"].append(stretch(cycle, options.cycles, options.calls))
            found["later"].append(stretch(cycle, options.cycles, options.calls))
            word.disarm(folder)
            recorder.poll()
            recorder.close()
    print(f"{options.engine}: {options.rounds} rounds of {options.cycles} cycles, medians over rounds (least .. most)")
    rows: dict[str, Any] = {}
    for name, stretches in found.items():
        ratios = [mine.mean_ms / idle.mean_ms for mine, idle in zip(stretches, found["idle"], strict=True)]
        row = rows[name] = {
            "mean_ms": statistics.median(s.mean_ms for s in stretches),
            "median_ms": statistics.median(s.median_ms for s in stretches),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "others_ms": statistics.median(s.others_ms for s in stretches),
        }
        print(
            f"{name:6s} mean {row['mean_ms']:7.4f} ms  median {row['median_ms']:7.4f} ms  mean over idle {row['ratio']:.4f} "
            f"({row['least']:.4f} .. {row['most']:.4f})  other threads {row['others_ms']:6.2f} ms"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
