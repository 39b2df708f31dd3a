"""What observing costs the embedded worker: each way of observing against none, interleaved in one process.

    python benchmarks/overhead.py [--layers 24 --hidden 1024] [--rounds 6] [--cycles 60] [--json FILE]

One request is served again and again with the same tokens, so every cycle of a round does the same work as the cycle of
the same number in every other way. In each round all ways take their turn; a cycle is timed from outside, around the
scheduler's step. Printed: the median cycle, and the median over rounds of the ratio to ``none`` in the same round.

Ways: none (no hooks); idle (hooks in place, not armed); phases (armed, no profiler); bare profiler (torch.profiler, CUDA
activity alone, no hooks); window (the collector's default window); window stamps (device activity alone, phases from
host stamps); window cpu_ops; after (no hooks again, once profilers have run).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("TEARDOWN_CUPTI", "1")  # before Kineto starts, as the collector's plugin does

import torch
from torch.profiler import ProfilerActivity

from speccollect import control
from speccollect.config import WindowSettings
from speccollect.demo.config import DemoConfig
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.request import Request
from speccollect.demo.scheduler import Scheduler
from speccollect.demo.worker import SpeculativeWorker
from speccollect.engines import embedded
from speccollect.recorder import get_recorder
from speccollect.wait import wait_for_ranks

WARMUP_CYCLES = 3
"""Cycles at the start of each turn that are not counted, and cycles in which a profiler starts."""

Serve = Callable[[int], list[int]]


def server(worker: SpeculativeWorker, prompt: tuple[int, ...]) -> Serve:
    """A function that serves one request for so many decode cycles and returns their times, ns."""

    def serve(cycles: int) -> list[int]:
        scheduler = Scheduler(worker)
        scheduler.add([Request("bench", prompt, worker.config.max_context - len(prompt) - worker.config.steps - 2)])
        times: list[int] = []
        while scheduler.running or scheduler.waiting:
            batch = scheduler.next_batch()
            begun = time.perf_counter_ns()
            scheduler.process_result(batch, worker.forward_batch(batch))
            taken = time.perf_counter_ns() - begun
            if batch.mode != "prefill":
                times.append(taken)
                if len(times) == cycles:
                    break
        if len(times) < cycles:
            raise SystemExit(f"the request ended after {len(times)} cycles; give fewer --cycles")
        return times

    return serve


def ways(serve: Serve, cycles: int, device: str) -> dict[str, Callable[[], list[int]]]:
    """Name of each way -> serves one turn and returns the times of ``cycles`` counted cycles."""
    recorder = get_recorder()
    whole = cycles + WARMUP_CYCLES

    def none() -> list[int]:
        return serve(whole)[WARMUP_CYCLES:]

    def armed(settings: WindowSettings) -> list[int]:
        with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            recorder.attach_to(Path(folder))
            stack.callback(recorder.attach_to, None)
            hooks = embedded.install(recorder)
            stack.callback(hooks.remove)
            command = control.arm(Path(folder), settings)
            times = serve(whole)[WARMUP_CYCLES:]
            control.disarm(Path(folder))
            recorder.poll()
            recorder.close()
            wait_for_ranks(Path(folder), command.recording)
            return times

    def idle() -> list[int]:
        with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            recorder.attach_to(Path(folder))
            stack.callback(recorder.attach_to, None)
            hooks = embedded.install(recorder)
            stack.callback(hooks.remove)
            return none()

    def bare() -> list[int]:
        # One window of the profiler over the counted cycles alone, as the collector's own windows are.
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        with torch.profiler.profile(activities=[activity]):
            return none()

    def window(**options: bool) -> Callable[[], list[int]]:
        settings = WindowSettings(skip=0, warmup=WARMUP_CYCLES - 1, record=cycles + 8, repeat=1, **options)
        return lambda: armed(settings)

    return {
        "none": none,
        "idle": idle,
        "phases": lambda: armed(WindowSettings(repeat=0)),
        "bare profiler": bare,
        "window": window(),
        "window stamps": window(stamps=True),
        "window cpu_ops": window(cpu_ops=True),
        "after": none,
    }


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cycles", type=int, default=60, help="counted cycles of each turn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = DemoConfig(
        layers=options.layers,
        hidden=options.hidden,
        experts=options.experts,
        steps=options.steps,
        max_context=64 * (2 + (options.cycles + 8) * (options.steps + 1) // 64),  # the cache comes in rows of 64
        dtype="bfloat16" if device == "cuda" else "float32",
    )
    if device == "cpu":
        torch.set_num_threads(1)
    prompt = tuple(7 + 3 * i for i in range(32))
    times: dict[str, list[list[int]]] = {}
    with torch.inference_mode():
        worker = SpeculativeWorker(
            config, TensorParallel(), torch.device(device), speculate=True, eager=options.eager or device == "cpu"
        )
        serve = server(worker, prompt)
        serve(options.cycles)
        for _ in range(options.rounds):
            for name, turn in ways(serve, options.cycles, device).items():
                times.setdefault(name, []).append(turn())
        worker.graphs.release()
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}: {options.rounds} rounds of {options.cycles} cycles each, {config.layers} layers"
    )
    print(
        f"{'way':16s} {'cycles':>7s} {'median ms':>10s} {'p90 ms':>8s} {'ratio to none':>14s} {'min..max over rounds':>22s}"
    )
    medians = {way: [statistics.median(turn) for turn in turns] for way, turns in times.items()}
    rows = {}
    for way, turns in times.items():
        cycles = sorted(t for turn in turns for t in turn)
        ratios = [mine / base for mine, base in zip(medians[way], medians["none"], strict=True)]
        row = {
            "cycles": len(cycles),
            "median_ns": statistics.median(cycles),
            "p90_ns": cycles[int(0.9 * len(cycles))],
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        rows[way] = row
        print(
            f"{way:16s} {row['cycles']:7d} {row['median_ns'] / 1e6:10.3f} {row['p90_ns'] / 1e6:8.3f} "
            f"{row['ratio']:14.4f} {min(ratios):12.4f}..{max(ratios):.4f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "ways": rows}, indent=1))


if __name__ == "__main__":
    main()
