"""What the collector costs the real vLLM engine on a CPU: one process, states in turns, one figure a step.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 python benchmarks/vllm_cost.py MODELS [ROUNDS]

Run with the interpreter that has vLLM; MODELS is what ``tests/support/counting_models.py FOLDER LAYERS`` wrote. Two measurements:

Turns. A round is one generation in each state, in random order: without hooks, without hooks once more (``control``:
what it differs by is what this machine can't tell), hooks in place and idle, hooks recording phases. All generations compute
the very same steps, so step i of one is compared with step i of another: a round's figure is the median over its
steps of state / without hooks, and the result the median over rounds with a 95 % bootstrap interval. Times are a step's of
the engine's own loop: wall clock, and CPU time of the thread that runs it, which other processes disturb less.
The first steps of each turn are left out: exchanging methods makes the interpreter specialise its code anew, and
arming starts a thread.

Inside. A clock before and after each hook and around the method that it wraps: what lies between is the hook's own time,
summed over a step, in the engine's own caches. The clocks' own part is measured by the same clocks without hooks, and
taken off.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TOKENS: Final = 300
SKIPPED: Final = 30  # steps at the start of a turn
INSIDE_GENERATIONS: Final = 3
STATES: Final = ("absent", "control", "idle", "phases")
PICKS: Final = 4000

Floats = npt.NDArray[np.float64]


class Engine:
    """The engine in this process, stepped by us."""

    def __init__(self, models: Path) -> None:
        from vllm import LLM, SamplingParams

        speculation = {"method": "eagle3", "num_speculative_tokens": 3, "model": str(models / "eagle3")}
        llm = LLM(
            model=str(models / "target"), enforce_eager=True, max_model_len=2048, seed=0, speculative_config=speculation
        )
        self._engine = llm.llm_engine
        self._sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
        self._served = 0

    def steps(self, before: Callable[[], None] = lambda: None) -> Floats:
        """One generation: wall and thread CPU time of each step in ns, without the first ones.

        Args:
            before: called before each step, outside its time.
        """
        self._served += 1
        self._engine.add_request(str(self._served), {"prompt_token_ids": list(range(10))}, self._sampling)
        times: list[tuple[int, int]] = []
        while self._engine.has_unfinished_requests():
            before()
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            self._engine.step()
            cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            times.append((wall, cpu))
        return np.array(times[SKIPPED:], dtype=np.float64)


class Collector:
    """The collector in this process, in one of STATES."""

    def __init__(self, folder: Path) -> None:
        from speccollect.recorder import Recorder

        self._folder = folder
        self.recorder = Recorder(folder)

    @contextmanager
    def state(self, name: str) -> Iterator[Any]:
        """Yields what was hooked, None where nothing is. A recording has ended, and its files are written, on return."""
        from speccollect import control
        from speccollect.config import PHASES_ONLY
        from speccollect.engines import vllm

        installed = vllm.install(self.recorder)
        if name in ("absent", "control"):
            installed.remove()  # as often as in the other states, so that the interpreter starts each turn alike
            yield None
            return
        try:
            if name == "phases":
                control.arm(self._folder, PHASES_ONLY)
                self.recorder.poll()
            yield installed
            if name == "phases":
                control.disarm(self._folder)
                self.recorder.poll()
                for writer in self.recorder._writers:
                    writer.join()
        finally:
            installed.remove()


class Clocks:
    """Clocks around hooks and around what they wrap.

    Attributes:
        outer_ns, inner_ns: time inside the hooked methods, and inside the originals, since ``start``.
    """

    def __init__(self) -> None:
        self.outer_ns = 0
        self.inner_ns = 0
        self.starts: list[tuple[int, int]] = []

    def start(self) -> None:
        """A step begins."""
        self.starts.append((self.outer_ns, self.inner_ns))

    def own_ns(self) -> Floats:
        """Hooks' own time in each step, the first ones left out."""
        totals = np.array([*self.starts, (self.outer_ns, self.inner_ns)], dtype=np.float64)
        outer, inner = np.diff(totals, axis=0)[SKIPPED:].T
        own: Floats = outer - inner
        return own

    def around_originals(self, function: FunctionType) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.inner_ns += time.perf_counter_ns() - begun

        return timed

    def around_hooks(self, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return bound(*args, **kwargs)
            finally:
                self.outer_ns += time.perf_counter_ns() - begun

        def bound(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return function.__get__(instance)(*args, **kwargs)

        if type(function) is FunctionType:  # wrapt's wrappers pass for one
            bound = function
        return timed


def hooked_methods(collector: Collector) -> list[tuple[type, str]]:
    """Class and name of each method that is hooked in this process."""
    with collector.state("idle") as installed:
        return [(b.owner, b.attribute) for b in installed._bindings if isinstance(b.owner, type) and not b.inherited]


def hook_time(engine: Engine, collector: Collector, state: str) -> Floats:
    """Time in hooks in each step, in ns; in state ``absent`` that of the clocks alone."""
    methods = hooked_methods(collector)
    originals = [vars(owner)[name] for owner, name in methods]
    clocks = Clocks()
    try:
        for (owner, name), original in zip(methods, originals, strict=True):
            setattr(owner, name, clocks.around_originals(original))
        with collector.state(state):
            hooks = [vars(owner)[name] for owner, name in methods]
            for (owner, name), hook in zip(methods, hooks, strict=True):
                setattr(owner, name, clocks.around_hooks(hook))
            try:
                engine.steps(clocks.start)
            finally:
                for (owner, name), hook in zip(methods, hooks, strict=True):
                    setattr(owner, name, hook)
    finally:
        for (owner, name), original in zip(methods, originals, strict=True):
            setattr(owner, name, original)
    return clocks.own_ns()


def bootstrap(values: Floats) -> tuple[float, float, float]:
    """Median of the values, and its 95 % interval."""
    picks = np.random.default_rng(0).integers(0, len(values), (PICKS, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), (2.5, 97.5))
    return float(np.median(values)), float(low), float(high)


def main(models: Path, rounds: int) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("TORCHDYNAMO_DISABLE", "1")):
        os.environ.setdefault(name, value)
    os.environ["SPECANALYZE"] = "0"  # the hooks are put in and taken out below
    engine = Engine(models)
    with tempfile.TemporaryDirectory() as place:
        collector = Collector(Path(place))
        print(f"hooks' own time a step, over {INSIDE_GENERATIONS} generations:")
        inside: dict[str, list[Floats]] = {state: [] for state in ("absent", "idle", "phases")}
        for _ in range(INSIDE_GENERATIONS):
            for state in random.sample(list(inside), len(inside)):
                inside[state].append(hook_time(engine, collector, state))
        clocks = float(np.median(np.concatenate(inside["absent"])))
        for state in ("idle", "phases"):
            steps = np.concatenate(inside[state]) - clocks
            low, middle, high = np.percentile(steps, (10, 50, 90)) / 1e3
            print(f"{state:8} {middle:6.1f} us (10th and 90th percentile of steps {low:.1f} and {high:.1f})")
        times: dict[str, list[Floats]] = {state: [] for state in STATES}
        writing = 0.0
        for turn in range(-1, rounds):
            for state in random.sample(STATES, len(STATES)):
                process, thread = time.process_time(), time.thread_time()
                with collector.state(state):
                    taken = engine.steps()
                if turn < 0:
                    continue
                times[state].append(taken)
                if state == "phases":
                    writing += time.process_time() - process - (time.thread_time() - thread)
        collector.recorder.close()
    report({state: np.array(values) for state, values in times.items()}, writing)


def report(times: dict[str, Floats], writing: float) -> None:
    """Prints the turns.

    Args:
        times: state -> rounds x steps x (wall, thread CPU), ns.
        writing: CPU seconds of other threads in all turns that recorded.
    """
    absent = times["absent"]
    rounds, steps, _ = absent.shape
    wall, cpu = np.median(absent, axis=(0, 1)) / 1e6
    print(f"{rounds} rounds of {steps} steps; without hooks {wall:.2f} ms a step, {cpu:.2f} ms of it on a CPU")
    for state in STATES[1:]:
        for kind, name in enumerate(("wall", "thread CPU")):
            ratios = np.median(times[state][:, :, kind] / absent[:, :, kind], axis=1)
            middle, low, high = bootstrap(ratios)
            extra = np.median(times[state][:, :, kind] - absent[:, :, kind]) / 1e3
            print(f"{state:8} {name:10} x {middle:.4f} ({low:.4f} to {high:.4f}), {extra:+.1f} us a step")
    print(
        f"other threads while recording (start, writing, end): {writing / rounds / (steps + SKIPPED) * 1e6:.0f} us a step"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
