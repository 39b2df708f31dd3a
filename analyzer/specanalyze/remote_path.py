"""Files of an object store (``s3://bucket/key``, ``gs://bucket/key``) where a reader expects a path; nothing is copied to disk.

Only what is asked for is fetched: a footer, the row groups of one rank, the text of one file. Credentials, region and endpoint are
those of the environment: for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL (also
AWS_ENDPOINT_URL_S3), for Google Cloud Storage GOOGLE_APPLICATION_CREDENTIALS, or the machine's own role.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from specschema.errors import TraceError, UsageError

_STORE: Final = re.compile(r"(s3|gs):/+(?=[^/])")
"""``pathlib`` keeps one slash of two."""
_EMULATOR: Final = "CLOUD_STORAGE_EMULATOR_ENDPOINT"
_PATIENCE: Final = timedelta(seconds=20)
_LEAST_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 23
"""Bytes fetched at once: more and more while a file is read in order."""


def path_of(text: str | Path) -> Path:
    """The path of this name: in an object store where it says so and no such local file exists."""
    if isinstance(text, RemotePath):
        return text
    local = Path(text)
    return RemotePath(local) if _STORE.match(str(local)) and not local.exists() else local


class RemotePath(type(Path())):  # type: ignore[misc]
    """A name in an object store, read-only. A folder is what other names begin with."""

    __slots__ = ()

    def __str__(self) -> str:
        return _STORE.sub(r"\1://", super().__str__(), count=1)

    def __fspath__(self) -> str:
        return str(self)

    def absolute(self) -> RemotePath:
        """Itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Size and kind; no times."""
        kind, size = _known(str(self))
        if not kind:
            raise FileNotFoundError(2, "no such object", str(self))
        return os.stat_result((kind, 0, 0, 1, 0, 0, size, 0, 0, 0))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return bool(_known(str(self))[0])

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return _known(str(self))[0] == stat.S_IFREG

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return _known(str(self))[0] == stat.S_IFDIR

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies in a folder, by name; their sizes come with the list."""
        from pyarrow.fs import FileSelector

        store, key = _store(str(self))
        try:
            found = store.get_file_info(FileSelector(key))
        except OSError as error:
            raise _unreachable(str(self), error) from None
        for info in sorted(found, key=lambda info: info.path):
            path = self / info.base_name
            _facts[str(path)] = _fact(info)
            yield path

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:
        """Of a folder, without those below it."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def open(self, mode: str = "r", buffering: int = -1, encoding: str | None = None, *_: Any) -> Any:
        """For reading."""
        if set(mode) - {"r", "b", "t"}:
            raise UsageError(f"{self} is in an object store, which is only read from")
        raw = StoredFile(str(self))
        return raw if "b" in mode else io.TextIOWrapper(io.BufferedReader(raw), encoding=encoding or "utf-8")


def readable(path: Path) -> Any:
    """What pyarrow reads this path by: itself, or an open file of the store."""
    return StoredFile(str(path)) if isinstance(path, RemotePath) else path


class StoredFile(io.RawIOBase):
    """One object, fetched in pieces that grow while it is read in order.

    Raises:
        UsageError: it can't be opened.
        TraceError: a piece can't be fetched.
    """

    def __init__(self, name: str) -> None:
        store, key = _store(name)
        try:
            self._file = store.open_input_file(key)
            self._size = int(self._file.size())
        except OSError as error:
            raise _unreachable(name, error) from None
        self._name = name
        self._at = 0
        self._piece, self._piece_at = b"", 0
        self._ahead = _LEAST_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of the object; pyarrow asks."""
        return self._size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """As many bytes as asked for, fewer only at the end."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            offset = self._at - self._piece_at
            if not 0 <= offset < len(self._piece):
                self._fetch(end - self._at)
                continue
            part = self._piece[offset : offset + end - self._at]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """For the buffers of the standard library."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, wanted: int) -> None:
        in_order = self._at == self._piece_at + len(self._piece)
        self._ahead = min(_MOST_BYTES, 2 * self._ahead) if in_order else _LEAST_BYTES
        try:
            piece = self._file.read_at(min(max(wanted, self._ahead), self._size - self._at), self._at)
        except OSError as error:
            raise TraceError(f"{self._name} can't be read any more: {_line(error)}") from None
        if not piece:
            raise TraceError(f"{self._name} ends before its {self._size} bytes: was it replaced while it was read?")
        self._piece, self._piece_at = bytes(piece), self._at


_facts: dict[str, tuple[int, int]] = {}
"""Name -> (kind as in ``stat``, size). A store is asked once: a recording does not change while it is read."""


def _known(name: str) -> tuple[int, int]:
    if name not in _facts:
        store, key = _store(name)
        try:
            _facts[name] = _fact(store.get_file_info(key))
        except OSError as error:
            raise _unreachable(name, error) from None
    return _facts[name]


def _fact(info: Any) -> tuple[int, int]:
    return (stat.S_IFREG if info.is_file else stat.S_IFDIR if info.type.name == "Directory" else 0), info.size or 0


def _store(name: str) -> tuple[Any, str]:
    """The file system and the name in it."""
    scheme, key = name.split("://", 1)
    return _connected(scheme), key


@lru_cache(maxsize=2)
def _connected(scheme: str) -> Any:
    from pyarrow import fs

    try:
        if scheme == "gs":
            # An emulator has no accounts; elsewhere the library looks for one for a quarter of an hour unless told otherwise.
            return fs.GcsFileSystem(anonymous=bool(os.environ.get(_EMULATOR)), retry_time_limit=_PATIENCE)
        return fs.S3FileSystem(**_endpoint(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")))
    except (OSError, ImportError) as error:
        raise UsageError(f"{scheme}:// can't be read here: {_line(error)}") from None


def _endpoint(url: str | None) -> dict[str, str]:
    if not url:
        return {}
    scheme, _, host = url.rpartition("://")
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}


def _unreachable(name: str, error: OSError) -> UsageError:
    return UsageError(f"{name} can't be reached: {_line(error)}; are credentials, region and endpoint set?")


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
