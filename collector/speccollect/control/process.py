"""Which process a number means: process ids are used again, and containers on one host have numbers of their own."""

from __future__ import annotations

import functools
import hashlib
import os
import socket


def host_hash() -> str:
    """The host's name as traces show it: enough to tell hosts apart, not to name them."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def started_ticks(pid: int) -> int | None:
    """When a process of this namespace began, in clock ticks since the machine did; None where nothing tells it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # field 22 of proc(5); the second one, in brackets, may hold blanks and brackets
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> str | None:
    """What this process's number counts in, such as ``pid:[4026531836]``; None where nothing tells it.

    Containers with ``--network host`` have the host's name, and process numbers of their own all the same.
    """
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def own_start(pid: int) -> tuple[int | None, str | None]:
    """``started_ticks`` and ``pid_namespace`` of this process, whose number is the argument: another one after a fork."""
    return started_ticks(pid), pid_namespace()


def runs(pid: int, host: str, started: int | None = None, namespace: str | None = None) -> bool | None:
    """Whether a process that told this of itself still runs.

    Args:
        host: its ``host_hash``.
        started, namespace: what ``own_start`` told it; None where it told nothing.

    Returns:
        None when it can't be known: it lives on another host or in another container.
    """
    if host != host_hash() or (namespace is not None and namespace != (pid_namespace() or namespace)):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    now = started_ticks(pid)
    return started is None or now is None or now == started
