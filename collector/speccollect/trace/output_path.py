"""The trace that a command is told to write, looked at before a server is recorded and not after."""

from __future__ import annotations

import os
from pathlib import Path

from specschema.errors import UsageError

INSTEAD = "give another name with -o, or --force to overwrite it"


def refuse_output(output: Path, *, force: bool, instead: str = INSTEAD) -> None:
    """Refuse what could not be written in the end; nothing is left behind.

    Args:
        output: where to write.
        force: an existing file may be replaced.
        instead: what to do about one that may not.

    Raises:
        UsageError: an existing file without ``force``, a folder, no such folder, one that can't be written, or a name that is not UTF-8.
    """
    if os.path.isdir(output):
        raise UsageError(f"{output} is a folder: name a file in it")
    if os.path.lexists(output) and not force:
        raise UsageError(f"{output} exists: {instead}")
    if not os.path.isdir(output.parent):
        raise UsageError(f"{output}: there is no folder {output.parent}")
    if any("\ud800" <= letter <= "\udfff" for letter in str(output)):
        raise UsageError(f"{output}: the name is not UTF-8, and Arrow writes no other: give another name with -o")
    probe = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
    except OSError as error:
        raise UsageError(f"{output}: nothing can be written there: {error.strerror or error}") from None
