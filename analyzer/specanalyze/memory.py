"""The most memory that a command takes. What needs more ends with one line, whatever its file holds or claims.

A thread of the command looks at the process's resident memory, the more often the less room there is. It needs no help from readers
and analyses, and it sees the memory of libraries too. Reading JSON in one piece holds Python's lock, so that pieces are weighed before
they are read (``refuse_beyond``).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from specschema.errors import TraceError, UsageError

SETTING: Final = "SPECANALYZE_MEMORY"
SHARE: Final = 0.75
"""Of the memory that is free when a command starts."""
LEAST_BYTES: Final = 256 << 20
"""The program and its libraries alone take 100 to 150 MB."""
JSON_EXPANSION: Final = 24
"""Bytes of Python objects for one of JSON: `{},` becomes an empty dict, 64 bytes and the 8 that name it."""
_NOTICED: Final = 16 << 20
"""Smaller steps are left to the thread."""
_FASTEST: Final = 8 << 30
"""Bytes a second: no process fills memory faster."""
_SHORTEST_S, _LONGEST_S = 0.005, 0.25
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class _Limit:
    """What ``watch`` was told; nothing is refused before."""

    bytes: int | None = None
    source = ""
    name = ""

    @classmethod
    def line(cls) -> str:
        return (
            f"{cls.name} needs more than {(cls.bytes or 0) >> 20} MiB of memory ({cls.source}); "
            f"set {SETTING}, such as 16G, to allow more"
        )


def limit_bytes() -> int | None:
    """The limit: what SPECANALYZE_MEMORY says ("4G", "800M", bytes), else SHARE of what is free beside what this process has.

    None where nothing tells.

    Raises:
        UsageError: SPECANALYZE_MEMORY is no size.
    """
    asked = os.environ.get(SETTING, "").strip()
    if asked:
        size = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", asked.lower())
        if size is None or int(size[1]) * _UNITS[size[2]] < LEAST_BYTES:
            raise UsageError(f"{SETTING}={asked}: give a size of at least {LEAST_BYTES >> 20}M, such as 4G")
        return int(size[1]) * _UNITS[size[2]]
    free = free_bytes()
    return None if free is None else max(LEAST_BYTES, (resident_bytes() or 0) + int(SHARE * free))


def free_bytes() -> int | None:
    """Memory that may be used without swapping, by the machine and by the control group; None where nothing tells."""
    told: list[int] = []
    # No Linux, or no control group of its own: then there is nothing to read.
    with contextlib.suppress(OSError, ValueError):
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        told.append(int(facts["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="ascii"))  # "max" where there is none
        told.append(max(0, most - int((group / "memory.current").read_text(encoding="ascii"))))
    return min(told, default=None)


def resident_bytes() -> int | None:
    """Resident memory of this process; None where nothing tells."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def watch(name: str, tell: Callable[[str], None], *, processes: int = 1) -> None:
    """From now on this process ends with exit code 1 where it takes more than its share of the limit; ``tell`` gets one line before.

    A second call changes the name only.

    Args:
        name: what is read.
        tell: called from a thread of its own.
        processes: how many share the limit.

    Raises:
        UsageError: SPECANALYZE_MEMORY is no size.
    """
    _Limit.name = name
    if _Limit.bytes is not None:
        return
    limit = limit_bytes()
    if limit is None or resident_bytes() is None:
        return
    _Limit.bytes = limit // processes
    _Limit.source = SETTING if os.environ.get(SETTING) else "three quarters of what was free"
    if processes > 1:
        _Limit.source += f", shared by {processes} processes"
    threading.Thread(target=_look, args=(tell,), daemon=True, name="memory").start()


def refuse_beyond(need: int) -> None:
    """Before a step that takes memory in one go.

    Args:
        need: bytes, at most.

    Raises:
        TraceError: with them the process would take more than its limit.
    """
    if need > _NOTICED and _Limit.bytes is not None and (resident_bytes() or 0) + need > _Limit.bytes:
        raise TraceError(_Limit.line())


def _look(tell: Callable[[str], None]) -> None:
    while True:
        room = (_Limit.bytes or 0) - (resident_bytes() or 0)
        if room < 0:
            tell(_Limit.line())
            os._exit(1)
        time.sleep(min(max(room / _FASTEST, _SHORTEST_S), _LONGEST_S))
