"""What it costs to get a window's events onto disk: the collector's way against torch's JSON export.

    python benchmarks/collector_write.py [--events 70000] [--rounds 5] [--device cpu]

Records that many operators once with torch.profiler, then times the steps in turns (interleaved, medians). Prints a
table: seconds, ns an event, and the ratio to export_chrome_trace; then bytes on disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.profiler import ProfilerActivity

from speccollect.config import WindowSettings
from speccollect.kineto import KinetoColumns, read_columns
from speccollect.part_file import write_part
from speccollect.segment import Segment
from speccollect.segment_rows import Origin
from speccollect.window import WindowResult
from speccollect.window_rows import window_table


def record(events: int, device: str) -> Any:
    """A profile of about that many events: operators on a CPU; on a GPU a third of them each operators, launches, kernels."""
    value = torch.zeros(4, device=device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(events // (3 if device == "cuda" else 1)):
            value.add(value)
    return profile


def loop_of_tuples(events: list[Any]) -> list[tuple[Any, ...]]:
    """The plain way: a Python loop that calls each method of each event."""
    return [
        (
            e.start_ns(),
            e.duration_ns(),
            e.correlation_id(),
            e.device_index(),
            e.device_resource_id(),
            e.name(),
            e.device_type(),
        )
        for e in events
    ]


def lists_per_column(events: list[Any]) -> list[list[Any]]:
    """A list comprehension per column, then numpy."""
    columns: list[list[Any]] = [
        [e.start_ns() for e in events],
        [e.duration_ns() for e in events],
        [e.correlation_id() for e in events],
        [e.device_index() for e in events],
        [e.device_resource_id() for e in events],
        [e.name() for e in events],
        [e.device_type() for e in events],
    ]
    for column in columns[:5]:
        np.array(column)
    return columns


def steps(profile: Any, json_file: Path, parquet_file: Path) -> dict[str, Callable[[], Any]]:
    """What is timed, in this order; later steps use what earlier ones left."""
    result = profile.profiler.kineto_results
    events = result.events()
    origin = Origin(0, os.getpid(), -1)
    segment = Segment()
    segment.reset(0, 0, 0, 1)
    held: list[KinetoColumns] = []
    tables: list[pa.Table] = []

    def rows() -> None:
        segment.profile = WindowResult(events=[], columns=held[0], info={"window": 0}, metadata=False)
        tables.append(window_table(segment, [], origin, WindowSettings())[0])

    return {
        "export_chrome_trace": lambda: profile.export_chrome_trace(str(json_file)),
        "kineto_results.events()": result.events,
        "loop, a tuple an event": lambda: loop_of_tuples(events),
        "list per column": lambda: lists_per_column(events),
        "read_columns, in slices": lambda: read_columns(events, pause=lambda: time.sleep(0)),
        "read_columns (ours)": lambda: held.append(read_columns(events, pause=None)),
        "rows of the trace": rows,
        "Parquet file": lambda: write_part(parquet_file, tables[0], {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=70_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    json_file, parquet_file = folder / "trace.json", folder / "rank00000.window000.parquet"
    seconds: dict[str, list[float]] = {}
    count = 0
    for _ in range(arguments.rounds):
        # Kineto saves a trace once only, so each round has a recording of its own
        profile = record(arguments.events, arguments.device)
        count = len(profile.profiler.kineto_results.events())
        for name, step in steps(profile, json_file, parquet_file).items():
            begun = time.perf_counter()
            step()
            seconds.setdefault(name, []).append(time.perf_counter() - begun)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ours = ("kineto_results.events()", "read_columns (ours)", "rows of the trace", "Parquet file")
    medians["all of ours together"] = sum(medians[name] for name in ours)
    reference = medians["export_chrome_trace"]
    print(f"{count} events, {arguments.rounds} rounds, {arguments.device}, torch {torch.__version__}")
    print(f"{'step':28s} {'ms':>9s} {'ns/event':>9s} {'ratio':>7s}")
    for name, value in medians.items():
        print(f"{name:28s} {value * 1e3:9.1f} {value / count * 1e9:9.0f} {value / reference:7.3f}")
    sizes = {"JSON": json_file.stat().st_size, "Parquet": parquet_file.stat().st_size}
    for name, size in sizes.items():
        print(f"{name + ' bytes':28s} {size:9d} {size / count:9.1f} {size / sizes['JSON']:7.4f}")


if __name__ == "__main__":
    main()
