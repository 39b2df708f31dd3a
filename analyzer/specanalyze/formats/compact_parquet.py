"""A rank of trace.parquet as sums over it need it, batch by batch: see ``compact_rank``."""

from __future__ import annotations

from typing import Any, Final

import pyarrow.parquet as pq

from specanalyze.formats.arrow_piece import ArrowPiece
from specanalyze.formats.compact_rank import COLLECTIVE_FACTS, CompactRank, OddRowsError
from specanalyze.formats.parquet_bounds import DAMAGED, family
from specanalyze.formats.rank_collector import Collector
from specanalyze.formats.rank_groups import GroupProgress, RankGroups, TraceFile, columns_of, types_of
from specanalyze.native import collect
from specanalyze.remote_path import readable
from specschema.errors import TraceError

_SUMMED: Final = frozenset(
    {
        *("kind", "pid", "name", "start_ns", "dur_ns", "tid", "window", "correlation", "device", "stream"),
        *("cycle", "mode", "batch_size", "draft_tokens", "request_ids", "accept_lengths", "accepted_draft_tokens"),
        *("graph_batch_size", "context_tokens", *COLLECTIVE_FACTS),
        *("prompt_tokens", "completion_tokens", "first_token_ns"),
    }
)
"""Columns that sums over a rank need."""
_NODES: Final = "node_type"
"""What every node of a captured graph has."""
_OF_NODES: Final = frozenset(("graph_id", "node", _NODES, "module", "module_class"))
"""Columns that they need beside these of a rank with captured graphs."""
_CYCLE_FACTS: Final = frozenset(("cycle", "mode", "batch_size", "draft_tokens", "graph_batch_size", "context_tokens"))
_COMPILES_ABOVE_ROWS: Final = 200_000
"""Rows of a rank that repay compiling what takes them apart, once."""
_BATCH_ROWS: Final = 1 << 17
"""Rows read at once: their columns stay in the processor's cache until they are taken apart."""


def compact_rank(rank: RankGroups, report: GroupProgress, *, nodes: bool = False) -> CompactRank | None:
    """A rank's rows as sums over them need them; None where only its whole tables can be judged (damage included).

    Args:
        rank, report: of trace_files.
        nodes: keep what rows name of captured graphs, also where the recording has none.
    """
    rows = sum(file.parquet.row_group(group).num_rows for file, groups in rank.parts for group in groups)
    compiled = collect.compiled(compile_it=rows > _COMPILES_ABOVE_ROWS)
    if compiled is None:
        return None
    dictionaries: dict[str, Any] = {}
    try:
        nodes = nodes or any(_NODES in columns_of(file, group) for file, groups in rank.parts for group in groups)
        collector = Collector(compiled, nodes=nodes)
        for file, groups in rank.parts:
            types = types_of(file)
            if "kind" not in types:
                return None
            texts = [name for name in types if family(types[name]) == "text"]
            whole = pq.ParquetFile(readable(file.path), metadata=file.parquet, read_dictionary=texts)
            for group in groups:
                constant = _constant(file, group)
                columns = [c for c in _summed_columns(file, group, nodes=nodes) if c not in constant]
                for batch in whole.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
                    collector.add(ArrowPiece(batch, constant, dictionaries))
                report.add(file, group)
        if not collector.device_rows:
            return None
        world_size = rank.entry.get("world_size")
        return collector.finished(
            rank.key,
            rank.rank,
            str(rank.parts[0][0].path),
            host=rank.entry.get("host"),
            world_size=world_size if isinstance(world_size, int) else None,
        )
    except (OddRowsError, TraceError, *DAMAGED):
        return None  # the whole-table path says what is wrong, if anything is


def _summed_columns(file: TraceFile, group: int, *, nodes: bool) -> list[str]:
    """Columns of a row group that sums over it need.

    Lists of which no element is known are not read where no number stands beside them: reading four such columns costs as much as all
    that are needed, and they tell nothing.
    """
    wanted = _SUMMED | _OF_NODES if nodes else _SUMMED
    names = [name for name in columns_of(file, group) if name in wanted]
    row_group = file.parquet.row_group(group)
    unknown = set()
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        nulls = column.statistics.null_count if column.is_stats_set and column.statistics.has_null_count else None
        if "." in column.path_in_schema and nulls == column.num_values:
            unknown.add(column.path_in_schema.split(".")[0])
    if not _CYCLE_FACTS.isdisjoint(names):
        unknown &= {"group_ranks"}
    return [name for name in names if name not in unknown]


def _constant(file: TraceFile, group: int) -> dict[str, int]:
    """Integer columns with one value throughout a row group, by its statistics; a device is 0 where it is null."""
    found: dict[str, int] = {}
    row_group = file.parquet.row_group(group)
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        name = column.path_in_schema
        if name not in ("pid", "window", "device") or not column.is_stats_set or not column.statistics.has_min_max:
            continue
        low, high, nulls = column.statistics.min, column.statistics.max, column.statistics.null_count
        if type(low) is int and low == high and (nulls == 0 if name != "device" else low == 0):
            found[name] = low
    return found
