"""Layouts of CUPTI's records, from the numpy dtypes that cupti-python publishes for the classes it reads them by.

cupti-python reads each kind of record by the newest class that it knows (13.0.1: ``ActivityKernel10``; 13.4: ``ActivityKernel13``),
whatever libcupti is loaded. The libcupti beside it may be another one (torch brings its own), whose records are shorter or
longer: so all versions are handed on, and the records' own size tells which one it is.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from speccollect.cupti.columns import RecordKinds
from speccollect.cupti.records import NAME

_TIMES: Final = ("kind", "start", "end", "correlation_id")
_DEVICE: Final = (*_TIMES, "device_id", "stream_id", "graph_id", "graph_node_id")
_KERNEL: Final = re.compile(r"activity_kernel(\d+)_dtype")
_COPY: Final = re.compile(r"activity_memcpy(\d+)_dtype")
_PEER_COPY: Final = re.compile(r"activity_memcpy_pto_p(\d+)_dtype")
_FILL: Final = re.compile(r"activity_memset(\d+)_dtype")
_CALL: Final = re.compile(r"activity_api(\d*)_dtype")
_COPIED: Final = ("bytes", "copy_kind", "src_kind", "dst_kind")

Layouts = dict[int, list["np.dtype[Any]"]]
"""Kind of record -> its layouts, cupti-python's own first."""


class NoLayout(Exception):
    """A kind of record whose memory can't be read, in one line."""


def layouts_of(cupti: Any, kinds: RecordKinds) -> Layouts:
    """Layouts of the records that are asked for.

    Raises:
        NoLayout: cupti-python publishes none for a kind, or not what is read of it.
    """
    return {
        kinds.kernel: _versions(cupti, _KERNEL, (*_DEVICE, NAME)),
        kinds.memcpy: _versions(cupti, _COPY, (*_DEVICE, *_COPIED)),
        kinds.memcpy_peer: _versions(cupti, _PEER_COPY, (*_DEVICE, *_COPIED)),
        kinds.memset: _versions(cupti, _FILL, (*_DEVICE, "bytes", "memory_kind")),
        kinds.runtime: _versions(cupti, _CALL, (*_TIMES, "cbid", "process_id", "thread_id")),
        kinds.driver: _versions(cupti, _CALL, (*_TIMES, "cbid", "process_id", "thread_id")),
    }


def _versions(cupti: Any, pattern: re.Pattern[str], read: tuple[str, ...]) -> list[np.dtype[Any]]:
    """The newest one, then the older ones that have what is read at the same places."""
    found: dict[int, np.dtype[Any]] = {}
    for name in dir(cupti):
        matched = pattern.fullmatch(name)
        dtype = getattr(cupti, name) if matched else None
        if matched and isinstance(dtype, np.dtype):
            found[int(matched[1] or 0)] = dtype
    ordered = [found[version] for version in sorted(found, reverse=True)]
    if not ordered:
        raise NoLayout(f"this cupti-python publishes no {pattern.pattern}")
    places = _places(ordered[0], read)
    if places is None:
        raise NoLayout(f"cupti-python's {pattern.pattern} lacks one of {', '.join(read)}")
    return [dtype for dtype in ordered if _places(dtype, read) == places]


def _places(dtype: np.dtype[Any], read: tuple[str, ...]) -> list[tuple[Any, ...]] | None:
    """Type and offset of each field; None where one is missing."""
    fields = dtype.fields
    if fields is None or not set(read) <= set(fields):
        return None
    return [tuple(fields[name][:2]) for name in read]
