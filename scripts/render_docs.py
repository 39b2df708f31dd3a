#!/usr/bin/env python3
"""Fills the real outputs into the README and the docs.

A page says what to run in a comment, and this script writes what it printed:

    <!-- real: specanalyze phases samples/sglang_tp2_eagle3_steps2.parquet -->
    ```console
    $ specanalyze phases samples/sglang_tp2_eagle3_steps2.parquet
    ...
    ```
    <!-- /real -->

``real head=20`` keeps the first lines; ``real depth=3`` reads the output as JSON and shows its layout: that many levels,
one element of each list, one rank, six digits. Commands run at 80 columns without colour, in a folder where ``samples/`` and ``scripts/`` are the
repository's.

    python scripts/render_docs.py            rewrite the pages
    python scripts/render_docs.py --check    exit 1 and name the pages that are stale
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "analyzer/README.md", "samples/README.md", "docs/*.md")
COLUMNS = 80
BLOCK = re.compile(
    r"(?P<open><!-- real(?: (?P<how>head|depth)=(?P<count>\d+))?: (?P<command>[^\n]+?) -->\n).*?(?P<close><!-- /real -->)",
    re.DOTALL,
)
PROVENANCE = re.compile(r"(<!-- provenance -->\n).*?(<!-- /provenance -->)", re.DOTALL)
LONGEST_TEXT = 48
"""Characters of a string in a JSON layout."""


def pages() -> list[Path]:
    """Every page that can hold a real output."""
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def environment() -> dict[str, str]:
    """What commands see: 80 columns, no colour, our own scripts first on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPECANALYZE", "FORCE_COLOR", "CLICOLOR"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {"PATH": path, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}


@functools.cache
def printed(command: str) -> str:
    """What a command printed on stdout and stderr (JSON: stdout alone), trailing blanks removed.

    Raises:
        RuntimeError: it failed.
    """
    words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("samples", "scripts"):
            (Path(folder) / name).symlink_to(ROOT / name)
        code, text = called(words, Path(folder)) if words[0] == "specanalyze" else _started(words, Path(folder))
    if code:
        raise RuntimeError(f"{command}: exit {code}\n{text}")
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def called(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of the analyzer, in this process: thirty starts of Python take longer than the commands."""
    from specanalyze.cli import run

    out = io.StringIO()
    ignored = io.StringIO() if "--json" in words else out
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.dict(os.environ, environment(), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(ignored),
        ):
            code = run(words[1:])
    finally:
        os.chdir(before)
    return code, out.getvalue() + ("" if ignored is out or not code else ignored.getvalue())


def _started(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of any other command."""
    done = subprocess.run(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    return done.returncode, done.stdout


def layout(value: Any, depth: int) -> Any:
    """A JSON document cut to ``depth`` levels, one element a list, long texts shortened."""
    if isinstance(value, dict):
        if depth > 0 and len(value) > 1 and all(key.isdigit() for key in value):  # ranks: one stands for all
            key = next(iter(value))
            return {key: layout(value[key], depth - 1), "…": f"… {len(value)} in all"}
        return {key: layout(inner, depth - 1) for key, inner in value.items()} if depth > 0 else "{…}"
    if isinstance(value, list):
        if depth <= 0 or not value:
            return "[…]" if value else []
        return [layout(value[0], depth - 1), *([f"… {len(value)} in all"] if len(value) > 1 else [])]
    if isinstance(value, float):
        return float(f"{value:.6g}")  # the last digits of a mean depend on the machine's vector width
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return value[: LONGEST_TEXT - 1] + "…"
    return value


def block(command: str, how: str | None, count: int) -> str:
    """The fenced block of one command."""
    text = printed(command)
    if how == "depth":
        text = json.dumps(layout(json.loads(text), count), indent=2, ensure_ascii=False)
        text = re.sub(r'"(\{…\}|\[…\]|… \d+ in all)"', r"\1", text)
    elif how == "head":
        lines = text.split("\n")
        text = "\n".join(lines[:count] + (["..."] if len(lines) > count else []))
    return f"```console\n$ {command}\n{text}\n```\n"


def render(text: str) -> str:
    """The page with every real output as it is now."""

    def fill(found: re.Match[str]) -> str:
        return found["open"] + block(found["command"], found["how"], int(found["count"] or 0)) + found["close"]

    def table(found: re.Match[str]) -> str:
        provenance = importlib.import_module("sample_provenance").provenance  # beside this script

        return f"{found[1]}{provenance(ROOT / 'samples')}{found[2]}"

    return PROVENANCE.sub(table, BLOCK.sub(fill, text))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is stale")
    parser.add_argument("page", nargs="*", type=Path, help="pages; all by default")
    arguments = parser.parse_args()
    stale = []
    for page in arguments.page or pages():
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if after != before:
            stale.append(page)
            if not arguments.check:
                page.write_text(after, encoding="utf-8")
    for page in stale:
        print(f"{'stale' if arguments.check else 'rewritten'}: {page}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
