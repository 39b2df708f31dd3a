"""Rules about idle time: gaps, launches, the host, CUDA graphs, and what observing itself cost."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from specanalyze.diagnosis.diagnosis_rule import (
    HIGH,
    LOW,
    MEDIUM,
    NO_CONTROL,
    Answer,
    Found,
    NotChecked,
    Rule,
    Subject,
    ms,
)
from specschema.figures import counted, percent
from specschema.phases import COMPUTE_BUCKETS, IDLE_BUCKETS

IDLE_SHARE: Final = 0.15
"""Idle device time below this share of the cycle is not worth a rule."""
PADDED_SHARE: Final = 0.10
"""Padding below this share of the graph's batch is the price of few graphs."""
DISTORTION: Final = 1.2
"""Traced cycle over untraced one, from which idle figures of the window say little."""
NOT_DISTORTED: Final = 1.05


def idle_gaps(s: Subject) -> Answer:
    if s.on_a_cpu:
        return NotChecked("recorded on a CPU: nothing is known about gaps on a device")
    if not s.m.controlled:
        traced = s.m.step_ns - s.busy_ns
        if traced < IDLE_SHARE * s.m.step_ns:
            return None
        return Found(
            f"the device idles {percent(traced / s.m.step_ns, 0)} of the observed cycle",
            (
                f"{ms(traced)} of {ms(s.m.step_ns)}: the typical observed cycle less the mean time that the device works in one",
            ),
            LOW,
            withheld=NO_CONTROL,
        )
    idle = s.step_ns - s.busy_ns
    share = idle / s.step_ns
    if share < IDLE_SHARE:
        return None
    parts = {b: s.ns(b) for b in ("graph_gap", "launch", "host")}
    known = sum(parts.values())
    if known > idle:  # means of traced cycles beside a median of untraced ones
        parts = {b: ns * idle / known for b, ns in parts.items()}
    between = max(0.0, idle - known)
    named = {"gaps inside graph replays": parts["graph_gap"], "launch calls": parts["launch"]}
    named["host inside phases"] = parts["host"]
    named["host between phases and cycles"] = between
    worst = max(named, key=lambda k: named[k])
    return Found(
        f"the device idles {percent(share, 0)} of the untraced cycle, the largest part of it: {worst}",
        (
            f"the untraced cycle{_where(s)} takes {ms(s.step_ns)}, median",
            f"the device works {ms(s.busy_ns)} a cycle (mean of {counted(s.m.cycle_count, 'whole traced cycle')}; observing hardly changes it)",
            f"what is left, {ms(idle)}, as idle time is shared among its kinds in traced cycles (an estimate): "
            + ", ".join(f"{k} {ms(v)}" for k, v in named.items() if v),
        ),
        MEDIUM,
        idle,
        of=tuple((None, b) for b in IDLE_BUCKETS),
    )


def eager_verify(s: Subject) -> Answer:
    main = s.m.per_cycle.filter(pl.col("phase") == s.main)
    replays = float(main.get_column("replays").sum())
    if replays or s.on_a_cpu:
        return None
    idle = sum(s.ns(b, s.main) for b in IDLE_BUCKETS)
    evidence = [f"no graph launch in {counted(main.height, f'{s.main} instance')}"]
    if s.m.controlled:
        evidence.append(f"{ms(idle)} of {ms(s.phase_ns(s.main))} is launch and host time ({s.parts_are_of})")
        of = tuple((s.main, b) for b in IDLE_BUCKETS)
        return Found(f"{s.main} runs eagerly, without a CUDA graph", tuple(evidence), HIGH, idle, of=of)
    return Found(f"{s.main} runs eagerly, without a CUDA graph", tuple(evidence), HIGH, withheld=NO_CONTROL)


def graph_padding(s: Subject) -> Answer:
    rows = s.m.decoding().select("batch_size", "graph_batch_size").drop_nulls()
    if not rows.height:
        return NotChecked(
            "no cycle tells the batch size of its graph: it ran without one, or its recorder does not say"
        )
    batch, graph = rows["batch_size"].to_numpy().astype(float), rows["graph_batch_size"].to_numpy().astype(float)
    padded = float(1 - batch.sum() / graph.sum())
    if padded < PADDED_SHARE:
        return None
    compute = sum(s.ns(b, s.main) for b in COMPUTE_BUCKETS)
    worst = int(np.argmax(graph - batch))
    return Found(
        f"graphs are padded: {percent(padded, 0)} of the rows that {s.main} computes belong to no request",
        (
            f"mean batch {batch.mean():.2f} in graphs for {graph.mean():.2f}; at worst {batch[worst]:.0f} in {graph[worst]:.0f}",
            "at most the padded rows' share of compute is won; where weights bound it, less",
        ),
        MEDIUM,
        compute * padded,
        of=tuple((s.main, b) for b in COMPUTE_BUCKETS),
    )


def profiler_distortion(s: Subject) -> Answer:
    control = s.m.control
    if control is None:
        return NotChecked(
            "what observing cost is unknown without untraced cycles; record them before and after the window"
        )
    if control.traced_ns is None:
        return None
    ratio = control.traced_ns / control.untraced_ns.value
    if ratio < DISTORTION:
        return None
    outside = "outside" if control.place is None else f"in {control.words}"
    return Found(
        f"observing makes the cycle {ratio:.2f} times as long: idle times of the window are not the server's",
        (
            f"typical cycle {ms(control.traced_ns)} in windows, {ms(control.untraced_ns.value)} {outside}",
            "device-busy times hold; launch, gap and host times are scaled here",
        ),
        HIGH,
    )


def _where(s: Subject) -> str:
    """Which untraced cycles are the control, where not all are."""
    control = s.m.control
    return "" if control is None or control.place is None else f" ({control.words})"


RULES: Final = (
    Rule(
        "idle_gaps",
        "Does the device wait for launches or the host?",
        {
            "sglang": "CUDA graphs for all batch sizes in use (--cuda-graph-bs); overlap scheduling on (no --disable-overlap-schedule); "
            "requests taken in every tenth step (--scheduler-recv-interval 10: each taking is a broadcast over the tensor parallel "
            "ranks); fewer eager kernels between graphs; a faster CPU core",
            "vllm": "full CUDA graphs (cudagraph_mode FULL), async scheduling; fewer eager kernels between graphs; a faster CPU core",
        },
        "the untraced cycle stays the same on a faster CPU, or the device is busy in an untraced nvidia-smi/DCGM reading",
        idle_gaps,
    ),
    Rule(
        "eager_verify",
        "Does the target's forward run in a CUDA graph?",
        {
            "sglang": "no --disable-cuda-graph; --cuda-graph-max-bs and --cuda-graph-bs that cover the batch; an attention backend that "
            "supports graphs for verify",
            "vllm": "no --enforce-eager; cudagraph_capture_sizes that cover batch x (draft tokens + 1)",
        },
        "a recording with the graph on has the same cycle",
        eager_verify,
    ),
    Rule(
        "graph_padding",
        "Is the graph larger than the batch?",
        {
            "sglang": "--cuda-graph-bs with the batch sizes in use",
            "vllm": "cudagraph_capture_sizes with batch x (draft tokens + 1) of the batches in use",
        },
        "the cycle is the same with a graph captured for the batch",
        graph_padding,
    ),
    Rule(
        "profiler_distortion",
        "Did observing distort the window?",
        {
            "any": "take cycle times from untraced cycles (`overhead`); on a GPU record CUDA activity only, and start the server with "
            "TEARDOWN_CUPTI=1 where `env` does not show it"
        },
        "another recording whose windows are as fast as its control has the same idle shares",
        profiler_distortion,
    ),
)
"""Rules about idle time."""
