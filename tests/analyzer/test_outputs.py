"""Where results are written: looked at before the work, never over a file unless asked, whatever the command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from specanalyze.cli import run
from specanalyze.commands import COMMANDS

SAMPLE = Path(__file__).parents[2] / "samples" / "embedded_tp2.parquet"
ENDINGS = {"report": ".html", "import": ".parquet", "redact": ".parquet", "export": ".pftrace"}
"""Commands that write something else than a table."""
MORE = {
    "breakeven": ["--baseline", "absent.parquet"],
    "export": ["--to", "perfetto"],
    "compare": ["other.parquet"],
    "whatif": ["--steps", "3"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome(name: str, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """Exit code and stderr of a command on a trace that isn't there: the output is what it meets first."""
    words = [name, "absent.parquet", *MORE.get(name, []), "-o", str(output), *more]
    code = run(words)
    shown = capsys.readouterr()
    assert shown.out == ""
    return code, shown.err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_cannot_be_is_refused_before_anything_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = ENDINGS.get(name, ".csv")
    kept = tmp_path / f"kept{ending}"
    kept.write_text("kept")
    (tmp_path / f"folder{ending}").mkdir()
    if name != "export":  # Perfetto takes any name
        code, said = outcome(name, tmp_path / "out.xyz", capsys)
        assert (code, said.count("\n"), "must end in" in said) == (2, 1, True)
    code, said = outcome(name, tmp_path / "nowhere" / f"out{ending}", capsys)
    assert (code, said.count("\n"), "folder" in said) == (2, 1, True)
    code, said = outcome(name, kept, capsys)
    assert (code, said.count("\n"), "exists" in said) == (2, 1, True)
    code, said = outcome(name, tmp_path / f"folder{ending}", capsys, "--force")
    assert (code, said.count("\n"), "folder" in said) == (2, 1, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"folder{ending}", f"kept{ending}"]
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("name", ["import", "redact"])
def test_a_trace_gets_no_name_that_nothing_opens(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """import wrote it and then failed on reading it back; redact wrote it and was content."""
    code, said = outcome(name, Path(os.fsdecode(b"caf\xe9.parquet")), capsys)
    assert (code, said.count("\n"), "the name is not UTF-8" in said) == (2, 1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_force_stands_where_it_likes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``-o FILE --force`` and ``--force -o FILE`` are the same: the trace that isn't there is what is complained of."""
    kept = tmp_path / f"kept{ENDINGS.get(name, '.csv')}"
    kept.write_text("kept")
    for more in (["-o", str(kept), "--force"], ["--force", "-o", str(kept)]):
        assert run([name, "absent.parquet", *MORE.get(name, []), *more]) == 2
        assert "no such file" in capsys.readouterr().err
    assert kept.read_text() == "kept"


def test_a_place_where_nothing_can_be_written_is_found_first(capsys: pytest.CaptureFixture[str]) -> None:
    """/proc lets a directory be listed and searched, by root even be called writable, and no file be made."""
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc on this system")
    for name in COMMANDS:
        code, said = outcome(name, Path(f"/proc/out{ENDINGS.get(name, '.csv')}"), capsys)
        assert (code, said.count("\n"), "nothing can be written there" in said) == (2, 1, True)


def test_a_table_gets_a_name_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parents[2] / "samples" / "embedded_tp2.parquet"
    for ending in (b".csv", b".parquet"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/table-\xff" + ending))
        assert run(["env", str(sample), "-o", str(path)]) == 0
        assert path.stat().st_size > 0
    capsys.readouterr()


WRITING = {
    "breakdown": (),
    "phases": (),
    "env": (),
    "redact": (),
    "import": (),
    "compare": (str(SAMPLE),),
    "sweep": (str(SAMPLE),),
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a link to it"])
def test_no_output_replaces_the_recording(
    command: str, linked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``breakdown trace.parquet -o trace.parquet --force`` left a table of two rows where the recording had been."""
    folder = tmp_path / "folder"
    folder.mkdir()
    trace = folder / "trace.parquet"
    shutil.copyfile(SAMPLE, trace)
    output = trace
    if linked:
        output = tmp_path / "link.parquet"
        output.symlink_to(trace)
    for given in (trace, folder):
        assert run([command, str(given), *WRITING[command], "-o", str(output), "--force"]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err == (
            f"error: --output {output} is a file of the recording itself, which it would replace: choose another name\n"
        )
        assert trace.read_bytes() == SAMPLE.read_bytes()
