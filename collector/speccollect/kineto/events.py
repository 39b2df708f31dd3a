"""A window's events as Kineto left them, behind one face: read by the compiled reader where there is one, else by Python.

The compiled reader needs no Python object per event and no interpreter lock, so the writer thread uses it while the server runs. The
Python reader holds the lock for 3 to 5 us an event: two threads passing one lock made a server three times slower for 60 cycles, so it is used
by the serving thread itself, between two cycles.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from speccollect.kineto.columns import SLICE, KinetoColumns, read_columns, types_of
from speccollect.native.build import is_ours, library_path, load, switched_off, torch_folder

logger = logging.getLogger("speccollect")

Pause = Callable[[], None]

TEXTS_AT_ONCE: Final = 4 * SLICE


class Events(Protocol):
    """Events of one closed window.

    Attributes:
        reader: what reads them, for the trace's metadata.
        off_thread: whether reading leaves the interpreter lock to the serving thread.
    """

    reader: str
    off_thread: bool

    def __len__(self) -> int: ...

    def columns(self, *, pause: Pause | None) -> KinetoColumns:
        """All events as columns; ``pause`` is called now and then to let other threads have the interpreter."""

    def texts(self, rows: Sequence[int]) -> Iterator[str]:
        """The profiler's own text of some events, in the order of ``rows``."""

    def numbers(self, rows: Sequence[int], keys: Sequence[str], *, pause: Pause | None) -> list[npt.NDArray[np.int64]]:
        """The integers that the profiler's text of some events gives under some keys, a column a key; -1 where it gives none."""

    def release(self) -> None:
        """Free them; nothing can be read afterwards."""


class PythonEvents:
    """Events as objects of Python, which torch makes of all of them at once."""

    reader = "python"
    off_thread = False

    def __init__(self, result: Any) -> None:
        self._result = result
        self._events: list[Any] = result.events()

    def __len__(self) -> int:
        return len(self._events)

    def columns(self, *, pause: Pause | None) -> KinetoColumns:
        return read_columns(self._events, pause=pause)

    def texts(self, rows: Sequence[int]) -> Iterator[str]:
        return (self._events[row].metadata_json() for row in rows)

    def numbers(self, rows: Sequence[int], keys: Sequence[str], *, pause: Pause | None) -> list[npt.NDArray[np.int64]]:
        columns = [np.full(len(rows), -1, dtype=np.int64) for _ in keys]
        sought = [re.compile(rf'"{re.escape(key)}"[ :]*(\d+)') for key in keys]
        for i, text in enumerate(self.texts(rows)):
            for column, pattern in zip(columns, sought, strict=True):
                found = pattern.search(text)
                if found is not None:
                    column[i] = np.uint64(found[1]).astype(np.int64)
            if pause is not None and i % SLICE == SLICE - 1:
                pause()
        return columns

    def release(self) -> None:
        self._events = []
        self._result = None


class CompiledEvents:
    """Events where Kineto has them, read by ``native/kineto_reader.cpp``."""

    reader = "compiled"
    off_thread = True

    def __init__(self, result: Any, module: ModuleType) -> None:
        self._result = result
        self._module = module

    def __len__(self) -> int:
        return int(self._module.count(self._result))

    def columns(self, *, pause: Pause | None) -> KinetoColumns:
        count = len(self)
        start, duration, correlation, device, resource = (np.empty(count, dtype=np.int64) for _ in range(5))
        name, type_ = (np.empty(count, dtype=np.int32) for _ in range(2))
        names, first_of_type = self._module.read(
            self._result, start, duration, correlation, device, resource, name, type_
        )
        columns = KinetoColumns(start, duration, correlation, device, resource, name, type_, names, [])
        if count:
            samples = [self._event(row) for _, row in first_of_type]
            if hasattr(samples[0], "activity_type"):
                columns.types = [sample.activity_type() for sample in samples]
            else:
                columns.type, columns.types = types_of(self._event, columns)
        return columns

    def _event(self, row: int) -> Any:
        """One event as torch's binding shows it."""
        return self._module.event(self._result, row)

    def texts(self, rows: Sequence[int]) -> Iterator[str]:
        wanted = np.asarray(rows, dtype=np.int64)
        for begin in range(0, len(wanted), TEXTS_AT_ONCE):
            yield from self._module.texts(self._result, np.ascontiguousarray(wanted[begin : begin + TEXTS_AT_ONCE]))

    def numbers(self, rows: Sequence[int], keys: Sequence[str], *, pause: Pause | None) -> list[npt.NDArray[np.int64]]:
        columns = [np.empty(len(rows), dtype=np.int64) for _ in keys]
        self._module.numbers(self._result, np.asarray(rows, dtype=np.int64), list(keys), columns)
        return columns

    def release(self) -> None:
        self._module.release(self._result)

    def plain(self) -> PythonEvents:
        """The same events for the Python reader."""
        return PythonEvents(self._result)


_module: ModuleType | None = None


def load_reader() -> bool:
    """Load the compiled reader if it was built for this torch; whether there is one. Takes milliseconds: not on the serving thread."""
    global _module
    if _module is None and not switched_off() and "torch" in sys.modules:
        try:
            folder = torch_folder()
            path = library_path(folder) if folder is not None else None
            if path is not None and is_ours(path):
                _module = load(path)
        except Exception as error:  # noqa: BLE001  the Python reader does the same
            logger.info("speccollect: the compiled reader can't be used (%s)", error)
    return _module is not None


def events_of(result: Any) -> Events:
    """The events of a ``_ProfilerResult``, behind the best reader that is loaded."""
    return PythonEvents(result) if _module is None or switched_off() else CompiledEvents(result, _module)
