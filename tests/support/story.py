"""The story of the tool as recordings: a speculating server whose every figure is chosen, so that tests can check digits.

An engineer turns EAGLE-3 on and gets 71 tok/s where plain decoding gave 90. The recordings below are what a collector
would have written at each turn of that story. Everything is deterministic; durations carry a jitter whose mean is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from traces import events

from specanalyze.trace import RankSource, RankTrace, Trace

MS: Final = 1_000_000
EPOCH_NS: Final = 1_790_000_000_000_000_000

ATTENTION: Final = "flash_fwd_splitkv_mla_kernel"
MOE: Final = "fused_moe_kernel"
GEMM: Final = "nvjet_tst_128x8_64x12_4x1_v_bz_TNN"
NORM: Final = "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>"
ALLREDUCE: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SAMPLING: Final = "void flashinfer::sampling::TopKTopPSamplingFromProbKernel"
TREE: Final = "build_tree_efficient"

NCCL_VARIABLES: Final = {"NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"}
"""The three variables of the story."""

ACCEPTANCE: Final = (0.85, 0.617, 0.02, 0.008, 0.003, 0.001, 0.0, 0.0, 0.0, 0.0)
"""Share of verify steps that accept at least k draft tokens, k from 1: accept length 2.467 with two draft steps."""

MISERABLE_ACCEPTANCE: Final = (0.62, 0.25, 0.05, 0.015, 0.002)
"""Of the first recording: accept length 1.937, so 71.0 tok/s at 27.28 ms a cycle."""

JITTER: Final = (0, 3, -3, 1, -1)
"""Thousandths that a phase's longest kernel is off in successive cycles; the mean and the median are zero."""

STEPS: Final = 1000
"""Cycles of a recording: enough for acceptances in thousandths to be exact."""


@dataclass(frozen=True)
class Work:
    """What one phase does in one cycle.

    Attributes:
        kernels: kernel name -> (calls, ns in all).
        launch_ns: from the start of the phase, which is the start of its launch call, to the first kernel.
        gap_ns: idle between the kernels, in all.
        tail_ns: host time after the last kernel, before the phase ends.
        graph: one graph launch; else one launch call a kernel, just before it.
    """

    kernels: Mapping[str, tuple[int, int]]
    launch_ns: int = 10_000
    gap_ns: int = 0
    tail_ns: int = 0
    graph: bool = True

    @property
    def total_ns(self) -> int:
        return self.launch_ns + self.gap_ns + self.tail_ns + sum(ns for _, ns in self.kernels.values())

    def filled(self, total_ns: int, kernel: str) -> Work:
        """The same work with ``kernel`` lasting so long that the phase takes ``total_ns``."""
        calls, ns = self.kernels[kernel]
        left = ns + total_ns - self.total_ns
        if left < 0:
            raise ValueError(f"{total_ns} ns are too short for the rest of the work")
        return replace(self, kernels={**self.kernels, kernel: (calls, left)})


@dataclass(frozen=True)
class Recording:
    """A recording to build.

    Attributes:
        phases: leaf phase -> its work; all phases of a cycle follow each other without a gap.
        mode: mode of the cycles.
        draft_tokens: draft tokens a verify step checks; None for plain decoding.
        acceptance: share of verify steps that accept at least k draft tokens.
        cycles, traced: cycles in all, and how many of them, the last ones, have kernels.
        observer_ns: what each traced cycle is longer, as host time at the end of its first phase.
        lag_ns: rank key -> ns that the rank is late at the first collective of each phase; the other ranks wait.
        slower_ns: rank key -> a kernel, and what all its calls of a phase take more on that rank; the others wait at the all-reduce that
            follows each of them in the phase's work, where there is one.
        graph_batch_size: of the verify or decode graph; None for eager.
        control: False leaves the cycles before the window out.
        windows: first cycles of windows of ``traced`` cycles each, in place of the one at the end.
        first_context: context of the first cycle; each has one token more.
        host_grows_ns: how much longer the host's time at the end of the first phase is in each cycle than in the one before.
        grows_ns: how much longer the attention of the last phase but the re-extend is in each cycle than in the one before.
    """

    phases: Mapping[str, Work]
    name: str = "story"
    mode: str = "speculative"
    draft_tokens: int | None = 2
    acceptance: Sequence[float] = ACCEPTANCE
    cycles: int = STEPS
    traced: int = 20
    ranks: int = 1
    batch_size: int = 1
    graph_batch_size: int | None = 1
    observer_ns: int = 0
    lag_ns: Mapping[int, int] = field(default_factory=dict)
    slower_ns: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    control: bool = True
    jitter: Sequence[int] = JITTER
    windows: Sequence[int] | None = None
    first_context: int = 1000
    host_grows_ns: int = 0
    grows_ns: int = 0

    def accepted(self) -> list[int]:
        """Accepted draft tokens of each cycle: the shares exactly, spread evenly over the recording."""
        if self.draft_tokens is None:
            return [0] * self.cycles
        reach = [round(share * self.cycles) for share in self.acceptance[: self.draft_tokens]]
        return [sum(place * 109 % self.cycles < count for count in reach) for place in range(self.cycles)]

    def trace(self) -> Trace:
        """The recording, in memory."""
        metadata = {
            "recording": {"source": "collector", "device": "cuda", "windows": [{"window": 0}]},
            "ranks": [{"rank": r, "tensor": r} for r in range(self.ranks)],
            "environment": dict(self.environment),
        }
        sources = []
        for rank in range(self.ranks):
            built = RankTrace(str(rank), rank, f"{self.name}.parquet", self.frame(rank), world_size=self.ranks)
            sources.append(RankSource(str(rank), built.source, _reader(built)))
        return Trace(f"{self.name}.parquet", tuple(sources), metadata)

    def write(self, folder: Path) -> Path:
        """The recording as a trace.parquet of its own folder, for the command line."""
        from specanalyze.formats.trace_writer import write_trace

        (folder / self.name).mkdir(parents=True, exist_ok=True)
        path = folder / self.name / "trace.parquet"
        write_trace(self.trace(), path, force=True)
        return path

    def frame(self, rank: int) -> pl.DataFrame:
        """Events of one rank."""
        return events(self._rows(rank))

    def _rows(self, rank: int) -> Iterator[dict[str, Any]]:
        at, correlation = EPOCH_NS, 0
        starts = [self.cycles - self.traced] if self.windows is None else self.windows
        lag = self.lag_ns.get(rank, 0)
        for number, accepted in enumerate(self.accepted()):
            window = next((w for w, first in enumerate(starts) if first <= number < first + self.traced), None)
            if window is None and not self.control:
                continue
            common = {"rank": rank, "pid": 100 + rank, "tid": 1, "window": window, "cycle": number}
            begin = at
            for place, (phase, work) in enumerate(self.phases.items()):
                off = self.jitter[number % len(self.jitter)]
                work = _slower(_jittered(work, off), self.slower_ns.get(rank))
                if self.grows_ns and phase in ("verify", "decode"):
                    calls, ns = work.kernels[ATTENTION]
                    grown = ns + self.grows_ns * number
                    work = replace(work, kernels={**work.kernels, ATTENTION: (calls, grown)})
                if place == 0:
                    work = replace(work, tail_ns=work.tail_ns + self.host_grows_ns * number)
                if window is not None and place == 0:
                    work = replace(work, tail_ns=work.tail_ns + self.observer_ns)
                yield {**common, "kind": "phase", "name": f"spec.{phase}", "start_ns": at, "dur_ns": work.total_ns}
                if window is not None:
                    for row in _device_rows(work, at, correlation, lag):
                        yield {**row, "rank": rank, "pid": 100 + rank, "window": window}
                        correlation = max(correlation, row["correlation"])
                at += work.total_ns
            yield {
                **common,
                "kind": "cycle",
                "name": "spec.cycle",
                "start_ns": begin,
                "dur_ns": at - begin,
                "mode": self.mode,
                "batch_size": self.batch_size,
                "draft_tokens": self.draft_tokens,
                "request_ids": [f"r{i}" for i in range(self.batch_size)],
                "accept_lengths": [accepted + 1] * self.batch_size,
                "accepted_draft_tokens": None if self.draft_tokens is None else [accepted] * self.batch_size,
                "graph_batch_size": self.graph_batch_size,
                "context_tokens": self.first_context + number,
            }


def _reader(rank: RankTrace) -> Callable[[], RankTrace]:
    return lambda: rank


def _jittered(work: Work, thousandths: int) -> Work:
    longest = max(work.kernels, key=lambda name: work.kernels[name][1])
    calls, ns = work.kernels[longest]
    return replace(work, kernels={**work.kernels, longest: (calls, ns + ns * thousandths // 1000)})


def _slower(work: Work, slower: tuple[str, int] | None) -> Work:
    if slower is None or slower[0] not in work.kernels:
        return work
    name, more = slower
    changes = {name: more} | ({ALLREDUCE: -more} if ALLREDUCE in work.kernels else {})
    return replace(work, kernels={n: (calls, ns + changes.get(n, 0)) for n, (calls, ns) in work.kernels.items()})


def _device_rows(work: Work, start: int, correlation: int, lag: int) -> Iterator[dict[str, Any]]:
    """Launch calls and kernels of one phase: the kernels of all names take turns, as layers do."""
    calls: list[tuple[float, str, int]] = []
    for name, (count, total) in work.kernels.items():
        each, rest = divmod(total, count)
        calls += [((i + 0.5) / count, name, each + (1 if i < rest else 0)) for i in range(count)]
    calls.sort(key=lambda call: call[0])
    gap, more = divmod(work.gap_ns, max(len(calls) - 1, 1))
    late = lag if ALLREDUCE in work.kernels else 0
    at = start + work.launch_ns + late
    correlation += 1
    if work.graph:
        yield _launch("cudaGraphLaunch", start, correlation)
    for place, (_, name, ns) in enumerate(calls):
        if not work.graph:
            correlation += 1
            yield _launch("cudaLaunchKernel", start if place == 0 else at - gap, correlation)
        if late and name == ALLREDUCE:
            ns, late = ns - late, 0
        yield {
            "kind": "kernel",
            "name": name,
            "start_ns": at,
            "dur_ns": ns,
            "device": 0,
            "stream": 7,
            "correlation": correlation,
        }
        at += ns + gap + (1 if place < more else 0)


def _launch(name: str, at: int, correlation: int) -> dict[str, Any]:
    return {"kind": "launch", "name": name, "tid": 1, "start_ns": at, "dur_ns": 5_000, "correlation": correlation}


def environment(**changes: Any) -> dict[str, Any]:
    """What the story's server ran on; ``changes`` replace whole entries, ``variables`` and ``args`` are added to."""
    variables = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **changes.pop("variables", {})}
    args = {"tp_size": 8, "speculative_num_steps": 2, "model_path": "moonshotai/Kimi-K2.5", **changes.pop("args", {})}
    gpu = {"name": "NVIDIA H200", "clock_sm": 1980, "clock_sm_max": 1980, "power_limit": 700_000}
    return {
        "gpu": "NVIDIA H200",
        "gpu_count": 8,
        "gpus": [dict(gpu) for _ in range(8)],
        "links": [{"gpus": [0, 1], "nvlink": True, "path": "across CPUs"}],
        "driver": "580.95.05",
        "cuda": "13.0",
        "nccl": {"path": "/usr/lib/libnccl.so.2", "version": "2.28.9", "torch_version": "2.28.9"},
        "torch": "2.9.1",
        "server": "sglang",
        "server_version": "0.5.17",
        "server_args": {k: v for k, v in args.items() if v is not None},
        "command_line": ["--model-path", "moonshotai/Kimi-K2.5"],
        "model": {"name": "Kimi-K2.5", "config_digest": "6b1f00aa", "n_routed_experts": 384, "num_experts_per_tok": 8},
        "variables": variables,
        **changes,
    }


def verify_work(total_ns: int, tokens: int = 3, allreduce_ns: int = 10_400_000) -> Work:
    """The target's forward of 61 layers over ``tokens`` tokens: its experts take what the rest leaves of ``total_ns``."""
    kernels = {
        ATTENTION: (61, 1_500_000 + 100_000 * tokens),
        GEMM: (61, 3_200_000),
        ALLREDUCE: (122, allreduce_ns),
        MOE: (61, 0),
        NORM: (61, 800_000),
        SAMPLING: (1, 60_000),
    }
    return Work(kernels, launch_ns=20_000, gap_ns=500_000).filled(total_ns, MOE)


def draft_work(total_ns: int, steps: int = 5, allreduce_ns: int = 0) -> Work:
    """The draft model's forwards and the tree."""
    kernels = {ATTENTION: (steps, 8_000 * steps), GEMM: (2 * steps, 0), TREE: (1, 12_000)}
    if allreduce_ns:
        kernels[ALLREDUCE] = (2 * steps, allreduce_ns)
    return Work(kernels).filled(total_ns, GEMM)


def extend_work(total_ns: int) -> Work:
    """The draft model's re-extend over the accepted tokens."""
    return Work({ATTENTION: (1, 30_000), GEMM: (2, 0)}).filled(total_ns, GEMM)


def speculative(draft_ns: int, verify_ns: int, extend_ns: int, steps: int, **changes: Any) -> Recording:
    """A speculating recording with phases of these lengths; ``verify`` replaces the verify work."""
    verify = changes.pop("verify", None) or verify_work(verify_ns, steps + 1)
    phases = {"draft": draft_work(draft_ns, steps), "verify": verify, "draft_extend": extend_work(extend_ns)}
    changes.setdefault("environment", environment(args={"speculative_num_steps": steps}))
    return Recording(phases, draft_tokens=steps, **changes)


def first_recording(**changes: Any) -> Recording:
    """Where it starts: 0.93 + 26.07 + 0.28 = 27.28 ms a cycle, 71 tok/s."""
    settings: dict[str, Any] = {"name": "eagle", "acceptance": MISERABLE_ACCEPTANCE, **changes}
    return speculative(930_000, 26_070_000, 280_000, 5, **settings)


def sweep_recording(steps: int, **changes: Any) -> Recording:
    """One of the sweep: draft 0.184 ms a step, verify 25.6 ms at 3 tokens and 28.7 ms at 6; 29.9 ms a cycle at 5 steps."""
    verify_ns = 22_500_000 + 3_100_000 * (steps + 1) // 3
    return speculative(184_000 * steps, verify_ns, 280_000, steps, **{"name": f"steps{steps}", **changes})


def tuned_recording(**changes: Any) -> Recording:
    """Two steps with the three NCCL variables: verify 18.7 ms instead of 25.6, all of it all-reduce time."""
    settings = {
        "name": "tuned",
        "environment": environment(variables=NCCL_VARIABLES),
        "verify": verify_work(18_700_000, 3, allreduce_ns=10_400_000 - 6_900_000),
        **changes,
    }
    return speculative(368_000, 18_700_000, 280_000, 2, **settings)


def baseline_recording(step_ns: int, tuned: bool, **changes: Any) -> Recording:
    """Plain decoding: 11.1 ms a step was once measured with the NCCL variables; today 15.9 ms without, 11.26 with."""
    work = verify_work(step_ns, 1, allreduce_ns=2_500_000 if tuned else 7_140_000)
    variables = NCCL_VARIABLES if tuned else {}
    settings = {
        "name": "baseline",
        "environment": environment(variables=variables, args={"speculative_num_steps": None}),
        **changes,
    }
    return Recording({"decode": work}, mode="decode", draft_tokens=None, **settings)
