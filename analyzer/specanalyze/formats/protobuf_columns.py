"""Protocol buffer messages written from whole columns: the wire format (protobuf.dev/programming-guides/encoding), no loop over messages.

All messages of one shape get the same length: numbers are written as varints padded to a fixed width, which the format allows and
every parser must accept. So a column of messages is a matrix of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specanalyze.columns import Ints

Bytes: TypeAlias = NDArray[np.uint8]
"""Shape (messages, bytes of one message)."""

_SLICE: Final = 1 << 12
"""Messages moved at once."""

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
"""Wire types."""


def varint(value: int) -> bytes:
    """One number, in as few bytes as it takes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """One field with a number."""
    return tag(field, VARINT) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """One field with a text or an encoded message."""
    encoded = value.encode() if isinstance(value, str) else value
    return tag(field, LENGTH) + varint(len(encoded)) + encoded


def numbers(field: int, values: Ints, width: int) -> list[bytes | Bytes]:
    """A field with one number a message, each ``width`` bytes long.

    Raises:
        ValueError: a number that does not fit, or is negative.
    """
    if len(values) and (int(values.min()) < 0 or int(values.max()) >> (7 * width)):
        raise ValueError(f"field {field}: a number does not fit into {width} bytes")
    shifts = np.arange(width, dtype=np.int64) * 7
    cells = (values[:, None] >> shifts & 0x7F).astype(np.uint8)
    cells[:, :-1] |= 0x80
    return [tag(field, VARINT), cells]


def fixed64(field: int, values: NDArray[np.uint64] | NDArray[np.float64]) -> list[bytes | Bytes]:
    """A field with eight bytes a message: a fixed64 or a double."""
    return [
        tag(field, FIXED64),
        np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, 8),
    ]


def size(parts: Sequence[bytes | Bytes]) -> int:
    """Bytes of one message made of the parts."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def message(field: int, parts: Sequence[bytes | Bytes]) -> list[bytes | Bytes]:
    """A field with a message made of the parts."""
    return [tag(field, LENGTH) + varint(size(parts)), *parts]


def rows(count: int, parts: Sequence[bytes | Bytes]) -> Bytes:
    """The parts side by side; constant ones are the same in every message."""
    out = np.empty((count, size(parts)), dtype=np.uint8)
    at = 0
    for part in parts:
        width = len(part) if isinstance(part, bytes) else part.shape[1]
        out[:, at : at + width] = np.frombuffer(part, dtype=np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def interleaved(groups: Sequence[tuple[Ints, Bytes]], count: int) -> memoryview:
    """Messages of several shapes in one order.

    Args:
        groups: (place of each message in the order, the messages), together every place from 0 to count - 1.
        count: number of messages.
    """
    sizes = np.zeros(count, dtype=np.int64)
    for place, cells in groups:
        sizes[place] = cells.shape[1]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    out = np.empty(int(begins[-1]), dtype=np.uint8)
    for place, cells in groups:
        width = np.arange(cells.shape[1])
        for low in range(0, len(place), _SLICE):  # an index is eight times as large as what it moves
            part = slice(low, low + _SLICE)
            out[begins[place[part]][:, None] + width] = cells[part]
    return out.data
