"""CUPTI's buffers of raw records, kept and sorted by compiled code (``native/cupti_buffers.c``).

CUPTI hands buffers over on threads of its own choice. cupti-python takes them under the interpreter lock and makes an object of each
record: 5 s of a server's time for 74 000 records (H200). Here the serving thread only says that a window has ended; a native
thread flushes CUPTI and copies the records, and the writer thread reads them as arrays.
"""

from __future__ import annotations

import ctypes
import importlib
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti.columns import RecordKinds
from speccollect.cupti.layouts import Layouts, NoLayout, layouts_of
from speccollect.cupti.records import NAME, Ints, Table
from speccollect.native.build import NotBuilt
from speccollect.native.cupti_library import load
from specschema.figures import percent

BUFFER_BYTES: Final = 8 << 20
"""About 38 000 kernel records. CUPTI clears a buffer when it gets it, on whatever thread that is."""

SETTLE_NS: Final = 200_000_000
"""After a window's end its last kernels may still run; so long they are waited for before what is there is taken as it is."""

BEGIN_NS: Final = 500_000_000
"""A window that begins so soon after another waits this long for the other one's flush, which it hurries."""

READ_NS: Final = 60_000_000_000
"""How long the writer thread waits for a window's records."""

APART_NS: Final = 3_600_000_000_000
"""No record of a window is an hour older or younger than it."""

DOUBTFUL: Final = 0.01
"""Share of records of a kind that may look wrong: single timestamps are, now and then; with a wrong layout nearly all are."""

KINDS: Final = 8
LAYOUTS: Final = 8
"""As in cupti_buffers.c."""

FUNCTIONS: Final = (
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityGetNextRecord",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNumDroppedRecords",
)


class CuptiError(Exception):
    """CUPTI or its records are not what they should be, in one line."""


class _Functions(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in FUNCTIONS)


class _Wanted(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("layouts", ctypes.c_int32),
        ("size", ctypes.c_int64 * LAYOUTS),
        ("name_at", ctypes.c_int64 * LAYOUTS),
    )


class _Found(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("distance", ctypes.c_int64),
        ("layout", ctypes.c_int64),
        ("block", ctypes.c_void_p),
    )


_COUNTS: Final = (
    *("flush_result", "walk_result", "records", "other", "over", "invalid", "dropped"),
    *("declined", "foreign", "outstanding", "buffers", "flush_ns", "read_ns", "kept"),
)


class _Window(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _COUNTS),
        ("which", ctypes.c_void_p),
        ("found", _Found * KINDS),
        ("names", ctypes.c_int64),
        ("name_at", ctypes.c_void_p),
        ("name_end", ctypes.c_void_p),
        ("name_text", ctypes.c_void_p),
    )


class RawTable(Table):
    """Raw records of one window, in CUPTI's order, over native memory."""

    def __init__(self, number: npt.NDArray[np.int32], arrays: list[npt.NDArray[Any]], names: dict[int, str]) -> None:
        super().__init__(number, arrays)
        self._names = names

    def texts(self, rows: npt.NDArray[np.intp]) -> list[str]:
        return [self._names.get(address, "") for address in self._keys(rows, NAME).tolist()]

    def asked(self, rows: npt.NDArray[np.intp], attribute: str) -> Ints:
        raise AssertionError("every record has a layout")


class RawRecords:
    """A closed window's records, which a native thread is fetching.

    Attributes:
        facts: what the trace's metadata says of them, once they are read.
        other: records of kinds nobody asked for.
    """

    def __init__(self, library: ctypes.CDLL, window: int, layouts: Layouts) -> None:
        self._library = library
        self._window = window
        self._layouts = layouts
        self._count = 0
        self.other = 0
        self.facts: dict[str, Any] = {}
        self._let_go = weakref.finalize(self, library.cupti_buffers_release, ctypes.c_void_p(window))
        self._let_go.atexit = False  # the process ends anyway

    def __len__(self) -> int:
        """Records of the kinds that were asked for; 0 before ``table``."""
        return self._count

    def table(self, *, begun: int, ended: int) -> RawTable:
        """The records; valid until ``release``. Waits for them.

        Args:
            begun, ended: CUPTI's time at the window's begin and end: records of another time are not what they seem.

        Raises:
            CuptiError: there are none, or none that can be believed.
        """
        if not self._let_go.alive:
            raise CuptiError("the window's records were given back")
        if not self._library.cupti_buffers_wait(self._window, READ_NS, 0):
            raise CuptiError(f"CUPTI did not hand its buffers over in {READ_NS // 10**9} s")
        window = _Window.from_address(self._window)
        self.facts = {name: getattr(window, name) for name in _COUNTS if name not in ("kept", "over", "other")}
        self.facts["dropped"] = max(0, window.dropped) + window.over
        self._count, self.other = window.records - window.other, window.other
        if window.flush_result:
            raise CuptiError(f"cuptiActivityFlushAll answered {window.flush_result}")
        if window.walk_result:
            raise CuptiError(f"CUPTI's buffers can't be read (code {window.walk_result})")
        arrays = []
        for found, (kind, layouts) in zip(window.found, self._layouts.items(), strict=False):
            if found.layout < 0:
                known = ", ".join(str(layout.itemsize) for layout in layouts)
                raise CuptiError(f"records of kind {kind} have {found.distance} bytes; cupti-python knows {known}")
            arrays.append(_memory(found.block, found.count, layouts[found.layout]))
        self.facts["record_bytes"] = {str(k): f.distance for k, f in zip(self._layouts, window.found, strict=False)}
        for kind, array in zip(self._layouts, arrays, strict=True):
            _believe(kind, array, begun, ended)
        number = _memory(window.which, window.kept, np.dtype(np.uint8)).astype(np.int32)
        return RawTable(number, arrays, _names(window))

    def settle(self) -> bool:
        """CUPTI's buffers are back, so that somebody else may take CUPTI; waits for that a while. Whether they are."""
        return bool(self._library.cupti_buffers_wait(self._window, BEGIN_NS, 1))

    def release(self) -> None:
        """Free the records' memory; of records that are not there yet the native thread frees it."""
        self._let_go()


class Buffers:
    """Gives CUPTI its buffers. One a process: CUPTI knows one pair of callbacks."""

    def __init__(self, library: ctypes.CDLL, addresses: dict[str, int], layouts: Layouts) -> None:
        """
        Args:
            library: the compiled part.
            addresses: libcupti's functions, by the names in FUNCTIONS.
            layouts: kind of record -> its possible layouts.
        """
        self._library = library
        self._layouts = layouts
        self._functions = _Functions(*(addresses[name] for name in FUNCTIONS))
        library.cupti_buffers_begin.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64)
        library.cupti_buffers_end.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        library.cupti_buffers_end.restype = ctypes.c_void_p
        library.cupti_buffers_wait.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        self._wanted = (_Wanted * len(layouts))()
        for wanted, (kind, choices) in zip(self._wanted, layouts.items(), strict=True):
            wanted.kind = kind
            wanted.layouts = min(len(choices), LAYOUTS)
            for i, dtype in enumerate(choices[:LAYOUTS]):
                wanted.size[i] = dtype.itemsize
                wanted.name_at[i] = dtype.fields[NAME][1] if dtype.fields and NAME in dtype.fields else -1
        self._largest = max(choices[0].itemsize for choices in layouts.values())

    def begin(self, max_records: int, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        """CUPTI's buffers are ours from here on; as many as the records need, and two that are not full.

        Raises:
            CuptiError: CUPTI refuses, or still hands over the window before.
        """
        global _library
        _library = self._library
        most = -(-max_records * self._largest // buffer_bytes) + 2
        code = self._library.cupti_buffers_begin(ctypes.byref(self._functions), buffer_bytes, most, BEGIN_NS)
        if code:
            why = "the window before is still being fetched" if code == -3 else f"CUPTI answered {code}"
            raise CuptiError(f"CUPTI's buffers can't be had: {why}")

    def end(self, max_records: int, *, settle_ns: int = SETTLE_NS) -> RawRecords:
        """The window is over: its records are being fetched. Returns at once.

        Raises:
            CuptiError: no thread can be started.
        """
        window = self._library.cupti_buffers_end(self._wanted, len(self._layouts), max_records, settle_ns)
        if not window:
            raise CuptiError("no thread could be started to fetch CUPTI's records")
        return RawRecords(self._library, window, self._layouts)


def rest() -> None:
    """The recording is over: buffers kept for its next window, 32 MB, go back to the system. Nothing where none were taken."""
    if _library is not None:
        _library.cupti_buffers_rest()


_library: ctypes.CDLL | None = None
"""What the process's buffers are kept by, once a window has taken some."""

_mistrust: str | None = None


def mistrust(why: str) -> None:
    """Raw records were not what they should be: the windows that follow take cupti-python's objects."""
    global _mistrust
    _mistrust = why


def open_buffers(cupti: Any, kinds: RecordKinds) -> Buffers | str:
    """The buffers of the libcupti that cupti-python uses; why there can be none, in one line, where there can be none."""
    if _mistrust is not None:
        return _mistrust
    try:
        return Buffers(load(), _addresses(), layouts_of(cupti, kinds))
    except (NotBuilt, NoLayout, CuptiError) as error:
        return str(error)


def _addresses() -> dict[str, int]:
    """libcupti's functions as cupti-python found them, so that there is no doubt which library it is if two are loaded."""
    try:
        internal = importlib.import_module("cupti._internal.cupti")
        found = internal._inspect_function_pointers()
        addresses = {name: int(found[f"__{name}"]) for name in FUNCTIONS}
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CuptiError(f"this cupti-python does not tell libcupti's functions ({error})") from error
    if not all(addresses.values()):
        raise CuptiError("this libcupti lacks one of " + ", ".join(FUNCTIONS))
    return addresses


def _memory(address: int | None, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not count or not address:
        return np.empty(0, dtype=dtype)
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype=dtype)


def _names(window: _Window) -> dict[int, str]:
    ends = _memory(window.name_end, window.names, np.dtype(np.int64)).tolist()
    addresses = _memory(window.name_at, window.names, np.dtype(np.uint64)).view(np.int64).tolist()
    text = ctypes.string_at(window.name_text, ends[-1]) if ends else b""
    begins = [0, *ends][:-1]
    return {a: text[b:e].decode(errors="replace") for a, b, e in zip(addresses, begins, ends, strict=True)}


def _believe(kind: int, array: npt.NDArray[Any], begun: int, ended: int) -> None:
    """Raise CuptiError where the records can't be of this kind: their times are in no order, or not of this window."""
    if not len(array):
        return
    start, end = array["start"].astype(np.int64), array["end"].astype(np.int64)
    whole = (start != 0) & (end != 0)  # 0: CUPTI has no time for it
    wrong = (array["kind"] != kind) | (whole & ((end < start) | (start < begun - APART_NS) | (end > ended + APART_NS)))
    share = float(wrong.mean())
    if share > DOUBTFUL:
        raise CuptiError(f"{percent(share, 0)} of the records of kind {kind} have times that can't be")
