"""Rules about ranks and their libraries: stragglers, NCCL's variables, the NCCL really loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from specanalyze.answers.advice import SETTINGS, advice
from specanalyze.answers.environment import tensor_parallel, variables
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
from specanalyze.diagnosis.diagnosis_rules_uneven import uneven
from specschema.figures import percent
from specschema.phases import COMMUNICATION_BUCKETS, IDLE_BUCKETS

WAIT_SHARE: Final = 0.05
"""Waiting below this share of the cycle is not worth a rule."""
STRAGGLER_SHARE: Final = 0.6
"""Share of all waiting that one rank must cause to be called the straggler."""
NCCL_SHARE: Final = 0.10
"""NCCL's kernels below this share of the target's forward need no tuning."""
TUNING: Final = ("NCCL_PROTO", "NCCL_ALGO")
"""Variables that choose NCCL's protocol and algorithm: its own choice is made for large messages on fast links."""


def straggler(s: Subject) -> Answer:
    if len(s.m.breakdown.ranks) < 2:
        return NotChecked("one rank was recorded: waiting is unknown; record all ranks")
    if s.m.waits is None or not s.m.waits.matched:
        return NotChecked("collectives of the ranks could not be matched, so waiting is unknown")
    rows = s.m.waits.table("window", "collective", "rank", "position", "wait_ns", of=~pl.col("voided"))
    if not rows.height:
        return NotChecked("no collective of the ranks could be matched, so waiting is unknown")
    ranks = len(s.m.breakdown.ranks)
    cycles = max(s.m.cycle_count, 1)
    # The last to arrive is the one that waits least; the others' waiting is its doing.
    keys = ["window", "collective"]
    caused = (
        rows.sort("wait_ns")
        .group_by(keys, maintain_order=True)
        .agg(pl.col("rank").first().alias("late"), pl.col("wait_ns").sum(), pl.col("position").first())
    )
    by_rank = caused.group_by("late").agg(pl.col("wait_ns").sum()).sort("wait_ns", descending=True)
    late, ns = by_rank.row(0)
    share = ns / (float(caused.get_column("wait_ns").sum()) or 1.0)
    wait = ns / (ranks - 1) / cycles
    slower = _slower_kernels(s, late)
    if share < STRAGGLER_SHARE or wait - slower < WAIT_SHARE * s.step_ns:
        return None
    mine = caused.filter(pl.col("late") == late)
    first = float(mine.filter(pl.col("position") == 0).get_column("wait_ns").sum()) / ns
    evidence: tuple[str, ...] = (
        f"in traced cycles the other ranks wait {ms(wait)} a cycle and rank for it; rank {late} is last for {percent(share, 0)} of all waiting time "
        "(`ranks` counts instead: last in so many of the collectives)",
        f"{percent(first, 0)} of this waiting is at the first collective of a graph"
        + (
            ": the rank's host is late, not its GPU; observed it may be later"
            if first > 0.5
            else ": its device work is slower"
        ),
    )
    if slower:
        evidence += (
            f"{ms(slower)} of it is for kernels that are slower there (see `uneven_kernels`), and not counted here",
        )
        wait -= slower
    title = f"rank {late} is a straggler: the others wait {ms(wait)} a cycle for it"
    if first > 0.5 and not s.m.controlled:
        return Found(title, evidence, LOW, withheld=NO_CONTROL)
    # a late host shows as idle time of its rank and as waiting of the others: one and the same time
    of = tuple((None, b) for b in (*COMMUNICATION_BUCKETS, *IDLE_BUCKETS))
    return Found(title, evidence, LOW if first > 0.5 else MEDIUM, wait, of=of)


def _slower_kernels(s: Subject, late: str) -> float:
    """What the others wait for a rank because its kernels are slower, mean over them, ns a cycle: ``uneven_kernels`` answers for it."""
    found = uneven(s)
    if found is None or found[1].agreement is None:
        return 0.0
    slower, waits = found[1].slower, found[1].waits or {}
    others = [rank for rank in slower if rank != late]
    told = [min(max(0.0, slower[late] - slower[rank]), waits.get(rank, 0.0)) for rank in others]
    return sum(told) / len(told) if told else 0.0


def nccl_variables(s: Subject) -> Answer:
    known = variables(s.environment)
    if known is None:
        return NotChecked(f"environment variables are not recorded; {advice(s.m.trace, SETTINGS)}")
    differing = _differing_variables(s.differing("variables"))
    if differing:
        return Found(
            f"ranks differ in {', '.join(sorted(differing))}",
            tuple(
                f"{name}: {', '.join(f'rank {r} {v}' for r, v in values.items())}" for name, values in differing.items()
            ),
            HIGH,
        )
    names = s.m.kernels.filter(pl.col("phase") == s.main, pl.col("bucket") == "allreduce")
    nccl = names.filter(pl.col("name").str.to_lowercase().str.contains("nccl"))
    ranks = len(s.m.breakdown.ranks)
    instances = max(sum(r.whole.get(s.main, 0) for r in s.m.breakdown.ranks), 1)
    ns = float(nccl.get_column("whole_exposed_ns").sum()) / instances
    size = tensor_parallel(s.m.trace) or ranks
    if size < 2 or ns < NCCL_SHARE * s.phase_ns(s.main) or any(known.get(name) for name in TUNING):
        return None
    return Found(
        f"{' and '.join(TUNING)} are not set, and NCCL takes {ms(ns)} of {s.main}",
        (
            f"NCCL_ variables set: {', '.join(n for n in known if n.startswith('NCCL_')) or 'none'}",
            "for messages of a few kilobytes its low-latency protocol is usually faster than its own choice; how much is a matter of "
            "one recording (see also `whatif --scale allreduce=...`)",
        ),
        LOW,
    )


def _differing_variables(by_rank: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """NCCL_ variable -> rank -> value, for those that differ."""
    each = {rank: v for rank, v in by_rank.items() if isinstance(v, Mapping)}
    names = {name for v in each.values() for name in v if name.startswith("NCCL_")}
    values = {name: {rank: str(v.get(name, "unset")) for rank, v in each.items()} for name in sorted(names)}
    return {name: found for name, found in values.items() if len(set(found.values())) > 1}


def wrong_nccl(s: Subject) -> Answer:
    nccl = s.environment.get("nccl")
    if not isinstance(nccl, Mapping) or not nccl.get("version"):
        return NotChecked(f"the NCCL library loaded is not recorded; {advice(s.m.trace, SETTINGS)}")
    evidence = []
    by_rank = s.differing("nccl")
    if by_rank:
        evidence.append(
            "ranks loaded different libraries: " + ", ".join(f"rank {r} {_library(v)}" for r, v in by_rank.items())
        )
    path = nccl.get("path")
    if isinstance(path, (list, tuple)) and len(path) > 1:
        evidence.append(f"several NCCL libraries are loaded in one process: {', '.join(map(str, path))}")
    wanted = nccl.get("torch_version")
    if wanted and str(wanted) != str(nccl["version"]):
        evidence.append(f"loaded {nccl['version']} ({path or 'path unknown'}), while torch was built with {wanted}")
    if not evidence:
        return None
    return Found("the NCCL that runs is not the one expected", tuple(evidence), HIGH if by_rank else MEDIUM)


def _library(value: Any) -> str:
    return f"{value.get('version')} ({value.get('path')})" if isinstance(value, Mapping) else str(value)


RULES: Final = (
    Rule(
        "straggler",
        "Does one rank make the others wait?",
        {
            "any": "that rank's host: pin its process to cores of its GPU's NUMA node, look for other work on them; its GPU: clocks, ECC, PCIe"
        },
        "in `ranks` on another recording, another rank waits least",
        straggler,
    ),
    Rule(
        "nccl_variables",
        "Are NCCL's variables set, and the same on all ranks?",
        {
            "any": "NCCL_PROTO=LL NCCL_ALGO=Ring, NCCL_P2P_LEVEL=SYS where GPUs talk across CPUs; set them in the launcher of all ranks"
        },
        "`compare` with a recording under these variables shows no change of all-reduce",
        nccl_variables,
    ),
    Rule(
        "wrong_nccl",
        "Is the NCCL that runs the one expected?",
        {"any": "LD_LIBRARY_PATH, LD_PRELOAD and VLLM_NCCL_SO_PATH; one NCCL in the image"},
        "the loaded version was chosen on purpose, and `compare` against torch's own shows no change",
        wrong_nccl,
    ),
)
"""Rules about ranks and their libraries."""
