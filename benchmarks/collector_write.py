"""What it costs to get a window's events onto disk: the collector's ways against torch's JSON export.

    python benchmarks/collector_write.py [--events 70000] [--rounds 7] [--device cpu]

Records that many operators with torch.profiler, then takes the steps in turn, every round anew (interleaved). Printed, per
step: the median wall time, the median CPU time of the thread (which other work on the machine disturbs less) in ns an event, its
ratio to export_chrome_trace within the round (median), and who pays: ``step`` is the thread that runs the server's steps, ``lock`` the writer
thread while it holds the interpreter, ``free`` the writer thread without it. Then bytes on disk.

The goal is stated for what comes after Kineto has stopped: events to a closed Parquet file. Freeing them comes after that; torch.profiler
frees its events, too, and the export's time doesn't hold that either.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from speccollect.config import WindowSettings
from speccollect.cycles.rows import Origin
from speccollect.cycles.segment import Segment
from speccollect.kineto.columns import KinetoColumns
from speccollect.kineto.events import CompiledEvents, Events, PythonEvents, events_of, load_reader
from speccollect.native.build import NotBuilt, build
from speccollect.parts.part_file import write_part
from speccollect.windows.result import WindowResult
from speccollect.windows.rows import window_table

COMPILED = ("compiled: columns", "compiled: rows of the trace", "compiled: Parquet file")
PYTHON = (
    "python: events()",
    "python: columns",
    "python: rows of the trace",
    "python: Parquet file",
)
FREE = ("compiled: free the events", "python: free the events")
PAYS = {
    **dict.fromkeys(("export_chrome_trace", *PYTHON[:2], FREE[1]), "step"),
    **dict.fromkeys((COMPILED[1], PYTHON[2]), "lock"),
    **dict.fromkeys((COMPILED[0], COMPILED[2], PYTHON[3], FREE[0]), "free"),
}


def record(events: int, device: str) -> Any:
    """A profile of about that many events: operators on a CPU; on a GPU a third of them each operators, launches, kernels."""
    value = torch.zeros(4, device=device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(events // (3 if device == "cuda" else 1)):
            value.add(value)
    return profile


class Way:
    """One reader's way from Kineto's memory to a closed file, step by step."""

    def __init__(self, make: Callable[[], Events], parquet_file: Path) -> None:
        self.make = make
        self.file = parquet_file
        self.events: Events | None = None
        self.columns: KinetoColumns | None = None
        self.table: Any = None

    def open(self) -> None:
        self.events = self.make()

    def read(self) -> None:
        assert self.events is not None
        self.columns = self.events.columns(pause=None)

    def rows(self) -> None:
        segment = Segment()
        segment.reset(0, 0, 0, 1)
        segment.profile = WindowResult(events=None, columns=self.columns, info={"window": 0}, metadata=False)
        self.table = window_table(segment, [], Origin(0, os.getpid(), -1), WindowSettings())[0]

    def write(self) -> None:
        write_part(self.file, self.table, {})

    def free(self) -> None:
        assert self.events is not None
        self.events.release()


def one_round(arguments: argparse.Namespace, folder: Path, compiled: bool) -> dict[str, tuple[float, float]]:
    """Step -> (wall, CPU of this thread), seconds. Each way has a recording of its own: reading it frees it."""
    times: dict[str, tuple[float, float]] = {}

    def timed(name: str, step: Callable[[], Any]) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        step()
        times[name] = (time.perf_counter() - wall, time.thread_time() - cpu)

    if compiled:
        profile = record(arguments.events, arguments.device)
        way = Way(lambda: events_of(profile.profiler.kineto_results), folder / "compiled.parquet")
        way.open()
        assert isinstance(way.events, CompiledEvents)
        for name, step in zip((*COMPILED, FREE[0]), (way.read, way.rows, way.write, way.free), strict=True):
            timed(name, step)
        del profile
    profile = record(arguments.events, arguments.device)
    way = Way(lambda: PythonEvents(profile.profiler.kineto_results), folder / "python.parquet")
    timed("export_chrome_trace", lambda: profile.export_chrome_trace(str(folder / "trace.json")))
    for name, step in zip(PYTHON, (way.open, way.read, way.rows, way.write), strict=True):
        timed(name, step)

    def free() -> None:
        nonlocal profile
        way.free()
        profile.profiler.kineto_results = None
        del profile
        gc.collect(0)

    timed(FREE[1], free)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=70_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        build()
        compiled = load_reader()
    except NotBuilt as error:
        compiled = False
        print(f"no compiled reader: {error}")
    folder = Path(tempfile.mkdtemp())
    one_round(arguments, folder, compiled)  # first calls of Arrow
    rounds = [one_round(arguments, folder, compiled) for _ in range(arguments.rounds)]
    totals: dict[str, tuple[str, ...]] = {"python, events to closed file": PYTHON}
    if compiled:
        totals["compiled, events to closed file"] = COMPILED
    for times in rounds:
        for name, parts in totals.items():
            times[name] = (sum(times[part][0] for part in parts), sum(times[part][1] for part in parts))
    count = arguments.events
    print(f"about {count} events, {arguments.rounds} rounds, {arguments.device}, torch {torch.__version__}")
    print(f"{'step':44s} {'pays':5s} {'wall ms':>8s} {'CPU ns/event':>13s} {'of the export: wall':>20s} {'CPU':>7s}")
    for name in rounds[0]:
        wall, cpu = (statistics.median(times[name][i] for times in rounds) for i in (0, 1))
        ratios = [
            statistics.median(times[name][i] / times["export_chrome_trace"][i] for times in rounds) for i in (0, 1)
        ]
        print(
            f"{name:44s} {PAYS.get(name, ''):5s} {wall * 1e3:8.1f} {cpu / count * 1e9:13.0f} "
            f"{ratios[0]:20.3f} {ratios[1]:7.3f}"
        )
    sizes = {name: (folder / name).stat().st_size for name in ("trace.json", "python.parquet")}
    for name, size in sizes.items():
        print(f"{name + ' bytes':50s} {size:8d} {size / count:13.1f} {size / sizes['trace.json']:20.4f}")


if __name__ == "__main__":
    main()
