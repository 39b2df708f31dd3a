"""What one recording measured, reduced to what decisions need: cost of a cycle by phase and bucket, steps, accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.answers.breakdown import Breakdown, assemble
from specanalyze.answers.control import Control, control_of
from specanalyze.answers.cycle_growth import Growth, growth_of_cycles
from specanalyze.answers.device_growth import device_growth
from specanalyze.answers.draft_parts import DraftParts, once_shares
from specanalyze.answers.environment import argument, environment_of
from specanalyze.answers.instance_kernels import InstanceKernels
from specanalyze.answers.kernels import SCHEMA as KERNEL_SCHEMA
from specanalyze.answers.measured_rank import MeasuredRank, read_measured
from specanalyze.answers.neighbours import FEW
from specanalyze.answers.phase_communication import matched_waits, phase_communication
from specanalyze.answers.positions import acceptance_by_position, verify_steps
from specanalyze.answers.uneven_kernels import compared_kernels, uneven_kernels
from specanalyze.answers.whole_cycles import whole_cycles
from specanalyze.attribution.cycles import CYCLE_SCHEMA, replicas
from specanalyze.attribution.waits import Talk, Waits
from specanalyze.engines.engine import ranks_of
from specanalyze.trace import Trace
from specanalyze.whole_number import whole_number
from specschema.errors import TraceError
from specschema.figures import percent
from specschema.phases import BUCKETS, IDLE_BUCKETS, LEAF_PHASES

Floats = NDArray[np.float64]

STALLS: Final = 0.25
"""Mean over median cycle - 1, from which a warning is due."""
SPECULATING: Final = ("speculative", "mixed")
STEP_ARGUMENTS: Final = ("speculative_num_steps", "num_speculative_tokens", "speculative_config.num_speculative_tokens")
"""The server argument that says how many draft steps a cycle has."""
TOP_K_ARGUMENTS: Final = ("speculative_eagle_topk",)


@dataclass(frozen=True)
class Measured:
    """One recording, reduced.

    Attributes:
        trace: the recording.
        breakdown: its partition, rank by rank.
        per_cycle: one row a whole decode cycle of a window and phase, mean over the ranks: window, cycle, phase, one
            column a bucket and ``graph_launch`` (part of launch), ns; and replays.
        cycles: see ``cycles.cycle_table``.
        counted: ranks whose tokens are counted, one a replica.
        kernels: see ``kernels.kernels``.
        waits: collectives across ranks; None with one rank.
        said_draft_steps: draft steps as the user says, where the recording does not.
        draft_once: see ``draft_parts.once_shares``.
        instances: rank -> its kernels instance by instance; see ``compared`` and ``uneven``.
    """

    trace: Trace
    breakdown: Breakdown
    per_cycle: pl.DataFrame
    cycles: pl.DataFrame
    counted: tuple[str, ...]
    kernels: pl.DataFrame
    waits: Waits | None
    said_draft_steps: int | None = None
    draft_once: Mapping[str, float] = field(default_factory=dict)
    instances: Mapping[str, InstanceKernels] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, Any]:
        return environment_of(self.trace)

    @property
    def speculating(self) -> bool:
        """Whether its cycles verify drafts."""
        return "verify" in self.phases

    @property
    def main_phase(self) -> str:
        """``verify``, or ``decode`` of a plain recording."""
        return "verify" if self.speculating else "decode"

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Leaf phases that its whole cycles have, in the order of a cycle."""
        present = set(self.per_cycle.get_column("phase").unique().to_list())
        return tuple(p for p in LEAF_PHASES if p in present)

    @property
    def cycle_count(self) -> int:
        """Whole traced cycles."""
        return self.per_cycle.select("window", "cycle").unique().height

    def matrix(self, phases: Sequence[str]) -> Floats:
        """ns of each whole cycle, in order of time: cycles x phases x buckets; 0 where a cycle lacks a phase."""
        keys = self.per_cycle.select("window", "cycle").unique().sort("window", "cycle")
        cells = []
        for phase in phases:
            mine = self.per_cycle.filter(pl.col("phase") == phase)
            rows = keys.join(mine, on=["window", "cycle"], how="left", maintain_order="left")
            cells.append(rows.select(*BUCKETS).fill_null(0).to_numpy())
        return np.stack(cells, axis=1).astype(np.float64) if cells else np.zeros((keys.height, 0, len(BUCKETS)))

    @cached_property
    def _means(self) -> dict[str, dict[str, float]]:
        phases = (*self.phases, "cycle")
        means = self.matrix(phases).mean(axis=0)
        return {p: dict(zip(BUCKETS, row.tolist(), strict=True)) for p, row in zip(phases, means, strict=True)}

    def mean_ns(self) -> dict[str, dict[str, float]]:
        """Phase -> bucket -> mean ns a cycle, over whole traced cycles and ranks."""
        return {phase: dict(row) for phase, row in self._means.items()}

    def communication(self, phase: str, bucket: str | None = None) -> pl.DataFrame | None:
        """See ``phase_communication.phase_communication``."""
        return phase_communication(self.waits, len(self.breakdown.ranks), phase, bucket)

    def transfer_share(self, phase: str, bucket: str | None = None) -> float | None:
        """Transfer's share of a phase's communication time (of one bucket of it, where named); None where it is unknown."""
        table = self.communication(phase, bucket)
        if table is None:
            return None
        wait, transfer = float(table["wait_ns"].sum()), float(table["transfer_ns"].sum())
        return transfer / (wait + transfer) if wait + transfer else None

    def phase_ns(self, phase: str) -> float:
        """Mean ns of a phase a cycle; 0 for a phase it does not have."""
        return sum(self.mean_ns().get(phase, {}).values())

    def decoding(self) -> pl.DataFrame:
        """Cycles of the counted ranks that verify (or decode, in a plain recording)."""
        return self._decoding

    @cached_property
    def _decoding(self) -> pl.DataFrame:
        mine = pl.col("rank").is_in(list(self.counted))
        modes = SPECULATING if self.speculating else ("decode",)
        return self.cycles.filter(mine, pl.col("mode").is_in(list(modes)))

    def steps_ns(self, traced: bool) -> Floats:
        """Start-to-start times of decode cycles inside windows (``traced``), or untraced and undisturbed, in order of time."""
        where = pl.col("window").is_not_null() if traced else pl.col("control")
        steps = self.decoding().filter(where).get_column("step_ns").drop_nulls()
        return np.asarray(steps.to_numpy(), dtype=np.float64)

    @property
    def controlled(self) -> bool:
        """Whether untraced cycles stand beside the traced ones (rule D6)."""
        return len(self.steps_ns(traced=False)) >= FEW

    def clock_ns(self) -> Floats:
        """Step times of the truest clock at hand: untraced cycles, else traced ones, else the phases' own sum."""
        steps = self.steps_ns(traced=False) if self.controlled else self.steps_ns(traced=True)
        if len(steps):
            return steps
        return np.asarray(self.matrix((*self.phases, "cycle")).sum(axis=(1, 2)), dtype=np.float64)

    @property
    def step_ns(self) -> float:
        """The typical cycle of the whole recording: the median, which a stall does not move (see ``stall_share``)."""
        return float(np.median(self.clock_ns()))

    @cached_property
    def control(self) -> Control | None:
        """What the traced cycles would have taken untraced; None without an untraced control."""
        return control_of(self.decoding()) if self.controlled else None

    @property
    def window_step_ns(self) -> float:
        """The typical cycle at the place of the windows: the one that the parts of traced cycles are parts of."""
        return self.step_ns if self.control is None else self.control.untraced_ns.value

    @property
    def stall_share(self) -> float:
        """How much longer the mean cycle is than the median: time lost in a few very long cycles, as a share."""
        return float(self.clock_ns().mean()) / self.step_ns - 1 if self.step_ns else 0.0

    def stalls(self) -> list[str]:
        """A warning where stalls make the typical cycle say too little."""
        if self.stall_share <= STALLS:
            return []
        return [
            f"{self.trace.name}: the mean cycle is {percent(self.stall_share, 0)} longer than the median: a few cycles stall; cycle and tok/s "
            "here are those of the median cycle"
        ]

    @cached_property
    def growth(self) -> Growth | None:
        """How the untraced cycle grows over the request, on the first of the counted ranks; None where it does not."""
        return growth_of_cycles(self.decoding().filter(pl.col("rank") == self.counted[0]))

    @cached_property
    def grown(self) -> pl.DataFrame:
        """The device work that grows with it, see ``device_growth.device_growth``; mean over the ranks."""
        mine = self.cycles.filter(pl.col("rank") == self.breakdown.ranks[0].key)  # per_cycle has its numbers
        return device_growth(self.per_cycle, mine, self.growth)

    @cached_property
    def compared(self) -> pl.DataFrame:
        """The same kernels on several ranks, see ``uneven_kernels.compared_kernels``."""
        return compared_kernels(self.instances, self.breakdown)

    @cached_property
    def uneven(self) -> pl.DataFrame:
        """Those that take longer on some ranks, see ``uneven_kernels.uneven_kernels``."""
        return uneven_kernels(self.instances, self.breakdown, self.compared)

    @cached_property
    def idle_factor(self) -> float | None:
        """By how much the traced idle time shrinks so that the traced cycle equals the untraced one at its place (rule D6); None
        without an untraced control or without idle time."""
        if self.control is None:
            return None
        busy = sum(ns for row in self.mean_ns().values() for b, ns in row.items() if b not in IDLE_BUCKETS)
        idle = (self.control.traced_ns or 0.0) - busy
        if idle <= 0:
            return None
        return min(1.0, max(0.0, (self.control.untraced_ns.value - busy) / idle))

    @property
    def tokens_per_cycle(self) -> float | None:
        """Tokens committed a cycle by all replicas; None where the recording does not know them."""
        known = self.decoding().filter(pl.col("tokens").is_not_null())
        if not known.height:
            return 1.0 if not self.speculating else None
        return float(known.group_by("rank").agg(pl.col("tokens").mean()).get_column("tokens").sum())

    @property
    def accept_length(self) -> float | None:
        """Tokens committed a request and verify step (rule D8)."""
        known = self.decoding().select(pl.col("accept_lengths").explode(empty_as_null=True)).drop_nulls()
        return float(known.to_series().cast(pl.Float64).mean() or 0.0) if known.height else None  # type: ignore[arg-type]

    @property
    def tokens_per_second(self) -> float | None:
        tokens = self.tokens_per_cycle
        return tokens / self.step_ns * 1e9 if tokens is not None and self.step_ns else None

    @property
    def batch_size(self) -> float:
        """Mean batch of its decode cycles; 1 where the recording does not say."""
        known = self.decoding().get_column("batch_size").drop_nulls()
        return float(known.cast(pl.Float64).mean() or 1.0) if known.len() else 1.0  # type: ignore[arg-type]

    @property
    def draft_tokens(self) -> int | None:
        """Draft tokens that a verify step checks for each request (the most, where it adapts)."""
        known = self.decoding().get_column("draft_tokens").drop_nulls()
        return int(known.max()) if known.len() else None  # type: ignore[arg-type]

    @property
    def draft_steps(self) -> int | None:
        """Draft steps a cycle: the server's argument, else the draft tokens of a chain."""
        if self.said_draft_steps is not None:
            return self.said_draft_steps
        said = whole_number(argument(self.environment, *STEP_ARGUMENTS))
        return said if said is not None else self.draft_tokens

    @property
    def verify_tokens(self) -> float | None:
        """Tokens that the target scores a cycle: for each request the draft tokens and the one already committed.

        Where cycles do not record it: by the server's argument, else as many as a chain of the draft steps has.
        """
        if not self.speculating:
            return self.batch_size
        known = self.decoding().select((pl.col("draft_tokens") + 1) * pl.col("batch_size").fill_null(1)).drop_nulls()
        if known.height:
            return float(known.to_series().cast(pl.Float64).mean())  # type: ignore[arg-type]
        said = whole_number(argument(self.environment, "speculative_num_draft_tokens"))
        if said is not None:
            return said * self.batch_size
        return (self.draft_steps + 1) * self.batch_size if self.draft_steps is not None else None

    def acceptance(self) -> Floats:
        """Share of verify steps that accepted at least k draft tokens, k = 1, 2, ...; only steps that drafted k count.

        Empty where accepts or the number of draft tokens are unknown.
        """
        return acceptance_of([self])

    def accepts(self) -> pl.DataFrame:
        """One row a request and verify step: drafted (the depth of the draft, not the size of its tree), accepted, committed."""
        return verify_steps(self.decoding(), self.draft_steps)


def acceptance_of(recordings: Sequence[Measured]) -> Floats:
    """Acceptance by position over several recordings taken together (see ``Measured.acceptance``)."""
    rows = pl.concat([m.accepts() for m in recordings])
    return acceptance_by_position(rows).get_column("cumulative").to_numpy().astype(np.float64)


def measure(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Measured:
    """Reduce a recording, each rank read once.

    Raises:
        TraceError: no phase ranges, or no whole decode cycle with device records.
    """
    return next(measure_each([trace], phase_map))


def measure_each(traces: Sequence[Trace], phase_map: Mapping[str, str] | None = None) -> Iterator[Measured]:
    """Reduce recordings, one after another; their engine may work on ranks of several at a time.

    Raises:
        TraceError: as ``measure``.
    """
    for trace, ranks in zip(traces, ranks_of(traces, read_measured, phase_map), strict=True):
        yield measured_of_ranks(trace, ranks)


def measured_of_ranks(trace: Trace, reduced: Iterable[MeasuredRank]) -> Measured:
    """``measure`` of ranks that are read already.

    Raises:
        TraceError: as ``measure``.
    """
    ranks, cycles, tables = [], [], []
    talks: dict[int, list[Talk]] = {}
    parts: list[DraftParts] = []
    instances: dict[str, InstanceKernels] = {}
    for rank in reduced:
        ranks.append(rank.breakdown)
        cycles.append(rank.cycles)
        tables.append(rank.kernels)
        instances[rank.breakdown.key] = rank.instances
        parts += rank.draft
        for window, talk in rank.talks.items():
            talks.setdefault(window, []).append(talk)
    breakdown = assemble(trace, ranks)
    table = pl.concat(cycles) if cycles else pl.DataFrame(schema=CYCLE_SCHEMA)
    per_cycle = whole_cycles(breakdown)
    if not per_cycle.height or not any(r.device_ns for r in breakdown.ranks):
        raise TraceError(
            f"{trace.name} holds no whole decode cycle with device records; record a kernel window over decode cycles"
        )
    return Measured(
        trace,
        breakdown,
        per_cycle,
        table,
        tuple(replicas(trace, table)),
        pl.concat(tables) if tables else pl.DataFrame(schema=KERNEL_SCHEMA),
        matched_waits(talks, len(trace.sources)),
        draft_once=once_shares(parts),
        instances=instances,
    )
