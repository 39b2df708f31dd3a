"""Text of a trace file in chunks, whether it is plain or gzip (several members included), in bounded memory.

A compressed file may grow to FREE_BYTES, and to EXPANSION times its size beyond that: a gzip bomb is refused before it is unpacked.
``SPECANALYZE_ANY_EXPANSION=1`` lifts the limit for a file that is known to be honest.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from specschema.errors import TraceError

if TYPE_CHECKING:
    from isal import isal_zlib

CHUNK_BYTES: Final = 4 << 20
"""Text handed on at once. Larger chunks are no faster; smaller ones make the columns of a chunk dearer than its rows."""
FREE_BYTES: Final = 64 << 20
EXPANSION: Final = 100
"""gzip shrinks the JSON of real traces 14 to 28 times, and nothing more than 1032 times."""
_LIFTED: Final = "SPECANALYZE_ANY_EXPANSION"
_READ_BYTES: Final = 1 << 16
_GZIP_MAGIC: Final = b"\x1f\x8b"

Progress = Callable[[int], None]
"""Called with the bytes just read from the file (compressed ones where the file is compressed)."""


class FileText:
    """One pass over a file's text.

    Args:
        path: the file.
        progress: called with the bytes read.
        chunk_bytes: text handed on at once.
        first_bytes: the same for the first chunk, for who may need no other.

    Attributes:
        path: the file.
        early_end: why the text ends before it should, known once ``chunks`` is exhausted; None where the container is whole.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        first_bytes: int | None = None,
    ) -> None:
        self.path = path
        self.early_end: str | None = None
        self._progress = progress
        self._chunk_bytes = chunk_bytes
        self._first_bytes = first_bytes or chunk_bytes

    def chunks(self) -> Iterator[bytes]:
        """Text of about ``chunk_bytes`` each; the last one may be shorter. Never empty."""
        parts: list[bytes] = []
        size, enough = 0, self._first_bytes
        for piece in self._pieces():
            if piece:
                parts.append(piece)
                size += len(piece)
            if size >= enough:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts, size, enough = [], 0, self._chunk_bytes
        if parts:
            yield b"".join(parts)

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            first = self._read(file.read)
            if not first.startswith(_GZIP_MAGIC):
                wanted = self._first_bytes
                while first:
                    yield first
                    first, wanted = self._read(file.read, wanted), self._chunk_bytes
                return
            yield from self._inflated(first, file.read)

    def _inflated(self, data: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
        from isal import isal_zlib  # 10 ms that plain text need not wait for

        damaged = (cast(type[Exception], isal_zlib.error), zlib.error)
        member = isal_zlib.decompressobj(wbits=31)
        made = 0
        limit = max(FREE_BYTES, EXPANSION * self.path.stat().st_size)
        while data:
            text = self._inflate(member, data, damaged)
            if text is None:
                return
            made += len(text)
            if made > limit and os.environ.get(_LIFTED) != "1":
                raise TraceError(
                    f"{self.path.name} unpacks to more than {EXPANSION} times its size (limit {limit >> 20} MiB): not read, it may be a "
                    f"gzip bomb; if you trust it, set {_LIFTED}=1"
                )
            yield text
            data = (member.unused_data if member.eof else b"") or self._read(read)
            if member.eof:
                # zero bytes may pad the last member
                data = data.lstrip(b"\0") or self._read(read).lstrip(b"\0")
                if data and not data.startswith(_GZIP_MAGIC[: len(data)]):
                    self.early_end = "bytes that are no gzip member follow the compressed text"
                    return
                if data:
                    member = isal_zlib.decompressobj(wbits=31)
        if not member.eof:
            self.early_end = "its gzip stream ends early"

    def _inflate(self, member: isal_zlib.Decompress, data: bytes, damaged: tuple[type[Exception], ...]) -> bytes | None:
        try:
            text: bytes = member.decompress(data)
        except damaged as error:
            self.early_end = f"its gzip stream is damaged ({error})"
            return None
        return text

    def _read(self, read: Callable[[int], bytes], size: int = _READ_BYTES) -> bytes:
        data = read(min(size, max(len(_GZIP_MAGIC), self._chunk_bytes)))
        if data and self._progress is not None:
            self._progress(len(data))
        return data
