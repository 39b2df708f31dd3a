"""Ranks kept in memory between the several looks a report takes at them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from specanalyze.trace import RankSource, RankTrace, Trace

MOST_BYTES: Final = 1 << 30
"""Ranks are kept as long as all of them together are smaller than this; what does not fit is read again."""


class _Shelf:
    """Ranks that were read."""

    def __init__(self) -> None:
        self._ranks: dict[str, RankTrace] = {}
        self._bytes = 0

    def get(self, source: RankSource) -> RankTrace:
        if source.key in self._ranks:
            return self._ranks[source.key]
        rank = source.read()
        size = int(rank.events.estimated_size())
        if self._bytes + size <= MOST_BYTES:
            self._ranks[source.key] = rank
            self._bytes += size
        return rank


def held(trace: Trace) -> Trace:
    """The same recording; each of its ranks is read once where memory allows."""
    shelf = _Shelf()
    return replace(trace, sources=tuple(replace(s, read=partial(shelf.get, s)) for s in trace.sources))
