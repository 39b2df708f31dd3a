"""Python's objects -> Arrow's arrays in slices, so that no thread waits for the interpreter for longer than one of them takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

ELEMENTS: Final = 4096
"""Elements made into an array without letting go of the interpreter: some 0.2 ms."""


_AWAY_SECONDS: Final = 1e-6
"""Least that is a sleep; the system makes some 60 us of it."""


def give_way() -> None:
    """Let a thread that waits for the interpreter have it.

    A thread that runs Python keeps it for 5 ms otherwise (``sys.getswitchinterval``), and one call into C for as long as it takes.
    A sleep of 0 does not do: Python 3.10 comes back from it before the other thread has woken, and takes the lock again.
    """
    time.sleep(_AWAY_SECONDS)


def list_array(lists: Sequence[Sequence[Any] | None], type_: pa.DataType) -> pa.Array:
    """An Arrow array of lists.

    Args:
        lists: the lists; None becomes null.
        type_: the array's type, a list.
    """
    slices = [pa.array(lists[begin:end], type=type_) for begin, end in _slices(lists)]
    return pa.concat_arrays(slices) if slices else pa.array([], type=type_)


def _slices(lists: Sequence[Sequence[Any] | None]) -> Iterator[tuple[int, int]]:
    """Begin and end of stretches of about ELEMENTS elements; gives way after each."""
    begin = elements = 0
    for end, one in enumerate(lists, start=1):
        elements += 1 + (len(one) if one is not None else 0)
        if elements >= ELEMENTS or end == len(lists):
            yield begin, end
            give_way()
            begin, elements = end, 0
