"""Every command line in the README and the docs works: run where it can run, else held to the command's own options.

Languages of fenced blocks say which: ``bash``, ``python`` and ``sql`` are run, one folder a page; ``console-server``
needs a server or a GPU and is only parsed; ``console`` is written by scripts/render_docs.py (test_real_outputs.py).
Commands in running text and tables (`specanalyze ...`) are parsed, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import docs_script
import pytest
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "*/README.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
]
FENCE = re.compile(
    r"(?P<mark><!-- run: \w+ -->\n)?^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`((?:specanalyze|speccollect) [^`\n]+)`")
OURS = ("specanalyze", "speccollect")
HELD_ELSEWHERE = (
    ".",
    "pip",
    "pytest",
    "python",
    "ruff",
    "mypy",
    "mkdocs",
    "git",
    "pre-commit",
    "scripts/install_nsys.sh",
)
"""What bash blocks may also hold: installing and developing, which .ci/run does."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> Iterator[tuple[str, str, bool]]:
    """(language, code, run by .ci/run) of each fenced block."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        yield found["language"], textwrap.dedent(found["code"]), found["mark"] is not None


def command_lines(code: str) -> Iterator[list[str]]:
    """Words of each shell command: continued lines joined, comments, pipes, redirections and assignments dropped."""
    for line in code.replace("\\\n", " ").splitlines():
        for part in re.split(r"\s(?:\||&&|;)\s", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"^\w+=", words[0]):
                words.pop(0)
            cut = next((at for at, word in enumerate(words) if word in (">", "2>", "<")), len(words))
            if words[:cut]:
                yield words[:cut]


def parse(words: list[str]) -> None:
    """Fail unless the command and all its options exist."""
    if words[0] == "specanalyze":
        from specanalyze.cli import app
    else:
        from speccollect.cli.app import app
    group = get_command(app)
    if words[1].startswith("-"):
        return
    context = group.make_context(words[0], [words[1], "--help"], resilient_parsing=True)
    command = group.get_command(context, words[1])  # type: ignore[attr-defined]
    assert command is not None, f"{words[0]} has no command {words[1]}"
    arguments = words[2 : words.index("--")] if "--" in words else words[2:]
    known = {
        option: parameter for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in arguments:
        if word.startswith("-") and not re.fullmatch(r"-\d+", word):
            assert word.split("=")[0] in {*known, "--help", "-h"}, f"{' '.join(words[:2])} has no option {word}"


def parsed_lines(page: Path) -> list[list[str]]:
    found: list[list[str]] = []
    for language, code, _ in blocks(page):
        if language in ("console-server", ""):
            named = [
                line
                for line in code.splitlines()
                if language or re.match(r"(\w+=\S+ )*(specanalyze|speccollect) ", line)
            ]
            found += command_lines("\n".join(named))
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return found + [shlex.split(code) for code in INLINE.findall(text) if "..." not in code and "…" not in code]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_exist(page: Path) -> None:
    for words in parsed_lines(page):
        if words[0] in OURS:
            parse(words)


def run_sql(code: str, folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        database.execute(f"SET file_search_path = '{folder}'")
        for statement in code.split(";"):
            if statement.strip():
                assert database.execute(statement).fetchall(), statement


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b[0] in ("bash", "python", "sql") for b in blocks(p))], ids=name
)
def test_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECANALYZE")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    environment = kept | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    namespace: dict[str, object] = {"__name__": "page"}
    for language, code, elsewhere in blocks(page):
        if elsewhere:
            continue
        if language == "bash":
            for words in command_lines(code):
                assert words[0] in (*OURS, *HELD_ELSEWHERE), (
                    f"{name(page)}: {words[0]} is no command that is known here"
                )
                if words[0] == "specanalyze":
                    returned, printed = docs_script.render_docs().called(words, tmp_path)
                    assert returned == 0, f"{shlex.join(words)}\n{printed}"
                elif words[0] == "speccollect":
                    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
                    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        elif language == "python":
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                exec(compile(code, name(page), "exec"), namespace)
        elif language == "sql":
            run_sql(code, tmp_path)


def test_the_readme_has_the_blocks_that_ci_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark in ("main", "test"):
        assert text.count(f"<!-- run: {mark} -->\n```bash\n") == 1


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(AssertionError, match="has no option --by-moon"):
        parse(["specanalyze", "breakdown", "trace.parquet", "--by-moon"])
    with pytest.raises(AssertionError, match="no command breakdwon"):
        parse(["specanalyze", "breakdwon", "trace.parquet"])
