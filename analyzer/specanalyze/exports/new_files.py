"""Files that get their names together, once all of them are whole."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from specanalyze.formats.trace_writer import give_name
from specschema.errors import UsageError


class NewFiles:
    """A context: what was written in it is there when it ends well, and else nothing of it; files of these names are kept until then.

    Args:
        force: replace existing files.
    """

    def __init__(self, *, force: bool) -> None:
        self._force = force
        self._made: dict[Path, Path] = {}

    def __enter__(self) -> NewFiles:
        return self

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[BinaryIO]:
        """One file; compressed where its name ends in .gz.

        Raises:
            UsageError: it exists and must not be replaced, or can't be written.
        """
        if path.exists() and not self._force:
            raise UsageError(f"{path} exists: give another name, or --force to overwrite it")
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        self._made[path] = temporary
        try:
            with open(temporary, "xb") as plain:
                if path.name.endswith(".gz"):
                    from isal import igzip

                    with igzip.GzipFile(filename="", fileobj=plain, mode="wb", compresslevel=2, mtime=0) as packed:  # type: ignore[no-untyped-call]
                        yield cast(BinaryIO, packed)
                else:
                    yield plain
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror or error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        path = Path()
        try:
            if kind is None:
                for path, temporary in self._made.items():
                    give_name(temporary, path, force=self._force)
        except OSError as failed:
            raise UsageError(f"{path} can't be written: {failed.strerror or failed}") from failed
        finally:
            for temporary in self._made.values():
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
