"""What every importer produces and every analysis consumes: one recording, rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from specschema.errors import TraceError

if TYPE_CHECKING:
    from specanalyze.engines.engine import Engine
    from specanalyze.formats.compact_rank import CompactRank


@dataclass(frozen=True)
class RankTrace:
    """All events of one rank.

    Attributes:
        key: what reports call the rank: ``"0"``, or ``"pid4242"`` where only the process is known.
        rank: global rank; -1 where unknown.
        source: file the events came from, for messages.
        events: columns of ``specschema.events.COLUMNS`` (those that are all null may be missing), in file order.
            Device rows without a usable time (RULES R1) have a null ``dur_ns``; the analysis drops and counts them.
        host: host name or hash; None where nothing says it.
        device: ``"cuda"``, or ``"cpu"`` when CPU operators stand in for device work.
        world_size: ranks of the recording as the file itself says; None where it does not.
    """

    key: str
    rank: int
    source: str
    events: pl.DataFrame
    host: str | None = None
    device: str = "cuda"
    world_size: int | None = None


@dataclass(frozen=True)
class RankSource:
    """A rank that has not been read yet, so that a recording of many ranks never has to fit in memory at once.

    Attributes:
        key, source: as ``RankTrace``.
        read: reads it. It can be pickled (a ``partial`` of a function at the top of a module), so that another process can do it.
        compact: reads what sums over it need, in a fraction of the memory, and can be pickled, too; None, or a call that gives
            None, where only ``read`` will do.
        near: reads at least the nodes of its captured graphs and what starts between two instants (ns, both included), in a fraction
            of the memory; None where only ``read`` will do. It says nothing of what is wrong with the rank: whoever uses it has
            read the rank before.
    """

    key: str
    source: str
    read: Callable[[], RankTrace]
    compact: Callable[[], CompactRank | None] | None = None
    near: Callable[[int, int], RankTrace] | None = None

    def around(self, first_ns: int, last_ns: int) -> RankTrace:
        """The nodes of its captured graphs and what starts between two instants (both included).

        Raises:
            TraceError: it can't be read.
        """
        rank = self.read() if self.near is None else self.near(first_ns, last_ns)
        node = pl.col("kind").cast(pl.String) == "node"
        return replace(rank, events=rank.events.filter(node | pl.col("start_ns").is_between(first_ns, last_ns)))


@dataclass(frozen=True)
class Trace:
    """One recording.

    Attributes:
        name: path the user gave.
        sources: its ranks, in order of rank.
        metadata: sections of ``specschema.metadata.SECTIONS`` that the recording has.
        warnings: one line each, shown to the user under every result; importers and readers append to it.
        engine: who works on its ranks; None for this process alone.
    """

    name: str
    sources: tuple[RankSource, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    engine: Engine | None = None

    @property
    def short(self) -> str:
        """The name in a sentence that has others: ``/a/rank0.json, /a/rank1.json`` -> ``/a/rank0.json and 1 more``."""
        first, *others = self.name.split(", ")
        return f"{first} and {len(others)} more" if others else first

    def refuse_empty(self) -> None:
        """A file may be whole and hold nothing.

        Raises:
            TraceError: the recording has no rank.
        """
        if not self.sources:
            raise TraceError(f"{self.name} holds no rank: no event was recorded into it, or none is left")

    def ranks(self) -> Iterator[RankTrace]:
        """Read the ranks one after another.

        Raises:
            TraceError: there is none, or one can't be read.
        """
        self.refuse_empty()
        for source in self.sources:
            yield source.read()
