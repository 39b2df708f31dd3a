"""Names of collectives and groups of ranks as torch writes them, in one spelling."""

from __future__ import annotations

import re
from typing import Final

_OPERATIONS: Final = (
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "broadcast",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
)
"""torch's variants (``_allgather_base``, ``all_gather_into_tensor_coalesced``, ``alltoallv``) start with one of these."""
_DIGITS: Final = 9
"""A longer number is no rank, and would not fit in 32 bits."""
_RANKS: Final = re.compile(r"\s*\[?\s*(\d+(?:\s*,\s*\d+)*)\s*\]?\s*")


def operation(name: str) -> str:
    """``_allgather_base`` -> ``allgather``; a name that is no known operation only loses its underscores."""
    plain = name.lower().replace("_", "").replace(" ", "")
    return next((op for op in _OPERATIONS if plain.startswith(op)), plain)


def group_ranks(text: str) -> list[int] | None:
    """``[0, 1]`` -> [0, 1]; None when the list is abbreviated (``[0, 1, ..., 62, 63]``) or no list of ranks."""
    found = _RANKS.fullmatch(text)
    ranks = [rank.strip() for rank in found.group(1).split(",")] if found else []
    return [int(rank) for rank in ranks] if ranks and max(map(len, ranks)) <= _DIGITS else None
