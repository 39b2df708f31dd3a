"""What a rank says about itself: FOLDER/rank00003.status.json, replaced as a whole so that nobody reads half of it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speccollect.control.process import runs

STATES: Final = ("idle", "armed", "recording", "writing", "done", "failed")
"""idle: nothing asked; armed: phases; recording: inside a window; writing: disarmed, files not yet closed;
done: all files of the recording closed; failed: the collector switched itself off."""

STATUS_PATTERN: Final = "rank*.status.json"  # rank00003.status.json
_STATUS_NAME: Final = re.compile(r"rank(\d+)\.status\.json")


_NAMED: Final = 3
"""Ranks that a message names."""
MESSAGE: Final = 600
"""Characters of a message on a full disk: at six bytes each a status still fits the one block that its file has."""


@dataclass
class RankStatus:
    """State of one rank, as its status file says."""

    rank: int
    pid: int
    host: str
    state: str = "idle"
    recording: int = 0
    """Recording the figures below are of; 0 when there was none."""
    world_size: int | None = None
    """Ranks of the server as its process group says; None where there is none."""
    cycles: int = 0
    windows: int = 0
    lost: int = 0
    """Events and rows dropped because a buffer was full."""
    message: str | None = None
    started: int | None = None
    """When the process began (``process.started_ticks``): its number may be another's by now."""
    namespace: str | None = None
    """What its number counts in (``process.pid_namespace``)."""
    preparing: bool = False
    """The writer thread is at what it does once after arming: it takes the interpreter from the server meanwhile."""


def status_path(folder: Path, rank: int) -> Path:
    """FOLDER/rank00003.status.json."""
    return folder / f"rank{rank:05d}.status.json"


def write_status(folder: Path, status: RankStatus) -> None:
    """Replace the rank's status file."""
    path = status_path(folder, status.rank)
    temporary = path.with_name(f".{path.name}.{status.pid}.tmp")
    content = json.dumps(dataclasses.asdict(status)).encode()
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        # the disk is full, but the old file has its block: that a rank failed must not go untold for want of another
        short = dataclasses.replace(status, message=status.message[:MESSAGE] if status.message else None)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        with open(descriptor, "wb") as file:
            file.write(json.dumps(dataclasses.asdict(short)).encode())
            file.truncate()


def read_status(path: Path) -> RankStatus | None:
    """A rank's status; None where the file is gone or is not one of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(RankStatus)}
        status = RankStatus(**{name: value for name, value in content.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    counts = (status.rank, status.pid, status.recording, status.cycles, status.windows, status.lost)
    texts = (status.host, status.state, status.message or "")
    sound = all(type(n) is int for n in counts) and all(isinstance(text, str) for text in texts) and status.pid > 0
    sound = sound and type(status.preparing) is bool
    sound = sound and all(number is None or type(number) is int for number in (status.world_size, status.started))
    return status if sound and (status.namespace is None or isinstance(status.namespace, str)) else None


def read_statuses(folder: Path) -> list[RankStatus]:
    """Every rank that has announced itself in a folder, in order of rank."""
    found = [read_status(p) for p in folder.glob(STATUS_PATTERN) if _STATUS_NAME.fullmatch(p.name)]
    return sorted((s for s in found if s is not None), key=lambda s: s.rank)


def unreadable(folder: Path) -> list[str]:
    """Names of status files that say nothing: damaged, or not ours."""
    found = sorted(p for p in folder.glob(STATUS_PATTERN) if _STATUS_NAME.fullmatch(p.name))
    return [path.name for path in found if read_status(path) is None]


def nobody(folder: Path) -> str | None:
    """Why a command given through a folder reaches nobody now, and what to do; None where a rank may hear it."""
    statuses = read_statuses(folder)
    if any(alive(status) is not False for status in statuses):
        return None
    start = (
        f"start the server with SPECANALYZE_DIR={folder}, or with speccollect run --dir {folder} -- COMMAND; some servers announce "
        "their ranks only at the first request"
    )
    if not statuses:
        return f"no rank has announced itself in {folder}, so nothing is recorded yet: is it this server's folder? If not, {start}"
    gone = ", ".join(f"rank {s.rank} was process {s.pid}" for s in statuses[:_NAMED])
    more = f" and {len(statuses) - _NAMED} more" if len(statuses) > _NAMED else ""
    return (
        f"the ranks that announced themselves in {folder} have gone ({gone}{more}), so nothing is recorded yet: {start}"
    )


def alive(status: RankStatus) -> bool | None:
    """Whether the rank's process still runs; None when it lives on another host or in another container."""
    return runs(status.pid, status.host, status.started, status.namespace)
