"""One rank for those who look at its host alone: cycles, phases and requests, without device rows where these need not be kept."""

from __future__ import annotations

from specanalyze.columns import of_kind
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


def with_operators(source: RankSource, rank: RankTrace) -> RankTrace:
    """The rank with its operators, where it has any; ``rank`` of ``host_rows``, or as ``read_rank`` has read it.

    Raises:
        TraceError: it can't be read.
    """
    operators = of_kind(rank.events, ("op",))
    stands_for_all = operators.height > 0 and operators.get_column("start_ns").null_count() == operators.height
    return source.read() if stands_for_all else rank
