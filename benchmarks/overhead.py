"""What observing costs the embedded worker: each way of observing against none, interleaved in one process.

    python benchmarks/overhead.py [--layers 24 --hidden 1024] [--rounds 8] [--cycles 60] [--json FILE]
    torchrun --nproc-per-node 2 benchmarks/overhead.py ...        tensor parallel, every rank recorded; rank 0's cycles are printed

One request is served again and again with the same tokens, so every cycle of a round does the same work as the cycle of
the same number in every other way. In each round all ways take their turn, in an order of its own; a cycle is timed from outside, around
the scheduler's step. Printed for each way: the median cycle; the median over rounds of its ratio to ``none`` in the same round, with a
95 % bootstrap interval over rounds; the same of the serving thread's CPU time, which other work on the machine disturbs
less (on a GPU it holds the wait for the device); for windows how long the serving thread was held when they ended; and how many events
each turn recorded, fewest to most: a cheap turn may be one that saw nothing. --json has ratio, events and held of each round.

Ways: none (no hooks); none again (the control: what this machine can't tell apart); idle (hooks in place, not armed); phases
(armed, no profiler); bare profiler (torch.profiler, CUDA activity alone, no hooks); window (the collector's default: device activity,
phases from host stamps, marks for the clock); window ranges (a range of the profiler's around each phase); window stamps (device activity alone,
no marks); window cpu_ops; window cupti (through cupti-python, where it is installed; after it CUPTI is detached again); beside the writer (untraced cycles right after a window, while the writer thread reads and writes it); after
(no hooks again, directly after a window is written).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TEARDOWN_CUPTI", "1")  # before Kineto starts, as the collector's plugin does

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as distributed
from torch.profiler import ProfilerActivity

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.demo.config import DemoConfig
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.request import Request
from speccollect.demo.scheduler import Scheduler
from speccollect.demo.worker import SpeculativeWorker
from speccollect.engines import embedded
from speccollect.native.build import ensure
from speccollect.nodemap_check.sessions import settle
from speccollect.rank.recorder import Recorder, get_recorder
from specschema import metadata

WARMUP_CYCLES = 3
"""Cycles at the start of each turn that are not counted, and cycles in which a profiler starts."""

ORDER = (
    "none",
    "none again",
    "idle",
    "phases",
    "bare profiler",
    "window",
    "window ranges",
    "window stamps",
    "window cpu_ops",
    "window cupti",
    "beside the writer",
    "after",
)

Times = list[tuple[int, int]]
"""Of each cycle: wall time, and CPU time of the serving thread; ns."""

Serve = Callable[[int], Times]


def server(worker: SpeculativeWorker, prompt: tuple[int, ...]) -> Serve:
    """A function that serves one request for so many decode cycles and returns their times, ns."""

    def serve(cycles: int) -> Times:
        scheduler = Scheduler(worker)
        scheduler.add([Request("bench", prompt, worker.config.max_context - len(prompt) - worker.config.steps - 2)])
        times: Times = []
        while scheduler.running or scheduler.waiting:
            batch = scheduler.next_batch()
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            scheduler.process_result(batch, worker.forward_batch(batch))
            taken = (time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)
            if batch.mode != "prefill":
                times.append(taken)
                if len(times) == cycles:
                    break
        if len(times) < cycles:
            raise SystemExit(f"the request ended after {len(times)} cycles; give fewer --cycles")
        return times

    return serve


def tensor_parallel(device: str) -> TensorParallel:
    """This rank's place among those that torchrun started; alone without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return TensorParallel()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        distributed.init_process_group("gloo")
    return TensorParallel(distributed.get_rank(), distributed.get_world_size(), distributed.group.WORLD)


def told(value: Any) -> Any:
    """Rank 0's value, on every rank; the ranks meet here."""
    if not distributed.is_initialized():
        return value
    box = [value]
    distributed.broadcast_object_list(box)
    distributed.barrier()
    return box[0]


@contextmanager
def recordings(recorder: Recorder) -> Iterator[Path]:
    """A folder for recordings that all ranks share, to which the recorder is attached; removed at the end."""
    first = not distributed.is_initialized() or distributed.get_rank() == 0
    folder = Path(told(tempfile.mkdtemp() if first else None))
    recorder.attach_to(folder)
    try:
        yield folder
    finally:
        recorder.attach_to(None)
        told(None)
        if first:
            shutil.rmtree(folder, ignore_errors=True)


def detach() -> None:
    """After cupti-python CUPTI stays attached, and launches stay dearer; a session of Kineto's takes it along when it ends."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]):
        torch.cuda.synchronize()
    settle()


def ways(serve: Serve, cycles: int, device: str, windows: list[dict[str, Any]]) -> dict[str, Callable[[], Times]]:
    """Name of each way -> serves one turn and returns the times of ``cycles`` counted cycles.

    Args:
        windows: what the metadata says of each window is appended to it; of the bare profiler how many events it has.
    """
    recorder = get_recorder()
    first = not distributed.is_initialized() or distributed.get_rank() == 0
    whole = cycles + WARMUP_CYCLES

    def none() -> Times:
        return serve(whole)[WARMUP_CYCLES:]

    def armed(settings: WindowSettings, more: int = 0) -> Times:
        """Cycles of a recording; with ``more`` so many cycles come first and are not counted."""
        with ExitStack() as stack:
            folder = stack.enter_context(recordings(recorder))
            stack.callback(embedded.install(recorder).remove)
            recording = told(word.arm(folder, settings).recording if first else None)
            times = serve(whole + more)[WARMUP_CYCLES + more :]
            told(word.disarm(folder) if first else None)
            recorder.poll()
            recorder.close()
            wait_for_ranks(folder, recording)
            for path in word.recording_folder(folder, recording).glob("*.window*.parquet"):
                windows.extend(metadata.decode(pq.read_schema(path).metadata, path.name)["recording"]["windows"])
            return times

    def idle() -> Times:
        with ExitStack() as stack:
            stack.enter_context(recordings(recorder))
            stack.callback(embedded.install(recorder).remove)
            return none()

    def bare() -> Times:
        # One window of the profiler over the counted cycles alone, as the collector's own windows are.
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        with torch.profiler.profile(activities=[activity]) as profiler:
            times = none()
        kineto: Any = profiler.profiler
        windows.append({"events": len(kineto.kineto_results.events())})
        return times

    def window(**options: bool) -> Callable[[], Times]:
        settings = WindowSettings(skip=0, warmup=WARMUP_CYCLES - 1, record=cycles + 8, repeat=1, **options)
        return lambda: armed(settings)

    def cupti() -> Times:
        times = window(cupti=True)()
        detach()
        return times

    def beside() -> Times:
        settings = WindowSettings(skip=0, warmup=WARMUP_CYCLES - 1, record=cycles, repeat=1, stamps=False)
        return armed(settings, cycles)

    def after() -> Times:
        beside()
        return none()

    return {
        "none": none,
        "none again": none,
        "idle": idle,
        "phases": lambda: armed(WindowSettings(repeat=0)),
        "bare profiler": bare,
        "window": window(),
        "window ranges": window(ranges=True),
        "window stamps": window(stamps=True),
        "window cpu_ops": window(cpu_ops=True),
        "window cupti": cupti,
        "beside the writer": beside,
        "after": after,
    }


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cycles", type=int, default=60, help="counted cycles of each turn")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="*", choices=ORDER, help="these ways alone (none is always needed)")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = DemoConfig(
        layers=options.layers,
        hidden=options.hidden,
        experts=options.experts,
        steps=options.steps,
        max_context=64 * (2 + (2 * options.cycles + 8) * (options.steps + 1) // 64),  # the cache comes in rows of 64
        dtype="bfloat16" if device == "cuda" else "float32",
    )
    if device == "cpu":
        torch.set_num_threads(1)
    prompt = tuple(7 + 3 * i for i in range(32))
    logging.getLogger("speccollect").setLevel(logging.ERROR)  # a window that ends with its turn is cut, and says so
    parallel = tensor_parallel(device)
    first = parallel.rank == 0
    if first:
        ensure(lambda line: print(line))
    told(None)
    wanted = [way for way in ORDER if not options.only or way in ("none", *options.only)]
    if "window cupti" in wanted and not (device == "cuda" and importlib.util.find_spec("cupti")):
        wanted.remove("window cupti")
        if first:
            print("without a GPU or cupti-python there is no window cupti")
    times: dict[str, list[Times]] = {}
    held: dict[str, list[list[dict[str, Any]]]] = {}
    shuffled = random.Random(0)
    with torch.inference_mode():
        worker = SpeculativeWorker(
            config, parallel, torch.device(device), speculate=True, eager=options.eager or device == "cpu"
        )
        serve = server(worker, prompt)
        serve(options.cycles)
        for number in range(options.rounds + 1):
            windows: list[dict[str, Any]] = []
            turns = ways(serve, options.cycles, device, windows)
            for name in shuffled.sample(wanted, k=len(wanted)):
                told(None)
                taken = turns[name]()
                if number:  # the first round loads what the first window loads
                    times.setdefault(name, []).append(taken)
                    held.setdefault(name, []).append(list(windows))
                windows.clear()
        worker.graphs.release()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    if not first:
        return
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}: {options.rounds} rounds of {options.cycles} cycles each, {config.layers} layers, "
        f"tensor parallel {parallel.size}"
    )
    rows = figures(times, held)
    print(
        f"{'way':18s} {'cycles':>7s} {'median ms':>10s} {'p90 ms':>8s} {'ratio to none':>14s} {'95 % interval':>16s} "
        f"{'CPU ratio':>10s} {'95 % interval':>16s} "
        f"{'held ms':>8s} {'of it stop':>11s} {'reader':>13s} {'events':>15s}"
    )
    for way, row in rows.items():
        print(
            f"{way:18s} {row['cycles']:7d} {row['median_ns'] / 1e6:10.3f} {row['p90_ns'] / 1e6:8.3f} {row['ratio']:14.4f} "
            f"{row['low']:7.4f}..{row['high']:.4f} {row['cpu_ratio']:10.4f} {row['cpu_low']:7.4f}..{row['cpu_high']:.4f}"
            + (
                f" {row['held_ns'] / 1e6:8.1f} {row['stop_ns'] / 1e6:11.1f} {row['reader']:>13s}"
                if "held_ns" in row
                else f" {'':34s}"
                if "events" in row
                else ""
            )
            + (f" {row['events'][0]:>7d}..{row['events'][1]}" if "events" in row else "")
        )
    if options.json:
        options.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "ways": rows}, indent=1))


def figures(times: dict[str, list[Times]], held: dict[str, list[list[dict[str, Any]]]]) -> dict[str, dict[str, Any]]:
    """Way -> its figures: ratios are medians over rounds, with a 95 % bootstrap interval over rounds.

    Args:
        times: way -> the cycles of each round.
        held: way -> what is known of each round's windows: ``events``, and of the collector's own what their metadata says.
    """
    generator = np.random.default_rng(0)
    medians = {way: np.array([np.median(np.array(turn), axis=0) for turn in turns]) for way, turns in times.items()}
    rows: dict[str, dict[str, Any]] = {}
    for way in sorted(times, key=list(ORDER).index):
        cycles = sorted(wall for turn in times[way] for wall, _ in turn)
        ratios, of_cpu = (medians[way] / medians["none"]).T
        picks = generator.integers(0, len(ratios), (2000, len(ratios)))
        (low, high), (cpu_low, cpu_high) = (
            np.percentile(np.median(found[picks], axis=1), (2.5, 97.5)) for found in (ratios, of_cpu)
        )
        row: dict[str, Any] = {
            "cycles": len(cycles),
            "median_ns": statistics.median(cycles),
            "p90_ns": cycles[int(0.9 * len(cycles))],
            "ratio": float(np.median(ratios)),
            "low": float(low),
            "high": float(high),
            "cpu_ratio": float(np.median(of_cpu)),
            "cpu_low": float(cpu_low),
            "cpu_high": float(cpu_high),
        }
        row["rounds"] = [
            {
                "ratio": float(ratio),
                "cpu_ratio": float(cpu_ratio),
                "events": sum(w["events"] for w in windows),
                "held_ns": sum(w.get("held_ns", 0) for w in windows),
            }
            for ratio, cpu_ratio, windows in zip(ratios, of_cpu, held[way], strict=True)
        ]
        windows = [window for turn in held[way] for window in turn]
        if windows:
            counts = [w["events"] for w in windows]
            row["events"] = [min(counts), max(counts)]
        ours = [window for window in windows if "held_ns" in window]
        if ours:
            row |= {
                "held_ns": statistics.median(w["held_ns"] for w in ours),
                "stop_ns": statistics.median(w["stop_cost_ns"] for w in ours),
                "reader": ours[-1]["reader"],
            }
        rows[way] = row
    return rows


if __name__ == "__main__":
    main()
