"""The file that a command is told to write, looked at before the work and not after it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specschema.errors import UsageError


def refuse_output(path: Path, endings: tuple[str, ...], *, force: bool = False) -> None:
    """Refuse what could not be written in the end.

    Args:
        path: where to write.
        endings: suffixes that the command writes.
        force: an existing file may be replaced.

    Raises:
        UsageError: another ending, no such folder or one that can't be written, a folder, or an existing file without ``force``.
    """
    if path.suffix not in endings:
        raise UsageError(f"--output {path}: the name must end in {' or '.join(endings)}")
    if not os.path.isdir(path.parent):
        raise UsageError(f"--output {path}: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise UsageError(f"--output {path} is a folder; name a file in it")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists; choose another name or give --force")
    refuse_unwritable(path)


def refuse_trace_output(path: Path, *, force: bool = False) -> None:
    """As ``refuse_output``, for a trace that is to be read again.

    Raises:
        UsageError: see there; or a name that is not UTF-8, which Arrow does not open.
    """
    refuse_output(path, (".parquet",), force=force)
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        raise UsageError(
            f"--output {path}: the name is not UTF-8, and no trace of such a name can be read: choose another one"
        )


def refuse_source(output: Path | None, sources: Iterable[str]) -> None:
    """Refuse to replace a recording by what is made of it, whatever ``--force`` was meant for.

    Args:
        output: where to write; None: nowhere.
        sources: the files that the recording is read from.

    Raises:
        UsageError: the output is one of them, by whatever name.
    """
    if output is None or not os.path.exists(output):
        return
    for source in dict.fromkeys(sources):
        try:
            same = os.path.samefile(source, output)
        except OSError:  # in an object store, or gone by now
            same = False
        if same:
            raise UsageError(
                f"--output {output} is a file of the recording itself, which it would replace: choose another name"
            )


def refuse_unwritable(path: Path) -> None:
    """Try to make a file beside it, as whoever writes it will.

    Raises:
        UsageError: that fails: a read-only or full file system, no permission, too long a name; or there is a pipe or a device, whose
            place the file would take.
    """
    # /dev/stdout leads to /proc/self/fd/1, and on to a file where the shell redirects it; /dev/shm is a folder like any other.
    leads = (os.path.realpath(path.parent) + "/", os.readlink(path) if os.path.islink(path) else "")
    if os.path.exists(path) and (any(to.startswith("/proc/") for to in leads) or not os.path.isfile(path)):
        raise UsageError(
            f"--output {path} is no file on a disk, which a result can be moved to when it is whole: name one"
        )
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)
    except OSError as error:
        raise UsageError(f"--output {path}: nothing can be written there: {error.strerror or error}") from None


def table_output(ctx: Any, path: Path | None) -> Path | None:
    """Check ``--output FILE.parquet|.csv`` while the command line is read; ``--force`` is known by then, it is eager."""
    if path is not None and not ctx.resilient_parsing:
        refuse_output(path, (".parquet", ".csv"), force=bool(ctx.params.get("force")))
    return path
