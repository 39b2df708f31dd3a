"""Records of NVIDIA's cupti-python -> the columns that Kineto's events become, with graph and node of each activity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.kineto import SLICE, KinetoColumns
from speccollect.nodemap_cuda import ORDINAL_MASK, demangled

_VERSION_SUFFIX: Final = re.compile(r"(_ptsz|_ptds)?_v\d+$|_pt[sd][zs]$")
_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""CUpti_ActivityMemcpyKind, the kinds without arrays."""
_MEMORIES: Final = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device", 7: "Managed"}
"""CUpti_ActivityMemoryKind as Kineto calls them."""


@dataclass(frozen=True)
class RecordKinds:
    """CUPTI's numbers for the kinds of record that are asked for."""

    kernel: int
    memcpy: int
    memcpy_peer: int
    memset: int
    runtime: int
    driver: int

    @staticmethod
    def of(activity_kind: Any) -> RecordKinds:
        """The numbers in cupti-python's ``ActivityKind``."""
        return RecordKinds(
            int(activity_kind.CONCURRENT_KERNEL),
            int(activity_kind.MEMCPY),
            int(activity_kind.MEMCPY2),
            int(activity_kind.MEMSET),
            int(activity_kind.RUNTIME),
            int(activity_kind.DRIVER),
        )


@dataclass(frozen=True)
class ClockFit:
    """CUPTI's clock against the host's Unix clock, read together at the window's begin and end.

    Attributes:
        begin, end: (CUPTI's time, Unix time minus CUPTI's time, uncertainty of that), all ns.
    """

    begin: tuple[int, int, int]
    end: tuple[int, int, int]

    def unix_ns(self, stamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """CUPTI's timestamps as Unix ns: as they are where the clocks agree within the uncertainty, else shifted by the
        offset, interpolated between the window's begin and end."""
        (t0, offset0, error0), (t1, offset1, error1) = self.begin, self.end
        if abs(offset0) <= error0 and abs(offset1) <= error1:
            return stamps
        if abs(offset1 - offset0) <= error0 + error1 or t1 <= t0:
            return stamps + offset0
        # the offset itself may be years, so only its small change is scaled
        drift = np.rint((stamps - t0).astype(np.float64) * ((offset1 - offset0) / (t1 - t0))).astype(np.int64)
        return stamps + offset0 + drift


def read_records(
    records: Sequence[Any],
    kinds: RecordKinds,
    clock: ClockFit,
    call_name: Callable[[bool, int], str],
    *,
    since: int,
    pause: Callable[[], None] | None,
) -> tuple[KinetoColumns, dict[str, int]]:
    """Columns of the window's records.

    Args:
        records: cupti-python's activity objects.
        kinds: CUPTI's numbers for their kinds.
        clock: how CUPTI's time becomes Unix time.
        call_name: (runtime API, else driver API; callback id) -> the function's name.
        since: what began before (CUPTI's time) is left out: the profiler was warming up.
        pause: called after each slice to let other threads have the interpreter.

    Returns:
        The columns; ``details`` hold graph_id (CUPTI's number of the executable graph), node (ordinal) and bytes of device rows, -1
        elsewhere. And counts: ``incomplete`` records without an end, ``warmup`` records left out, ``other`` of no kind
        asked for.
    """
    kind = _integers(records, "kind", pause)
    known = np.isin(kind, [kinds.kernel, kinds.memcpy, kinds.memcpy_peer, kinds.memset, kinds.runtime, kinds.driver])
    rows = np.flatnonzero(known)
    taken = [records[i] for i in rows.tolist()]
    start, end = _integers(taken, "start", pause), _integers(taken, "end", pause)
    late, whole = start >= since, (start > 0) & (end >= start)
    keep = np.flatnonzero(late & whole)
    counts = {
        "incomplete": int((late & ~whole).sum()),
        "warmup": int((~late).sum()),
        "other": int(len(records) - len(rows)),
    }
    taken = [taken[i] for i in keep.tolist()]
    kind, start, end = kind[rows][keep], start[keep], end[keep]
    correlation = _integers(taken, "correlation_id", pause)
    host = np.isin(kind, [kinds.runtime, kinds.driver])
    # A runtime call makes a driver call with the same correlation id: the outer one is the launch.
    doubled = (kind == kinds.driver) & np.isin(correlation, correlation[kind == kinds.runtime])
    keep = np.flatnonzero(~doubled)
    taken = [taken[i] for i in keep.tolist()]
    kind, start, end, correlation, host = kind[keep], start[keep], end[keep], correlation[keep], host[keep]
    count = len(taken)
    device, resource = np.zeros(count, np.int64), np.zeros(count, np.int64)
    graph, node, size = (np.full(count, -1, np.int64) for _ in range(3))
    names: dict[str, int] = {}
    types: dict[str, int] = {}
    name, type_ = np.zeros(count, np.int32), np.zeros(count, np.int32)

    def fill(mask: npt.NDArray[np.bool_], type_name: str, name_of: Callable[[Any], str]) -> None:
        at = np.flatnonzero(mask)
        if not len(at):
            return
        part = [taken[i] for i in at.tolist()]
        type_[at] = types.setdefault(type_name, len(types))
        texts = map(name_of, part)
        name[at] = np.fromiter((names.setdefault(text, len(names)) for text in texts), np.int32, len(at))
        if type_name in ("cuda_runtime", "cuda_driver"):
            device[at], resource[at] = _integers(part, "process_id", pause), _integers(part, "thread_id", pause)
            return
        device[at], resource[at] = _integers(part, "device_id", pause), _integers(part, "stream_id", pause)
        graphs, nodes = _integers(part, "graph_id", pause), _integers(part, "graph_node_id", pause)
        graph[at] = np.where(
            nodes != 0, graphs, -1
        )  # both 0: not of a graph; the first node of the first one has a graph
        node[at] = np.where(nodes != 0, nodes & ORDINAL_MASK, -1)
        if type_name != "kernel":
            size[at] = _integers(part, "bytes", pause)

    fill(kind == kinds.kernel, "kernel", lambda record: demangled(record.name))
    fill(np.isin(kind, [kinds.memcpy, kinds.memcpy_peer]), "gpu_memcpy", _copy_name)
    fill(kind == kinds.memset, "gpu_memset", lambda r: f"Memset ({_MEMORIES.get(int(r.memory_kind), 'Unknown')})")
    fill(kind == kinds.runtime, "cuda_runtime", _Calls(call_name, True))
    fill(kind == kinds.driver, "cuda_driver", _Calls(call_name, False))
    columns = KinetoColumns(
        start=clock.unix_ns(start),
        duration=end - start,
        correlation=correlation,
        device=device,
        resource=resource,
        name=name,
        type=type_,
        names=list(names),
        types=list(types),
        details={"graph_id": graph, "node": node, "bytes": size},
    )
    return columns, counts


def _integers(records: Iterable[Any], attribute: str, pause: Callable[[], None] | None) -> npt.NDArray[np.int64]:
    """One attribute of all records; unsigned 64-bit ids wrap into int64."""
    items = list(records)
    values = np.empty(len(items), dtype=np.uint64)
    get = attrgetter(attribute)
    step = 4 * SLICE if pause is not None else max(1, len(items))
    for begin in range(0, len(items), step):
        part = items[begin : begin + step]
        values[begin : begin + len(part)] = np.fromiter((int(get(r)) for r in part), np.uint64, len(part))
        if pause is not None:
            pause()
    return values.view(np.int64)


def _copy_name(record: Any) -> str:
    kind = _COPIES.get(int(record.copy_kind), f"kind {int(record.copy_kind)}")
    source, target = (_MEMORIES.get(int(m), "Unknown") for m in (record.src_kind, record.dst_kind))
    return f"Memcpy {kind} ({source} -> {target})"


class _Calls(dict[int, str]):
    """Callback id -> name of the API function as Kineto has it, each asked once."""

    def __init__(self, call_name: Callable[[bool, int], str], runtime: bool) -> None:
        self._call_name = call_name
        self._runtime = runtime

    def __missing__(self, callback: int) -> str:
        text = self._call_name(self._runtime, callback)
        name = self[callback] = _VERSION_SUFFIX.sub("", text)
        return name

    def __call__(self, record: Any) -> str:
        return self[int(record.cbid)]
