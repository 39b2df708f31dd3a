"""Compiles the reader of Kineto's events for the torch that is installed, once, into the user's own cache.

Never on a serving thread: ``speccollect build``, ``run`` and ``request`` compile (20 s of CPU time, once); a server only loads what is
there. Without a C++ compiler, Python's headers or a torch whose classes fit, the Python reader does the same work.
``SPECANALYZE_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

NATIVE_VARIABLE: Final = "SPECANALYZE_NATIVE"
"""0 switches compiled helpers off."""

NAME: Final = "kineto_reader"
SOURCE: Final = Path(__file__).with_name(f"{NAME}.cpp")
_FLAGS: Final = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
_STANDARDS: Final = ("-std=c++20", "-std=c++17")  # newer torch needs the first, older compilers know the second
_COMPILE_SECONDS: Final = 300


class NotBuilt(Exception):
    """Why there is no compiled reader, in one line."""


def switched_off() -> bool:
    """Whether the environment forbids compiled helpers."""
    return os.environ.get(NATIVE_VARIABLE) == "0" or sys.platform == "win32"


def torch_folder() -> Path | None:
    """Folder of the torch that this interpreter would import, without importing it."""
    loaded = sys.modules.get("torch")
    if loaded is not None and getattr(loaded, "__file__", None):
        return Path(str(loaded.__file__)).parent
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found is not None and found.origin else None


def library_path(torch: Path) -> Path:
    """Where the reader for this torch, this Python and this user lies, or would lie.

    Its name holds what it was made from: our source and flags, torch's version file, size and time of its library (which
    tell builds of one version apart), the interpreter and the machine.
    """
    said: list[Any] = [SOURCE.read_bytes(), _FLAGS, _STANDARDS, sysconfig.get_config_var("SOABI"), platform.machine()]
    said.append((torch / "version.py").read_bytes())
    for name in ("libtorch_cpu.so", "libtorch.so"):
        library = torch / "lib" / name
        if library.exists():
            status = library.stat()
            said.append((name, status.st_size, status.st_mtime_ns))
    key = hashlib.sha256(repr(said).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specanalyze" / f"{NAME}-{key}.so"


def is_ours(path: Path) -> bool:
    """An existing file that nobody but we (or root) could have put there or changed."""
    try:
        file, folder = path.stat(), path.parent.stat()
    except OSError:
        return False
    return all(s.st_uid in (os.getuid(), 0) and not s.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for s in (file, folder))


def compilers() -> Iterator[str]:
    """C++ compilers to try, the user's own choice first."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            yield path


def _abi_macros() -> list[str]:
    """What torch's own modules say of their pybind11, where they say it: only equal ones share their classes."""
    import torch

    macros = []
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if isinstance(value, str):
            macros.append(f'-DPYBIND11_{name}="{value}"')
    abi = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)
    return [*macros, f"-D_GLIBCXX_USE_CXX11_ABI={int(bool(abi))}"]


def _arguments(torch: Path, target: Path) -> list[str]:
    include = torch / "include"
    libraries = torch / "lib"
    return [
        *_FLAGS,
        *_abi_macros(),
        f"-I{include}",
        f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-I{sysconfig.get_path('include')}",
        "-o",
        str(target),
        str(SOURCE),
        f"-L{libraries}",
        "-ltorch_cpu",
        "-lc10",
        f"-Wl,-rpath,{libraries}",
    ]


def build(*, again: bool = False) -> Path:
    """Compile the reader unless it is there already; its path.

    Imports torch. The file is loaded and tried in a process of its own before it gets its name, so that one that ends the
    process never reaches a server.

    Raises:
        NotBuilt: there can be none here.
    """
    if switched_off():
        raise NotBuilt(f"{NATIVE_VARIABLE}=0")
    torch = torch_folder()
    if torch is None:
        raise NotBuilt("torch is not installed for this Python")
    try:
        target = library_path(torch)
        if is_ours(target) and not again:
            return target
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _compiled(torch, target)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise NotBuilt(str(error)) from error


def ensure(say: Callable[[str], None]) -> None:
    """Build the reader if it is missing and can be had; ``say`` is told when that takes time, and why it failed. Never raises.

    What failed once is tried again only by ``build``. The keeper of CUPTI's buffers is built beside it, without a word: it takes
    no time, and a recording that would need it says what it lacks.
    """
    from speccollect.native import cupti_library

    with contextlib.suppress(NotBuilt):
        cupti_library.build()
    torch = None if switched_off() else torch_folder()
    if torch is None:
        return
    try:
        target = library_path(torch)
        if is_ours(target) or _failed(target).exists() or next(compilers(), None) is None:
            return
        say(
            "the reader of the profiler's events is compiled, once (20 s of CPU time; SPECANALYZE_NATIVE=0 leaves it out)"
        )
        build()
    except (NotBuilt, OSError, RuntimeError) as error:
        say(f"it could not be compiled ({error}); the Python reader does the same")
        with contextlib.suppress(OSError, UnboundLocalError):
            _failed(target).write_text(str(error), encoding="utf-8")


def _failed(target: Path) -> Path:
    return target.with_suffix(".failed")


def _compiled(torch: Path, target: Path) -> Path:
    why = "no C++ compiler (set CXX, or install g++)"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / f"{NAME}.so"
        arguments = _arguments(torch, made)
        for compiler in compilers():
            for standard in _STANDARDS:
                said = complaint([compiler, standard, *arguments])
                if said is None:
                    said = complaint([sys.executable, "-m", "speccollect.native.trial", str(made)])
                    if said is None:
                        made.chmod(0o600)
                        made.replace(target)
                        _failed(target).unlink(missing_ok=True)
                        return target
                why = f"{compiler} {standard}: {said}"
    raise NotBuilt(why)


def complaint(command: Sequence[str]) -> str | None:
    """None where the command ended well, else its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return f"exit code {done.returncode}: {told.strip()[:300]}"


def load(path: Path) -> ModuleType:
    """The module in a file, under no name: a fork in the middle of this leaves no half of it among the child's modules.

    Raises:
        ImportError: it can't be loaded.
    """
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
