"""The command line itself: what is named, what help says, what a call imports, and what wrong words get."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from story import sweep_recording

import specanalyze.commands
from specanalyze.argument_values import plain_values
from specanalyze.cli import app, run
from specanalyze.commands import COMMANDS


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run([*words])
    out, err = capsys.readouterr()
    return code, out, err


def imported(*words: str) -> set[str]:
    """Modules that are loaded when a real process has run one command line."""
    code = (
        "import sys\nfrom specanalyze.cli import run\n"
        f"code = run({[*words]!r})\n"
        "sys.stderr.write(f'{code} ' + ' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    code, *modules = done.stderr.split("\n")[-1].split(" ")
    assert code == "0", done.stderr
    return set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    group = typer.main.get_command(app)
    context = group.make_context("specanalyze", [name], resilient_parsing=True)
    command = group.get_command(context, name)  # type: ignore[attr-defined]
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].summary
    assert command.name == name


def test_every_module_of_a_command_is_in_the_table() -> None:
    folder = Path(specanalyze.commands.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "\ndef register(" in path.read_text(encoding="utf-8")}
    assert modules == {command.module for command in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_explains_every_parameter_and_ends_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, name, "--help")
    assert code == 0
    help_text, _, examples = out.partition("\nExamples:\n")
    assert all(line.startswith("  specanalyze ") for line in examples.splitlines())
    assert f"  specanalyze {name} " in examples
    assert max(len(line) for line in help_text.splitlines()) <= 100
    probe = typer.Typer()
    import_module(f"specanalyze.commands.{COMMANDS[name].module}").register(probe)
    callback = probe.registered_commands[0].callback
    assert callback is not None
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        option = parameter.annotation.__metadata__[0]
        assert option.help, parameter.name
        assert " ".join(option.help.split()) in " ".join(help_text.split()), parameter.name


def test_help_groups_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-h")
    assert code == 0
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Where the time goes:", "What to change:", "What was recorded:", "Files:", "Options:"]
    starts = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "]
    assert [word for word in starts if word in COMMANDS] == list(COMMANDS)


def test_help_imports_neither_rich_nor_a_command_nor_what_reads_traces() -> None:
    modules = imported("--help")
    roots = {name.split(".")[0] for name in modules}
    assert not roots & {"rich", "markdown_it", "pygments", "pydantic", "polars", "numpy", "pyarrow", "msgspec"}
    assert {name for name in modules if name.startswith("specanalyze.commands.")} == set()


def test_help_of_one_command_imports_that_command_alone() -> None:
    modules = imported("kernels", "--help")
    commands = {f"specanalyze.commands.{command.module}" for command in COMMANDS.values()}
    assert modules & commands == {"specanalyze.commands.kernels"}
    assert not {name.split(".")[0] for name in modules} & {"rich", "pydantic", "polars", "numpy", "pyarrow"}


HEAVY = {"pyarrow", "isal", "sqlite3", "rich", "pydantic", "markdown_it", "duckdb", "ray", "altair"}
"""What only some forms of traces and some outputs need."""


def heavy(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules} & HEAVY


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A small torch.profiler file with one replay."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 12, "dur": 5, "pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x64", "ts": 20, "dur": 30, "pid": 0, "tid": 7}
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "ts": 10, "dur": 50, "pid": 1, "tid": 1},
        launch | {"args": {"correlation": 7}},
        kernel | {"args": {"correlation": 7, "device": 0, "stream": 7}},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}, indent=1))
    return path


def test_profiler_files_are_read_without_what_other_forms_need(profiled: Path) -> None:
    assert heavy(imported("breakdown", str(profiled), "--json")) == set()
    assert heavy(imported("breakdown", str(profiled))) == {"rich"}
    packed = profiled.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(profiled.read_bytes()))
    assert heavy(imported("breakdown", str(packed), "--json")) == {"isal"}


def test_a_trace_is_read_without_what_other_forms_need(tmp_path: Path) -> None:
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    modules = imported("breakdown", str(trace), "--json")
    assert heavy(modules) == {"pyarrow"}
    ours = {name for name in modules if name.startswith("specanalyze.")}
    assert not {name for name in ours if re.search(r"\.(nsys_(report|sqlite|parquet)|report|export|perfetto)\b", name)}


def test_without_a_command_the_help_is_shown_and_it_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys)
    assert code == 2
    assert "Where the time goes:" in out + err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["breakdwn", "x"], "Error: No such command 'breakdwn'. Did you mean breakdown or breakeven?"),
        (["qqq"], "Error: No such command 'qqq'."),
        (["kernels", "x", "--top", "ten"], "Error: Invalid value for '--top': 'ten' is not a whole number"),
        (["kernels", "x", "--top", "0"], "Error: Invalid value for '--top': 0 is less than 1"),
        (["kernels"], "Error: Missing argument 'TRACE...'."),
        (["kernels", ""], "Error: Invalid value for 'TRACE...': an empty name; is a variable of the shell unset?"),
        (
            ["kernels", "x", "-o", ""],
            "Error: Invalid value for '--output' / '-o': an empty name; is a variable of the shell unset?",
        ),
        (["compare", "", "x"], "error: a recording has an empty name; is a variable of the shell unset?"),
        (["sweep", ""], "error: a recording has an empty name; is a variable of the shell unset?"),
        (
            ["env", "http://host/x.json"],
            "error: http:/host/x.json: no such file or folder; recordings are read from disk, s3:// and gs://, not from http://",
        ),
        (["export", "x", "-o", "y"], "Error: Missing option '--to'."),
    ],
)
def test_wrong_words_get_one_line_that_says_what_is_wrong(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == line


def test_values_are_what_typer_itself_would_make_of_them() -> None:
    """Our own conversion and typer's, on the same words, give equal values of equal types."""
    words = ["a.parquet", "b c.parquet", "--steps", "5", "--scale", "a=1", "--scale", "b=2", "--json", "-o", "x.csv"]
    group = typer.main.get_command(app)
    outer = group.make_context("specanalyze", ["whatif"], resilient_parsing=True)
    ours = group.get_command(outer, "whatif").make_context("whatif", [*words]).params  # type: ignore[attr-defined]
    probe = typer.Typer()
    import_module("specanalyze.commands.whatif").register(probe)
    theirs = typer.main.get_command(probe).make_context("whatif", [*words]).params
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in ours.items()} == {
        k: tuple(v) if isinstance(v, list) else v for k, v in theirs.items()
    }
    assert list(ours["traces"]) == [Path("a.parquet"), Path("b c.parquet")]
    assert (ours["steps"], ours["tree"], ours["json"], ours["force"]) == (5, None, True, False)


def test_parameters_of_other_types_are_left_to_typer() -> None:
    def made(share: float = 0.5, count: int = 1) -> None: ...

    probe = typer.Typer(add_completion=False)
    probe.command()(made)
    command = typer.main.get_command(probe)
    plain_values(command.params)
    hooked = {p.name for p in command.params if getattr(p, "_runtime_param", None) is not None}
    assert hooked <= {"count"}


@pytest.mark.parametrize(
    ("typed", "word", "wanted"),
    [
        ("specanalyze br", 1, ["breakdown", "breakeven"]),
        ("specanalyze ", 1, list(COMMANDS)),
        ("specanalyze breakdown --ph", 2, ["--phase", "--phase-map"]),
        ("specanalyze --ver", 1, ["--version"]),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, word: int, wanted: list[str]) -> None:
    asked = {"_SPECANALYZE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(word)}
    done = subprocess.run(
        [Path(sys.executable).with_name("specanalyze")],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == wanted
    assert done.stderr == ""


def test_a_whole_process_prints_all_of_its_output_and_writes_all_of_its_file(tmp_path: Path) -> None:
    """The command ends without taking the interpreter apart: nothing may be lost by that."""
    trace = sweep_recording(2, cycles=60, traced=20).write(tmp_path)
    command = [sys.executable, "-m", "specanalyze"]
    alone = subprocess.run(
        [*command, "kernels", trace, "--json"], capture_output=True, text=True, check=True, timeout=120
    )
    assert alone.stdout.endswith("}\n")
    table = tmp_path / "kernels.parquet"
    done = subprocess.run(
        [*command, "kernels", trace, "--json", "-o", table], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == alone.stdout
    assert table.read_bytes()[-4:] == b"PAR1"
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([*command, "kernels", trace, "--json"], stdout=file, check=True, timeout=120)
    assert (tmp_path / "out").read_text() == alone.stdout


def test_temporary_folders_are_gone_and_the_exit_code_stays(tmp_path: Path) -> None:
    """An Nsight report is exported to a folder that is removed when nobody needs it, at the latest when the command ends."""
    folder = tmp_path / "exported"
    folder.mkdir()
    code = (
        "import shutil, sys, weakref\nfrom specanalyze.__main__ import _leave\n"
        f"tables = set()\nweakref.finalize(tables, shutil.rmtree, {str(folder)!r})\n"
        "sys.stdout.write('x' * 100_000)\n_leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 100_000, "")
    assert not folder.exists()
