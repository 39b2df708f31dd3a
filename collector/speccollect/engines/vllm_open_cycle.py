"""The step that a vLLM worker is in, and which CUDA graph its target's forward replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from speccollect.engines.vllm_step import Step

DRAFTING_MODES: Final = ("speculative", "decode")
"""Modes whose cycles part the target from the draft model that follows; a prefill is one leaf with all that it runs."""

GRAPH_PHASE: Final = {"FULL": "full_graph", "PIECEWISE": "piecewise_graph"}
"""Sub-phase around a forward that replays CUDA graphs, by vLLM's name of the mode."""


@dataclass(slots=True)
class Cycle:
    """The step that the worker is in, and, on the result object, the one it belonged to."""

    recording: int
    number: int
    step: Step
    drafting: bool
    """Whether phases of the draft model follow the target's."""
    leaf: str | None = None
    token: int = -1
    graph: str | None = None
    """``FULL`` or ``PIECEWISE`` when the target's forward replays CUDA graphs."""
    graph_batch_size: int | None = None
    dispatched: bool = False
    settled: bool = False


@dataclass(slots=True)
class Gate:
    """Lets a hook run."""

    armed: bool = False


def note_graph(cycle: Cycle, mode: Any, batch: Any) -> None:
    """Notes the graph that was chosen for the target: vLLM's mode, and the descriptor of the batch it was captured for."""
    cycle.dispatched = True
    if mode.name in GRAPH_PHASE:
        cycle.graph = mode.name
        cycle.graph_batch_size = _graph_batch_size(cycle.step, batch)


def _graph_batch_size(step: Step, batch: Any) -> int | None:
    """Requests that the graph was captured for. A graph that knows only tokens holds as many as its tokens suffice for."""
    if batch.num_reqs is not None:
        return int(batch.num_reqs)
    if step.mode not in DRAFTING_MODES:
        return None
    return max(int(batch.num_tokens) // (1 + step.draft_tokens), len(step.request_ids))


def extends_first(drafter: Any) -> bool:
    """Whether V1's drafter begins with a forward over the tokens just accepted."""
    return hasattr(drafter, "model_returns_tuple") and not getattr(drafter, "parallel_drafting", False)
