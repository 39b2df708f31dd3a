"""trace.parquet, read rank by rank (trace_writer writes it).

A row group holds one rank, so a rank is read without touching the others. ``ranks`` in the metadata says which row groups are whose; a
file that does not say it (the collector's) is sorted out by the statistics of its ``rank`` column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from specanalyze import rank_tables
from specanalyze.arrow_piece import ArrowPiece
from specanalyze.compact_rank import COLLECTIVE_FACTS, Collector, CompactRank, OddRowsError
from specanalyze.event_frame import DTYPES, table
from specanalyze.native import collect
from specanalyze.parquet_bounds import DAMAGED, bare, family, fits, reason, refuse_bomb
from specanalyze.recording_sections import MOST_RANKS, checked
from specanalyze.remote_path import readable
from specanalyze.trace import RankSource, RankTrace, Trace
from specanalyze.trace_writer import write_trace
from specschema import metadata
from specschema.errors import TraceError
from specschema.events import COLUMN_NAMES, EVENT_SCHEMA

__all__ = ["read_trace", "write_trace"]

_RANK_DIGITS: Final = 6
_KNOWN: Final = frozenset({*COLUMN_NAMES, *rank_tables.COLUMNS})

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _File:
    """One file with a footer."""

    path: Path
    sections: dict[str, Any]
    parquet: pq.FileMetaData
    keys: dict[bytes, bytes]


@dataclass
class _Rank:
    """Where the rows of one rank are."""

    key: str
    rank: int
    entry: dict[str, Any] = field(default_factory=dict)
    parts: list[tuple[_File, list[int]]] = field(default_factory=list)


def read_trace(
    paths: Sequence[Path],
    *,
    name: str | None = None,
    salvage: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Open trace.parquet, several files of one recording, or per-table rank files; ranks are read when asked for.

    Args:
        paths: the files.
        name: what to call the trace; the first path by default.
        salvage: go on without files and row groups that are damaged; ``warnings`` says what is lost.
        device: "cpu" for ranks without device work.
        progress: called with (bytes read, bytes of all files).

    Returns:
        The trace. Columns that this reader does not know are ignored; those that are null throughout a rank are left out.

    Raises:
        TraceError: a newer schema version, no trace of ours, damaged files (every one is named), or two recordings.
    """
    files, bad = _opened(paths)
    ranks = _ranks(files)
    warnings: list[str] = []
    if bad:
        whole = ", ".join(f"rank {key}" for key in ranks) or "nothing"
        what = "; ".join(f"{path.name} {reason}" for path, reason in bad.items())
        if not salvage or not ranks:
            raise TraceError(
                f"{len(bad)} of {len(paths)} files can't be read: {what}. Readable: {whole}"
                + ("; --salvage goes on with that" if ranks else "")
            )
        warnings.append(f"lost: {what}; read: {whole}")
    sections = dict(files[0].sections) if files else {}
    sections.pop("schema_version", None)
    warnings += [line for file in files for line in _recorded_warnings(file.sections)]
    if len(files) > 1:
        sections["ranks"] = [rank.entry for rank in ranks.values() if rank.entry]
        windows = [w for file in files for w in (file.sections.get("recording") or {}).get("windows") or []]
        sections["recording"] = {**(sections.get("recording") or {}), "windows": windows}
    warnings = list(dict.fromkeys(warnings))
    report = _Progress(progress, files)
    return Trace(
        name=name or str(paths[0]),
        sources=tuple(
            RankSource(
                key=key,
                source=str(rank.parts[0][0].path),
                read=partial(_read_rank, rank, warnings, salvage=salvage, device=device, report=report),
                compact=None if salvage else partial(_compact_rank, rank, report),
            )
            for key, rank in ranks.items()
        ),
        metadata=sections,
        warnings=warnings,
    )


def _recorded_warnings(sections: dict[str, Any]) -> list[str]:
    """What the writer had to say: the importer's warnings, the collector's problems."""
    recording = sections.get("recording")
    if not isinstance(recording, dict):
        return []
    lines = [*(recording.get("warnings") or []), *(recording.get("problems") or [])]
    missing, incomplete = recording.get("missing_ranks"), recording.get("incomplete_ranks")
    if missing:
        lines.append(f"ranks missing from the recording: {', '.join(map(str, missing))}")
    if incomplete:
        lines.append(f"ranks that did not end their recording: {', '.join(map(str, incomplete))}")
    lines += [_empty_window(window) for window in recording.get("windows") or [] if _is_empty(window)]
    return [str(line) for line in lines]


def _is_empty(window: dict[str, Any]) -> bool:
    """Whether the profiler saw nothing of a window in which graphs ran; False where the recording counts neither."""
    return window.get("device_records") == 0 and (window.get("graph_replays") or 0) > 0


def _empty_window(window: dict[str, Any]) -> str:
    return (
        f"rank {window.get('rank', '?')}, window {window.get('window')}: no device activity was recorded although "
        f"{window['graph_replays']} graphs were replayed; its phases have host time only, not an idle device"
    )


def _opened(paths: Sequence[Path]) -> tuple[list[_File], dict[Path, str]]:
    """Files with a footer, and what is wrong with the others."""
    files: list[_File] = []
    bad: dict[Path, str] = {}
    for path in paths:
        parquet, reason = _footer(path)
        if parquet is None:
            bad[path] = reason
            continue
        keys = parquet.metadata or {}
        refuse_bomb(parquet, path)
        files.append(_File(path, checked(metadata.decode(keys, path.name), path.name), parquet, keys))
    return files, bad


def _footer(path: Path) -> tuple[pq.FileMetaData | None, str]:
    size = path.stat().st_size
    if size == 0:
        return None, "is empty: its writer was killed before closing it"
    try:
        return pq.read_metadata(readable(path)), ""
    except DAMAGED as error:
        with path.open("rb") as file:
            file.seek(max(0, size - 4))
            footer = file.read() == b"PAR1" and size > 12
        if not footer:
            return None, "has no footer: its writer was killed before closing it, or the file was cut"
        return None, f"has a damaged footer ({reason(error)})"


def _ranks(files: Sequence[_File]) -> dict[str, _Rank]:
    """Ranks in order, with the row groups that hold them."""
    ranks: dict[str, _Rank] = {}
    identities: dict[str, dict[Path, object]] = {}
    for file in files:
        for key, rank, entry, groups in _of_file(file):
            known = ranks.setdefault(key, _Rank(key, rank, entry))
            known.entry = known.entry or entry
            known.parts.append((file, groups))
            identities.setdefault(key, {})[file.path] = _identity(file)
    for key, found in identities.items():
        if len(set(map(repr, found.values()))) > 1:
            names = " and ".join(path.name for path in found)
            raise TraceError(
                f"two recordings: rank {key} is in {names}, which are not of one recording; choose one: give its files alone"
            )
    return dict(sorted(ranks.items(), key=lambda item: (item[1].rank < 0, item[1].rank, item[0])))


def _identity(file: _File) -> object:
    """What files of one recording share: the collector numbers its recordings; tables of a rank lie side by side."""
    table_of_rank = rank_tables.kind_in_name(file.path.name)
    if table_of_rank is not None and "kind" not in _types(file):
        return file.path.parent
    recording = file.sections.get("recording")
    recording = recording if isinstance(recording, dict) else {}
    if recording.get("id") is None:
        return file.path
    return recording.get("id"), recording.get("started_ns")


def _of_file(file: _File) -> Iterator[tuple[str, int, dict[str, Any], list[int]]]:
    """(key, rank, metadata entry, row groups) of each rank in a file."""
    entries = [entry for entry in file.sections.get("ranks") or [] if isinstance(entry, dict)]
    if entries and all("row_groups" in entry for entry in entries):
        for entry in entries:
            first, count = entry["row_groups"]
            if first + count > file.parquet.num_row_groups or entry.get("key") is None or entry.get("rank") is None:
                raise TraceError(
                    f"{file.path.name}: its metadata give a rank row groups {first} to {first + count - 1} of "
                    f"{file.parquet.num_row_groups}, or no key: damaged, or not written by this tool"
                )
            yield str(entry["key"]), int(entry["rank"]), entry, list(range(first, first + count))
        return
    by_rank: dict[int, list[int]] = {}
    for group in range(file.parquet.num_row_groups):
        if file.parquet.row_group(group).num_rows:
            by_rank.setdefault(_rank_of_group(file, group), []).append(group)
    for rank, groups in by_rank.items():
        yield str(rank), rank, next((e for e in entries if e.get("rank") == rank), {}), groups


def _rank_of_group(file: _File, group: int) -> int:
    told = file.keys.get(b"specanalyze.rank")
    row_group = file.parquet.row_group(group)
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        if column.path_in_schema == "rank" and column.is_stats_set and column.statistics.has_min_max:
            least, most = column.statistics.min, column.statistics.max
            if type(least) is not int or not -1 <= least < MOST_RANKS:
                raise TraceError(f"{file.path.name}: column rank of row group {group} holds no rank")
            if least != most:
                raise TraceError(f"{file.path.name}: row group {group} holds several ranks; a row group must hold one")
            return least
    if told is not None and told.isdigit() and len(told) <= _RANK_DIGITS:
        return int(told)
    raise TraceError(f"{file.path.name}: row group {group} does not say its rank (column rank has no statistics)")


class _Progress:
    """Bytes of row groups over those of all files; a row group read twice counts once."""

    def __init__(self, report: Progress | None, files: Sequence[_File]) -> None:
        self._report = report
        self._total = sum(
            f.parquet.row_group(g).total_byte_size for f in files for g in range(f.parquet.num_row_groups)
        )
        self._done: dict[tuple[Path, int], int] = {}

    def add(self, file: _File, group: int) -> None:
        if self._report is not None:
            self._done[file.path, group] = file.parquet.row_group(group).total_byte_size
            self._report(sum(self._done.values()), self._total)


def _read_rank(rank: _Rank, warnings: list[str], *, salvage: bool, device: str | None, report: _Progress) -> RankTrace:
    frames: list[pl.DataFrame] = []
    for file, groups in rank.parts:
        for group in groups:
            frame = _read_group(file, group, rank, warnings, salvage=salvage)
            if frame is not None:
                frames.append(frame)
            report.add(file, group)
    events = (
        table(pl.concat(frames, how="diagonal")) if frames else table(pl.DataFrame(schema={"kind": DTYPES["kind"]}))
    )
    first = rank.parts[0][0]
    recording = first.sections.get("recording")
    recorded_on = rank.entry.get("device") or (recording.get("device") if isinstance(recording, dict) else None)
    world_size = rank.entry.get("world_size")
    return RankTrace(
        key=rank.key,
        rank=rank.rank,
        source=str(first.path),
        events=events,
        host=rank.entry.get("host"),
        device="cpu" if "cpu" in (recorded_on, device) and not _has_device_rows(events) else "cuda",
        world_size=world_size if isinstance(world_size, int) else None,
    )


_SUMMED: Final = frozenset(
    {
        *("kind", "pid", "name", "start_ns", "dur_ns", "tid", "window", "correlation", "device", "stream"),
        *("cycle", "mode", "batch_size", "draft_tokens", "request_ids", "accept_lengths", "accepted_draft_tokens"),
        *("graph_batch_size", "context_tokens", *COLLECTIVE_FACTS),
    }
)
"""Columns that sums over a rank need."""
_CYCLE_FACTS: Final = frozenset(("cycle", "mode", "batch_size", "draft_tokens", "graph_batch_size", "context_tokens"))
_COMPILES_ABOVE_ROWS: Final = 200_000
"""Rows of a rank that repay compiling what takes them apart, once."""
_BATCH_ROWS: Final = 1 << 17
"""Rows read at once: their columns stay in the processor's cache until they are taken apart."""


def _compact_rank(rank: _Rank, report: _Progress) -> CompactRank | None:
    """A rank's rows as sums over them need them; None where only its whole tables can be judged (damage included)."""
    rows = sum(file.parquet.row_group(group).num_rows for file, groups in rank.parts for group in groups)
    compiled = collect.compiled(compile_it=rows > _COMPILES_ABOVE_ROWS)
    if compiled is None:
        return None
    collector = Collector(compiled)
    dictionaries: dict[str, Any] = {}
    try:
        for file, groups in rank.parts:
            types = _types(file)
            if "kind" not in types:
                return None
            texts = [name for name in types if family(types[name]) == "text"]
            whole = pq.ParquetFile(readable(file.path), metadata=file.parquet, read_dictionary=texts)
            for group in groups:
                constant = _constant(file, group)
                columns = [c for c in _summed_columns(file, group) if c not in constant]
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


def _summed_columns(file: _File, group: int) -> list[str]:
    """Columns of a row group that sums over it need.

    Lists of which no element is known are not read where no number stands beside them: reading four such columns costs as much as all
    that are needed, and they tell nothing.
    """
    names = [name for name in _columns(file, group) if name in _SUMMED]
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


def _constant(file: _File, group: int) -> dict[str, int]:
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


def _has_device_rows(events: pl.DataFrame) -> bool:
    return bool(events["kind"].cast(pl.String).is_in(["kernel", "memcpy", "memset"]).any())


def _read_group(file: _File, group: int, rank: _Rank, warnings: list[str], *, salvage: bool) -> pl.DataFrame | None:
    columns = _columns(file, group)
    # Texts stay dictionaries: one long text that all rows share must not become as many copies.
    types = _types(file)
    texts = [name for name in columns if family(types[name]) == "text"]
    try:
        whole = pq.ParquetFile(readable(file.path), metadata=file.parquet, read_dictionary=texts)
        arrow = bare(whole.read_row_group(group, columns=columns))  # polars trusts what it is given
    except DAMAGED as error:
        rows = file.parquet.row_group(group).num_rows
        lost = f"{file.path.name}: row group {group} of rank {rank.key} ({rows} rows) is damaged ({reason(error)})"
        if not salvage:
            raise TraceError(f"{lost}; --salvage reads the others") from error
        if f"lost: {lost}" not in warnings:
            warnings.append(f"lost: {lost}")
        return None
    frame = cast(pl.DataFrame, pl.from_arrow(arrow))
    if "kind" not in frame.columns:
        frame = rank_tables.events(frame, file.path.name, rank.rank)
    kept = [c for c in COLUMN_NAMES if c in frame.columns]
    typed = frame.select(pl.col(c).cast(DTYPES[c], strict=False) for c in kept)
    for column in kept:
        if typed[column].null_count() != frame[column].null_count():
            raise TraceError(
                f"{file.path.name}: column {column} holds numbers that do not fit its type {DTYPES[column]}: damaged, or not written by this tool"
            )
    return typed


def _types(file: _File) -> dict[str, pa.DataType]:
    """Arrow type of each column.

    Raises:
        TraceError: they can't be told, or a column that is read has a type of another family, or stands there twice.
    """
    try:
        schema = file.parquet.schema.to_arrow_schema()
    except DAMAGED as error:
        raise TraceError(f"{file.path.name} has a damaged footer ({reason(error)})") from None
    names = [name for name in schema.names if name in _KNOWN]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError(f"{file.path.name} has two columns {twice}: damaged, or not written by this tool")
    for name in names:
        wanted = EVENT_SCHEMA.field(rank_tables.COLUMNS.get(name, name)).type
        if not fits(schema.field(name).type, wanted):
            raise TraceError(
                f"{file.path.name}: column {name} holds {family(schema.field(name).type)}, not {family(wanted)}: "
                "damaged, or not written by this tool"
            )
    return dict(zip(schema.names, schema.types, strict=True))


def _columns(file: _File, group: int) -> list[str]:
    """Known columns of a row group that are not null throughout, as far as its statistics say so."""
    row_group = file.parquet.row_group(group)
    names: list[str] = []
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        name = column.path_in_schema.split(".")[0]
        nulls = column.statistics.null_count if column.is_stats_set and column.statistics.has_null_count else None
        is_list = "." in column.path_in_schema  # the nulls of a list column are those of its elements
        if name in _KNOWN and (is_list or nulls != row_group.num_rows):
            names.append(name)
    return list(dict.fromkeys(names))
