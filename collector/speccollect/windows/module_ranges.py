"""Which module runs when, inside a window, where it was asked for (``modules``): eager forwards, as the node map does it for graphs.

Global module hooks, there only while a window is recorded, stamp when each module begins and ends. The stamps count Unix time as
the profiler's events do (seen with torch 2.13: every one of 40,000 profiler times lies between the stamps taken around it), so
the innermost module around a launch call is the one that launched. torch's own cheap ranges (``_RecordFunctionFast``) are
operators to the profiler: a window without operators does not show them, and ``record_function`` costs ten times as much.

Compiled code runs no hooks: what lies inside it belongs to the module around it. A module compiled by its own ``compile()`` would be
compiled again for the hooks, in the middle of serving: a process that has one gets no module ranges. What Dynamo compiles for the
first time inside a window holds nothing of the hooks, and is compiled once more after it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from speccollect.cycles.rows import Origin
from speccollect.nodemap.module_paths import path_of, paths_below
from speccollect.parts.table import coded, event_table
from specschema.phases import range_name

logger = logging.getLogger("speccollect")

CAPACITY: Final = 1 << 18
"""Module calls kept of one window: 6 MB; 40 cycles of two forwards of 60 layers with 20 modules each are 96,000."""

MODULE: Final = "module"
"""Ranges are named ``spec.module PATH``: a sub-phase, never a leaf."""

_MODULES: Final = "torch.nn.modules.module"
_COLUMNS: Final = 3


class ModuleRanges:
    """Module calls of one window, on the thread that opened it. Never raises into the server.

    Attributes:
        lost: calls that found no room.
    """

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._capacity = capacity
        self._kept: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._cells = memoryview(self._kept)  # type: ignore[arg-type]  # item assignment through it costs half of numpy's own
        self._count = 0
        self._thread = threading.get_ident()
        self._contexts: dict[tuple[int, int], int] = {}
        self._modules: list[tuple[Any, int]] = []
        """Of each context: the module, and the context it ran in (-1: outermost)."""
        self._open: list[tuple[Any, int, int]] = []
        """Running modules, innermost last: the module, its row (-1: no room), its context."""
        self._handles: list[Any] = []
        self._compiling: Callable[[], bool] = bool
        self.lost = 0

    def start(self) -> str | None:
        """Puts the hooks on; returns why not, where they are not. Nothing happens in a process without torch's modules."""
        torch_modules: Any = sys.modules.get(_MODULES)
        if torch_modules is None or self._handles:
            return None
        if compiled_calls():
            return "a module here is compiled by its own compile(), and hooks would compile it again"
        self._compiling = sys.modules["torch"].compiler.is_compiling
        self._kept = np.zeros(_COLUMNS * self._capacity, dtype=np.int64)
        self._cells = memoryview(self._kept)  # type: ignore[arg-type]
        self._handles = [
            torch_modules.register_module_forward_pre_hook(self._enter),
            torch_modules.register_module_forward_hook(self._leave, always_call=True),
        ]
        return None

    def stop(self) -> None:
        """Takes the hooks off; what was noted stays."""
        while self._handles:
            self._handles.pop().remove()
        self._open.clear()

    def _enter(self, module: Any, args: Any) -> None:
        if self._compiling():  # what is compiled meanwhile must hold nothing of this
            return
        if threading.get_ident() != self._thread:
            return
        above = self._open[-1][2] if self._open else -1
        key = (above, id(module))
        context = self._contexts.get(key)
        if context is None:
            context = self._contexts[key] = len(self._modules)
            self._modules.append((module, above))  # kept, so that its id stays its own
        row = self._count
        if row >= self._capacity:
            self.lost += 1
            row = -1
        else:
            self._count = row + 1
            base = row * _COLUMNS
            self._cells[base + 2] = context
            self._cells[base] = self._clock()
        self._open.append((module, row, context))

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if self._compiling():
            return
        if threading.get_ident() != self._thread:
            return
        now = self._clock()
        while self._open:  # a module between was left without a word: an exception in an old torch
            found, row, _ = self._open.pop()
            if row >= 0:
                self._cells[row * _COLUMNS + 1] = now
            if found is module:
                return

    @property
    def count(self) -> int:
        """Calls that were noted."""
        return self._count

    def rows(self, origin: Origin, window: int | None) -> pa.Table:
        """Rows of kind ``phase``, one a module call: ``spec.module PATH``, with module and module_class.

        Calls that never ended are left out.
        """
        start, end, context = self._kept[: _COLUMNS * self._count].reshape(-1, _COLUMNS).T
        closed = end >= np.maximum(start, 1)
        start, end, context = start[closed], end[closed], context[closed]
        paths, classes = self._names()
        path_code, distinct = _codes(paths)
        class_code, distinct_classes = _codes(classes)
        return event_table(
            len(start),
            {
                "kind": "phase",
                "rank": origin.rank,
                "pid": origin.pid,
                "tid": origin.tid,
                "name": coded(path_code[context], [range_name(f"{MODULE} {path}") for path in distinct]),
                "start_ns": start,
                "dur_ns": end - start,
                "window": window,
                "module": coded(path_code[context], distinct),
                "module_class": coded(class_code[context], distinct_classes),
            },
        )

    def _names(self) -> tuple[list[str], list[str]]:
        """Path and class of each context."""
        below = paths_below([module for module, above in self._modules if above < 0])
        chains: list[tuple[Any, ...]] = []
        for module, above in self._modules:  # distinct contexts: hundreds, not calls
            chains.append((*(chains[above] if above >= 0 else ()), module))
        classes = [type(module).__name__ for module, _ in self._modules]
        return [path_of(chain, below) or name for chain, name in zip(chains, classes, strict=True)], classes


def compiled_calls() -> bool:
    """Whether Dynamo has compiled what calls a module's hooks; True, too, where it can't be told."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return False
    from torch import nn

    try:
        return any(call.__code__ in frames.input_codes for call in (nn.Module._call_impl, nn.Module._wrapped_call_impl))
    except (AttributeError, TypeError):
        return True


def _codes(texts: list[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Codes of texts, and the distinct texts."""
    distinct = list(dict.fromkeys(texts))
    place = {text: code for code, text in enumerate(distinct)}
    return np.array([place[text] for text in texts], dtype=np.int64), distinct
