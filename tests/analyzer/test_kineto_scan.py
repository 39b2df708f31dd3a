"""The compiled scanner gives the very events of the Python decoder, or refuses the text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from specanalyze.formats import kineto, kineto_scan
from specanalyze.formats.kineto_columns import columns, decode

PLAIN = (
    b'[\n  {\n    "ph": "X", "cat": "kernel", "name": "nvjet<int>", "pid": 0, "tid": 7,\n    "ts": 5102342525436.538, "dur": 7.616,\n'
    b'    "args": {\n      "queued": 0, "device": 0, "stream": 7, "correlation": 16270, "warps per SM": 0.03, "grid": [1, 2, 3]\n    }\n  },\n'
    b'  {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 5.5, "cat": "ac2g", "name": "ac2g", "bp": "e"},'
    b'{"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":4,"tid":5,"ts":1,"dur":2.0005,"args":{"correlation":9}},'
    b'{"name": "Record", "ph": "i", "pid": "", "tid": "Trace", "ts": 3.25}]'
)


@pytest.fixture
def scanner() -> kineto_scan.Scanner:
    return made()


def made() -> kineto_scan.Scanner:
    found = kineto_scan.scanner(kineto_scan.COMPILES_ABOVE_BYTES + 1)
    if found is None:
        pytest.skip("no C compiler on this machine")
    return found


def check(text: bytes, scan: kineto_scan.Scanner) -> bool:
    """Whether the scanner took the text; if it did, with the decoder's events."""
    rows = scan.rows(text)
    if rows is None:
        return False
    expected, found = columns(decode(text)), scan.frame(rows)
    if expected is None or found is None:
        assert expected is found
    else:
        assert_frame_equal(found, expected, categorical_as_str=True)
    return True


def test_plain_text_is_read(scanner: kineto_scan.Scanner) -> None:
    rows = scanner.rows(PLAIN)
    assert rows == kineto_scan.Rows(0, 3)
    frame = scanner.frame(rows)
    assert frame is not None
    assert frame.select("kind", "name", "ts_ns", "dur_ns", "stream", "correlation", "grid").rows() == [
        ("kernel", "nvjet<int>", 5102342525436538, 7616, 7, 16270, "1x2x3"),
        ("launch", "cudaGraphLaunch", 1000, 2000, None, 9, None),  # 2000.5 ns, half to even
        ("mark", "Record", 3250, 0, None, None, None),
    ]
    assert check(PLAIN, made())


@pytest.mark.parametrize(
    "row",
    [
        '"ts": 1e3',
        '"ts": "1.5"',
        '"ts": 1.',
        '"ts": 01',
        '"ts": -0.0005',
        '"ts": 12345678901234567',
        '"pid": "12"',
        '"pid": "device"',
        '"pid": 1.0',
        '"pid": true',
        '"pid": 99999999999999999999',
        '"tid": null',
        '"name": null',
        '"name": 5',
        '"name": "a\\"b\\u00e9"',
        '"name": "\\ud83d\\ude00"',
        '"name": "\xff"',
        '"name": "tab\tinside"',
        '"\\u0070h": "M"',
        '"ph": "\\u0058"',
        '"cat": "kern\\u0065l"',
        '"cat": null',
        '"args": null',
        '"args": []',
        '"args": {"stream": "7"}',
        '"args": {"stream": 7.0}',
        '"args": {"grid": [1, 2]}',
        '"args": {"grid": null, "block": "1"}',
        '"args": {"Collective name": "_allgather_base", "In msg nelems": 12, "Process Group Ranks": "[0, 1]", "Seq": 3}',
        '"args": {"a": {"b": [1, {"c": "}"}]}, "correlation": -3}',
        '"args": {"correlation": 1}, "args": {"stream": 2}',
        '"args": {"a": [1,]}',
        '"args": {"a": nan}',
        '"args": {"a": "\\q"}',
    ],
)
def test_odd_values_give_the_decoders_events_or_none(row: str, scanner: kineto_scan.Scanner) -> None:
    text = f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, {row}}}]'
    try:
        decode(text.encode("latin-1"))
    except Exception:  # noqa: BLE001 -- what the decoder refuses, in whatever words, the scanner must not take
        assert scanner.rows(text.encode("latin-1")) is None
    else:
        check(text.encode("latin-1"), scanner)
    assert check(PLAIN, scanner), "a refused piece leaves nothing behind"


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damaged_text_gives_the_decoders_events_or_none(dice: random.Random) -> None:
    text = bytearray(PLAIN)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(text))
        text[at : at + dice.randrange(3)] = bytes(
            dice.choices(b'{}[],:"\\ 01.-eEnXu\x00\x80\xc3\xa9\xed\xf0\x9f', k=dice.randrange(3))
        )
    scan = made()
    if scan.rows(bytes(text)) is not None:
        assert check(bytes(text), made())


def test_every_reference_trace_is_read_alike(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    for path in sorted((reference / "traces").glob("*/**/*.json.gz")):
        found = kineto.read_events(path, 0)
        with monkeypatch.context() as without:
            without.setattr(kineto_scan, "scanner", lambda size: None)
            expected = kineto.read_events(path, 0)
        assert_frame_equal(found[0], expected[0], categorical_as_str=True)
        assert found[1] == expected[1]


def test_plain_and_odd_pieces_keep_the_order_of_the_file(tmp_path: Path) -> None:
    made()
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": 1, "ts": i, "dur": 1.5 if i % 5000 else "1.5"}
        for i in range(60_000)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    events, warnings = kineto.read_events(path, 0)
    assert events["name"].cast(pl.String).to_list() == [row["name"] for row in rows]
    assert events["dur_ns"].unique().to_list() == [1500]
    assert warnings == []
