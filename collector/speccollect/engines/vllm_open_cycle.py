"""The step that a vLLM worker is in, and which CUDA graph its target's forward replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from speccollect.engines.vllm_step import Step
from speccollect.hooks.stamps import OpenCycle

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
    settled: bool = False


class OpenStep(OpenCycle):
    """Where the hooks of a vLLM worker write while a step is under way.

    Attributes:
        cycle: the step; None as long as no cycle is open.
        drafting: whether phases of the draft model follow the target's.
        extending: whether the draft model's re-extend is under way.
        dispatched: whether the target's graph was chosen.
        graph: ``FULL`` or ``PIECEWISE`` when the target's forward replays CUDA graphs.
    """

    __slots__ = ("cycle", "dispatched", "drafting", "extending", "graph", "graph_batch_size")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.cycle: Cycle | None = None
        self.drafting = False
        self.extending = False
        self.dispatched = False
        self.graph: str | None = None
        self.graph_batch_size: int | None = None

    def start(self, cycle: Cycle, drafting: bool, leaf: int) -> None:
        """The cycle was begun by this thread, with the leaf phase of this number."""
        self.cycle = cycle
        self.drafting = drafting
        self.extending = self.dispatched = False
        self.graph = self.graph_batch_size = None
        self.open(cycle.number, leaf)

    def stop(self) -> Cycle | None:
        """No cycle is open any more; returns the one that was."""
        cycle, self.cycle = self.cycle, None
        self.armed = self.extending = False
        return cycle

    def note_graph(self, mode: Any, batch: Any) -> None:
        """Notes the graph that was chosen for the target: vLLM's mode, and the descriptor of the batch it was captured for."""
        self.dispatched = True
        if mode.name in GRAPH_PHASE and self.cycle is not None:
            self.graph = mode.name
            self.graph_batch_size = _graph_batch_size(self.cycle.step, batch)


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
