"""Whether ranks that run the same cycles number them alike, and whether equal numbers are the same cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.cycles import data_coordinates
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.trace import Trace

APART: Final = 0.5
"""Ranks in step begin a cycle at the same time within a few hundredths of it; from this share of a cycle on it is another one."""


class Numbering(NamedTuple):
    """One rank's cycles beside those of the first rank of its replica.

    Attributes:
        rank, first: their keys.
        alike: every window holds the same cycles under the same numbers, as far as it can be told.
        detail: what was found, one line.
    """

    rank: str
    first: str
    alike: bool
    detail: str


class _Cycles(NamedTuple):
    """Cycles of a window: their numbers, ascending, and when each began."""

    numbers: list[int]
    begins_ns: NDArray[np.int64]


def numberings(trace: Trace, ranks: Sequence[RankBreakdown]) -> list[Numbering]:
    """Compare each rank with the first one of its data-parallel replica; replicas count for themselves.

    Ranks of one host share a clock, so that equal numbers can be tested by the times of the cycles; on other hosts, or where
    hosts are unknown, only windows that do not overlap are told.

    Returns:
        One entry a rank that has another one to compare with and numbers its cycles.
    """
    places, hosts = data_coordinates(trace), _hosts(trace)
    firsts: dict[Any, tuple[str, dict[int, _Cycles]]] = {}
    found = []
    for rank in ranks:
        windows = _windows(rank)
        if not windows:
            continue
        first, theirs = firsts.setdefault(places.get(rank.key), (rank.key, windows))
        if first == rank.key:
            continue
        odd = _odd_numbers(windows, theirs, first)
        one_clock = hosts.get(rank.key) is not None and hosts.get(rank.key) == hosts.get(first)
        odd = odd or _odd_times(windows, theirs, first, one_clock=one_clock)
        found.append(Numbering(rank.key, first, odd is None, odd or f"as rank {first}"))
    return found


def _hosts(trace: Trace) -> dict[str, Any]:
    entries = [entry for entry in trace.metadata.get("ranks") or () if isinstance(entry, Mapping)]
    return {str(entry.get("key", entry.get("rank"))): entry.get("host") for entry in entries}


def _windows(rank: RankBreakdown) -> dict[int, _Cycles]:
    """Window -> its cycles; only what carries a number."""
    table = rank.phase_instances
    if not table.height:
        return {}
    begun = table.filter(pl.col("cycle") >= 0).group_by("window", "cycle").agg(pl.col("start_ns").min()).sort("cycle")
    numbered = begun.drop_nulls().group_by("window").agg("cycle", "start_ns")
    return {window: _Cycles(cycles, np.array(starts)) for window, cycles, starts in numbered.iter_rows()}


def _odd_numbers(mine: Mapping[int, _Cycles], theirs: Mapping[int, _Cycles], first: str) -> str | None:
    """What differs in the numbers; None where nothing does."""
    none = _Cycles([], np.array([], np.int64))
    pairs = {w: (mine.get(w, none).numbers, theirs.get(w, none).numbers) for w in sorted({*mine, *theirs})}
    odd = [w for w, (own, other) in pairs.items() if own != other]
    if not odd:
        return None
    own, other = pairs[odd[0]]
    shift = own[0] - other[0] if own and other else 0
    text = f"window {odd[0]}: {_span(own)}, rank {first} {_span(other)}"
    if shift and [number - shift for number in own] == other:
        text += f"; shifted by {abs(shift)}: means over ranks pair them in their order"
    else:
        text += "; not the same cycles: means over ranks pair equal numbers"
    return text + _more(odd)


def _odd_times(
    mine: Mapping[int, _Cycles], theirs: Mapping[int, _Cycles], first: str, *, one_clock: bool
) -> str | None:
    """Equal numbers of cycles that are not the same, by the times they began at; None where nothing tells so."""
    odd: dict[int, tuple[float, float]] = {}
    for window in sorted(mine):
        own, other = mine[window].begins_ns, theirs[window].begins_ns
        if len(own) < 2:
            continue
        later, usual = float(np.median(own - other)), float(np.median(np.diff(other)))
        longest = float(max(own[-1] - own[0], other[-1] - other[0])) + usual
        if abs(later) > (APART * usual if one_clock else longest):
            odd[window] = (later, usual)
    if not odd:
        return None
    window, (later, usual) = next(iter(odd.items()))
    when = f"{abs(later) / 1e6:.3f} ms {'later' if later > 0 else 'earlier'} than rank {first}'s"
    if one_clock:
        text = f"window {window}: the cycles begin {when} ({abs(later) / usual:.1f} cycles): other cycles under equal numbers"
    else:
        text = (
            f"window {window}: the cycles begin {when}, and not while these run: other cycles, or clocks that far apart"
        )
    return text + _more([*odd])


def _more(odd: Sequence[int]) -> str:
    return f" (and {len(odd) - 1} more windows)" if len(odd) > 2 else " (and 1 more window)" if len(odd) == 2 else ""


def _span(cycles: Sequence[int]) -> str:
    if not cycles:
        return "none"
    return f"cycle {cycles[0]}" if len(cycles) == 1 else f"{len(cycles)} cycles, {cycles[0]} to {cycles[-1]}"
