"""What a reader wants to know first: speed, accept length, the verdict, and what ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from specanalyze.answers.breakeven import BreakEven, Clock, clock_of, weigh
from specanalyze.answers.environment import UNSET, argument_section, environment_of, facts, variables
from specanalyze.answers.positions import acceptance_by_position
from specanalyze.answers.run_values import of_the_run
from specanalyze.answers.wiring import wiring_warnings
from specanalyze.report.recorded import Recorded
from specschema.errors import SpecError, TraceError
from specschema.figures import change, percent

FIRST_FACTS: Final = (
    "gpu.model",
    "gpu.count",
    "gpu.links",
    "driver",
    "cuda",
    "nccl.version",
    "torch",
    "server.name",
    "server.version",
    "model.name",
    "model_digest",
)
NOT_RECORDED: Final = "not recorded"
PLAIN_FACTS: Final = ("driver", "cuda", "torch", "model_digest")
"""Facts whose names have no dot and are no variables."""


@dataclass(frozen=True)
class Headline:
    """Main figures of one recording as text; a dash where it does not tell.

    Attributes:
        label: of the recording.
        baseline: whether it is the baseline.
        tok_s: tokens a second of one request: accept length / median cycle, as ``breakeven`` and ``diagnose`` give it.
        accept_length, cycle: figures.
        clock: which cycles the figures come from, and what tok/s is made of.
        together: tok/s of all requests together, where several were decoded at once; empty otherwise.
        observing: what observing cost.
        ranks: how many, and traced cycles.
        verdict: one sentence.
        caution: why the figures may mean nothing, as ``accept`` says it.
        tone: ``good``, ``bad`` or ``unknown``.
    """

    label: str
    baseline: bool
    tok_s: str
    accept_length: str
    cycle: str
    clock: str
    together: str
    observing: str
    ranks: str
    verdict: str
    tone: str
    caution: tuple[str, ...] = ()


def headlines(recordings: Sequence[Recorded], *, accept_differences: bool = False) -> list[Headline]:
    """One for each recording."""
    base = next((r for r in recordings if r.baseline), None)
    return [_headline(r, base, accept_differences) for r in recordings]


def _headline(recorded: Recorded, base: Recorded | None, accept_differences: bool) -> Headline:
    phases = recorded.phases
    try:
        cycle = clock_of(recorded.label, phases.cycles.filter(pl.col("rank").is_in(phases.counted)))
    except TraceError:
        cycle = None
    verdict, tone = _verdict(recorded, base, accept_differences)
    speculates = recorded.main_phase == "verify"
    length = phases.accept_length if speculates else None
    per_cycle = length if speculates else 1.0
    speed = None if cycle is None or per_cycle is None else per_cycle * 1e9 / cycle.median_ns.value
    return Headline(
        recorded.label,
        recorded.baseline,
        "–" if speed is None else f"{speed:.1f}",
        "–" if length is None else f"{length:.2f}",
        "–" if cycle is None else f"{cycle.median_ns.value / 1e6:.2f}",
        _clock(recorded, cycle, speculates),
        _together(recorded, cycle),
        _observing(recorded),
        f"{len(recorded.ranks)} rank{'s' if len(recorded.ranks) != 1 else ''}",
        verdict,
        tone,
        _caution(recorded),
    )


def _clock(recorded: Recorded, cycle: Clock | None, speculates: bool) -> str:
    """Which cycles the median is of, and how tok/s follows from it."""
    if cycle is None:
        return "no two neighbouring cycles, so no cycle time"
    kind = f"{cycle.cycles} observed cycles (too slow: no untraced control)"
    if not cycle.traced:
        kind = f"{cycle.cycles} untraced cycles" + (" of another run" if recorded.phases.another_run else "")
    return f"tok/s = {'accept length' if speculates else 'one token'} / median of {kind}"


def _observing(recorded: Recorded) -> str:
    """What observing cost a cycle."""
    effect = recorded.overhead.effect if recorded.overhead else None
    if effect is not None:
        return f"{change(effect.value)} a cycle"
    return "unknown" if any(rank.device_ns for rank in recorded.ranks) else "nothing: no profiler window"


def _together(recorded: Recorded, cycle: Clock | None) -> str:
    """Speed of a whole batch, and of all replicas; one request alone has the card's figure."""
    speed = recorded.phases.pace.tok_s
    several = len(recorded.phases.counted) > 1 or (cycle is not None and (cycle.batch_size or 1) > 1)
    return f"all requests together: {speed:.1f} tok/s, over all cycles" if several and speed is not None else ""


def _caution(recorded: Recorded) -> tuple[str, ...]:
    """Acceptance that no rightly wired draft shows."""
    if recorded.accepts is None:
        return ()
    steps = recorded.accepts.steps
    return tuple(wiring_warnings(steps, acceptance_by_position(steps), environment_of(recorded.trace)))


def _verdict(recorded: Recorded, base: Recorded | None, accept: bool) -> tuple[str, str]:
    if recorded.main_phase != "verify":
        return "Plain decoding: what speculation is judged by.", "unknown"
    if base is None:
        return "Whether speculation pays is unknown: give plain decoding of the same server with --baseline.", "unknown"
    try:
        result = weigh(
            recorded.trace, recorded.phases.cycles, base.trace, base.phases.cycles, accept_differences=accept
        )
    except SpecError as error:
        return f"No verdict: {error}", "unknown"
    return said_of(result)


def said_of(result: BreakEven) -> tuple[str, str]:
    """The verdict in one sentence, and its tone."""
    times = f"a cycle takes {result.cycle.median_ns.value / 1e6:.2f} ms, a plain step {result.step.median_ns.value / 1e6:.2f} ms"
    needs = f"break-even is at accept length {result.pays_at.value:.2f}"
    if result.accept_length is None or result.won_tok_s is None or result.tok_s is None:
        return f"Where it stands is unknown, accepts are not recorded; {needs} ({times}).", "unknown"
    low, high = result.pays_at.low, result.pays_at.high
    reached = f"{result.accept_length:.2f} was reached"
    if low is not None and high is not None and low <= result.accept_length <= high:
        return f"Within noise of break-even: {needs} ({low:.2f} to {high:.2f}), {reached} ({times}).", "unknown"
    won = result.won_tok_s / result.baseline_tok_s
    if won > 0:
        return (
            f"Speculation pays: {percent(won, 0)} more tok/s than the baseline; {needs}, {reached} ({times}).",
            "good",
        )
    return (
        f"Speculation does not pay: {percent(-won, 0)} less tok/s than the baseline; {needs}, only {reached} ({times}).",
        "bad",
    )


@dataclass(frozen=True)
class Fact:
    """One fact of the environment in every recording; values made anew for each run (``run_values``) are no difference."""

    name: str
    values: tuple[str, ...]
    differs: bool


def _absent(name: str, recorded: Recorded) -> str:
    """What is shown for a fact that a recording lacks: one that keeps variables or arguments says by silence: unset."""
    environment = environment_of(recorded.trace)
    section = argument_section(environment) if name.startswith("server.args.") else variables(environment)
    # A dotted name is no variable's.
    told = bool(section) and (name.startswith("server.args.") or "." not in name) and name not in PLAIN_FACTS
    return UNSET if told else NOT_RECORDED


def environment_facts(recordings: Sequence[Recorded]) -> tuple[list[Fact], list[Fact]]:
    """What ran: the facts to see first (with all that differ), and the rest."""
    each = [facts(environment_of(r.trace)) for r in recordings]
    names = list(dict.fromkeys(name for flat in each for name in flat))
    found = []
    for name in names:
        values = tuple(flat.get(name) or _absent(name, r) for flat, r in zip(each, recordings, strict=True))
        others = {value for value in values if value != values[0]}
        found.append(Fact(name, values, any(not of_the_run(name, values[0], value) for value in others)))
    place = {name: i for i, name in enumerate(FIRST_FACTS)}
    first = sorted(
        (f for f in found if f.differs or f.name in place), key=lambda f: (not f.differs, place.get(f.name, 99), f.name)
    )
    return first, sorted((f for f in found if f not in first), key=lambda f: f.name)
