"""Files beside a trace that say more about it: FILE.cycles.json (cycle_log) and FILE.nodemap.json (node_map)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from specanalyze.attribution.captured_nodes import NodeMap
from specanalyze.attribution.executable_graphs import CapturedNumbers, captured_numbers
from specanalyze.columns import distinct, factorize, integers
from specanalyze.formats import cycle_log, node_map
from specanalyze.formats.event_frame import DTYPES, main_thread, table
from specanalyze.formats.input_path import is_file
from specanalyze.formats.recordings import rank_in_name
from specanalyze.trace import RankTrace
from specschema.errors import UsageError
from specschema.events import DEVICE_KINDS
from specschema.figures import counted

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
        events, lines = _mapped(events, files.node_map, trace.rank)
        warnings += lines
    return replace(trace, events=events), warnings


def compactly(
    read: Callable[..., CompactRank | None] | None, files: Sidecars, warnings: list[str]
) -> Callable[[], CompactRank | None] | None:
    """How a rank is read compactly together with its sidecars; None where it is not: cycle logs take all its events.

    Args:
        read: of the rank alone; with a node map beside it takes ``nodes=True``, to keep the ids of graphs and nodes.
        files: the rank's.
        warnings: of the recording, for what the sidecars say.
    """
    if read is None or files.cycles is not None or files.other_cycles is not None:
        return None
    return read if files.node_map is None else partial(_read_mapped, read, files.node_map, warnings)


def _read_mapped(read: Callable[..., CompactRank | None], path: Path, warnings: list[str]) -> CompactRank | None:
    rank = read(nodes=True)
    if rank is None:
        return None
    rows = _node_rows(rank.events, path, rank.rank)
    nodes = NodeMap.of(rows)
    looks = [(name, kind) for name, kind, _ in rank.looks]
    windows = {}
    for number, (device, calls) in rank.windows.items():
        found = captured_numbers(nodes, looks, device.look, device.ran, device.node, device.id)
        warnings += [line for line in _undecided(path, found) if line not in warnings]
        ran = found.apply(device.ran)
        windows[number] = replace(device, ran=ran if bool((ran >= 0).any()) else ran[:0].copy()), calls
    return replace(rank, events=_with_nodes(rank.events, rows), windows=windows)


def _mapped(events: pl.DataFrame, path: Path, rank: int) -> tuple[pl.DataFrame, list[str]]:
    """A rank's events with the nodes of a map instead of their own, and what is to be said of them.

    The trace's own graph numbers are the profiler's, of executable graphs; the map numbers captures. Node ordinals hold for both.

    Raises:
        TraceError: it can't be read.
    """
    rows = _node_rows(events, path, rank)
    nodes = NodeMap.of(rows)
    warnings: list[str] = []
    ran, node = integers(events, "graph_id", -1), integers(events, "node", -1)
    captured = np.full(len(ran), -1, dtype=np.int64)
    kind, kinds = factorize(events, "kind")
    name, names = factorize(events, "name")
    usable = np.isin(kind, [code for code, text in enumerate(kinds) if text in DEVICE_KINDS])
    usable &= integers(events, "dur_ns", -1) >= 0
    used, look = distinct(name[usable] * len(kinds) + kind[usable])
    looks = [(names[code // len(kinds)] if code >= 0 else "", kinds[code % len(kinds)]) for code in used.tolist()]
    window, correlation = integers(events, "window", 0)[usable], integers(events, "correlation", -1)[usable]
    for number in distinct(window)[0].tolist():  # one turn a window: a profiler may number graphs anew in each
        mine = window == number
        at = np.flatnonzero(usable)[mine]
        found = captured_numbers(nodes, looks, look[mine], ran[at], node[at], correlation[mine])
        captured[at] = found.apply(ran[at])
        warnings += [line for line in _undecided(path, found) if line not in warnings]
    graph_id = pl.Series("graph_id", captured, dtype=DTYPES["graph_id"])
    return _with_nodes(events.with_columns(graph_id.set(graph_id < 0, None)), rows), warnings


def _node_rows(events: pl.DataFrame, path: Path, rank: int) -> pl.DataFrame:
    return node_map.node_rows(node_map.read_node_map(path), rank, main_thread(events)[0])


def _with_nodes(events: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return table(pl.concat([events.filter(pl.col("kind") != "node"), rows], how="diagonal"))


def _undecided(path: Path, found: CapturedNumbers) -> list[str]:
    if not found.undecided:
        return []
    return [
        f"{path.name}: {counted(found.undecided, 'graph')} that ran may be several of its graphs, of different modules: classes there are "
        "by name"
    ]
