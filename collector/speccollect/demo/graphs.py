"""CUDA graphs of the worker's phases, one a phase and batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 3
"""Eager runs before a capture: kernels get loaded and tuned, NCCL sets up its channels, the allocator finds its sizes."""


def graph_batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Batch sizes worth a graph: powers of two below ``max_batch``, and itself."""
    sizes = {max_batch}
    size = 1
    while size < max_batch:
        sizes.add(size)
        size *= 2
    return tuple(sorted(sizes))


class PhaseGraphs:
    """Captured phases. Inputs and outputs live in the worker's state, so that a replay takes no arguments."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[str, int], torch.cuda.CUDAGraph] = {}
        self._sizes: tuple[int, ...] = ()
        self._pool: Any = None

    def capture(self, phases: dict[str, Callable[[int], None]], sizes: tuple[int, ...]) -> None:
        """Capture each phase for each batch size, largest first, so that the smaller ones reuse its memory.

        Args:
            phases: name -> function that runs the phase on the first n rows of the state. It must launch work on the current stream
                only, with shapes that depend on n alone, and read nothing back.
            sizes: batch sizes, ascending.
        """
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in reversed(sizes):
            for name, phase in phases.items():
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(WARM_UPS):
                        phase(size)
                torch.cuda.current_stream().wait_stream(side)
                # Set-up time, before any request: a capture must not meet work of its own warm-up.
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                    phase(size)
                self._pool = graph.pool()
                self._graphs[name, size] = graph
        self._sizes = sizes
        torch.cuda.synchronize()

    def size_for(self, batch: int) -> int | None:
        """The smallest captured batch size that holds ``batch`` rows; None when nothing was captured."""
        return next((size for size in self._sizes if size >= batch), None)

    def release(self) -> None:
        """Give up all graphs: NCCL can't take its communicator down while a graph still refers to it."""
        if self._graphs:
            torch.cuda.synchronize()
        self._graphs.clear()
        self._sizes = ()

    def replay(self, name: str, size: int) -> None:
        """Run a captured phase on the current stream."""
        self._graphs[name, size].replay()
