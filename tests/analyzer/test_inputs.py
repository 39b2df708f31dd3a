"""What is no recording: one line that names it, exit 1 or 2, nothing printed, nothing left behind; whatever the command."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specanalyze.cli import run
from specanalyze.commands import COMMANDS
from specanalyze.formats.plain_text import plain

SAMPLES = Path(__file__).parents[2] / "samples"
GOOD = SAMPLES / "embedded_tp2.parquet"
MORE = {
    "breakeven": ["--baseline", str(SAMPLES / "sglang_tp2_plain.parquet")],
    "compare": [str(GOOD)],
    "export": ["--to", "perfetto", "-o", "out.pftrace"],
    "whatif": ["--steps", "3"],
}
LONG = "x" * 300 + ".parquet"


def _written(name: str, content: bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(content)
        return name

    return make


def _empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return "empty"


def _folder_of_others(folder: Path) -> str:
    (folder / "others").mkdir()
    (folder / "others" / "readme.txt").write_text("hello")
    return "others"


def _table_of_others(folder: Path) -> str:
    pq.write_table(pa.table({"a": [1, 2]}), folder / "table.parquet")
    return "table.parquet"


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def _circle(folder: Path) -> str:
    (folder / "circle.parquet").symlink_to("circle.parquet")
    return "circle.parquet"


def _not_utf8(folder: Path) -> str:
    name = os.fsdecode(b"trace-\xff.parquet")
    (folder / name).write_bytes(GOOD.read_bytes())
    return name


INPUTS: dict[str, Callable[[Path], str]] = {
    "absent": lambda folder: "absent.parquet",
    "long name": lambda folder: LONG,
    "circle of links": _circle,
    "named pipe": _pipe,
    "empty folder": _empty_folder,
    "folder of other files": _folder_of_others,
    "empty file": _written("empty.parquet", b""),
    "half a file": _written("half.parquet", GOOD.read_bytes()[: GOOD.stat().st_size // 2]),
    "head of a file": _written("head.parquet", GOOD.read_bytes()[:8]),
    "noise": _written("noise.parquet", bytes(range(256)) * 16),
    "other table": _table_of_others,
    "other JSON": _written("other.json", b'{"a": 1}'),
    "half a gzip": _written("half.json.gz", gzip.compress(b'{"traceEvents": []}' * 1000)[:40]),
    "no SQLite": _written("no.sqlite", b"SQLite format 3\0" + bytes(100)),
    "a name that is not UTF-8": _not_utf8,
}


@pytest.mark.parametrize("made", INPUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_and_nothing_left(
    command: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = INPUTS[made](tmp_path)
    before = sorted(os.listdir(tmp_path))
    code = run([command, name, *MORE.get(command, [])])
    shown = capsys.readouterr()
    assert code in (1, 2)
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert plain(os.path.basename(name))[:60] in shown.err
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("option", ["--cycles", "--node-map", "--phase-map"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[1, 2]", b'{"a": 1}', b"[" * 100_000])
def test_what_is_laid_beside_is_named_when_it_is_none(
    option: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = tmp_path / "beside.json"
    if content is not None:
        beside.write_bytes(content)
    for name in (str(beside), LONG) if content is None else (str(beside),):
        assert run(["breakdown", str(GOOD), option, name]) in (1, 2)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: ")
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize(("name", "form"), [("a.parquet", "Parquet"), ("a.sqlite", "SQLite"), ("a.json.gz", "gzip")])
def test_noise_is_called_what_its_name_promises(
    name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise in a file named .parquet was called "not a torch.profiler trace"."""
    (tmp_path / name).write_bytes(bytes(range(256)) * 16)
    assert run(["breakdown", str(tmp_path / name)]) == 1
    assert f"{name} is no {form} file: it does not begin as one" in capsys.readouterr().err


def test_content_goes_before_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.parquet").write_text('{"traceEvents": []}')
    (tmp_path / "b.json").write_bytes(GOOD.read_bytes())
    assert run(["breakdown", str(tmp_path / "a.parquet")]) == 1
    assert "a.parquet: no GPU activity in this trace" in capsys.readouterr().err
    assert run(["env", str(tmp_path / "b.json"), "--json"]) == 0
    capsys.readouterr()


def test_noise_beside_a_trace_is_said_and_salvaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank's file that came out as noise used to be passed over in silence."""
    (tmp_path / "trace.parquet").write_bytes(GOOD.read_bytes())
    (tmp_path / "rank1.parquet").write_bytes(bytes(range(256)) * 16)
    assert run(["breakdown", str(tmp_path)]) == 1
    assert "1 of 2 files can't be read: rank1.parquet is no Parquet file" in capsys.readouterr().err
    assert run(["breakdown", str(tmp_path), "--salvage", "--json"]) == 0
    assert "warning: lost: rank1.parquet is no Parquet file" in capsys.readouterr().err


def test_a_long_but_possible_name_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``.cycles.json`` after it, as looked for beside it, it is too long to be a name."""
    path = tmp_path / ("y" * 240 + ".parquet")
    path.symlink_to(GOOD)
    assert run(["env", str(path), "--json"]) == 0
    capsys.readouterr()


def test_a_file_given_twice_does_not_count_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It used to be read as one recording of twice as many replays, half of them without kernels."""
    link = tmp_path / "link.parquet"
    link.symlink_to(GOOD)
    for second in (GOOD, link):
        assert run(["breakdown", str(GOOD), str(second)]) == 2
        assert capsys.readouterr().err.endswith("is given twice: give each file of the recording once\n")
    assert run(["sweep", str(GOOD), str(GOOD)]) == 2
    assert "given twice" in capsys.readouterr().err


def test_values_are_one_number_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair", reason="the report needs altair, vl-convert-python and jinja2")
    for values in ("a", "1,2"):
        assert run(["report", str(GOOD), "--values", values, "-o", str(tmp_path / "page.html")]) == 2
        assert f"--values {values}: give one number" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
