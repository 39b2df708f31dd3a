"""Records of NVIDIA's cupti-python -> the columns that Kineto's events become, with graph and node of each activity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti.records import NAME, DtypeOf, RecordTable, Table, no_dtype
from speccollect.kineto.columns import KinetoColumns
from speccollect.nodemap.cuda_graph import ORDINAL_MASK, demangled

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
    dtype_of: DtypeOf = no_dtype,
) -> tuple[KinetoColumns, dict[str, int]]:
    """``columns_of`` cupti-python's activity objects.

    Args:
        records: the objects.
        pause: called after each slice to let other threads have the interpreter.
        dtype_of: layout of a class of records; those with one are read as arrays.
    """
    return columns_of(RecordTable(records, dtype_of, pause=pause), kinds, clock, call_name, since=since)


def columns_of(
    table: Table, kinds: RecordKinds, clock: ClockFit, call_name: Callable[[bool, int], str], *, since: int
) -> tuple[KinetoColumns, dict[str, int]]:
    """Columns of the window's records.

    Args:
        table: the records.
        kinds: CUPTI's numbers for their kinds.
        clock: how CUPTI's time becomes Unix time.
        call_name: (runtime API, else driver API; callback id) -> the function's name.
        since: what began before (CUPTI's time) is left out: the profiler was warming up.

    Returns:
        The columns; ``details`` hold graph_id (CUPTI's number of the executable graph), node (ordinal) and bytes of device rows, -1
        elsewhere. And counts: ``incomplete`` records without an end, ``warmup`` records left out, ``other`` of no kind
        asked for, ``one_by_one`` records whose class has no layout.
    """
    kind = table.integers(np.arange(len(table)), "kind")
    known = np.isin(kind, [kinds.kernel, kinds.memcpy, kinds.memcpy_peer, kinds.memset, kinds.runtime, kinds.driver])
    rows = np.flatnonzero(known)
    start, end = table.integers(rows, "start"), table.integers(rows, "end")
    late, whole = start >= since, (start > 0) & (end >= start)
    keep = np.flatnonzero(late & whole)
    counts = {
        "incomplete": int((late & ~whole).sum()),
        "warmup": int((~late).sum()),
        "other": int(len(table) - len(rows)),
        "one_by_one": table.one_by_one,
    }
    rows, start, end = rows[keep], start[keep], end[keep]
    kind, correlation = kind[rows], table.integers(rows, "correlation_id")
    # A runtime call makes a driver call with the same correlation id: the outer one is the launch.
    doubled = (kind == kinds.driver) & np.isin(correlation, correlation[kind == kinds.runtime])
    keep = np.flatnonzero(~doubled)
    rows, kind, start, end, correlation = rows[keep], kind[keep], start[keep], end[keep], correlation[keep]
    count = len(rows)
    device, resource = np.zeros(count, np.int64), np.zeros(count, np.int64)
    graph, node, size = (np.full(count, -1, np.int64) for _ in range(3))
    names: dict[str, int] = {}
    types: dict[str, int] = {}
    name, type_ = np.zeros(count, np.int32), np.zeros(count, np.int32)

    def fill(mask: npt.NDArray[np.bool_], type_name: str, told_by: Sequence[str], name_of: Callable[..., str]) -> None:
        at = np.flatnonzero(mask)
        if not len(at):
            return
        part = rows[at]
        type_[at] = types.setdefault(type_name, len(types))
        first, which = table.distinct(part, told_by)
        told = [table.texts(first) if one == NAME else table.integers(first, one).tolist() for one in told_by]
        codes = [names.setdefault(name_of(*values), len(names)) for values in zip(*told, strict=True)]
        name[at] = np.array(codes, dtype=np.int32)[which]
        if type_name in ("cuda_runtime", "cuda_driver"):
            device[at], resource[at] = table.integers(part, "process_id"), table.integers(part, "thread_id")
            return
        device[at], resource[at] = table.integers(part, "device_id"), table.integers(part, "stream_id")
        graphs, nodes = table.integers(part, "graph_id"), table.integers(part, "graph_node_id")
        # both 0: not of a graph; the first node of the first one has a graph
        graph[at] = np.where(nodes != 0, graphs, -1)
        node[at] = np.where(nodes != 0, nodes & ORDINAL_MASK, -1)
        if type_name != "kernel":
            size[at] = table.integers(part, "bytes")

    copies = np.isin(kind, [kinds.memcpy, kinds.memcpy_peer])
    fill(kind == kinds.kernel, "kernel", (NAME,), demangled)
    fill(copies, "gpu_memcpy", ("copy_kind", "src_kind", "dst_kind"), _copy_name)
    fill(kind == kinds.memset, "gpu_memset", ("memory_kind",), _fill_name)
    fill(kind == kinds.runtime, "cuda_runtime", ("cbid",), _Calls(call_name, True))
    fill(kind == kinds.driver, "cuda_driver", ("cbid",), _Calls(call_name, False))
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


def _fill_name(memory_kind: int) -> str:
    return f"Memset ({_MEMORIES.get(memory_kind, 'Unknown')})"


def _copy_name(copy_kind: int, source: int, target: int) -> str:
    kind = _COPIES.get(copy_kind, f"kind {copy_kind}")
    return f"Memcpy {kind} ({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})"


class _Calls(dict[int, str]):
    """Callback id -> name of the API function as Kineto has it, each asked once."""

    def __init__(self, call_name: Callable[[bool, int], str], runtime: bool) -> None:
        self._call_name = call_name
        self._runtime = runtime

    def __missing__(self, callback: int) -> str:
        text = self._call_name(self._runtime, callback)
        name = self[callback] = _VERSION_SUFFIX.sub("", text)
        return name

    def __call__(self, callback: int) -> str:
        return self[callback]
