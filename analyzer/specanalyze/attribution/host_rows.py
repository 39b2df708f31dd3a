"""One rank for those who look at its host alone: cycles, phases and requests, without device rows where these need not be kept."""

from __future__ import annotations

from specanalyze.trace import RankSource, RankTrace


def host_rows(source: RankSource) -> RankTrace:
    """A rank's cycle, phase, request and node rows; of other kinds one row without a time stands for all, or all of them are there.

    Raises:
        TraceError: it can't be read.
    """
    rank = None if source.compact is None else source.compact()
    if rank is None:
        return source.read()
    return RankTrace(rank.key, rank.rank, rank.source, rank.events, rank.host, world_size=rank.world_size)
