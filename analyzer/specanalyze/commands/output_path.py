"""The file that a command is told to write, looked at before the work and not after it."""

from __future__ import annotations

import os
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
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"--output {path} is a folder; name a file in it")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; choose another name or give --force")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--output {path}: the folder {path.parent} can't be written")


def table_output(ctx: Any, path: Path | None) -> Path | None:
    """Check ``--output FILE.parquet|.csv`` while the command line is read; ``--force`` is known by then, it is eager."""
    if path is not None and not ctx.resilient_parsing:
        refuse_output(path, (".parquet", ".csv"), force=bool(ctx.params.get("force")))
    return path
