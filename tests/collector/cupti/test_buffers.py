"""CUPTI's buffers in compiled code, against a library with libcupti's face that calls back from threads of its own."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest
from cupti_module import Cupti
from fake_cupti import FakeCupti, compile_fake

from speccollect.cupti import buffers as cupti_buffers
from speccollect.cupti.buffers import Buffers, CuptiError, RawRecords, RawTable, open_buffers
from speccollect.cupti.columns import ClockFit, RecordKinds, columns_of, read_records
from speccollect.cupti.layouts import Layouts, NoLayout, layouts_of
from speccollect.cupti.profiler import CuptiEvents, CuptiProfiler
from speccollect.native import build, cupti_library
from speccollect.windows.result import WindowResult
from speccollect.windows.rows import read_window

KINDS = RecordKinds(kernel=10, memcpy=1, memcpy_peer=22, memset=2, runtime=5, driver=4)
SECOND = 10**9


def layout(size: int, **fields: tuple[str, int]) -> np.dtype[Any]:
    """A record of so many bytes with some of its fields (type, offset)."""
    names = list(fields)
    parts: Any = {
        "names": names,
        "formats": [fields[name][0] for name in names],
        "offsets": [fields[name][1] for name in names],
        "itemsize": size,
    }
    made: np.dtype[Any] = np.dtype(parts)
    return made


TIMES: Any = {"kind": ("<i4", 0), "start": ("<u8", 16), "end": ("<u8", 24)}
COPY: Any = {
    **TIMES,
    "copy_kind": ("<u1", 4),
    "src_kind": ("<u1", 5),
    "dst_kind": ("<u1", 6),
    "bytes": ("<u8", 8),
    "device_id": ("<u4", 32),
    "stream_id": ("<u4", 40),
}


def kernel(size: int) -> np.dtype[Any]:
    """CUpti_ActivityKernel9 (208 bytes), 10 (216), ... 13 (248): what is read is at the same place in all."""
    device: Any = {"device_id": ("<u4", 40), "stream_id": ("<u4", 48), "correlation_id": ("<u4", 92)}
    graph: Any = {"graph_node_id": ("<u8", 144), "graph_id": ("<u4", 156), "name": ("<i8", 104)}
    return layout(size, **TIMES, **device, **graph)


MEMCPY = layout(96, **COPY, correlation_id=("<u4", 44), graph_node_id=("<u8", 64), graph_id=("<u4", 72))
PEER = layout(96, **COPY, correlation_id=("<u4", 60), graph_node_id=("<u8", 72), graph_id=("<u4", 80))
MEMSET = layout(
    88,
    **{**TIMES, "bytes": ("<u8", 8), "device_id": ("<u4", 32), "stream_id": ("<u4", 40), "correlation_id": ("<u4", 44)},
    memory_kind=("<u2", 50),
    graph_node_id=("<u8", 64),
    graph_id=("<u4", 72),
)
CALL = layout(
    40,
    kind=("<i4", 0),
    cbid=("<u4", 4),
    start=("<u8", 8),
    end=("<u8", 16),
    process_id=("<u4", 24),
    thread_id=("<u4", 28),
    correlation_id=("<u4", 32),
)
CUPTI_13_0: Layouts = {10: [kernel(216)], 1: [MEMCPY], 22: [PEER], 2: [MEMSET], 5: [CALL], 4: [CALL]}

NAMES = [ctypes.create_string_buffer(name) for name in (b"_fwd_kernel", b"_Z3addv", b"_fwd_kernel", b"x" * 5000)]
"""The third is the first one's text at another address."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> FakeCupti:
    made = compile_fake(tmp_path_factory.mktemp("cupti"))
    if isinstance(made, str):
        pytest.skip(made)
    cupti_library.build()
    return FakeCupti(made)


@pytest.fixture
def cupti(loaded: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    monkeypatch.setattr(cupti_buffers, "_mistrust", None)
    loaded.library.fake_reset()
    loaded.sizes({kind: dtypes[0].itemsize for kind, dtypes in CUPTI_13_0.items()})
    yield loaded
    loaded.library.fake_incomplete(0)
    loaded.library.cuptiActivityFlushAll(1)


def buffers_of(cupti: FakeCupti, layouts: Layouts = CUPTI_13_0) -> Buffers:
    return Buffers(cupti_library.load(), cupti.addresses, layouts)


def one(kind: int, dtype: np.dtype[Any], **values: int) -> npt.NDArray[Any]:
    record = np.zeros((), dtype=dtype)
    record["kind"] = kind
    for name, value in values.items():
        record[name] = value
    return record


def mixed(count: int, *, begin: int = 1000, size: int = 216, seed: int = 7) -> list[npt.NDArray[Any]]:
    """Records of all kinds in a random order, each with a correlation of its own."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        kind = int(random.choice(list(CUPTI_13_0)))
        times: dict[str, int] = {"start": begin + 10 * i, "end": begin + 10 * i + 5, "correlation_id": i + 1}
        if kind in (KINDS.runtime, KINDS.driver):
            made.append(one(kind, CALL, cbid=311, process_id=40, thread_id=41 + i % 2, **times))
            continue
        node = (5 << 32) + i if i % 3 else 0
        device = {"device_id": 1, "stream_id": 7 + i % 2, "graph_node_id": node, "graph_id": 5 if node else 0}
        if kind == KINDS.kernel:
            made.append(one(kind, kernel(size), name=ctypes.addressof(NAMES[i % 4]), **device, **times))
        elif kind == KINDS.memset:
            made.append(one(kind, MEMSET, bytes=i, memory_kind=3, **device, **times))
        else:
            dtype = MEMCPY if kind == KINDS.memcpy else PEER
            made.append(one(kind, dtype, bytes=i, copy_kind=2, src_kind=3, dst_kind=2, **device, **times))
    return made


def objects(records: list[npt.NDArray[Any]]) -> list[Any]:
    """The same records as cupti-python shows them."""
    made = []
    for record in records:
        assert record.dtype.names is not None
        values: dict[str, Any] = {name: int(record[name]) for name in record.dtype.names}
        if "name" in values:
            values["name"] = ctypes.string_at(values["name"]).decode()
        made.append(SimpleNamespace(**values))
    return made


def fetched(window: RawRecords, *, begun: int = 0, ended: int = 10**6) -> RawTable:
    return window.table(begun=begun, ended=ended)


def correlations(window: RawRecords) -> list[int]:
    table = fetched(window)
    return [int(value) for value in table.integers(np.arange(len(table)), "correlation_id")]


@pytest.mark.parametrize(("count", "buffer_bytes"), [(3, 1 << 12), (700, 1 << 12), (3000, 1 << 20)])
def test_raw_records_say_what_objects_say(cupti: FakeCupti, count: int, buffer_bytes: int) -> None:
    records = mixed(count, seed=count)
    buffers = buffers_of(cupti)
    buffers.begin(count, buffer_bytes=buffer_bytes)
    cupti.record(records)
    window = buffers.end(count)
    clock = ClockFit((0, 0, 1), (1000, 0, 1))
    raw, counts = columns_of(fetched(window), KINDS, clock, lambda runtime, callback: f"call {callback}", since=0)
    asked, _ = read_records(
        objects(records), KINDS, clock, lambda runtime, callback: f"call {callback}", since=0, pause=None
    )
    for field in ("start", "duration", "correlation", "device", "resource", "name", "type"):
        assert np.array_equal(getattr(raw, field), getattr(asked, field)), field
    assert (raw.names, raw.types) == (asked.names, asked.types)
    assert all(np.array_equal(raw.details[name], asked.details[name]) for name in ("graph_id", "node", "bytes"))
    assert len(raw) == count
    assert counts == {"incomplete": 0, "warmup": 0, "other": 0, "one_by_one": 0}
    assert window.facts["dropped"] == window.facts["outstanding"] == window.facts["invalid"] == 0
    if buffer_bytes == 1 << 12 and count == 700:
        assert window.facts["buffers"] > 10
    window.release()


def test_threads_lose_nothing_and_mix_nothing_up(cupti: FakeCupti) -> None:
    records = mixed(1500)
    buffers = buffers_of(cupti)
    buffers.begin(9000, buffer_bytes=1 << 14)
    cupti.record(records, threads=6)
    found = correlations(window := buffers.end(9000))
    assert sorted(found) == sorted(list(range(1, 1501)) * 6)
    assert window.facts["records"] == 9000


def test_the_pool_is_bounded_and_what_cupti_drops_is_counted(cupti: FakeCupti) -> None:
    records = mixed(2000)
    buffers = buffers_of(cupti)
    buffers.begin(20, buffer_bytes=1 << 12)  # 20 records of 216 bytes: two buffers, and two more
    cupti.record(records)
    window = buffers.end(2000)
    kept = correlations(window)
    assert window.facts["buffers"] == 4
    assert window.facts["declined"] > 0
    assert len(kept) + window.facts["dropped"] == 2000
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) <= 4 * (1 << 12) // 40
    # the next window has the whole pool again
    buffers.begin(20, buffer_bytes=1 << 12)
    cupti.record(records[:30])
    assert correlations(buffers.end(2000)) == list(range(1, 31))


def test_no_more_records_are_kept_than_asked(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    cupti.record(mixed(100))
    window = buffers.end(60)
    assert correlations(window) == list(range(1, 61))
    assert window.facts["dropped"] == 40


def test_a_buffer_of_others_is_neither_read_nor_freed(cupti: FakeCupti) -> None:
    others = np.full(4096, 10, dtype=np.uint8)
    buffers = buffers_of(cupti)
    buffers.begin(100)
    cupti.library.fake_stranger(others.ctypes.data, len(others))
    cupti.record(mixed(10))
    window = buffers.end(100)
    assert correlations(window) == list(range(1, 11))
    assert window.facts["foreign"] == 1
    assert (others == 10).all()


def test_what_still_runs_is_waited_for(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(100)
    cupti.record(mixed(10))
    cupti.library.fake_incomplete(3)
    assert correlations(buffers.end(100, settle_ns=60 * SECOND)) == list(range(1, 11))
    assert cupti.library.fake_flushes() >= 5


def test_the_next_window_hurries_the_one_before_and_takes_nothing_from_it(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(100)
    cupti.record(mixed(10))
    cupti.library.fake_incomplete(10**9)
    first = buffers.end(100, settle_ns=3600 * SECOND)
    buffers.begin(100)  # CuptiError if it were not hurried
    cupti.record(mixed(20)[10:])
    cupti.library.fake_incomplete(0)
    second = buffers.end(100)
    assert correlations(second) == list(range(11, 21))
    assert correlations(first) == list(range(1, 11))


def test_buffers_are_fetched_at_once_for_somebody_who_waits_for_cupti(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    for _ in range(2):  # and the one after it is not hurried
        buffers.begin(100)
        cupti.record(mixed(10))
        cupti.library.fake_incomplete(10**9)
        window = buffers.end(100, settle_ns=3600 * SECOND)
        assert window.settle()
        assert window.settle()
        assert correlations(window) == list(range(1, 11))
    buffers.begin(100)
    cupti.record(mixed(10))
    cupti.library.fake_incomplete(2)
    before = cupti.library.fake_flushes()
    assert correlations(buffers.end(100, settle_ns=3600 * SECOND)) == list(range(1, 11))
    assert cupti.library.fake_flushes() - before == 4


def test_a_window_that_nobody_reads_leaves_nothing(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    for _ in range(50):
        buffers.begin(100, buffer_bytes=1 << 12)
        cupti.record(mixed(40))
        buffers.end(100).release()  # its thread may still run
    buffers.begin(100, buffer_bytes=1 << 12)
    cupti.record(mixed(40))
    window = buffers.end(100)
    assert correlations(window) == list(range(1, 41))
    window.release()
    with pytest.raises(CuptiError, match="given back"):
        fetched(window)


@pytest.mark.parametrize("fetched_first", [True, False])
def test_after_a_recording_no_memory_is_kept_for_its_next_window(cupti: FakeCupti, fetched_first: bool) -> None:
    def mapped() -> int:
        return int(psutil.Process().memory_info().vms)

    buffers, size = buffers_of(cupti), 64 << 20
    before = mapped()
    buffers.begin(2_000_000, buffer_bytes=size)
    cupti.record(mixed(40), threads=4)
    window = buffers.end(100)
    if fetched_first:
        assert len(correlations(window)) == 100
        assert mapped() - before >= size
    cupti_buffers.rest()
    assert window.settle()
    window.release()
    assert mapped() - before < size
    buffers.begin(100, buffer_bytes=1 << 12)  # and the next one has all it needs
    cupti.record(mixed(40))
    assert correlations(buffers.end(100)) == list(range(1, 41))


def test_a_window_that_was_never_ended_is_forgotten(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(100, buffer_bytes=1 << 12)
    cupti.record(mixed(40))
    cupti.library.cuptiActivityFlushAll(1)
    buffers.begin(100, buffer_bytes=1 << 12)
    cupti.record(mixed(5))
    assert correlations(buffers.end(100)) == [1, 2, 3, 4, 5]


def test_a_buffer_that_comes_back_late_goes_to_the_window_then_open(cupti: FakeCupti) -> None:
    """CUPTI may keep one beyond the flush: it stays CUPTI's, and its records are too old for the next window."""
    buffers = buffers_of(cupti)
    buffers.begin(100)
    cupti.record(mixed(3))
    held = {name: address for name, address in cupti.addresses.items() if name != "cuptiActivityFlushAll"}
    nothing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32)(lambda forced: 0)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    assert address is not None
    stuck = Buffers(cupti_library.load(), {**held, "cuptiActivityFlushAll": address}, CUPTI_13_0)
    stuck.begin(100)
    window = stuck.end(100, settle_ns=0)
    assert correlations(window) == []
    assert window.facts["outstanding"] == 1
    buffers.begin(100)
    cupti.record(mixed(6, begin=5000)[3:])
    window = buffers.end(100)
    columns, counts = columns_of(fetched(window), KINDS, ClockFit((0, 0, 1), (1, 0, 1)), lambda r, c: "x", since=5000)
    assert columns.correlation.tolist() == [4, 5, 6]
    assert counts["warmup"] == 3


def test_kinds_that_nobody_asked_for_are_counted(cupti: FakeCupti) -> None:
    cupti.sizes({3: 24})
    buffers = buffers_of(cupti)
    buffers.begin(100)
    cupti.record([*mixed(4), *[one(3, layout(24, kind=("<i4", 0)))] * 5, *mixed(2)])
    window = buffers.end(100)
    assert len(fetched(window)) == 6
    assert (window.other, len(window)) == (5, 6)


@pytest.mark.parametrize("real", [208, 216, 232, 248, 264])
def test_the_records_own_size_tells_their_layout(cupti: FakeCupti, real: int) -> None:
    """libcupti is older than cupti-python, of its age, or newer."""
    newest_first = [kernel(size) for size in (248, 232, 224, 216, 208)]
    cupti.sizes({10: real})
    buffers = buffers_of(cupti, {**CUPTI_13_0, 10: newest_first})
    buffers.begin(1000, buffer_bytes=1 << 12)
    cupti.record(mixed(200, size=real))
    window = buffers.end(1000)
    assert correlations(window) == list(range(1, 201))
    assert window.facts["record_bytes"]["10"] == real


def test_records_too_short_for_every_layout_are_not_read(cupti: FakeCupti) -> None:
    cupti.sizes({10: 200})
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    cupti.record(mixed(50, size=200))
    with pytest.raises(CuptiError, match="records of kind 10 have 200 bytes; cupti-python knows 216"):
        fetched(buffers.end(1000))


def test_times_that_can_not_be_are_not_believed(cupti: FakeCupti) -> None:
    """A layout whose fields lie elsewhere."""
    swapped = layout(
        40,
        kind=("<i4", 0),
        cbid=("<u4", 4),
        start=("<u8", 16),
        end=("<u8", 8),
        process_id=("<u4", 24),
        thread_id=("<u4", 28),
        correlation_id=("<u4", 32),
    )
    buffers = buffers_of(cupti, {**CUPTI_13_0, 5: [swapped]})
    buffers.begin(1000)
    cupti.record(mixed(50))
    with pytest.raises(CuptiError, match="kind 5 have times that can't be"):
        fetched(buffers.end(1000))
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    cupti.record(mixed(50, begin=10 * 3600 * SECOND))
    with pytest.raises(CuptiError, match="times that can't be"):
        fetched(buffers.end(1000))


def test_records_without_times_are_no_reason_for_doubt(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    cupti.record([one(10, kernel(216), start=5000, correlation_id=i) for i in range(1, 9)])
    assert correlations(buffers.end(1000)) == list(range(1, 9))


def test_a_buffer_that_ends_in_no_record_keeps_what_came_before(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    cupti.record([*mixed(7), one(77, layout(64, kind=("<i4", 0)))])
    window = buffers.end(1000)
    assert correlations(window) == list(range(1, 8))
    assert window.facts["invalid"] == 1


def test_a_name_that_is_not_there_is_empty(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    names = [0, 8, 2**47 - 4096, ctypes.addressof(NAMES[1])]
    cupti.record([one(10, kernel(216), start=1, end=2, name=name) for name in names])
    table = fetched(buffers.end(1000))
    assert table.texts(np.arange(4)) == ["", "", "", "_Z3addv"]


def test_many_names_are_all_kept(cupti: FakeCupti) -> None:
    texts = [ctypes.create_string_buffer(f"kernel {i}".encode()) for i in range(5000)]
    buffers = buffers_of(cupti)
    buffers.begin(20_000)
    order = np.random.default_rng(3).integers(0, 5000, 15_000)
    cupti.record([one(10, kernel(216), start=1, end=2, name=ctypes.addressof(texts[i])) for i in order])
    table = fetched(buffers.end(20_000))
    assert table.texts(np.arange(15_000)) == [f"kernel {i}" for i in order]


def test_an_empty_window_is_empty(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    buffers.begin(1000)
    window = buffers.end(1000)
    assert correlations(window) == []
    assert window.facts["records"] == 0


def test_cuptis_refusals_are_told(cupti: FakeCupti) -> None:
    buffers = buffers_of(cupti)
    cupti.library.fake_refuse(39)
    with pytest.raises(CuptiError, match="CUPTI answered 39"):
        buffers.begin(1000)
    cupti.library.fake_refuse(0)
    buffers.begin(1000)
    cupti.library.fake_flush_code(999)
    with pytest.raises(CuptiError, match="cuptiActivityFlushAll answered 999"):
        fetched(buffers.end(1000))


def real_iterators() -> list[Path]:
    """libcupti of the CUDA packages that are installed beside torch or cupti-python; it walks buffers without a GPU."""
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    return sorted(path for folder in folders for path in Path(folder).glob("*/lib/libcupti.so*"))


def real_size(iterate: Any, kind: int) -> int:
    """How far apart libcupti takes two records of a kind to be."""
    memory = np.zeros(512, dtype=np.int64)
    memory.view(np.int32)[::2] = kind
    record = ctypes.c_void_p()
    for _ in range(2):
        code = iterate(memory.ctypes.data, memory.nbytes, ctypes.byref(record))
        if code == 999:
            pytest.skip("this libcupti (13.4) does nothing without a driver")
        assert code == 0
    assert record.value is not None
    return record.value - memory.ctypes.data


def test_libcuptis_own_iterator_walks_our_buffers(cupti: FakeCupti) -> None:
    if not real_iterators():
        pytest.skip("no CUDA package with a libcupti is installed")
    iterate = ctypes.CDLL(str(real_iterators()[0])).cuptiActivityGetNextRecord
    iterate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    sizes = {kind: real_size(iterate, kind) for kind in CUPTI_13_0}
    cupti.sizes(sizes)
    address = ctypes.cast(iterate, ctypes.c_void_p).value
    assert address is not None
    layouts = {**CUPTI_13_0, 10: [kernel(size) for size in (248, 232, 224, 216, 208)]}
    buffers = Buffers(cupti_library.load(), {**cupti.addresses, "cuptiActivityGetNextRecord": address}, layouts)
    buffers.begin(3000, buffer_bytes=1 << 14)
    given = [
        np.frombuffer(r.tobytes().ljust(sizes[int(r["kind"])], b"\0"), f"V{sizes[int(r['kind'])]}") for r in mixed(3000)
    ]
    cupti.record(given)
    window = buffers.end(3000)
    assert correlations(window) == list(range(1, 3001))
    assert window.facts["invalid"] == 0
    assert window.facts["record_bytes"] == {str(kind): size for kind, size in sizes.items()}


# ---- in the profiler


def profiler_of(cupti: FakeCupti, module: Cupti, layouts: Layouts = CUPTI_13_0) -> CuptiProfiler:
    return CuptiProfiler(1000, module, buffers_of(cupti, layouts))


def test_a_window_holds_the_server_for_no_record(cupti: FakeCupti) -> None:
    module = Cupti()
    profiler = profiler_of(cupti, module)
    profiler.prepare()
    assert module.deliver is None  # cupti-python's own callbacks are not used
    assert module.enabled == {10, 1, 22, 2, 5, 4}
    cupti.record(mixed(3, begin=module.now - 500))
    profiler.start()
    cupti.record(
        [one(5, CALL, cbid=311, start=module.now + i, end=module.now + i + 1, correlation_id=i) for i in (1, 2)]
    )
    cupti.library.fake_incomplete(10**9)  # nothing is handed over while the serving thread waits, if it did
    events = CuptiEvents(profiler)
    assert (events.off_thread, events.reader, len(events)) == (True, "cupti buffers", 0)
    assert module.enabled == set()
    assert module.thread_ids == 0
    cupti.library.fake_incomplete(0)
    columns = events.columns(pause=None)
    assert columns.correlation.tolist() == [1, 2]
    assert columns.names == ["cudaGraphLaunch"]
    assert len(events) == 5
    facts = profiler.facts
    assert (facts["warmup"], facts["dropped"], facts["records"], facts["one_by_one"]) == (3, 0, 5, 0)
    assert "objects_because" not in facts
    events.release()
    assert columns.correlation.tolist() == [1, 2]


def test_the_writer_thread_reads_a_window_of_raw_records(cupti: FakeCupti) -> None:
    profiler = profiler_of(cupti, module := Cupti())
    profiler.prepare()
    profiler.start()
    cupti.record([one(5, CALL, cbid=311, start=module.now + i, end=module.now + i + 1) for i in range(1, 5)])
    events = CuptiEvents(profiler)
    window = WindowResult(events, None, {"events": len(events), "cupti": profiler.facts}, metadata=False)
    read_window(window)
    assert window.columns is not None
    assert len(window.columns) == window.info["events"] == 4
    assert (window.info["reader"], window.info["read_by"]) == ("cupti buffers", "writer")
    assert window.info["cupti"]["records"] == 4


def test_after_records_that_can_not_be_believed_objects_are_taken(cupti: FakeCupti) -> None:
    module = Cupti()
    profiler = profiler_of(cupti, module, {**CUPTI_13_0, 5: [layout(48, **dict.fromkeys(("kind",), ("<i4", 0)))]})
    profiler.prepare()
    profiler.start()
    cupti.record([one(5, CALL, cbid=311, start=module.now, end=module.now + 1)] * 3)
    events = CuptiEvents(profiler)
    with pytest.raises(CuptiError, match="kind 5 have 40 bytes"):
        events.columns(pause=None)
    assert open_buffers(module, KINDS) == "records of kind 5 have 40 bytes; cupti-python knows 48"


def test_a_refusal_of_buffers_leaves_nothing_enabled(cupti: FakeCupti) -> None:
    module = Cupti()
    cupti.library.fake_refuse(1)
    with pytest.raises(CuptiError, match="CUPTI answered 1"):
        profiler_of(cupti, module).prepare()
    assert module.enabled == set()
    assert module.thread_ids == 0


# ---- layouts, and what is compiled


def test_all_versions_of_a_layout_are_known_the_newest_first() -> None:
    module = SimpleNamespace(
        **{f"activity_kernel{number}_dtype": kernel(size) for number, size in ((9, 208), (10, 216), (13, 248))},
        activity_kernel8_dtype=layout(208, **TIMES),  # lacks the graph: not read
        activity_memcpy6_dtype=MEMCPY,
        activity_memcpy_pto_p4_dtype=PEER,
        activity_memset4_dtype=MEMSET,
        activity_api_dtype=CALL,
        activity_cdp_kernel_dtype=CALL,
    )
    found = layouts_of(module, KINDS)
    assert [dtype.itemsize for dtype in found[10]] == [248, 216, 208]
    assert {kind: len(dtypes) for kind, dtypes in found.items()} == {10: 3, 1: 1, 22: 1, 2: 1, 5: 1, 4: 1}
    del module.activity_memset4_dtype
    with pytest.raises(NoLayout, match="memset"):
        layouts_of(module, KINDS)
    module.activity_memset4_dtype = CALL
    with pytest.raises(NoLayout, match="lacks one of"):
        layouts_of(module, KINDS)


def test_the_layouts_here_are_those_of_cupti_python() -> None:
    module = pytest.importorskip("cupti.cupti")
    real = layouts_of(module, KINDS)
    for kind, (ours,) in CUPTI_13_0.items():
        theirs = [dtype for dtype in real[kind] if dtype.itemsize == ours.itemsize]
        assert len(theirs) == 1
        assert ours.names is not None
        for name in ours.names:
            assert theirs[0].fields is not None
            assert ours.fields is not None
            assert theirs[0].fields[name][1] == ours.fields[name][1], (kind, name)
            assert theirs[0].fields[name][0].itemsize == ours.fields[name][0].itemsize, (kind, name)


def test_without_a_compiler_the_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.NotBuilt, match="speccollect build makes it"):
        cupti_library.load()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NotBuilt, match="no C compiler"):
        cupti_library.build()
    monkeypatch.setenv(build.NATIVE_VARIABLE, "0")
    for ask in (cupti_library.build, cupti_library.load):
        with pytest.raises(build.NotBuilt, match="SPECANALYZE_NATIVE=0"):
            ask()


def test_why_records_are_objects_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cupti_buffers, "_mistrust", None)
    monkeypatch.setenv(build.NATIVE_VARIABLE, "0")
    with caplog.at_level(logging.DEBUG):
        assert open_buffers(Cupti(), KINDS) == "SPECANALYZE_NATIVE=0"
