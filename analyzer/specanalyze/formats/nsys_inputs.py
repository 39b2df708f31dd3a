"""Which of the given paths are recordings of Nsight Systems, told without loading what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specanalyze.formats.nsys_tables import EVENT_TABLES
from specschema.errors import UsageError

REPORT_ENDING: Final = ".nsys-rep"
_SQLITE_MAGIC: Final = b"SQLite format 3\0"


def nsys_inputs(paths: Sequence[Path]) -> list[Path]:
    """The paths, folders searched, when they are a recording of Nsight Systems; none when they are not.

    A folder counts when it is a Parquet export, or holds SQLite exports or reports and no trace of another form.

    Raises:
        UsageError: files of Nsight Systems beside files of another form.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [path] if is_parquet_export(path) else _in_folder(path)
            (found if inside else others).extend(inside or [path])
        elif path.is_file() and (path.suffix == REPORT_ENDING or is_sqlite(path)):
            found.append(path)
        else:
            others.append(path)
    if found and others:
        raise UsageError(
            f"{found[0].name} and {others[0].name} are of different forms: give the files of one recording"
        )
    return found


def _in_folder(folder: Path) -> list[Path]:
    if any(folder.glob("*.json")) or any(folder.glob("*.json.gz")) or any(folder.glob("*.parquet")):
        return []
    sqlite = sorted(path for path in folder.glob("*.sqlite") if path.is_file() and is_sqlite(path))
    exported = {path.stem for path in sqlite}  # nsys stats leaves its export beside the report
    reports = sorted(path for path in folder.glob(f"*{REPORT_ENDING}") if path.stem not in exported)
    exports = sorted(path for path in folder.iterdir() if is_parquet_export(path))
    return [*sqlite, *reports, *(path for path in exports if not (sqlite or reports))]


def is_sqlite(path: Path) -> bool:
    """By its first bytes; an empty file by its name.

    Raises:
        UsageError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from None
    return start == _SQLITE_MAGIC or (not start and path.suffix == ".sqlite")


def is_parquet_export(folder: Path) -> bool:
    """A folder that holds at least one table of events under its own name."""
    return folder.is_dir() and any((folder / f"{table}.parquet").is_file() for table in EVENT_TABLES)
