"""JSON whose nesting nobody vouches for: too deep is a fault of the text like any other, not of the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specanalyze.memory import JSON_EXPANSION, refuse_beyond
from specschema.errors import TraceError, UsageError

LARGEST_FILE: Final = 256 << 20
"""Bytes of a file beside a trace; the largest cycle log seen takes 2 MB."""

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], text: bytes | memoryview) -> T:
    """What ``decoder`` makes of the text.

    Raises:
        msgspec.DecodeError: it is no JSON of that shape, or nests deeper than the interpreter goes (about 1000 levels).
        TraceError: what it could become would take more memory than the command may.
    """
    refuse_beyond(JSON_EXPANSION * len(text))
    try:
        return decoder.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("its values nest too deeply") from None


def whole_file(path: Path) -> bytes:
    """The bytes of a small file.

    Raises:
        UsageError: it can't be read.
        TraceError: it is larger than LARGEST_FILE, or may take more memory than the command may.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise TraceError(f"{path.name} takes {size >> 20} MiB: more than {LARGEST_FILE >> 20} MiB are not read")
        refuse_beyond(JSON_EXPANSION * size)
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
