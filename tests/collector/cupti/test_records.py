"""Records of cupti-python as rows. CUPTI itself is checked on a GPU by ``python -m speccollect.nodemap_check``."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cupti_module import Cupti

from speccollect.config import WindowSettings, parse_windows
from speccollect.control.word import Command, pack, unpack
from speccollect.cupti.columns import ClockFit, RecordKinds, read_records
from speccollect.cupti.profiler import CuptiProfiler, call_name
from speccollect.cupti.records import no_dtype, published
from speccollect.nodemap.replays import captured_graphs
from specschema.errors import UsageError

KINDS = RecordKinds(kernel=10, memcpy=1, memcpy_peer=22, memset=2, runtime=5, driver=4)
SAME_CLOCK = ClockFit((0, 0, 1), (1000, 0, 1))


@dataclass
class Kernel:
    start: int
    end: int
    correlation_id: int
    name: str = "_Z3addv"
    graph_id: int = 0
    graph_node_id: int = 0
    device_id: int = 1
    stream_id: int = 7
    kind: int = 10


@dataclass
class Copy:
    start: int
    end: int
    correlation_id: int
    graph_id: int = 0
    graph_node_id: int = 0
    bytes: int = 64
    copy_kind: int = 2
    src_kind: int = 3
    dst_kind: int = 2
    device_id: int = 1
    stream_id: int = 7
    kind: int = 1


@dataclass
class Set(Copy):
    memory_kind: int = 3
    kind: int = 2


@dataclass
class Call:
    start: int
    end: int
    correlation_id: int
    cbid: int
    kind: int = 5
    process_id: int = 40
    thread_id: int = 41


def names_of(runtime: bool, callback: int) -> str:
    return {(True, 311): "cudaGraphLaunch_v10000", (False, 514): "cuGraphLaunch", (False, 307): "cuLaunchKernel_ptsz"}[
        runtime, callback
    ]


def read(records: list[Any], clock: ClockFit = SAME_CLOCK, since: int = 0) -> tuple[Any, dict[str, int]]:
    return read_records(records, KINDS, clock, names_of, since=since, pause=lambda: None)


def test_a_replay_keeps_graph_and_node_of_each_activity() -> None:
    node = 5 << 32  # high half: the executable graph
    columns, counts = read(
        [
            Call(100, 150, 9, cbid=311),
            Call(101, 149, 9, cbid=514, kind=4),  # the driver call inside it
            Kernel(200, 230, 9, graph_id=5, graph_node_id=node),
            Copy(240, 250, 9, graph_id=5, graph_node_id=node + 1),
            Set(260, 265, 9, graph_id=5, graph_node_id=node + 2),
            Call(300, 310, 10, cbid=307, kind=4),
            Kernel(320, 330, 10, name="_fwd_kernel"),
        ]
    )
    rows = [
        (columns.types[t], columns.names[n], s, d, c, dev, res, g, o, b)
        for t, n, s, d, c, dev, res, g, o, b in zip(
            columns.type.tolist(),
            columns.name.tolist(),
            columns.start.tolist(),
            columns.duration.tolist(),
            columns.correlation.tolist(),
            columns.device.tolist(),
            columns.resource.tolist(),
            columns.details["graph_id"].tolist(),
            columns.details["node"].tolist(),
            columns.details["bytes"].tolist(),
            strict=True,
        )
    ]
    assert rows == [
        ("cuda_runtime", "cudaGraphLaunch", 100, 50, 9, 40, 41, -1, -1, -1),
        ("kernel", "add()", 200, 30, 9, 1, 7, 5, 0, -1),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 240, 10, 9, 1, 7, 5, 1, 64),
        ("gpu_memset", "Memset (Device)", 260, 5, 9, 1, 7, 5, 2, 64),
        ("cuda_driver", "cuLaunchKernel", 300, 10, 10, 40, 41, -1, -1, -1),
        ("kernel", "_fwd_kernel", 320, 10, 10, 1, 7, -1, -1, -1),
    ]
    assert counts == {"incomplete": 0, "warmup": 0, "other": 0, "one_by_one": 7}


def test_what_is_not_of_the_window_is_counted() -> None:
    columns, counts = read(
        [Kernel(50, 60, 1), Kernel(200, 0, 2), Kernel(210, 220, 3), Kernel(230, 240, 4, kind=99)], since=100
    )
    assert columns.start.tolist() == [210]
    assert counts == {"incomplete": 1, "warmup": 1, "other": 1, "one_by_one": 4}


def test_timestamps_become_unix_time() -> None:
    stamps = np.array([1_000, 1_500, 2_000])
    year = 365 * 86400 * 10**9
    # equal within what reading two clocks one after the other can tell
    assert ClockFit((1_000, 30, 40), (2_000, -20, 40)).unix_ns(stamps).tolist() == [1_000, 1_500, 2_000]
    assert ClockFit((1_000, year, 40), (2_000, year + 60, 40)).unix_ns(stamps).tolist() == (stamps + year).tolist()
    # the clocks drift by 200 ns in the window
    moved = ClockFit((1_000, year, 40), (2_000, year + 200, 40)).unix_ns(stamps)
    assert (moved - stamps - year).tolist() == [0, 100, 200]


def test_an_executable_graph_gets_the_number_of_its_captured_graph() -> None:
    executable = np.array([-1, 8, 8, 8, 12, 12, 20])
    stamped = np.array([-1, -1, 3, 3, -1, -1, -1])  # the first replay's stamp was lost
    assert captured_graphs(executable, stamped, {11: 4}).tolist() == [-1, 3, 3, 3, 4, 4, -1]
    assert captured_graphs(executable, None, {}).tolist() == [-1] * 7


def test_the_profiler_leaves_cupti_as_it_was_and_keeps_no_more_than_asked() -> None:
    cupti = Cupti()
    profiler = CuptiProfiler(2, cupti)
    profiler.prepare()
    assert cupti.enabled == {10, 1, 22, 2, 5, 4}
    assert cupti.thread_ids == 1
    profiler.start()
    since = cupti.now
    cupti.pending = [Kernel(since + i, since + i + 5, i) for i in range(1, 4)]
    records = profiler.stop()
    assert cupti.enabled == set()
    assert cupti.thread_ids == 0
    columns = profiler.read(records, pause=None)
    assert columns.correlation.tolist() == [1, 2]
    assert profiler.facts["dropped"] == 1
    # this CUPTI's clock began near 0: its times are moved to the host's Unix time
    assert np.all(np.abs(columns.start - time.time_ns()) < 10**9)


def test_a_refusal_leaves_nothing_enabled() -> None:
    cupti = Cupti(refuses=2)
    profiler = CuptiProfiler(10, cupti)
    with pytest.raises(RuntimeError, match="MULTIPLE_SUBSCRIBERS"):
        profiler.prepare()
    assert cupti.enabled == set()
    assert cupti.thread_ids == 0


def test_api_names_come_from_the_enumeration_or_from_cupti() -> None:
    cupti = Cupti()
    assert call_name(cupti, True, 311) == "cudaGraphLaunch_v10000"
    assert call_name(cupti, True, 505) == "cudaLaunchKernel_v13000"


def test_real_records_have_what_is_read() -> None:
    cupti = pytest.importorskip("cupti.cupti")
    assert RecordKinds.of(cupti.ActivityKind) == KINDS
    for record, wanted in (
        (cupti.ActivityKernel10, Kernel(0, 0, 0)),
        (cupti.ActivityMemcpy6, Copy(0, 0, 0)),
        (cupti.ActivityMemcpyPtoP4, Copy(0, 0, 0)),
        (cupti.ActivityMemset4, Set(0, 0, 0)),
        (cupti.ActivityAPI, Call(0, 0, 0, 0)),
    ):
        asked = set(vars(wanted)) - ({"copy_kind", "src_kind", "dst_kind"} if isinstance(wanted, Set) else set())
        assert {name for name in asked if not hasattr(record, name)} == set()
    assert call_name(cupti, True, 311) == "cudaGraphLaunch_v10000"
    driver = int(cupti.driver_api_trace_cbid.cuLaunchKernel)
    assert call_name(cupti, False, driver) == "cuLaunchKernel"


# ---- records as arrays


NAMES = [b"_fwd_kernel", b"_Z3addv", b"_fwd_kernel"]
"""The first and the last are two texts at two addresses."""


class Memory(ctypes.Structure):
    """A record whose memory can be copied, like cupti-python's."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("device_id", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("stream_id", ctypes.c_uint32),
        ("correlation_id", ctypes.c_uint32),
        ("graph_node_id", ctypes.c_uint64),
        ("graph_id", ctypes.c_uint32),
        ("pointer", ctypes.c_char_p),
    )

    @property
    def name(self) -> str:
        return str(self.pointer.decode())


LAYOUT = np.dtype(
    {
        "names": [field if field != "pointer" else "name" for field, *_ in Memory._fields_],
        "formats": ["<i4", "<u4", "<u8", "<u8", "<u4", "<u4", "<u8", "<u4", "<i8"],
        "offsets": [getattr(Memory, field).offset for field, *_ in Memory._fields_],
        "itemsize": ctypes.sizeof(Memory),
    }
)


def mixed_records() -> list[Any]:
    """Kernels of two kinds of object, copies and calls, in one order."""
    made: list[Any] = []
    for i in range(300):
        node = (5 << 32) + i if i % 3 else 0
        pointer = ctypes.c_char_p(NAMES[i % 3])
        made.append(Memory(10, 1, 1000 + i, 1010 + i, 7 + i % 2, i, node, 5 if node else 0, pointer))
        made.append(Kernel(2000 + i, 2005 + i, 500 + i, name="other", graph_id=5, graph_node_id=(6 << 32) + i))
        made.append(Copy(3000 + i, 3001 + i, 700 + i))
        made.append(Call(100, 150, 900 + i, cbid=311))
    return made


def both_ways(records: list[Any], dtype_of: Any, names: Any = names_of) -> tuple[Any, Any, dict[str, int]]:
    ways = [
        read_records(records, KINDS, SAME_CLOCK, names, since=0, pause=lambda: None, dtype_of=way)
        for way in (no_dtype, dtype_of)
    ]
    return ways[0][0], ways[1][0], ways[1][1]


def assert_equal(one: Any, other: Any) -> None:
    for field in ("start", "duration", "correlation", "device", "resource"):
        assert np.array_equal(getattr(one, field), getattr(other, field)), field
    for field, values in one.details.items():
        assert np.array_equal(values, other.details[field]), field
    for field, table in (("name", "names"), ("type", "types")):
        texts = [
            [getattr(columns, table)[code] for code in getattr(columns, field).tolist()] for columns in (one, other)
        ]
        assert texts[0] == texts[1]


def test_memory_says_what_attributes_say() -> None:
    asked, copied, counts = both_ways(mixed_records(), lambda c: LAYOUT if c is Memory else None)
    assert_equal(asked, copied)
    assert len(asked) == 1200
    assert {"_fwd_kernel", "add()", "other"} < set(asked.names)
    assert counts["one_by_one"] == 900


class Addressed:
    """A record of cupti-python 13.0: no buffer, but an address."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.ptr = ctypes.addressof(memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)


def test_memory_is_read_by_address_where_there_is_no_buffer() -> None:
    records = [Addressed(r) if isinstance(r, Memory) else r for r in mixed_records()]
    asked, copied, counts = both_ways(records, lambda c: LAYOUT if c is Addressed else None)
    assert_equal(asked, copied)
    assert counts["one_by_one"] == 900


def test_a_layout_that_says_something_else_is_not_used() -> None:
    """A cupti-python whose layout is another version's than the record's."""
    parts: Any = {**layout_parts(LAYOUT), "offsets": shifted_offsets()}
    shifted = np.dtype(parts)
    for wrong in (shifted, np.dtype([("kind", "<i4")]), np.dtype([("nothing", "V72")])):
        asked, copied, counts = both_ways(mixed_records(), lambda c, w=wrong: w if c is Memory else None)
        assert_equal(asked, copied)
        assert counts["one_by_one"] == 1200


def layout_parts(dtype: np.dtype[Any]) -> dict[str, Any]:
    assert dtype.names is not None
    assert dtype.fields is not None
    return {
        "names": list(dtype.names),
        "formats": [dtype.fields[name][0] for name in dtype.names],
        "itemsize": dtype.itemsize,
    }


def shifted_offsets() -> list[int]:
    """Start and end change places."""
    offsets = [getattr(Memory, field).offset for field, *_ in Memory._fields_]
    offsets[2], offsets[3] = offsets[3], offsets[2]
    return offsets


def test_layouts_are_found_by_the_name_of_the_class() -> None:
    class ActivityMemcpyPtoP4:
        pass

    class ActivityAPI:
        pass

    cupti = SimpleNamespace(activity_memcpy_pto_p4_dtype=LAYOUT, activity_api_dtype="no dtype")
    assert published(cupti)(ActivityMemcpyPtoP4) is LAYOUT
    assert published(cupti)(ActivityAPI) is None


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # 13.0.1 seeks our memory among CUPTI's buffers
def test_memory_of_real_records_says_what_they_say() -> None:
    """cupti-python's own classes over memory of ours, as CUPTI's buffers are memory of CUPTI's."""
    cupti = pytest.importorskip("cupti.cupti")
    dtype_of = published(cupti)
    texts = [ctypes.create_string_buffer(name) for name in NAMES]
    records: list[Any] = []
    kept: list[Any] = []
    random = np.random.default_rng(7)
    for class_name, kind in (
        ("ActivityKernel10", KINDS.kernel),
        ("ActivityMemcpy6", KINDS.memcpy),
        ("ActivityMemcpyPtoP4", KINDS.memcpy_peer),
        ("ActivityMemset4", KINDS.memset),
        ("ActivityAPI", KINDS.runtime),
    ):
        record_class = getattr(cupti, class_name)
        dtype = dtype_of(record_class)
        assert dtype is not None, class_name
        memory = np.frombuffer(
            random.integers(0, 120, 200 * dtype.itemsize, dtype=np.uint8).tobytes(), dtype=dtype
        ).copy()
        memory["kind"], memory["start"] = kind, 1000 + np.arange(200)
        memory["end"] = memory["start"] + 5
        if "name" in (dtype.names or ()):
            memory["name"] = [ctypes.addressof(texts[i % 3]) for i in range(200)]
        if class_name == "ActivityAPI":
            memory["cbid"] = 311
        kept.append(memory)
        address = memory.ctypes.data
        records += [record_class.from_ptr(address + i * dtype.itemsize, True) for i in range(200)]
    order = random.permutation(len(records))
    asked, copied, counts = both_ways([records[i] for i in order], dtype_of)
    assert_equal(asked, copied)
    assert counts["one_by_one"] == 0
    assert len(asked) == 1000


def test_the_control_word_carries_the_backend() -> None:
    settings = parse_windows("skip=3,cupti")
    assert settings.cupti
    assert unpack(pack(Command(1, True, 1, settings)), "control").windows == settings
    assert not unpack(pack(Command(1, True, 1, WindowSettings())), "control").windows.cupti
    with pytest.raises(UsageError, match="no CPU operators"):
        parse_windows("cupti,cpu_ops")
