"""The longest common subsequence of two sequences of numbers, as pairs of places."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from specanalyze.columns import Ints
from specschema.errors import TraceError

MOST_CELLS: Final = 1 << 28
"""Places of one sequence times those of the other, without what is equal at both ends: half a GiB of lengths, of which all fit 16 bits."""


def aligned(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Pair as many equal values as can be paired without changing their order.

    Args:
        one, other: codes; equal codes are equal values.

    Returns:
        Places in ``one`` and in ``other`` of each pair, ascending.

    Raises:
        TraceError: they are too long to be compared, and differ from end to end.
    """
    shorter = min(len(one), len(other))
    apart = np.flatnonzero(one[:shorter] != other[:shorter])
    head = int(apart[0]) if len(apart) else shorter
    rest = shorter - head
    apart = np.flatnonzero(one[len(one) - rest :][::-1] != other[len(other) - rest :][::-1])
    tail = int(apart[0]) if len(apart) else rest
    a, b = one[head : len(one) - tail], other[head : len(other) - tail]
    first, second = _inner(a, b)
    ends = np.arange(tail)
    return (
        np.concatenate([np.arange(head), first + head, len(one) - tail + ends]),
        np.concatenate([np.arange(head), second + head, len(other) - tail + ends]),
    )


def _inner(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    if (len(a) + 1) * (len(b) + 1) > MOST_CELLS:
        raise TraceError(
            f"sequences of {len(a)} and {len(b)} kernels differ from end to end and are too long to be aligned; "
            "record the same forward with both"
        )
    # length[i, j]: pairs among the first i of one and the first j of the other
    length: NDArray[np.uint16] = np.zeros((len(a) + 1, len(b) + 1), dtype=np.uint16)
    for i, value in enumerate(a.tolist(), start=1):  # one turn a kernel of one forward
        before = length[i - 1]
        np.maximum(before[1:], before[:-1] + (b == value), out=length[i, 1:])
        np.maximum.accumulate(length[i], out=length[i])
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if length[i, j] == length[i - 1, j]:
            i -= 1
        elif length[i, j] == length[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    found = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
