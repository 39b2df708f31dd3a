"""What a diagnosis rule is: data that every rule states, one small function that looks, and what it can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from specanalyze.answers.measured import Measured
from specschema.figures import counted
from specschema.phases import BUCKETS, DEVICE_BUCKETS, IDLE_BUCKETS

HIGH, MEDIUM, LOW = "high", "medium", "low"
"""Confidence: the recording shows it; the recording fits it and a usual cause; it is possible and worth a trial."""

NO_CONTROL: Final = (
    "withheld: observing makes launches, gaps and host time longer, and this recording has no untraced cycles to tell by how much; "
    "record with untraced control cycles before and after the window"
)
"""Rule D6: idle time of an observed run is no ground for advice."""


@dataclass(frozen=True)
class Found:
    """What a rule found.

    Attributes:
        title: one line, with its main figure.
        evidence: figures of this recording, one line each.
        confidence: HIGH, MEDIUM or LOW.
        win_ns: what a cycle would win at most, ns; None where it cannot be told.
        withheld: why advice is withheld; then win_ns is None.
        of: parts of the cycle that the win is taken from, (phase or None for all, bucket); empty: the cycle as a whole.
        knob: what to turn, where what was found decides it; None: the rule's own.
    """

    title: str
    evidence: tuple[str, ...]
    confidence: str
    win_ns: float | None = None
    withheld: str | None = None
    of: tuple[tuple[str | None, str], ...] = ()
    knob: str | None = None


@dataclass(frozen=True)
class NotChecked:
    """A rule that this recording cannot answer, and what to record or give instead."""

    reason: str


Answer = Found | NotChecked | None
"""None: looked, and the fault is not there."""


@dataclass(frozen=True)
class Rule:
    """One fault that a recording can show.

    Attributes:
        name: short, stable, for ``--json``.
        asks: the question.
        knobs: server (``sglang``, ``vllm``, ``any``) -> what to turn.
        disproof: observation that would show the finding to be wrong.
        check: looks at a recording.
    """

    name: str
    asks: str
    knobs: Mapping[str, str]
    disproof: str
    check: Callable[[Subject], Answer]

    def knob(self, server: str | None) -> str:
        """What to turn on this server."""
        found = self.knobs.get(server or "any") or self.knobs.get("any")
        return found or "; ".join(f"{name}: {knob}" for name, knob in self.knobs.items())


@dataclass(frozen=True)
class Subject:
    """The recording under diagnosis.

    Attributes:
        m: the recording.
        baseline: plain decoding of the same server, where the user has it.
    """

    m: Measured
    baseline: Measured | None = None

    @cached_property
    def cells(self) -> dict[str, dict[str, float]]:
        """Phase -> bucket -> mean ns a cycle: busy as measured, idle calibrated where there is a control (rule D6)."""
        factor = self.m.idle_factor
        return {
            p: {b: ns * (factor if factor is not None and b in IDLE_BUCKETS else 1.0) for b, ns in row.items()}
            for p, row in self.m.mean_ns().items()
        }

    def ns(self, bucket: str, *phases: str) -> float:
        """A bucket over some phases (all when none is named), ns a cycle."""
        return sum(row.get(bucket, 0.0) for p, row in self.cells.items() if not phases or p in phases)

    def phase_ns(self, phase: str) -> float:
        """A phase, ns a cycle."""
        return sum(self.cells.get(phase, {}).values())

    @property
    def on_a_cpu(self) -> bool:
        """Whether CPU operators stand in for device work."""
        ranks = self.m.breakdown.ranks
        return bool(ranks) and all(r.device == "cpu" for r in ranks)

    @cached_property
    def busy_ns(self) -> float:
        """Device time of a cycle as the partition gives it, ns."""
        return sum(self.ns(b) for b in BUCKETS if b in DEVICE_BUCKETS)

    @cached_property
    def step_ns(self) -> float:
        """The typical cycle at the place of the windows, by the truest clock at hand, ns: its parts are what rules look at."""
        return self.m.window_step_ns

    @cached_property
    def main(self) -> str:
        """verify, or decode of a plain recording."""
        return self.m.main_phase

    def exposed_ns(self, condition: pl.Expr) -> float:
        """Instants that the partition gave to some kernels, mean over ranks, ns a cycle; see ``kernels.kernels``."""
        ranks = self.m.breakdown.ranks
        cycles = {r.key: max(r.whole.get(self.main, 0), 1) for r in ranks}
        rows = self.m.kernels.filter(condition).group_by("rank").agg(pl.col("whole_exposed_ns").sum())
        each = [ns / cycles[rank] for rank, ns in rows.iter_rows()]
        return sum(each) / len(ranks) if ranks else 0.0

    @property
    def parts_are_of(self) -> str:
        """What figures of phases and buckets are of: never the cycles that ``step_ns`` is of, unless nothing else was recorded."""
        scaled = "" if self.m.idle_factor is None else ", idle time scaled to the untraced cycle"
        return f"mean of {counted(self.m.cycle_count, 'whole traced cycle')}{scaled}"

    @property
    def cycle_is_of(self) -> str:
        """What ``Measured.step_ns``, and tok/s by it, is of."""
        if self.m.controlled:
            return f"median of {counted(len(self.m.clock_ns()), 'untraced cycle')}"
        if len(self.m.steps_ns(traced=True)):
            return f"median of {counted(len(self.m.clock_ns()), 'traced cycle')}, which observing makes longer"
        return f"median of what the phases of {counted(self.m.cycle_count, 'traced cycle')} add up to"

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.m.environment

    @property
    def server(self) -> str | None:
        """``sglang``, ``vllm`` or whatever served; None where it is not recorded."""
        server = self.environment.get("server")
        name = server.get("name") if isinstance(server, Mapping) else None
        return str(name).lower() if name else None

    def differing(self, section: str) -> Mapping[str, Any]:
        """rank -> value of an environment section that differs between ranks; empty where it does not."""
        found = self.environment.get("differs_by_rank")
        values = found.get(section) if isinstance(found, Mapping) else None
        return values if isinstance(values, Mapping) else {}


def ms(ns: float) -> str:
    """ns as ms with three decimals."""
    return f"{ns / 1e6:.3f} ms"
