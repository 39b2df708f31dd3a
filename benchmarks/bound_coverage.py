"""How often the bounds that the analyzer prints hold the truth, on recordings whose every figure is known; takes some minutes.

    python -m benchmarks.bound_coverage [--runs 200] [--noise NAME]

Each run builds recordings as a collector writes them (``tests/support/story.py``), whose cycles vary by one kind of noise, and asks the
analyzer's own answers. Printed is the share of runs in which the bounds held the true figure, beside the share they state.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import story

from specanalyze.answers.breakeven import weigh
from specanalyze.answers.calibration import calibrate
from specanalyze.answers.compare import compare_measured
from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.overhead import measure_overhead
from specanalyze.answers.sweep import sweep_measured
from specanalyze.answers.whatif import Changes, predict
from specanalyze.attribution.cycles import cycle_table
from specanalyze.trace import Trace
from specschema.phases import IDLE_BUCKETS

Floats = NDArray[np.float64]

SPREAD: Final = 30.0
"""Standard deviation of the noise, thousandths of the longest kernel of each phase."""
OBSERVER_NS: Final = 2_000_000
"""What a traced cycle takes more."""
SLOWER_NS: Final = 700_000
"""What verify of the second recording of a comparison takes more."""
UNEVEN_NS: Final = 900_000
"""What a kernel takes more on the second rank."""


def independent(generator: np.random.Generator, count: int) -> Floats:
    return generator.normal(0.0, SPREAD, count)


def _resembling(generator: np.random.Generator, count: int, like: float) -> Floats:
    """Noise whose neighbours correlate by ``like``."""
    shocks = generator.normal(0.0, SPREAD * math.sqrt(1 - like**2), count)
    shocks[0] = generator.normal(0.0, SPREAD)
    for at in range(1, count):  # a recurrence
        shocks[at] += like * shocks[at - 1]
    return shocks


def resembling(generator: np.random.Generator, count: int) -> Floats:
    return _resembling(generator, count, 0.5)


def wandering(generator: np.random.Generator, count: int) -> Floats:
    slow = math.sqrt(0.6) * _resembling(generator, count, 0.95)
    return slow + math.sqrt(0.4) * independent(generator, count)


def stalling(generator: np.random.Generator, count: int) -> Floats:
    return independent(generator, count) + np.where(generator.random(count) < 0.03, 2000.0, 0.0)


@dataclass(frozen=True)
class Noise:
    """One kind of recording.

    Attributes:
        makes: thousandths that each cycle's longest kernels are off.
        says: what it is, for the table.
        cycles, traced, window: of a recording.
        grows_ns: growth of verify a cycle.
    """

    makes: Callable[[np.random.Generator, int], Floats]
    says: str
    cycles: int = 240
    traced: int = 40
    window: int = 100
    grows_ns: int = 0

    def typical(self) -> tuple[float, float]:
        """Median and mean of the noise, thousandths."""
        drawn = np.rint(self.makes(np.random.default_rng(0), 400_000))
        return float(np.median(drawn)), float(drawn.mean())


NOISES: Final = {
    "independent": Noise(independent, "independent cycles"),
    "resembling": Noise(resembling, "neighbours correlate by 0.5"),
    "wandering": Noise(wandering, "three fifths of the variance last 20 cycles"),
    "stalling": Noise(stalling, "3 % of the cycles three times as long"),
    "few": Noise(independent, "10 untraced and 8 traced cycles, independent", cycles=18, traced=8, window=5),
    "growing": Noise(independent, "cycles grow by 86 % over the request", grows_ns=100_000),
}


@dataclass
class Tally:
    """Runs in which bounds held the truth, and of how many."""

    stated: float | None
    held: int = 0
    runs: int = 0


@dataclass
class Coverage:
    """Tallies by claim, in the order they came."""

    claims: dict[str, Tally] = field(default_factory=dict)

    def add(self, claim: str, stated: float | None, truth: float, low: float | None, high: float | None) -> None:
        """Count a run; one without bounds states nothing and is not counted."""
        tally = self.claims.setdefault(claim, Tally(stated))
        if low is not None and high is not None:
            tally.runs += 1
            tally.held += low <= truth <= high

    def add_all(self, claim: str, stated: float | None, held: bool) -> None:
        tally = self.claims.setdefault(claim, Tally(stated))
        tally.runs += 1
        tally.held += held


@dataclass(frozen=True)
class Made:
    """A recording, and what is true of it.

    Attributes:
        trace: the recording.
        shape: it without noise.
        noise: what its cycles vary by.
        typical: median and mean of the noise.
    """

    trace: Trace
    shape: story.Recording
    noise: Noise
    typical: tuple[float, float]

    def _longest_ns(self, phase: str) -> int:
        return max(ns for _, ns in self.shape.phases[phase].kernels.values())

    def step_ns(self, *, mean: bool = False, place: float = 0.0) -> float:
        """The untraced cycle: its median, or mean; ``place`` is the number of the cycle, where cycles grow."""
        off = self.typical[mean] / 1000
        plain = sum(work.total_ns + off * self._longest_ns(phase) for phase, work in self.shape.phases.items())
        return plain + self.shape.grows_ns * place

    def phase_ns(self, phase: str) -> float:
        """Mean device time of a phase with its gaps and launches."""
        return self.shape.phases[phase].total_ns + self.typical[1] / 1000 * self._longest_ns(phase)

    @property
    def window_place(self) -> float:
        """Mean place of the traced cycles that have a step."""
        return self.noise.window + (self.noise.traced - 2) / 2

    @property
    def untraced_place(self) -> float:
        """Median place of the untraced cycles that have a step."""
        n = self.noise
        # the last of each stretch has no step of its own
        outside = [*range(n.window - 1), *range(n.window + n.traced, n.cycles - 1)]
        return float(np.median(outside))


def made(shape: story.Recording, noise: Noise, generator: np.random.Generator, typical: tuple[float, float]) -> Made:
    jitter = tuple(int(v) for v in np.maximum(np.rint(noise.makes(generator, noise.cycles)), -900))
    settings: dict[str, Any] = {
        "cycles": noise.cycles,
        "traced": noise.traced,
        "windows": (noise.window,),
        "grows_ns": noise.grows_ns,
        "observer_ns": OBSERVER_NS,
    }
    shape = replace(shape, phases={phase: _fewer_calls(work) for phase, work in shape.phases.items()}, **settings)
    return Made(replace(shape, jitter=jitter).trace(), shape, noise, typical)


def _fewer_calls(work: story.Work) -> story.Work:
    """The same work in a twelfth of the kernels: a run takes a fifth of the time."""
    return replace(work, kernels={name: (max(1, calls // 12), ns) for name, (calls, ns) in work.kernels.items()})


def one_run(noise: Noise, typical: tuple[float, float], generator: np.random.Generator, found: Coverage) -> None:
    """Build the recordings and count what holds."""

    def make(shape: story.Recording) -> Made:
        return made(shape, noise, generator, typical)

    same = story.environment()
    eagle = make(story.sweep_recording(2, environment=same))
    again = make(story.sweep_recording(2, environment=same, name="again"))
    slower = story.verify_work(25_600_000 + SLOWER_NS, 3)
    slow = make(story.speculative(368_000, 25_600_000, 280_000, 2, verify=slower, environment=same, name="slow"))
    plain = make(story.baseline_recording(15_900_000, tuned=False, environment=same))
    m = measure(eagle.trace)
    _overhead(eagle, m, found)
    _breakeven(eagle, plain, m, found)
    _compare(m, measure(again.trace), measure(slow.trace), eagle, slow, found)
    _whatif(eagle, m, found)
    if not noise.grows_ns:
        _sweep([make(story.sweep_recording(steps)) for steps in (1, 2, 3)], found)
        _uneven(noise, typical, generator, found)


def _overhead(made: Made, m: Measured, found: Coverage) -> None:
    result = measure_overhead(made.trace)
    at = made.window_place
    truth = made.step_ns(place=at)
    if result.effect is not None:
        found.add("overhead: traced over untraced", 0.95, OBSERVER_NS / truth, result.effect.low, result.effect.high)
    if result.drift is not None:
        found.add("overhead: after over before", 0.95, 0.0, result.drift.low, result.drift.high)
    if not made.noise.grows_ns:
        before = result.table.filter(pl.col("stretch") == "before").row(0, named=True)
        found.add("overhead: median of a stretch", 0.95, truth, before["low_ns"], before["high_ns"])
    if m.control is not None:
        untraced = m.control.untraced_ns
        found.add("phases, overhead: untraced cycle at the windows", 0.95, truth, untraced.low, untraced.high)
    if made.noise.grows_ns and result.growth is not None:
        slope = result.growth.slope
        found.add("phases: growth a token", 0.95, made.noise.grows_ns, slope.low, slope.high)
    calibration = calibrate(m.breakdown.ranks[0], m.cycles)
    if calibration.reason is None:
        cells = calibration.cells.filter(pl.col("bucket").is_in(IDLE_BUCKETS))
        # all that observing adds is host time of the first phase
        true = pl.col("measured_ns") - pl.when((pl.col("phase") == "draft") & (pl.col("bucket") == "host")).then(
            pl.lit(float(OBSERVER_NS))
        ).otherwise(pl.lit(0.0))
        held = cells.select(((pl.col("low_ns") <= true) & (true <= pl.col("high_ns"))).all()).item()
        found.add_all("breakdown: all idle parts of the untraced estimate", None, bool(held))


def _breakeven(made: Made, plain: Made, m: Measured, found: Coverage) -> None:
    result = weigh(made.trace, m.cycles, plain.trace, cycle_table(plain.trace))
    place = made.untraced_place
    cycle, step = made.step_ns(place=place), plain.step_ns(place=place)
    found.add("breakeven: cycle", 0.95, cycle, result.cycle.median_ns.low, result.cycle.median_ns.high)
    found.add(
        "breakeven, diagnose: accept length that pays", 0.95, cycle / step, result.pays_at.low, result.pays_at.high
    )
    for row in result.along.to_dicts():
        at = row["context_tokens"] - made.shape.first_context
        true = made.step_ns(place=at) / plain.step_ns(place=at)
        found.add("breakeven: the same at a context", 0.95, true, row["pays_at_low"], row["pays_at_high"])


def _compare(a: Measured, same: Measured, b: Measured, one: Made, other: Made, found: Coverage) -> None:
    table = compare_measured(a, b).table
    change = table.filter(pl.col("scope") == "cycle").row(0, named=True)
    true = other.step_ns() - one.step_ns()
    found.add("compare: change of the cycle", 0.99, true, change["low_ns"], change["high_ns"])
    verify = table.filter(pl.col("scope") == "phase", pl.col("phase") == "verify").row(0, named=True)
    true = other.phase_ns("verify") - one.phase_ns("verify")
    found.add("compare: change of verify", 0.99, true, verify["low_ns"], verify["high_ns"])
    verdicts = compare_measured(a, same).table.get_column("verdict")
    found.add_all("compare: the same server moves nothing", None, not verdicts.is_in(["faster", "slower"]).any())


def _sweep(points: Sequence[Made], found: Coverage) -> None:
    result = sweep_measured([measure(p.trace) for p in points])
    for made, row in zip(points, result.points.to_dicts(), strict=True):
        accepted = made.shape.accepted()
        true = (1 + sum(accepted) / len(accepted)) / made.step_ns() * 1e9
        found.add("sweep: tok/s", 0.99, true, row["low"], row["high"])
    tokens = np.array([2.0, 3.0, 4.0])
    slope, fixed = np.polyfit(tokens, [p.phase_ns("verify") for p in points], 1)
    total = result.fit.filter(pl.col("bucket") == "total").row(0, named=True)
    found.add("sweep: verify a token", 0.99, float(slope), total["slope_low_ns"], total["slope_high_ns"])
    found.add("sweep: fixed cost of verify", 0.99, float(fixed), total["fixed_low_ns"], total["fixed_high_ns"])


def _whatif(made: Made, m: Measured, found: Coverage) -> None:
    result = predict(m, Changes(scale=(("verify", "allreduce", 0.5),)))
    less = made.shape.phases["verify"].kernels[story.ALLREDUCE][1] / 2
    true = made.step_ns(place=made.untraced_place) - less
    found.add("whatif: predicted cycle", None, true, result.low_ns, result.high_ns)


def _uneven(noise: Noise, typical: tuple[float, float], generator: np.random.Generator, found: Coverage) -> None:
    """Two ranks whose cycles vary by themselves: alike, then with one kernel slower on the second."""
    shape = story.sweep_recording(2, ranks=2)
    ranks = [made(replace(shape, slower_ns={1: (story.GEMM, UNEVEN_NS)}), noise, generator, typical) for _ in range(2)]
    trace = ranks[0].trace
    m = measure(Trace(trace.name, (trace.sources[0], ranks[1].trace.sources[1]), trace.metadata))
    rows = m.uneven.filter(pl.col("phase") == "verify", pl.col("name") == story.GEMM).to_dicts()
    for row in rows:
        found.add(
            "ranks, diagnose: slower kernel", 0.99, UNEVEN_NS, row["difference_low_ns"], row["difference_high_ns"]
        )
    others = m.uneven.filter(pl.col("name") != story.GEMM, pl.col("bucket") != "allreduce")
    found.add_all("ranks, diagnose: no other kernel is called slower", None, not others.height)


def cover(noise: Noise, runs: int, seed: int = 1) -> Coverage:
    """Coverage of every claim over some runs with one noise."""
    found, typical = Coverage(), noise.typical()
    generator = np.random.default_rng(seed)
    for _ in range(runs):
        one_run(noise, typical, generator, found)
    return found


def lines(covered: dict[str, Coverage]) -> Iterator[str]:
    """The table in Markdown: a claim a row, a noise a column."""
    claims = {claim: tally.stated for found in covered.values() for claim, tally in found.claims.items()}
    yield "| bounds of | stated | " + " | ".join(covered) + " |"
    yield "|---|---|" + "---|" * len(covered)
    for claim, stated in claims.items():
        cells = []
        for found in covered.values():
            tally = found.claims.get(claim)
            cells.append("–" if tally is None or not tally.runs else f"{100 * tally.held / tally.runs:.0f}")
        yield f"| {claim} | {'' if stated is None else f'{100 * stated:.0f}'} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--noise", choices=NOISES, action="append", help="only these; may be given several times")
    arguments = parser.parse_args()
    names = arguments.noise or list(NOISES)
    covered = {}
    for name in names:
        covered[name] = cover(NOISES[name], arguments.runs)
        print(f"- {name}: {NOISES[name].says}", *lines({name: covered[name]}), sep="\n", flush=True)
    if len(names) > 1:
        print(*lines(covered), sep="\n")


if __name__ == "__main__":
    main()
