"""Whether ranks that run the same cycles number them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from specanalyze.attribution.cycles import data_coordinates
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.trace import Trace


class Numbering(NamedTuple):
    """One rank's numbers beside those of the first rank of its replica.

    Attributes:
        rank, first: their keys.
        alike: every window holds the same cycle numbers.
        detail: what was found, one line.
    """

    rank: str
    first: str
    alike: bool
    detail: str


def numberings(trace: Trace, ranks: Sequence[RankBreakdown]) -> list[Numbering]:
    """Compare each rank with the first one of its data-parallel replica; replicas count for themselves.

    Returns:
        One entry a rank that has another one to compare with and numbers its cycles.
    """
    places = data_coordinates(trace)
    firsts: dict[Any, tuple[str, dict[int, list[int]]]] = {}
    found = []
    for rank in ranks:
        cycles = _cycles(rank)
        if not cycles:
            continue
        first, theirs = firsts.setdefault(places.get(rank.key), (rank.key, cycles))
        if first == rank.key:
            continue
        odd = [w for w in sorted({*cycles, *theirs}) if cycles.get(w, []) != theirs.get(w, [])]
        detail = f"as rank {first}" if not odd else _told(odd, cycles, theirs, first)
        found.append(Numbering(rank.key, first, not odd, detail))
    return found


def _cycles(rank: RankBreakdown) -> dict[int, list[int]]:
    """Window -> numbers of its cycles, ascending; only what carries a number."""
    table = rank.phase_instances
    if not table.height:
        return {}
    numbered = table.filter(pl.col("cycle") >= 0).group_by("window").agg(pl.col("cycle").unique().sort())
    return {window: cycles for window, cycles in numbered.iter_rows() if window is not None}


def _told(odd: Sequence[int], mine: dict[int, list[int]], theirs: dict[int, list[int]], first: str) -> str:
    window = odd[0]
    one, other = mine.get(window, []), theirs.get(window, [])
    shift = one[0] - other[0] if one and other else 0
    text = f"window {window}: {_span(one)}, rank {first} {_span(other)}"
    if shift and [number - shift for number in one] == other:
        text += f"; shifted by {abs(shift)}: means over ranks pair them in their order"
    else:
        text += "; not the same cycles: means over ranks pair equal numbers"
    return text + (f" (and {len(odd) - 1} more windows)" if len(odd) > 1 else "")


def _span(cycles: Sequence[int]) -> str:
    if not cycles:
        return "none"
    return f"cycle {cycles[0]}" if len(cycles) == 1 else f"{len(cycles)} cycles, {cycles[0]} to {cycles[-1]}"
