"""The page as a file, never half written."""

from __future__ import annotations

import os
from pathlib import Path

from specschema.errors import UsageError


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
