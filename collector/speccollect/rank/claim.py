"""One rank of one recording is one process: a second one would replace the first one's finished files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from speccollect.control.status import RankStatus, alive, read_status, status_path
from speccollect.control.word import recording_folder
from speccollect.rank.identity import Identity
from specschema.errors import TraceError


def claim(folder: Path, identity: Identity, number: int) -> None:
    """Take a rank of a recording for this process, and make the recording's folder where it is not there.

    Args:
        folder: the collector's folder.
        number: of the recording.

    Raises:
        TraceError: another process has it, or had it and is gone (a worker that was started again).
        OSError: nothing can be written there.
    """
    files = recording_folder(folder, number)
    files.mkdir(mode=0o700, exist_ok=True)
    path = files / f"rank{identity.rank:05d}.process.json"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise TraceError(_taken(folder, identity, number)) from None
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({"pid": identity.pid, "host": identity.host}, file)


def _taken(folder: Path, identity: Identity, number: int) -> str:
    other = read_status(status_path(folder, identity.rank))
    runs = alive(other) if other is not None and other.recording == number and not _is(other, identity) else False
    own = "give each replica a folder of its own (SPECANALYZE_DIR)"
    if other is not None and runs:
        return f"rank {identity.rank} is already recorded by process {other.pid} in {folder}: {own}"
    if other is not None and runs is None:
        return (
            f"rank {identity.rank} of recording {number} belongs to process {other.pid} of another host or container: {own}; "
            "if that one has ended, disarm and arm again"
        )
    return (
        f"rank {identity.rank} was started again during recording {number}: what its first process finished "
        "is kept; disarm and arm again to record this one"
    )


def other_process(folder: Path, identity: Identity) -> RankStatus | None:
    """The last word of another process that announced itself with our rank and still runs, as far as can be known."""
    other = read_status(status_path(folder, identity.rank))
    return other if other is not None and not _is(other, identity) and alive(other) else None


def _is(status: RankStatus, identity: Identity) -> bool:
    """Whether a status is this process's own. Its number alone is not: each container counts from 1."""
    mine = identity.status(status.state)
    same = status.started is None or mine.started is None or status.started == mine.started
    same = same and (status.namespace is None or mine.namespace is None or status.namespace == mine.namespace)
    return same and (status.pid, status.host) == (mine.pid, mine.host)
