"""What the collector costs the real vLLM engine on a CPU: one process, states in turns, one figure a step.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 python benchmarks/vllm_cost.py MODELS [ROUNDS]

Run with the interpreter that has vLLM; MODELS is what ``tests/support/counting_models.py FOLDER LAYERS`` wrote. Times are a step's
of the engine's own loop: CPU time of the thread that runs it, which other processes disturb less, and wall clock. Three
measurements:

Inside. A clock before and after each hook and around the method that it wraps: what lies between is the hook's own time,
in the engine's own caches. The clocks' own part is measured by the same clocks without hooks, and taken off. The share is
the hooks' time of all steps over the time of all steps.

Steps. Within one generation the hooks record one step of each two neighbours, by lot, and let the other pass as idle ones
do: the ratio of two steps that a few milliseconds part, with a 95 % bootstrap interval of the median over all pairs.
``control``: the same lots, and nothing is recorded. What drifts, and what the neighbours do for longer than a step, cancels.

Turns. A round is one short generation in each state: without hooks, without hooks once more (``control``: what it differs
by is what this machine can't tell), hooks in place and idle, hooks recording phases. The order is random, and every
second round runs the one before it backwards. All generations compute the very same steps: step i is compared with step i, a
round's figure is the median over its steps of state / without hooks (of both turns without), and the result the median over
rounds. The first steps of each turn are left out: exchanging methods makes the interpreter specialise its code anew. A
recording is under way before its turn begins, and what ran is collected with its first file, after the turn; what other threads
took is told apart.
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

TOKENS: Final = 120
SKIPPED: Final = 12  # steps at the start of a turn
INSIDE_GENERATIONS: Final = 9  # in each state
STATES: Final = ("absent", "control", "idle", "phases")
PICKS: Final = 4000
LONG_TOKENS: Final = 1000  # of a generation whose steps are paired
ROUNDS_A_PAIRING: Final = 4  # rounds of turns for each such generation, recorded and control

Floats = npt.NDArray[np.float64]
Hooked = tuple[type, str]


class Engine:
    """The engine in this process, stepped by us."""

    def __init__(self, models: Path) -> None:
        from vllm import LLM, SamplingParams

        speculation = {"method": "eagle3", "num_speculative_tokens": 3, "model": str(models / "eagle3")}
        llm = LLM(
            model=str(models / "target"), enforce_eager=True, max_model_len=2048, seed=0, speculative_config=speculation
        )
        self._engine = llm.llm_engine
        self._sampling = SamplingParams
        self._served = 0

    def steps(self, before: Callable[[], None] = lambda: None, tokens: int = TOKENS) -> Floats:
        """One generation: wall and thread CPU time of each step in ns, without the first ones.

        Args:
            before: called before each step, outside its time.
        """
        self._served += 1
        sampling = self._sampling(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(self._served), {"prompt_token_ids": list(range(10))}, sampling)
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
        from speccollect.rank.recorder import Recorder

        self._folder = folder
        self.recorder = Recorder(folder)

    @contextmanager
    def state(self, name: str) -> Iterator[Any]:
        """Yields what was hooked, None where nothing is. A recording has ended, and its files are written, on return."""
        from speccollect.config import PHASES_ONLY
        from speccollect.control import word
        from speccollect.engines import vllm

        installed = vllm.install(self.recorder)
        if name in ("absent", "control"):
            installed.remove()  # as often as in the other states, so that the interpreter starts each turn alike
            yield None
            return
        try:
            if name == "phases":
                word.arm(self._folder, PHASES_ONLY)
                self.recorder.poll()
            yield installed
            if name == "phases":
                word.disarm(self._folder)
                self.recorder.poll()
                for writer in self.recorder._writers:
                    writer.join()
        finally:
            installed.remove()


class Clocks:
    """Clocks around one hook and around what it wraps.

    Attributes:
        outer_ns, inner_ns: time inside the hooked method, and inside the original, since ``start``.
    """

    def __init__(self) -> None:
        self.outer_ns = 0
        self.inner_ns = 0
        self.starts: list[tuple[int, int]] = []

    def start(self) -> None:
        """A step begins."""
        self.starts.append((self.outer_ns, self.inner_ns))

    def own_ns(self) -> Floats:
        """The hook's own time in each step, the first ones left out."""
        totals = np.array([*self.starts, (self.outer_ns, self.inner_ns)], dtype=np.float64)
        outer, inner = np.diff(totals, axis=0)[SKIPPED:].T
        own: Floats = outer - inner
        return own

    def around_original(self, function: FunctionType) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.inner_ns += time.perf_counter_ns() - begun

        return timed

    def around_hook(self, function: Any) -> Callable[..., Any]:
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


def hooked_methods(collector: Collector) -> list[Hooked]:
    """Class and name of each method that is hooked in this process."""
    with collector.state("idle") as installed:
        return [(b.owner, b.attribute) for b in installed._bindings if isinstance(b.owner, type) and not b.inherited]


def hook_times(engine: Engine, collector: Collector, state: str) -> tuple[dict[Hooked, Floats], Floats]:
    """Time in each hook in each step, in ns; in state ``absent`` that of the clocks alone. And the steps' own times."""
    methods = hooked_methods(collector)
    originals = [vars(owner)[name] for owner, name in methods]
    clocks = [Clocks() for _ in methods]

    def begin() -> None:
        for clock in clocks:
            clock.start()

    try:
        for (owner, name), original, clock in zip(methods, originals, clocks, strict=True):
            setattr(owner, name, clock.around_original(original))
        with collector.state(state):
            hooks = [vars(owner)[name] for owner, name in methods]
            for (owner, name), hook, clock in zip(methods, hooks, clocks, strict=True):
                setattr(owner, name, clock.around_hook(hook))
            try:
                steps = engine.steps(begin)
            finally:
                for (owner, name), hook in zip(methods, hooks, strict=True):
                    setattr(owner, name, hook)
    finally:
        for (owner, name), original in zip(methods, originals, strict=True):
            setattr(owner, name, original)
    return {method: clock.own_ns() for method, clock in zip(methods, clocks, strict=True)}, steps


def inside(engine: Engine, collector: Collector) -> None:
    """Prints the hooks' own time."""
    names = ("absent", "idle", "phases")
    told: dict[str, list[tuple[dict[Hooked, Floats], Floats]]] = {state: [] for state in names}
    for turn in range(-1, INSIDE_GENERATIONS):
        for state in random.sample(names, len(names)):
            times = hook_times(engine, collector, state)
            if turn >= 0:
                told[state].append(times)
    own = {
        state: {method: np.stack([own[method] for own, _ in turns]) for method in turns[0][0]}
        for state, turns in told.items()
    }
    clocks = {method: float(np.median(times)) for method, times in own["absent"].items()}
    steps = len(told["absent"][0][1])
    print(f"hooks' own time a step, over {INSIDE_GENERATIONS} generations of {steps} steps:")
    for state in names[1:]:
        hooks = {method: times - clocks[method] for method, times in own[state].items()}
        total = np.sum(list(hooks.values()), axis=0)
        low, middle, high = np.percentile(total, (10, 50, 90)) / 1e3
        wall, cpu = np.moveaxis(np.stack([steps for _, steps in told[state]]), -1, 0)
        print(
            f"{state:8} {middle:6.1f} us (10th and 90th percentile of steps {low:.1f} and {high:.1f}): "
            f"{np.median(total) / np.median(cpu):.2%} of a step (medians, step in CPU time), "
            f"{total.sum() / wall.sum():.2%} of all steps (sums of wall time)"
        )
        parts = sorted(((float(np.median(times)) / 1e3, name) for (_, name), times in hooks.items()), reverse=True)
        print("         " + ", ".join(f"{name} {us:.1f}" for us, name in parts if us > 0.5))


def typical(times: Floats, bases: list[Floats]) -> tuple[float, float, float]:
    """Times over bases, step by step: median over the steps of a round, over the rounds, with its 95 % interval.

    Args:
        times: rounds x steps, ns.
        bases: the same of each turn without hooks; its ratios are averaged.
    """
    return bootstrap(np.exp(np.mean([np.log(np.median(times / base, axis=1)) for base in bases], axis=0)))


def pairs(engine: Engine, collector: Collector, record: bool) -> Floats:
    """Recorded step over the idle one beside it: pairs x (wall, thread CPU); without ``record`` both are idle."""
    recorder = collector.recorder
    chosen: list[bool] = []

    def before() -> None:
        chosen.append(not chosen[-1] if len(chosen) % 2 else random.random() < 0.5)
        # while it is False hooks do what idle ones do, and the recording waits
        recorder.armed = record and chosen[-1]

    with collector.state("phases"):
        steps = engine.steps(before, LONG_TOKENS)
        recorder.armed = True
    count = len(steps) // 2 * 2
    first = np.array(chosen[SKIPPED : SKIPPED + count : 2])[:, None]
    one, other = steps[:count:2], steps[1:count:2]
    ratios: Floats = np.where(first, one / other, other / one)
    return ratios


def report_pairs(ratios: dict[str, list[Floats]]) -> None:
    """Prints what ``pairs`` gave, by state."""
    print("recorded steps over idle ones beside them:")
    for kind, name in ((1, "thread CPU"), (0, "wall")):
        for state, found in ratios.items():
            values = np.concatenate(found)[:, kind]
            middle, low, high = bootstrap(values)
            print(f"{name:10} {state:8} x {middle:.4f} ({low:.4f} to {high:.4f}) over {len(values)} pairs of steps")


def bootstrap(values: Floats) -> tuple[float, float, float]:
    """Median of the values, and its 95 % interval."""
    random_numbers = np.random.default_rng(0)
    medians = [np.median(random_numbers.choice(values, len(values))) for _ in range(PICKS)]
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(np.median(values)), float(low), float(high)


def orders(rounds: int) -> Iterator[list[str]]:
    """An order of the states for each round: random ones, each followed by its reverse."""
    order: list[str] = []
    for number in range(rounds):
        order = order[::-1] if number % 2 else random.sample(STATES, len(STATES))
        yield order


def main(models: Path, rounds: int) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("TORCHDYNAMO_DISABLE", "1")):
        os.environ.setdefault(name, value)
    os.environ["SPECANALYZE"] = "0"  # the hooks are put in and taken out below
    engine = Engine(models)
    with tempfile.TemporaryDirectory() as place:
        collector = Collector(Path(place))
        inside(engine, collector)
        ratios: dict[str, list[Floats]] = {"control": [], "phases": []}
        for _ in range(max(1, rounds // ROUNDS_A_PAIRING)):
            for state in random.sample(list(ratios), len(ratios)):
                ratios[state].append(pairs(engine, collector, state == "phases"))
        report_pairs(ratios)
        times: dict[str, list[Floats]] = {state: [] for state in STATES}
        others = dict.fromkeys(STATES, 0.0)
        for order in orders(rounds):
            for state in order:
                with collector.state(state):
                    process, thread = time.process_time(), time.thread_time()
                    times[state].append(engine.steps())
                    others[state] += time.process_time() - process - (time.thread_time() - thread)
        collector.recorder.close()
    report({state: np.array(values) for state, values in times.items()}, others)


def report(times: dict[str, Floats], others: dict[str, float]) -> None:
    """Prints the turns.

    Args:
        times: state -> rounds x steps x (wall, thread CPU), ns.
        others: state -> CPU seconds of other threads of the process.
    """
    rounds, steps, _ = times["absent"].shape
    wall, cpu = np.median(times["absent"], axis=(0, 1)) / 1e6
    load = os.getloadavg()[0]
    print(
        f"{rounds} rounds of {steps} steps; without hooks {wall:.2f} ms a step, {cpu:.2f} ms of it on a CPU; load {load:.1f}"
    )
    for kind, name in ((1, "thread CPU"), (0, "wall")):
        taken = {state: values[:, :, kind] for state, values in times.items()}
        for state in STATES[1:]:
            bases = [taken["absent"]] if state == "control" else [taken["absent"], taken["control"]]
            middle, low, high = typical(taken[state], bases)
            print(f"{name:10} {state:8} x {middle:.4f} ({low:.4f} to {high:.4f})")
    each = {state: seconds / rounds / (steps + SKIPPED) * 1e6 for state, seconds in others.items()}
    print("other threads, us of CPU time a step: " + ", ".join(f"{state} {us:.0f}" for state, us in each.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)
