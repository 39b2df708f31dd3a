"""Cutting and decoding the text of Chrome traces, in chunks far smaller than a file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specanalyze.formats.event_text import EventText, NotATraceError
from specanalyze.formats.file_text import FileText
from specanalyze.formats.kineto import identify
from specschema.errors import TraceError


def decode(text: bytes) -> list[Any]:
    return msgspec.json.decode(text, type=list[Any])


def read(path: Path, chunk_bytes: int = 1 << 20, *, salvage: bool = False) -> tuple[list[Any], EventText[Any]]:
    text = EventText(FileText(path, chunk_bytes=chunk_bytes), decode, salvage=salvage)
    return [event for batch in text.batches() for event in batch], text


_text = st.text(st.sampled_from('a},{][:"\\ \n\té'), max_size=8)
_value = st.recursive(
    st.integers() | _text | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_event = st.fixed_dictionaries({"name": _text, "args": _value})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    events=st.lists(_event, max_size=12),
    before=st.dictionaries(_text, _value, max_size=2),
    after=st.dictionaries(_text, _value, max_size=2),
    indent=st.sampled_from([None, 1, 4]),
    chunk_bytes=st.integers(1, 200),
    members=st.integers(0, 3),
    is_list=st.booleans(),
)
def test_any_layout_and_any_chunk_size_gives_the_same_events(
    tmp_path: Path,
    events: list[Any],
    before: dict[str, Any],
    after: dict[str, Any],
    indent: int | None,
    chunk_bytes: int,
    members: int,
    is_list: bool,
) -> None:
    """Braces, brackets, quotes and commas in names, nested lists of objects, members before and after, several gzip members."""
    whole: Any = events if is_list else {**before, "traceEvents": events, **after}
    data = json.dumps(whole, indent=indent).encode()
    path = tmp_path / "trace.json"
    if members:
        size = len(data) // members + 1
        data = b"".join(gzip.compress(data[i : i + size]) for i in range(0, len(data), size))
    path.write_bytes(data)

    found, text = read(path, chunk_bytes)

    assert found == events
    assert text.metadata == ({} if is_list else {k: v for k, v in whole.items() if k != "traceEvents"})
    assert not text.repairs
    assert not text.lost


def test_numbers_of_members_beside_the_events_stay_exact(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"baseTimeNanoseconds": 1790857026000000001, "v": 4.10, "traceEvents": [], "w": 2.50}')
    assert read(path)[1].metadata == {"baseTimeNanoseconds": 1790857026000000001, "v": "4.10", "w": "2.50"}


def test_list_of_events_that_ends_long_before_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [{"name": f"n{i}"} for i in range(50)]
    frames = [{"frame": i} for i in range(2000)]
    path.write_text(json.dumps({"traceEvents": events, "stackFrames": frames}))
    found, text = read(path, 256)
    assert found == events
    assert text.metadata == {"stackFrames": frames}


def test_one_event_larger_than_many_chunks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [{"name": "a"}, {"name": "x" * 5000, "args": {"deep": [{"k": i} for i in range(300)]}}, {"name": "b"}]
    path.write_text(json.dumps({"traceEvents": events}))
    assert read(path, 64)[0] == events


def test_peek_reads_members_behind_the_events_without_decoding_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    events = [{"name": f"n{i}", "args": {"list": [{"a": 1}]}} for i in range(500)]
    info = {"rank": 3, "pg_config": [{"ranks": [0, 1]}]}
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events, "distributedInfo": info, "x": 1}).encode()))

    def never(text: bytes) -> list[Any]:
        raise AssertionError(text)

    assert EventText(FileText(path, chunk_bytes=512), never).peek() == {"distributedInfo": info, "x": 1}


def _trace(*rows: str) -> str:
    return '{"traceEvents": [\n' + ",\n".join(rows) + "\n]}"


@pytest.mark.parametrize("chunk_bytes", [16, 40, 1 << 20])
@pytest.mark.parametrize(
    ("row", "value", "repair"),
    [
        (r'{"name": "a\mb"}', {"name": r"a\mb"}, {"escape": 1}),
        (r'{"name": "C:\unit\x"}', {"name": r"C:\unit\x"}, {"escape": 2}),
        ('{"v": inf, "w": -nan, "x": [Infinity, NaN]}', {"v": None, "w": None, "x": [None, None]}, {"inf": 4}),
        ('{"v": -inf, "name": "inf, nan"}', {"v": None, "name": "inf, nan"}, {"inf": 1}),
        ('{"name": "two\nlines"}', {"name": "two\nlines"}, {"control": 1}),
        (r'{"name": "\ud83d alone"}', {"name": "� alone"}, {"utf-8": 1}),
    ],
)
def test_certain_faults_are_repaired_and_counted(
    tmp_path: Path, row: str, value: dict[str, Any], repair: dict[str, int], chunk_bytes: int
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_trace('{"name": "before"}', row, '{"name": "after \\u00e9 \\ud83d\\ude00"}'))
    events, text = read(path, chunk_bytes)
    assert events == [{"name": "before"}, value, {"name": "after é 😀"}]
    assert dict(text.repairs) == repair


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [{"name": "a\xff"}, {"name": "b"}]}')
    events, text = read(path)
    assert events == [{"name": "a�"}, {"name": "b"}]
    assert dict(text.repairs) == {"utf-8": 1}


@pytest.mark.parametrize("chunk_bytes", [16, 1 << 20])
def test_unescaped_quotes_are_refused_with_their_place_or_left_out(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "bad.json"
    path.write_text(_trace('{"name": "a"}', '{"name": "f(mode="verify")", "v": 1}', '{"name": "b"}', '{"name": "c"}'))
    with pytest.raises(TraceError, match=r"^bad\.json is not valid JSON at line 3 column 19 \(byte 51\): "):
        read(path, 1 << 20)
    events, text = read(path, chunk_bytes, salvage=True)
    assert events == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    assert text.lost == ["bad.json: 1 broken row left out"]


def _cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("cut.json", _cut, r"its text stops after \d+ bytes"),
        ("cut.json.gz", lambda data: _cut(gzip.compress(data)), "its gzip stream ends early"),
        (
            "two.json.gz",
            lambda data: gzip.compress(data[:900]) + gzip.compress(data[900:])[:-40],
            "its gzip stream ends",
        ),
        ("hurt.json.gz", lambda data: gzip.compress(data)[:60] + b"\0" * 40, "its gzip stream is damaged"),
        ("tail.json.gz", lambda data: gzip.compress(data[:900]) + b"garbage", "no gzip member follow"),
    ],
)
def test_text_that_ends_early_is_refused(
    tmp_path: Path, name: str, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(spoil(json.dumps({"traceEvents": [{"name": f"n{i * 7919}"} for i in range(100)]}).encode()))
    with pytest.raises(TraceError, match=rf"^{name} ends early \(.*{reason}"):
        read(path)


def test_gzip_without_its_last_bytes_is_read_with_a_warning_where_the_text_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "a"}]}')[:-8])
    events, text = read(path)
    assert events == [{"name": "a"}]
    assert text.lost == ["trace.json.gz: its gzip stream ends early, but its text is whole"]


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_salvage_reads_the_whole_rows_of_a_cut_file(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "cut.json"
    path.write_text(
        '{"traceEvents": [{"name": "a"}, {"name": "b", "args": {"c": [1, 2]}}, {"name": "c", "args": {"c": [1'
    )
    events, text = read(path, chunk_bytes, salvage=True)
    assert events == [{"name": "a"}, {"name": "b", "args": {"c": [1, 2]}}]
    assert text.lost == [
        "cut.json ends early: everything up to byte 70 was read; 30 bytes of a cut row and all that should follow are lost"
    ]


@pytest.mark.parametrize("data", [b"", b"  \n"])
def test_empty_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"^empty\.json is empty"):
        read(path)


@pytest.mark.parametrize("data", ['{"case": "01", "traceEvents": null}', '"text"', "# not JSON"])
def test_other_files_are_no_traces(tmp_path: Path, data: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(data)
    with pytest.raises(NotATraceError, match=r"^other\.json has no traceEvents"):
        read(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first_bytes", [1, 100, 70_000, 1 << 20])
def test_a_smaller_first_chunk_is_the_same_text(tmp_path: Path, packed: bool, first_bytes: int) -> None:
    text = bytes(range(65, 91)) * 20_000
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    chunks = list(FileText(path, chunk_bytes=200_000, first_bytes=first_bytes).chunks())
    assert b"".join(chunks) == text
    assert len(chunks[0]) >= min(first_bytes, 200_000)
    if first_bytes < 65_536 and not packed:
        assert len(chunks[0]) == 65_536
    assert all(len(chunk) >= 200_000 for chunk in chunks[1:-1])


def test_a_header_longer_than_what_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "rank3.json"
    groups = [{"pg_name": str(n), "ranks": list(range(64))} for n in range(2000)]
    head = {"pg_config": groups, "distributedInfo": {"rank": 3, "world_size": 64}}
    path.write_text(json.dumps(head)[:-1] + ', "traceEvents": [{"ph": "X", "name": "x", "ts": 1, "dur": 1}]}')
    assert path.stat().st_size > 400_000
    assert identify(path).file.rank == 3


WHOLE = (
    b'{"deviceProperties": [{"id": 0, "name": "H200"}], "distributedInfo": {"ranks": [0]}, "traceEvents": [\n'
    b'{"ph": "X", "name": "a}],", "args": {"grid": [1, 1]}},\n{"ph": "X", "name": "b", "args": {}}\n], '
    b'"memory": {"pools": [{"id": [0, 0]}], "name": "}]"}, "traceName": "x"}'
)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 7])
def test_a_text_cut_at_any_byte_ends_early(tmp_path: Path, chunk_bytes: int) -> None:
    """In front of the events, inside and behind them: never no trace, never whole, never another fault."""
    path = tmp_path / "t.json"
    for end in range(len(WHOLE)):
        path.write_bytes(WHOLE[:end])
        with pytest.raises(TraceError, match=r"^t\.json (ends early|is empty: the file ends early)"):
            read(path, chunk_bytes)
    path.write_bytes(WHOLE)
    assert [event["name"] for event in read(path, chunk_bytes)[0]] == ["a}],", "b"]


def test_zero_bytes_in_place_of_text_are_an_early_end(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(TraceError, match=r"^t\.json holds nothing but zero bytes: the file ends early"):
        read(path)


@pytest.mark.parametrize("behind", [b",]}", b', \n ], "traceName": 1}', b",\n]"])
def test_a_comma_behind_the_last_event_is_told(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "t.json"
    start = b"[" if behind.endswith(b"]") else b'{"traceEvents": ['
    for events in (b'{"name": "a"}', b'{"name": "a"}, {"name": "b"}'):
        path.write_bytes(start + events + behind)
        found, text = read(path)
        assert len(found) == events.count(b"name")
        assert text.repairs == {"comma": 1}
