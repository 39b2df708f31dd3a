"""The page as a file: never over an existing one unless asked, never half written."""

from __future__ import annotations

import os
from pathlib import Path

from specschema.errors import UsageError


def refuse_output(path: Path, force: bool) -> None:
    """Look at the output before the work, not after it.

    Raises:
        UsageError: another ending, no such folder, or an existing file without ``force``.
    """
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"--output {path}: the name must end in .html")
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.parent}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; choose another name or give --force")


def write_page(html: str, path: Path) -> int:
    """Write under a temporary name and rename when whole.

    Returns:
        Bytes written.

    Raises:
        UsageError: the folder can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = html.encode("utf-8", errors="replace")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return len(data)
