"""Compiles and loads the keeper of CUPTI's buffers (``cupti_buffers.c``): a C file that needs no headers but the C library's.

Like the reader of Kineto's events it is compiled ahead of time, into the user's own cache, and only loaded in a server.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from speccollect.native.build import NATIVE_VARIABLE, NotBuilt, complaint, is_ours, switched_off

NAME: Final = "cupti_buffers"
SOURCE: Final = Path(__file__).with_name(f"{NAME}.c")
FLAGS: Final = ("-std=gnu99", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


def library_path() -> Path:
    """Where the library of this source and machine lies for this user, or would lie.

    Raises:
        RuntimeError: there is no home folder.
    """
    said = (SOURCE.read_bytes(), FLAGS, platform.machine(), sys.platform)
    key = hashlib.sha256(repr(said).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specanalyze" / f"{NAME}-{key}.so"


def compilers() -> Iterator[str]:
    """C compilers to try, the user's own choice first."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            yield path


def build(*, again: bool = False) -> Path:
    """Compile the library unless it is there already (0.3 s); its path.

    Raises:
        NotBuilt: there can be none here.
    """
    if switched_off():
        raise NotBuilt(f"{NATIVE_VARIABLE}=0")
    if not sys.platform.startswith("linux"):
        raise NotBuilt(f"CUPTI's buffers are kept on Linux alone, not on {sys.platform}")
    try:
        target = library_path()
        if is_ours(target) and not again:
            return target
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        why = "no C compiler (set CC, or install gcc)"
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            for compiler in compilers():
                said = complaint([compiler, *FLAGS, "-o", str(made), str(SOURCE)])
                if said is None:
                    ctypes.CDLL(str(made))  # one that can't be loaded is found out here, not in a server
                    made.chmod(0o600)
                    made.replace(target)
                    return target
                why = f"{compiler}: {said}"
    except (OSError, RuntimeError) as error:
        raise NotBuilt(str(error)) from error
    raise NotBuilt(why)


def load() -> ctypes.CDLL:
    """The library that was built for this user.

    Raises:
        NotBuilt: there is none, or it can't be loaded; the reason in one line.
    """
    if switched_off():
        raise NotBuilt(f"{NATIVE_VARIABLE}=0")
    try:
        path = library_path()
        if not is_ours(path):
            raise NotBuilt("the compiled part is missing (speccollect build makes it)")
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:
        raise NotBuilt(str(error)) from error
