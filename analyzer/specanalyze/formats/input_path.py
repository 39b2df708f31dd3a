"""What a user gave as a recording, looked at before anything opens it: one line for what no reader could open."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from specschema.errors import UsageError

_BEGINS: Final = {
    ".parquet": ("Parquet", b"PAR1"),
    ".sqlite": ("SQLite", b"SQLite format 3\0"),
    ".gz": ("gzip", b"\x1f\x8b"),
}
"""A name's ending -> the form it promises, and what a file of that form begins with."""


_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*):/(?=[^/])")
"""``http://host/file`` as ``pathlib`` keeps it."""


def misnamed(path: Path) -> str | None:
    """What is wrong with a file that is not of the form its name promises; None where it is, or the name promises none."""
    form, begins = _BEGINS.get(path.suffix, ("", b""))
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(begins) or start.lstrip().startswith((b"{", b"[")):
        return None
    return f"{path.name} is no {form} file: it does not begin as one (damaged, not copied whole, or not what its name says)"


def usable(path: Path) -> Path:
    """The path itself, where it names a file or a folder.

    Raises:
        UsageError: it does not, or nothing can be said about it: too long a name, a circle of links, no permission.
    """
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a zero byte is a ValueError
        foreign = _ADDRESS.match(str(path))
        hint = f"; recordings are read from disk, s3:// and gs://, not from {foreign[1]}://" if foreign else ""
        raise UsageError(f"{path}: no such file or folder{hint}") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from None
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise UsageError(f"{path} is neither a file nor a folder: write the trace to a file first")
    return path


def is_file(path: Path) -> bool:
    """``path.is_file()``, and False for a name that cannot be one (too long, with an ending added, for the file system)."""
    try:
        return path.is_file()
    except OSError:
        return False


def refuse_names(paths: Iterable[Path]) -> None:
    """Arrow takes names as UTF-8, and knows no other.

    Raises:
        UsageError: a name that is not.
    """
    for path in paths:
        if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
            raise UsageError(f"{path}: the name is not UTF-8, and Arrow opens no other; rename it, or link to it")


def refuse_twice(paths: Iterable[Path]) -> None:
    """A file given twice would count twice.

    Raises:
        UsageError: two of the paths are the same file or folder.
    """
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise UsageError(f"{path} is given twice: give each file of the recording once")
        seen.add(real)
