"""Which captured graph each replay ran: host stamps around ``CUDAGraph.replay``, taken only while a window is recorded.

Graphs of several batch sizes have the same number of nodes, so a replay can't be told from its activities alone, and
profilers of today don't say. A stamp costs half a microsecond on the host; outside windows the method is torch's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import wrapt

from speccollect.nodemap.capture import GRAPHS_MODULE, graph_id_of

CAPACITY: Final = 1 << 16
"""Replays of one window that are kept; later ones stay unknown."""

UNKNOWN: Final = -1


class ReplayStamps:
    """Stamps of one window. ``start`` and ``stop`` are called on any thread, replays come from one."""

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._begin = np.zeros(capacity, dtype=np.int64)
        self._end = np.zeros(capacity, dtype=np.int64)
        self._graph = np.zeros(capacity, dtype=np.int64)
        self._count = 0
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Forgets earlier stamps and begins to take new ones; nothing happens in a process without torch."""
        self._count = 0
        graph_class: Any = getattr(sys.modules.get(GRAPHS_MODULE), "CUDAGraph", None)
        original = None if graph_class is None else vars(graph_class).get("replay")
        if original is None or self._undo is not None:
            return
        replacement = wrapt.FunctionWrapper(original, self._stamped)
        graph_class.replay = replacement

        def undo() -> None:
            if vars(graph_class).get("replay") is replacement:
                graph_class.replay = original

        self._undo = undo

    def stop(self) -> None:
        """Puts torch's own method back; the stamps stay readable."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _stamped(self, wrapped: Callable[..., Any], graph: Any, args: Any, kwargs: Any) -> Any:
        slot = self._count
        if slot >= len(self._begin):
            return wrapped(*args, **kwargs)
        self._begin[slot] = self._clock()
        result = wrapped(*args, **kwargs)
        self._end[slot] = self._clock()
        number = graph_id_of(graph)
        self._graph[slot] = UNKNOWN if number is None else number
        self._count = slot + 1
        return result

    @property
    def count(self) -> int:
        """Replays that were stamped."""
        return self._count

    def graph_ids(self, launch_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Graph of each launch call.

        Args:
            launch_ns: starts of cudaGraphLaunch calls on the profiler's clock, which is the host's (a launch lies within
                its stamps).

        Returns:
            The captured graph's number for each; UNKNOWN where no stamp encloses the call.
        """
        count = self._count
        if count == 0:
            return np.full(len(launch_ns), UNKNOWN, dtype=np.int64)
        slot = np.searchsorted(self._begin[:count], launch_ns, side="right") - 1
        inside = (slot >= 0) & (launch_ns <= self._end[:count][slot])
        return np.where(inside, self._graph[:count][slot], UNKNOWN)

    def of_activities(
        self,
        launch_ns: npt.NDArray[np.int64],
        launch_correlation: npt.NDArray[np.int64],
        activity_correlation: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Graph of each device activity, through the cudaGraphLaunch call that its correlation id names.

        Args:
            launch_ns, launch_correlation: start and correlation id of each cudaGraphLaunch call.
            activity_correlation: correlation id of each activity.

        Returns:
            The captured graph's number for each activity; UNKNOWN for work that no stamped replay launched.
        """
        if not len(launch_ns):
            return np.full(len(activity_correlation), UNKNOWN, dtype=np.int64)
        order = np.argsort(launch_correlation, kind="stable")
        correlation, graph = launch_correlation[order], self.graph_ids(launch_ns)[order]
        slot = np.minimum(np.searchsorted(correlation, activity_correlation), len(correlation) - 1)
        return np.where(correlation[slot] == activity_correlation, graph[slot], UNKNOWN)


def captured_graphs(
    executable: npt.NDArray[np.int64],
    stamped: npt.NDArray[np.int64] | None,
    captured: Mapping[int, int],
    instantiated: Mapping[int, int] | None = None,
) -> npt.NDArray[np.int64]:
    """The node map's number of each activity's graph, where the profiler says which executable graph ran it.

    Args:
        executable: CUPTI's id of the executable graph of each activity; negative outside graphs.
        stamped: graph of each activity as stamps around the replays tell it, UNKNOWN where they don't; None without stamps.
        captured: CUPTI's id of a captured graph -> its number here.
        instantiated: the same of executable graphs, where the CUDA runtime told them (drivers from 13.1 on).

    Returns:
        The graph's number, UNKNOWN where nothing tells it. What stamps say of one replay of an executable graph holds for all of
        them; else the captured graph is the one before it in CUPTI's count (seen on an H200: instantiating follows capturing).
        Activities without an id (copies, in Kineto of torch 2.12 and 2.13) keep what their own stamp says.
    """
    found = np.full(len(executable), UNKNOWN, dtype=np.int64) if stamped is None else stamped.copy()
    for graph in np.unique(executable[executable >= 0]).tolist():  # one turn an executable graph
        mine = executable == graph
        if instantiated is not None and graph in instantiated:
            found[mine] = instantiated[graph]
            continue
        told = stamped[mine & (stamped >= 0)] if stamped is not None else np.empty(0, dtype=np.int64)
        if len(told):
            numbers, times = np.unique(told, return_counts=True)
            found[mine] = numbers[np.argmax(times)]
        else:
            found[mine] = captured.get(graph, captured.get(graph - 1, UNKNOWN))
    return found
