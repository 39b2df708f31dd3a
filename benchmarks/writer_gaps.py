"""How long the collector's writer thread keeps the interpreter from the serving thread, stage by stage.

    python benchmarks/writer_gaps.py [--requests 64] [--graphs 50] [--nodes 1700] [--cycles 4096] [--rounds 5] [--operators 0] [--json FILE]

A step runs the embedded engine's empty cycle (``empty_cycles``) and then lets go of the interpreter a hundred times, as launches do; each time
it is stamped how long it took to have it back. What of that it was ready to run and had no processor (Linux's schedstat) does not count, nor more
than the processor time that the process's other threads had meanwhile: other work on the machine changes little. The writer thread is the real one, its functions stamped where they begin and end. A wait
counts for the innermost stage that holds the middle of it (``nobody``: for none). Printed of each stage: how often it ran, its wall time, the
longest wait of a round (median over the rounds, and the longest of all), and all waits beyond 0.1 ms together.

With ``--operators`` windows of torch operators are recorded, so many of them a cycle; without, phases alone.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from arming_cost import note_graphs
from empty_cycles import ENGINES

from speccollect.config import PHASES_ONLY, WindowSettings
from speccollect.control import word
from speccollect.cycles.segment import Segment
from speccollect.rank import writer
from speccollect.rank.lockstep import Lockstep
from speccollect.rank.recorder import Recorder

NOBODY: Final = "nobody"

_BLOCK: Final = bytes(6000)
"""Bytes of a checksum: zlib lets go of the interpreter from 5 KiB on."""

WAIT_NS: Final = 100_000
"""Shorter waits are what letting go and taking back costs."""

_clock = time.perf_counter_ns
_all = time.process_time_ns
_own = time.thread_time_ns


class Wait(NamedTuple):
    """The serving thread without the interpreter."""

    begin_ns: int
    end_ns: int
    held_ns: int
    """Of it what other threads of the process can have held it."""


class Delay:
    """How long this thread was ready to run and had no processor, ns; read without letting go of the interpreter."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._text = ctypes.create_string_buffer(128)
        self._read = ctypes.PyDLL(None).pread
        self._read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)

    def ns(self) -> int:
        self._read(self._descriptor, self._text, len(self._text), 0)
        return int(self._text.value.split()[1])

    def __del__(self) -> None:
        os.close(self._descriptor)


class Stay(NamedTuple):
    """A stretch of the writer thread in one stage."""

    begin_ns: int
    end_ns: int
    stage: str


class Stages:
    """Stamps functions of the writer thread; their originals come back when the stack closes."""

    def __init__(self, stack: ExitStack) -> None:
        self.stays: list[Stay] = []
        for owner, name, stage in (
            (writer, "environment", "environment"),
            (writer, "node_table", "node map, rows"),
            (writer, "cycle_rows", "rows of cycles"),
            (writer, "phase_rows", "rows of phases"),
            (writer, "read_window", "reading a window's events"),
            (writer, "window_table", "rows of a window"),
            (writer, "write_part", "Parquet"),
            (Segment, "release", "release"),
            (Segment, "settled", "asking for accept lengths"),
            (Lockstep, "step", "lockstep"),
            (writer.Writer, "_report", "status"),
            (writer.Writer, "sections", "metadata"),
            (writer.Writer, "_write_requests", "requests"),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, self._stamped(getattr(owner, name), stage))

    def _stamped(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def stamped(*args: Any, **kwargs: Any) -> Any:
            begun = _clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.stays.append(Stay(begun, _clock(), stage))

        return stamped

    def of(self, wait: Wait) -> str:
        """The innermost stage that holds the middle of a wait."""
        middle = (wait.begin_ns + wait.end_ns) // 2
        around = [stay for stay in self.stays if stay.begin_ns <= middle <= stay.end_ns]
        return min(around, key=lambda stay: stay.end_ns - stay.begin_ns).stage if around else NOBODY


def serve(cycle: Callable[[], None], cycles: int, operators: int, calls: int) -> list[Wait]:
    """Run cycles; the waits beyond WAIT_NS for the interpreter."""
    waits = []
    value = torch.zeros(4)
    delay = Delay()
    for _ in range(cycles):
        cycle()
        for _ in range(operators):
            value.add(value)
        for _ in range(calls):
            delayed = delay.ns()
            others = _all() - _own()
            begun = _clock()
            zlib.crc32(_BLOCK)
            ended = _clock()
            if ended - begun > WAIT_NS:
                held = min(ended - begun - (delay.ns() - delayed), _all() - _own() - others)
                if held > WAIT_NS:
                    waits.append(Wait(begun, ended, held))
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64, help="requests in the batch")
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=1700, help="nodes of each graph")
    parser.add_argument("--calls", type=int, default=100, help="times that a step lets go of the interpreter")
    parser.add_argument("--cycles", type=int, default=4096, help="cycles of a round")
    parser.add_argument("--operators", type=int, default=0, help="torch operators a cycle, in windows of 20 cycles")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = PHASES_ONLY
    if options.operators:
        settings = WindowSettings(skip=20, warmup=2, record=20, repeat=options.cycles // 100, gap=60, cpu_ops=True)
    longest: dict[str, list[float]] = defaultdict(list)
    waited: dict[str, list[float]] = defaultdict(list)
    walls: dict[str, list[float]] = defaultdict(list)
    runs: dict[str, int] = defaultdict(int)
    with ExitStack() as stack:
        cycle, install = ENGINES["embedded"](stack, options.requests)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = Recorder(folder)
        stack.callback(recorder.close)
        recorder.identify(server="bench", server_args={f"argument_{i}": f"value {i}" for i in range(300)})
        note_graphs(recorder, options.graphs, options.nodes)
        stack.callback(install(recorder).remove)
        recorder.poll()
        for number in range(options.rounds + 1):
            with ExitStack() as stamped:
                stages = Stages(stamped)
                word.arm(folder, settings)
                cycle()  # arms
                waits = serve(cycle, options.cycles, options.operators, options.calls)
                word.disarm(folder)
                waits += serve(cycle, options.cycles // 4, 0, options.calls)  # what is left is written meanwhile
                recorder.close()
            if number == 0:
                continue  # first calls
            mine: dict[str, list[float]] = {name: [] for name in {NOBODY, *(stay.stage for stay in stages.stays)}}
            for wait in waits:
                mine[stages.of(wait)].append(wait.held_ns / 1e6)
            for name, times in mine.items():
                longest[name].append(max(times, default=0.0))
                waited[name].append(sum(times))
            for stay in stages.stays:
                walls[stay.stage].append((stay.end_ns - stay.begin_ns) / 1e6)
                runs[stay.stage] += 1
    print(
        f"Python {sys.version.split()[0]}, {options.rounds} rounds of {options.cycles} cycles, {options.requests} requests, "
        f"{options.graphs} graphs of {options.nodes} nodes, {options.operators} operators a cycle"
    )
    print(
        f"{'stage':28s} {'runs':>6s} {'wall ms':>9s} {'longest wait ms':>16s} {'of all':>8s} {'waits ms a round':>17s}"
    )
    rows = {}
    for name in sorted(longest, key=lambda name: -statistics.median(longest[name])):
        row = rows[name] = {
            "runs": runs[name],
            "wall_ms": statistics.median(walls[name]) if walls[name] else None,
            "longest_ms": statistics.median(longest[name]),
            "longest_of_all_ms": max(longest[name]),
            "waited_ms": statistics.median(waited[name]),
        }
        wall = "" if row["wall_ms"] is None else f"{row['wall_ms']:9.2f}"
        print(
            f"{name:28s} {row['runs']:6d} {wall:>9s} {row['longest_ms']:16.2f} {row['longest_of_all_ms']:8.2f} {row['waited_ms']:17.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
