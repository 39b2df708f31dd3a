"""The node map: which module added each node of a CUDA graph, noted while the graph is captured.

Python does not run during a replay, but it runs during capture. Between ``CUDAGraph.capture_begin`` and ``capture_end``
global module hooks ask how many nodes the graph has; the nodes that appeared since the last question belong to the
innermost module that was running. At the end the nodes are listed once, with their types and kernels, and the collectives
that the framework called get their operation, element type, size and group. Outside of captures nothing of this runs;
a replay costs nothing.

The map is in creation order. A replay's activities, in order of their start, are the nodes that show one (kernel, memcpy,
memset), also with several streams (seen on an H200); names and types check it. Which captured graph a replay ran is known
from ``replays`` while a window is recorded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import wrapt

from speccollect.config import BACKEND_VARIABLE
from speccollect.nodemap.collectives import Collective, CollectiveWatch, Span
from speccollect.nodemap.cuda_graph import ORDINAL_MASK, CapturedGraph, GraphReader, Node, instantiated_id
from speccollect.nodemap.module_paths import path_of, paths_below
from specschema.communication import family_of

logger: Final = logging.getLogger("speccollect")

GRAPHS_MODULE: Final = "torch.cuda.graphs"
ID_ATTRIBUTE: Final = "_speccollect_graph_id"
"""On torch's CUDAGraph objects: the graph's number in this process, from 0, in order of capture."""

CAPTURED: Final[dict[int, int]] = {}
"""CUPTI's id of a captured graph -> its number in this process, where node ids were asked for."""

INSTANTIATED: Final[dict[int, int]] = {}
"""CUPTI's id of an executable graph -> its number in this process, where the CUDA runtime tells it."""

Rows = Mapping[str, Sequence[Any]]


@dataclass
class _Capture:
    """What is noted while one graph is captured."""

    graph_id: int
    reader: GraphReader
    thread: int
    collectives: CollectiveWatch
    seen: int = 0
    """Nodes that have an owner already."""
    running: list[Any] = field(default_factory=list)
    """Modules being run, innermost last."""
    roots: list[Any] = field(default_factory=list)
    owners: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    """(end of a stretch of nodes, the modules that ran when they were added, innermost last)."""
    handles: list[Any] = field(default_factory=list)
    broken: bool = False


class NodeMap:
    """Notes the graphs that this process captures. One capture at a time, as torch has it."""

    def __init__(
        self, note: Callable[[int, Rows], None], read_graph: Callable[[], GraphReader] = CapturedGraph
    ) -> None:
        """
        Args:
            note: given each graph's number and its rows (columns of ``rank.arming.NodeRows``).
            read_graph: finds the graph that the current stream is being captured into.
        """
        self._note = note
        self._read_graph = read_graph
        self._next = 0
        self._capture: _Capture | None = None
        self._undo: list[Callable[[], None]] = []
        self._removed = False
        self._warned = False

    def install(self) -> NodeMap:
        """Wraps torch's captures, now or when torch gets imported."""
        wrapt.register_post_import_hook(self._patch, GRAPHS_MODULE)
        return self

    def remove(self) -> None:
        """Puts the originals back."""
        self._removed = True
        self._drop()
        while self._undo:
            self._undo.pop()()

    def _patch(self, module: Any) -> None:
        if self._removed or self._undo:
            return
        graph_class = module.CUDAGraph
        for name, wrapper in (("capture_begin", self._after_begin), ("capture_end", self._before_end)):
            original = vars(graph_class).get(name)
            if original is None:
                logger.warning("speccollect: torch's CUDAGraph has no %s; no node map", name)
                return
            replacement = wrapt.FunctionWrapper(original, wrapper)
            setattr(graph_class, name, replacement)

            def undo(name: str = name, original: Any = original, replacement: Any = replacement) -> None:
                if vars(graph_class).get(name) is replacement:
                    setattr(graph_class, name, original)

            self._undo.append(undo)

    def _after_begin(self, wrapped: Callable[..., Any], graph: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        self.begin(graph)
        return result

    def _before_end(self, wrapped: Callable[..., Any], graph: Any, args: Any, kwargs: Any) -> Any:
        self.end()
        result = wrapped(*args, **kwargs)
        number, made = graph_id_of(graph), instantiated_id(graph)
        if number is not None and made is not None:
            INSTANTIATED[made] = number
        return result

    # One capture

    def begin(self, graph: Any) -> None:
        """A capture into ``graph`` (a torch CUDAGraph) has begun on the current stream. Never raises."""
        self._drop()
        try:
            reader = self._read_graph()
            setattr(graph, ID_ATTRIBUTE, self._next)
            capture = _Capture(self._next, reader, threading.get_ident(), CollectiveWatch(reader.count))
            self._next += 1
            self._capture = capture
            modules = sys.modules["torch.nn.modules.module"]
            capture.handles = [
                modules.register_module_forward_pre_hook(self._enter),
                modules.register_module_forward_hook(self._leave, always_call=True),
            ]
            capture.collectives.start()
        except Exception as error:  # noqa: BLE001  hook boundary: a server captures without a map
            self._warn("this graph gets no node map", error)
            self._drop()

    def end(self) -> None:
        """The capture is about to end, its graph still there: list the nodes and hand the rows on. Never raises."""
        capture = self._capture
        if capture is None:
            return
        try:
            if not capture.broken:
                self._settle(capture)
                nodes = capture.reader.nodes()
                if nodes and nodes[0].tools_id is not None:
                    CAPTURED[nodes[0].tools_id >> 32] = capture.graph_id
                self._note(capture.graph_id, _rows(capture, nodes))
        except Exception as error:  # noqa: BLE001  hook boundary
            self._warn("this graph gets no node map", error)
        finally:
            self._drop()

    def _drop(self) -> None:
        """Takes the module hooks and the collectives' wrappers off."""
        capture, self._capture = self._capture, None
        if capture is not None:
            for handle in capture.handles:
                handle.remove()
            capture.collectives.stop()

    def _warn(self, what: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        if isinstance(error, ImportError):
            logger.warning("speccollect: %s: %s (pip install cuda-bindings)", what, error)
        else:
            logger.warning("speccollect: %s: %s: %s", what, type(error).__name__, error)

    # Module hooks

    def _enter(self, module: Any, args: Any) -> None:
        capture = self._capture
        if capture is None or capture.thread != threading.get_ident():
            return
        self._settle(capture)
        if not capture.running:
            capture.roots.append(module)
        capture.running.append(module)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        capture = self._capture
        if capture is None or capture.thread != threading.get_ident():
            return
        self._settle(capture)
        if capture.running and capture.running[-1] is module:
            capture.running.pop()
        elif module in capture.running:  # a module between was left without a word: an exception in an old torch
            del capture.running[capture.running.index(module) :]

    def _settle(self, capture: _Capture) -> None:
        """Gives the nodes that appeared since the last look to the innermost running module."""
        if capture.broken:
            return
        try:
            count = capture.reader.count()
        except Exception as error:  # noqa: BLE001  hook boundary: the model's forward goes on
            capture.broken = True
            self._warn("this graph gets no node map", error)
            return
        if count > capture.seen:
            capture.owners.append((count, tuple(capture.running)))
            capture.seen = count


def install(recorder: Any) -> NodeMap:
    """Notes every graph that this process captures from now on, for ``recorder.note_graph``."""
    cupti_ids = os.environ.get(BACKEND_VARIABLE, "").strip().lower() == "cupti"
    return NodeMap(recorder.note_graph, lambda: CapturedGraph(cupti_ids=cupti_ids)).install()


def graph_id_of(graph: Any) -> int | None:
    """Number of a captured torch CUDAGraph in this process; None when it was captured unseen."""
    return getattr(graph, ID_ATTRIBUTE, None)


def _rows(capture: _Capture, nodes: Sequence[Node]) -> dict[str, list[Any]]:
    """Columns of the graph's ``node`` rows, in creation order."""
    modules: list[str | None] = []
    classes: list[str | None] = []
    paths = paths_below(capture.roots)
    for end, running in capture.owners:
        added = min(end, len(nodes)) - len(modules)
        modules += [path_of(running, paths)] * added
        classes += [type(running[-1]).__name__ if running else None] * added
    missing = len(nodes) - len(modules)
    collectives = _collective_of_node(nodes, capture.collectives.spans)
    ids = [node.tools_id for node in nodes]
    rows: dict[str, list[Any]] = {
        # the ordinal that profilers give a node; creation order is the same wherever it was seen
        "node": [i if known is None else known & ORDINAL_MASK for i, known in enumerate(ids)],
        "name": [node.kernel or node.type for node in nodes],
        "node_type": [node.type for node in nodes],
        "module": modules + [None] * missing,
        "module_class": classes + [None] * missing,
        "op": [c and c.op for c in collectives],
        "dtype": [c and c.dtype for c in collectives],
        "elements": [c and c.elements for c in collectives],
        "group": [c and c.group for c in collectives],
        "group_ranks": [list(c.ranks) if c is not None and c.ranks is not None else None for c in collectives],
    }
    return rows


def _collective_of_node(nodes: Sequence[Node], spans: Sequence[Span]) -> list[Collective | None]:
    """The collective that each node runs.

    A call may add copies around its kernel, so of several kernels those count whose names say communication; a name that
    says nothing proves nothing.
    """
    found: list[Collective | None] = [None] * len(nodes)
    for first, end, collective in spans:
        kernels = [i for i in range(first, min(end, len(nodes))) if nodes[i].type == "kernel"]
        if len(kernels) > 1:
            kernels = [i for i in kernels if family_of(nodes[i].kernel or "") is not None]
        for i in kernels:
            found[i] = collective
    return found
