"""Files beside a trace that say more about it: FILE.cycles.json (cycle_log) and FILE.nodemap.json (node_map)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from specanalyze.formats import cycle_log, node_map
from specanalyze.formats.event_frame import DTYPES, main_thread, table
from specanalyze.formats.input_path import is_file
from specanalyze.formats.recordings import rank_in_name
from specanalyze.trace import RankTrace
from specschema.errors import UsageError

if TYPE_CHECKING:
    from specanalyze.formats.compact_rank import CompactRank

SUFFIXES: Final = (cycle_log.SUFFIX, node_map.SUFFIX)
_JSON: Final = re.compile(r"\.json(?:\.gz)?$")


@dataclass(frozen=True)
class Sidecars:
    """What goes with one rank.

    Attributes:
        cycles: cycle log of the same run, found beside the trace.
        other_cycles: cycle log that the user named, of this run or another.
        node_map: nodes of the captured graphs.
    """

    cycles: Path | None = None
    other_cycles: Path | None = None
    node_map: Path | None = None


def find(trace: Path, rank: int, ranks: Collection[int], cycles: Path | None, nodes: Path | None) -> Sidecars:
    """Sidecars of one rank's file.

    A named file whose name holds a rank (``e2_m12_rank0.cycles.json``) is that rank's; other ranks take the
    file beside it that is named the same way, if there is one.

    Raises:
        UsageError: a named file does not exist.
    """
    beside: dict[str, Path | None] = dict.fromkeys(SUFFIXES)
    if _JSON.search(trace.name):  # a trace.parquet already holds what its importer found beside the JSON
        paths = {suffix: trace.with_name(_JSON.sub("", trace.name) + suffix) for suffix in SUFFIXES}
        beside = {suffix: path if is_file(path) else None for suffix, path in paths.items()}
    return Sidecars(
        cycles=beside[cycle_log.SUFFIX],
        other_cycles=_of_rank(cycles, rank, ranks),
        node_map=_of_rank(nodes, rank, ranks) if nodes else beside[node_map.SUFFIX],
    )


def _of_rank(named: Path | None, rank: int, ranks: Collection[int]) -> Path | None:
    if named is None:
        return None
    if not is_file(named):
        raise UsageError(f"{named}: no such file")
    told = rank_in_name(named.name)
    if told is None or told == rank or len(ranks) == 1:
        return named
    sibling = named.with_name(re.sub(rf"((?:TP|rank)[-_]?){told}(?!\d)", rf"\g<1>{rank}", named.name, count=1))
    return sibling if is_file(sibling) else None


def add(trace: RankTrace, files: Sidecars) -> tuple[RankTrace, list[str]]:
    """A rank's trace with what its sidecars say, and warnings.

    Raises:
        TraceError: a sidecar that can't be read.
    """
    events, warnings = trace.events, list[str]()
    named = files.other_cycles
    if files.cycles is not None and files.cycles != named:
        log = cycle_log.read_cycle_log(files.cycles)
        # Where another control is named, the log beside the trace only numbers the trace's own cycles.
        events, lines = cycle_log.add_cycles(events, log, files.cycles.name, control=named is None)
        warnings += lines
    if named is not None:
        events, lines = cycle_log.add_cycles(events, cycle_log.read_cycle_log(named), named.name)
        warnings += lines
    if files.node_map is not None:
        events = _mapped(events, files.node_map, trace.rank)
    return replace(trace, events=events), warnings


def compactly(
    read: Callable[[], CompactRank | None] | None, files: Sidecars
) -> Callable[[], CompactRank | None] | None:
    """How a rank is read compactly together with its sidecars; None where it is not: cycle logs take all its events."""
    if read is None or files.cycles is not None or files.other_cycles is not None:
        return None
    return read if files.node_map is None else partial(_read_mapped, read, files.node_map)


def _read_mapped(read: Callable[[], CompactRank | None], path: Path) -> CompactRank | None:
    rank = read()
    if rank is None:
        return None
    windows = {
        number: (replace(device, ran=device.ran[:0].copy(), node=device.node[:0].copy()), calls)
        for number, (device, calls) in rank.windows.items()
    }
    return replace(rank, events=_mapped(rank.events, path, rank.rank), windows=windows)


def _mapped(events: pl.DataFrame, path: Path, rank: int) -> pl.DataFrame:
    """A rank's events with the nodes of a map instead of their own.

    Raises:
        TraceError: it can't be read.
    """
    rows = node_map.node_rows(node_map.read_node_map(path), rank, main_thread(events)[0])
    # The trace's own graph numbers are the profiler's, of executable graphs; the map numbers captures. Node ordinals hold for both.
    events = events.filter(pl.col("kind") != "node").with_columns(graph_id=pl.lit(None, dtype=DTYPES["graph_id"]))
    return table(pl.concat([events, rows], how="diagonal"))
