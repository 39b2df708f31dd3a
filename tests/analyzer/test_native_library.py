"""Compiled helpers are optional, private to the user, and never change an answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")


def python(code: str, cache: Path, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOADS = "from specanalyze.native.library import library; print(library('overlay') is not None)"


@NEEDS_COMPILER
def test_compiled_once_for_the_user_alone(tmp_path: Path) -> None:
    assert python(LOADS, tmp_path) == "True"
    (made,) = (tmp_path / "specanalyze").iterdir()
    assert made.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "specanalyze").stat().st_mode & 0o777 == 0o700
    assert python(LOADS, tmp_path, PATH="/nowhere") == "True", "the second process needs no compiler"


def test_without_a_compiler_there_is_none(tmp_path: Path) -> None:
    assert python(LOADS, tmp_path, PATH="/nowhere", CC="") == "False"


@NEEDS_COMPILER
def test_switched_off(tmp_path: Path) -> None:
    assert python(LOADS, tmp_path, SPECANALYZE_NATIVE="0") == "False"
    assert list(tmp_path.iterdir()) == []


@NEEDS_COMPILER
def test_a_library_that_others_may_write_is_made_anew(tmp_path: Path) -> None:
    python(LOADS, tmp_path)
    (made,) = (tmp_path / "specanalyze").iterdir()
    made.chmod(0o666)
    made.write_bytes(b"not ours")
    assert python(LOADS, tmp_path) == "True"
    assert made.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"not a library"])
@NEEDS_COMPILER
def test_a_library_that_does_not_load_is_no_error(tmp_path: Path, damage: bytes) -> None:
    python(LOADS, tmp_path)
    (made,) = (tmp_path / "specanalyze").iterdir()
    made.write_bytes(damage)
    assert python(LOADS, tmp_path) == "False"


def test_the_answer_is_the_same_without(tmp_path: Path, reference: Path) -> None:
    trace = reference / "traces" / "h200_tp2_probe" / "rank0.json.gz"
    code = f"from specanalyze.cli import run; run(['breakdown', {str(trace)!r}, '--phase', 'all', '--json'])"
    with_them = python(code, tmp_path / "one")
    assert json.loads(with_them) == json.loads(python(code, tmp_path / "two", SPECANALYZE_NATIVE="0"))
