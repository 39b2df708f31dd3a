"""Names of phases, modes and buckets, and the grammar of the collector's own range names."""

from __future__ import annotations

from typing import Final

RANGE_PREFIX: Final = "spec."
"""Every range of the collector starts with this: ``spec.cycle``, ``spec.verify``, ..."""

SPECULATIVE_PHASES: Final = ("draft", "verify", "draft_extend")
"""The leaves of a speculative cycle: the draft model's steps, the target's verify forward, the draft model's re-extend."""

OTHER_LEAF_PHASES: Final = ("prefill", "decode", "idle")
"""Leaves only where none of SPECULATIVE_PHASES encloses the instant (rule D10)."""

LEAF_PHASES: Final = SPECULATIVE_PHASES + OTHER_LEAF_PHASES

CYCLE: Final = "cycle"
"""The outermost range: one decode cycle. A key of the partition only where no leaf encloses the instant."""

BETWEEN: Final = "between"
"""Host time in no recognised range."""
OUTSIDE: Final = "outside"
"""Device work whose launch call is known but lies in no recognised range."""
UNATTRIBUTED: Final = "unattributed"
"""Device work whose launch call was not recorded."""

REMAINDERS: Final = (CYCLE, BETWEEN, OUTSIDE, UNATTRIBUTED)
"""Shown together as "other" in the phases table, never folded into a leaf."""

PHASE_KEYS: Final = LEAF_PHASES + REMAINDERS
"""Every key that the timeline partition can give an instant to, in display order."""

SUB_PHASES: Final = (
    "sample",
    "build_verify_input",
    "target_forward",
    "full_graph",
    "piecewise_graph",
    "process_result",
)
"""Ranges of ours inside a cycle that are stored and shown on request but are never leaves."""

COMPUTE_BUCKETS: Final = ("attention", "moe", "gemm", "other_compute", "graph_unresolved")
COMMUNICATION_BUCKETS: Final = ("allreduce", "other_comm")
MEMORY_BUCKETS: Final = ("memcpy",)
IDLE_BUCKETS: Final = ("graph_gap", "launch", "host")
DEVICE_BUCKETS: Final = COMPUTE_BUCKETS + COMMUNICATION_BUCKETS + MEMORY_BUCKETS
BUCKETS: Final = DEVICE_BUCKETS + IDLE_BUCKETS
"""Every bucket of the timeline partition, in display order; see cases/RULES R5."""

WHOLE_REPLAY: Final = "graph replay (kernels not recorded)"
"""Name of the one ``kernel`` row that stands for a replay whose kernels were not recorded; its class is graph_unresolved."""

CYCLE_MODES: Final = ("speculative", "decode", "prefill", "idle", "mixed")
"""Mode of a ``cycle`` row: a speculative cycle, one plain decode step, a prefill, an idle step of a data-parallel rank,
or a step that mixes prefill and verify. Only ``speculative`` (and the verify requests of ``mixed``) rows with
draft tokens are verify steps (rule D8)."""


def range_name(phase: str) -> str:
    """``verify`` -> ``spec.verify``."""
    return RANGE_PREFIX + phase


def phase_of_range(name: str) -> str | None:
    """``spec.verify`` -> ``verify``; None when the name is not one of the collector's."""
    return name[len(RANGE_PREFIX) :] if name.startswith(RANGE_PREFIX) else None
