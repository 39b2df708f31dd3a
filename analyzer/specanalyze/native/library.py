"""Finds a compiled helper, or compiles it once into the user's own cache; None where neither is possible.

A helper is one C file of this package without dependencies. What it computes has a Python form of equal answers, which is
used where there is no compiler. ``SPECANALYZE_NATIVE=0`` switches the helpers off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
_FLAGS: Final = ("-O3", "-shared", "-fPIC", "-std=c99")
_COMPILE_SECONDS: Final = 60


@cache
def library(name: str, *, compile_it: bool = True) -> ctypes.CDLL | None:
    """The helper made of ``name.c``.

    Args:
        name: name of the C file, without its ending.
        compile_it: compile it if it has not been yet (0.3 s); otherwise only an existing one is taken.
    """
    if os.environ.get("SPECANALYZE_NATIVE") == "0" or sys.platform == "win32":
        return None
    source = (FOLDER / f"{name}.c").read_bytes()
    key = hashlib.sha256(source + repr((_FLAGS, platform.machine(), sys.platform)).encode()).hexdigest()[:16]
    for path in (FOLDER / f"{name}.so", _cache() / f"{name}-{key}.so"):
        if _is_ours(path):
            return _loaded(path)
    return _loaded(path) if compile_it and _compiled(FOLDER / f"{name}.c", path) else None


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specanalyze"


def _is_ours(path: Path) -> bool:
    """An existing file that nobody but its owner (we, or who installed the package) could have changed."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), FOLDER.stat().st_uid, 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _loaded(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None  # made for another C library, or on a file system that forbids code


def _compiled(source: Path, target: Path) -> bool:
    """Compile under a temporary name and rename, so that two processes never see half a file."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return False
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [compiler, *_FLAGS, "-o", str(made), str(source)]
            if subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False).returncode:
                return False
            made.chmod(0o600)
            made.replace(target)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return _is_ours(target)
