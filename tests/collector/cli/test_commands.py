"""`speccollect` told odd things: one line, nothing written, nothing recorded for nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from speccollect import __main__ as command_line
from speccollect.config import PHASES_ONLY
from speccollect.control.process import host_hash
from speccollect.control.status import RankStatus, read_statuses, unreadable, write_status
from speccollect.control.word import arm, prepare_folder, read_command
from speccollect.trace.output_path import refuse_output
from specschema.errors import UsageError

Speccollect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def speccollect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Speccollect:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["speccollect", *arguments])
        with pytest.raises(SystemExit) as stop:
            command_line.main()
        shown = capsys.readouterr()
        return int(stop.value.code or 0), shown.out, shown.err

    return call


def test_disarming_what_is_not_armed_makes_no_folder(speccollect: Speccollect, tmp_path: Path) -> None:
    """A mistyped folder was made, and recording 0 "has ended"."""
    code, out, err = speccollect("disarm", "--dir", "mistyped")
    assert (code, out) == (1, "")
    assert err.startswith("speccollect: no control file in mistyped: start the server with SPECANALYZE_DIR=mistyped")
    assert list(tmp_path.iterdir()) == []
    folder = prepare_folder(tmp_path / "folder").parent
    code, out, err = speccollect("disarm", "--dir", str(folder))
    assert (code, out, err) == (
        1,
        "",
        f"speccollect: nothing is being recorded in {folder}: is it this server's folder?\n",
    )
    arm(folder, PHASES_ONLY)
    assert speccollect("disarm", "--dir", str(folder))[:2] == (
        0,
        "recording 1 has ended: no rank has written a file, so there is nothing to merge\n",
    )
    code, _, err = speccollect("disarm", "--dir", str(folder))
    assert (code, err) == (
        1,
        f"speccollect: nothing is being recorded in {folder}: the last recording, number 1, has ended\n",
    )


def _folder_of_another_user(tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    return "file/trace.parquet"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: "nowhere/trace.parquet", "there is no folder nowhere"),
        (lambda path: (path / "folder").mkdir() or "folder", "folder is a folder: name a file in it"),
        (lambda path: (path / "there").touch() or "there", "there exists: give another name with -o, or --force"),
        (_folder_of_another_user, "there is no folder file"),
        (lambda _: "x" * 300, "nothing can be written there: File name too long"),
        (lambda _: os.fsdecode(b"caf\xe9"), "the name is not UTF-8"),
    ],
    ids=["no folder", "a folder", "a file", "a file for a folder", "long name", "no UTF-8"],
)
@pytest.mark.parametrize("command", ["demo", "merge", "request"])
def test_where_to_write_is_looked_at_first(
    command: str, make: Callable[[Path], str], words: str, speccollect: Speccollect, tmp_path: Path
) -> None:
    """The demo ran, and a server was recorded, before a missing folder was noticed."""
    folder = prepare_folder(tmp_path / "control").parent
    name = make(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=words):
        refuse_output(Path(name), force=False)
    if command == "request":
        from speccollect.config import WindowSettings
        from speccollect.request.session import record_requests
        from speccollect.request.stream import Endpoint

        with pytest.raises(UsageError, match=words):
            record_requests(
                folder,
                Endpoint(urlsplit("http://127.0.0.1:1"), "generate", None, None, 1.0),
                [{}],
                Path(name),
                windows=WindowSettings(),
            )
    else:
        at = ["--dir", str(folder)] if command == "merge" else ["--device", "cpu"]
        code, out, err = speccollect(command, *at, "-o", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert sorted(tmp_path.iterdir()) == before
    assert not read_command(folder).armed


BAD_STATUSES = [
    "{",
    "[1]",
    '{"rank": "x", "pid": "y", "host": 3}',
    '{"rank": 1, "pid": -1, "host": "a"}',
    "[" * 100_000,
    "",
]


@pytest.mark.parametrize("bad", BAD_STATUSES, ids=range(len(BAD_STATUSES)))
def test_a_damaged_status_is_named_and_hides_no_other(bad: str, speccollect: Speccollect, tmp_path: Path) -> None:
    """Ranks that are no numbers could not be sorted beside those that are."""
    folder = prepare_folder(tmp_path / "folder").parent
    (folder / "rank00000.status.json").write_text(json.dumps({"rank": 0, "pid": os.getpid(), "host": host_hash()}))
    (folder / "rank00001.status.json").write_text(bad)
    assert [s.rank for s in read_statuses(folder)] == [0]
    assert unreadable(folder) == ["rank00001.status.json"]
    code, out, err = speccollect("status", "--dir", str(folder))
    assert (code, err) == (0, "")
    assert "rank00001.status.json can't be read: damaged, or not written by a rank" in " ".join(out.split())
    assert str(os.getpid()) in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("merge", "--recording", "-1"),
        ("merge", "--ranks", "0"),
        ("disarm", "--timeout", "-1"),
        ("request", "--input-ids", "-5"),
    ],
)
def test_numbers_that_cannot_be(arguments: tuple[str, ...], speccollect: Speccollect, tmp_path: Path) -> None:
    code, out, err = speccollect(*arguments)
    assert (code, out) == (2, "")
    assert arguments[1] in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["status", "arm", "disarm", "merge"])
@pytest.mark.parametrize("make", ["long", "file", "binary"])
def test_folders_that_are_none(command: str, make: str, speccollect: Speccollect, tmp_path: Path) -> None:
    name = {"long": "x" * 300, "file": "file", "binary": "damaged"}[make]
    (tmp_path / "file").write_text("hello")
    (tmp_path / "damaged").mkdir(mode=0o700)
    (tmp_path / "damaged" / "control").write_bytes(bytes(range(256)))
    code, out, err = speccollect(command, "--dir", name)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("speccollect: ")
    assert name in err


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        *([name, "--help"] for name in ("run", "request", "build", "status", "arm", "disarm", "merge", "demo")),
        ["nonsense"],
        ["request", "--max-tokens", "0"],
    ],
    ids=" ".join,
)
def test_help_is_plain_text_whose_lines_end_where_they_end(
    words: list[str], speccollect: Speccollect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes as wide as the terminal stood around it, filled up with blanks, and around every wrong word."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = speccollect(*words)
    assert code == (0 if "--help" in words else 2)
    lines = (out + err).split("\n")
    assert [line for line in lines if line != line.rstrip() or not line.isascii()] == []
    assert max(len(line) for line in lines if not line.startswith("Error:")) <= 80
    assert any(line.startswith("Usage: speccollect") for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["request", "--url", "http://["], "--url 'http://[' is no address: Invalid IPv6 URL"),
        (["request", "--url", "http://127.0.0.1:99999"], "is no address: Port out of range"),
        (["request", "--url", "http://127.0.0.1:x"], "is no address: Port could not be cast"),
        (["request", "--prompt-file", "latin1"], "--prompt-file latin1: byte 3 is not UTF-8"),
        (["request", "--prompt-file", "blank"], "--prompt-file blank is empty"),
        (["request", "--prompt-file", "latin1", "-o", "nowhere/t.parquet"], "there is no folder nowhere"),
        (["request", "--temperature", "nan"], "'--temperature'"),
        (["demo", "--device", "cpu", "--seed", "9" * 30], "'--seed'"),
        (["run", "--dir", "blank", "--", "true"], "--dir blank is no folder"),
        (["arm", "--dir", "new", "--windows", "record=99999999999"], "record must be from 1 to 2147483647"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_odd_values_are_one_line(words: list[str], said: str, speccollect: Speccollect, tmp_path: Path) -> None:
    """Ports that are none, files of another encoding and seeds of thirty digits ended in tracebacks."""
    (tmp_path / "latin1").write_bytes(b"caf\xe9")
    (tmp_path / "blank").write_text(" \n")
    code, out, err = speccollect(*words)
    assert (code, out, said in err) == (2, "", True), err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blank", "latin1"]


def test_a_server_that_is_not_there_is_named_as_it_was_given(speccollect: Speccollect) -> None:
    code, _, err = speccollect("request", "--url", "http://user:secret@127.0.0.1:1")
    assert (code, err.startswith("speccollect: no server answers at http://127.0.0.1:1 (")) == (1, True), err


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_status_keeps_every_figure_and_the_whole_message(
    columns: str, speccollect: Speccollect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns the advice was broken into single words, each cut, beside cut process numbers."""
    monkeypatch.setenv("COLUMNS", columns)
    folder = prepare_folder(tmp_path / "folder").parent
    advice = "window 2 was cut after 1,234,567 events: make windows shorter ([bold]--windows[/bold] record=10)"
    ranks = (
        RankStatus(0, 1234567, host_hash(), "recording", 3, 8, 123456, 3, 0),
        RankStatus(12, 4194300, host_hash(), "failed", 3, 8, 1234567, 3, 12345, advice),
    )
    for status in ranks:
        write_status(folder, status)
    code, out, err = speccollect("status", "--dir", str(folder))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["rank", "state", "process", "recording", "cycles", "windows", "lost"],
        ["0", "recording,", "process", "gone", "1234567", "3", "123456", "3", "0"],
        ["12", "failed,", "process", "gone", "4194300", "3", "1234567", "3", "12345"],
    ]
    assert lines[4:] == [f"rank 12: {advice}"]
