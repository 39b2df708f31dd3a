"""The files that a user's paths stand for, and which of them are Parquet."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from specanalyze.formats import sidecars
from specanalyze.remote_path import readable
from specschema.errors import UsageError
from specschema.metadata import VERSION_KEY

_ENDINGS: Final = (".json", ".json.gz", ".parquet")
_UNFINISHED: Final = tuple(f"{ending}.tmp" for ending in _ENDINGS)
"""Kineto writes FILE.tmp and renames it once it is whole."""
_NAMED: Final = 3
"""Folders that a message names."""
_PARQUET_MAGIC: Final = b"PAR1"
_TEXT_BEGINS: Final = (b"{", b"[", b"\xef\xbb\xbf", b"\x1f\x8b")
"""JSON, with a byte order mark or compressed, whatever its file is called."""
_SQLITE_MAGIC: Final = b"SQLite format 3\0"


def input_files(paths: Sequence[Path]) -> tuple[list[Path], bool]:
    """The files to look at, and whether they come from a folder, where other files may lie beside."""
    if not paths:
        raise UsageError("no trace given")
    files: list[Path] = []
    folder = False
    for path in paths:
        if path.is_dir():
            folder = True
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(_ENDINGS))
            inside = [p for p in inside if not p.name.endswith(sidecars.SUFFIXES)]
            if not inside:
                raise UsageError(
                    f"{path} holds no trace: no .json, .json.gz or .parquet file in it{_deeper(path)}{_begun(path)}"
                )
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise UsageError(f"{path}: no such file or folder")
    return files, folder


def unfinished(paths: Sequence[Path]) -> list[str]:
    """A line for each file in the folders among some paths that its writer did not finish."""
    return [
        f"{name} was never finished, as its name says (killed, or still being written): left out, so its rank may be missing here"
        for path in paths
        if path.is_dir()
        for name in _unfinished(path)
    ]


def _unfinished(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(_UNFINISHED) and not p.name.startswith("."))


def _begun(folder: Path) -> str:
    names = _unfinished(folder)
    return f", and {names[0]} was never finished" if names else ""


def _deeper(folder: Path) -> str:
    """The folders in it that hold what could be one: their ranks may be of several recordings, so none is looked into unasked."""
    inside = (sub.name for sub in sorted(folder.iterdir()) if sub.is_dir() and _holds_traces(sub))
    names = list(islice(inside, _NAMED + 1))
    if not names:
        return ""
    listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f", but in {listed}: give the one you mean"


def _holds_traces(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(path.name.endswith(_ENDINGS) for path in folder.iterdir())
    return False


def is_parquet(path: Path) -> bool:
    """By its content; a file that is nothing else that is read here, by its name: it is then said to be no Parquet file."""
    with path.open("rb") as file:
        start = file.read(len(_SQLITE_MAGIC))
    if start == _SQLITE_MAGIC:
        raise UsageError(f"{path} is an SQLite file, not a trace of torch.profiler or of ours")
    return start.startswith(_PARQUET_MAGIC) or (
        path.name.endswith(".parquet") and not start.lstrip().startswith(_TEXT_BEGINS)
    )


def is_foreign(path: Path) -> bool:
    """A whole Parquet file that is no trace of ours."""
    import pyarrow.parquet as pq

    from specanalyze.formats.parquet_bounds import DAMAGED

    try:
        return VERSION_KEY.encode() not in (pq.read_metadata(readable(path)).metadata or {})
    except DAMAGED:
        return False  # damaged: that is said later
