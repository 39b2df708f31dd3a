"""trace.parquet, read rank by rank (trace_writer writes it).

A row group holds one rank, so a rank is read without touching the others. ``ranks`` in the metadata says which row groups are whose; a
file that does not say it (the collector's) is sorted out by the statistics of its ``rank`` column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specanalyze.formats import rank_tables
from specanalyze.formats.compact_parquet import compact_rank
from specanalyze.formats.event_frame import DTYPES, table
from specanalyze.formats.input_path import misnamed
from specanalyze.formats.parquet_bounds import DAMAGED, bare, family, reason, refuse_bomb
from specanalyze.formats.rank_groups import GroupProgress, Progress, RankGroups, TraceFile, columns_of, types_of
from specanalyze.formats.recording_sections import MOST_RANKS, checked
from specanalyze.formats.trace_writer import write_trace
from specanalyze.remote_path import readable
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema import metadata
from specschema.errors import TraceError
from specschema.events import COLUMN_NAMES
from specschema.figures import counted, were

__all__ = ["read_trace", "write_trace"]

_RANK_DIGITS: Final = 6
_BATCH_ROWS: Final = 1 << 17
"""Rows read at once where few of them are kept."""


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
    report = GroupProgress(progress, files)
    return Trace(
        name=name or str(paths[0]),
        sources=tuple(
            RankSource(
                key=key,
                source=str(rank.parts[0][0].path),
                read=partial(_read_rank, rank, warnings, salvage=salvage, device=device, report=report),
                compact=None if salvage else partial(compact_rank, rank, report),
                near=None if salvage or "cpu" in (_recorded_on(rank), device) else partial(_read_near, rank, device),
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
        f"{counted(window['graph_replays'], 'graph')} {were(window['graph_replays'])} replayed; its phases have host time only, not an idle device"
    )


def _opened(paths: Sequence[Path]) -> tuple[list[TraceFile], dict[Path, str]]:
    """Files with a footer, and what is wrong with the others."""
    files: list[TraceFile] = []
    bad: dict[Path, str] = {}
    for path in paths:
        parquet, reason = _footer(path)
        if parquet is None:
            bad[path] = reason
            continue
        keys = parquet.metadata or {}
        refuse_bomb(parquet, path)
        files.append(TraceFile(path, checked(metadata.decode(keys, path.name), path.name), parquet, keys))
    return files, bad


def _footer(path: Path) -> tuple[pq.FileMetaData | None, str]:
    size = path.stat().st_size
    if size == 0:
        return None, "is empty: its writer was killed before closing it"
    try:
        return pq.read_metadata(readable(path)), ""
    except DAMAGED as error:
        if no_parquet := misnamed(path):
            return None, no_parquet.removeprefix(f"{path.name} ")
        with path.open("rb") as file:
            file.seek(max(0, size - 4))
            footer = file.read() == b"PAR1" and size > 12
        if not footer:
            return None, "has no footer: its writer was killed before closing it, or the file was cut"
        return None, f"has a damaged footer ({reason(error)})"


def _ranks(files: Sequence[TraceFile]) -> dict[str, RankGroups]:
    """Ranks in order, with the row groups that hold them."""
    ranks: dict[str, RankGroups] = {}
    identities: dict[str, dict[Path, object]] = {}
    for file in files:
        for key, rank, entry, groups in _of_file(file):
            known = ranks.setdefault(key, RankGroups(key, rank, entry))
            known.entry = known.entry or entry
            known.parts.append((file, groups))
            identities.setdefault(key, {})[file.path] = _identity(file)
    for key, found in identities.items():
        if (n := len(set(map(repr, found.values())))) > 1:
            *first, last = (path.name for path in found)
            names = f"{', '.join(first)} and {last}"
            raise TraceError(
                f"{'two' if n == 2 else n} recordings: rank {key} is in {names}, which are not of one recording; choose one: give its files alone"
            )
    for groups_of_rank in ranks.values():
        _refuse_table_twice(groups_of_rank)
    return dict(sorted(ranks.items(), key=lambda item: (item[1].rank < 0, item[1].rank, item[0])))


def _refuse_table_twice(rank: RankGroups) -> None:
    """Per-table files: one a table and rank.

    Raises:
        TraceError: two, which are of two recordings or one is a copy.
    """
    files: dict[str, TraceFile] = {}
    for file, _ in rank.parts:
        table_of_rank = rank_tables.kind_in_name(file.path.name)
        if table_of_rank is None or "kind" in types_of(file):
            continue
        other = files.setdefault(table_of_rank, file)
        if other is not file:
            raise TraceError(
                f"two recordings, or one file copied: {other.path.name} and {file.path.name} both hold the {table_of_rank} table of rank "
                f"{rank.key}; choose one: give the files of one recording"
            )


def _identity(file: TraceFile) -> object:
    """What files of one recording share: the collector numbers its recordings; tables of a rank lie side by side."""
    table_of_rank = rank_tables.kind_in_name(file.path.name)
    if table_of_rank is not None and "kind" not in types_of(file):
        return file.path.parent
    recording = file.sections.get("recording")
    recording = recording if isinstance(recording, dict) else {}
    if recording.get("id") is None:
        return file.path
    return recording.get("id"), recording.get("started_ns")


def _of_file(file: TraceFile) -> Iterator[tuple[str, int, dict[str, Any], list[int]]]:
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


def _rank_of_group(file: TraceFile, group: int) -> int:
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


def _read_rank(
    rank: RankGroups,
    warnings: list[str],
    *,
    salvage: bool,
    device: str | None,
    report: GroupProgress | None,
    near: tuple[int, int] | None = None,
) -> RankTrace:
    frames: list[pl.DataFrame] = []
    for file, groups in rank.parts:
        for group in groups:
            frame = _read_group(file, group, rank, warnings, salvage=salvage, near=near)
            if frame is not None:
                frames.append(frame)
            if report is not None:
                report.add(file, group)
    events = (
        table(pl.concat(frames, how="diagonal")) if frames else table(pl.DataFrame(schema={"kind": DTYPES["kind"]}))
    )
    first = rank.parts[0][0]
    world_size = rank.entry.get("world_size")
    return RankTrace(
        key=rank.key,
        rank=rank.rank,
        source=str(first.path),
        events=events,
        host=rank.entry.get("host"),
        device="cpu" if "cpu" in (_recorded_on(rank), device) and not _has_device_rows(events) else "cuda",
        world_size=world_size if isinstance(world_size, int) else None,
    )


def _recorded_on(rank: RankGroups) -> Any:
    recording = rank.parts[0][0].sections.get("recording")
    return rank.entry.get("device") or (recording.get("device") if isinstance(recording, dict) else None)


def _read_near(rank: RankGroups, device: str | None, first_ns: int, last_ns: int) -> RankTrace:
    """See ``RankSource.near``; batch by batch, so that the rank never lies in memory as a whole."""
    return _read_rank(rank, [], salvage=False, device=device, report=None, near=(first_ns, last_ns))


def _rows_near(parquet: pq.ParquetFile, group: int, columns: list[str], near: tuple[int, int]) -> pa.Table:
    """Nodes, and rows that start between two instants."""
    kept = []
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
        start, kind = batch.column("start_ns"), batch.column("kind").cast(pa.string())
        inside = pc.and_(pc.greater_equal(start, near[0]), pc.less_equal(start, near[1]))
        kept.append(batch.filter(pc.fill_null(pc.or_kleene(inside, pc.equal(kind, "node")), False)))
    return pa.Table.from_batches(kept) if kept else parquet.read_row_group(group, columns=columns)


def _has_device_rows(events: pl.DataFrame) -> bool:
    return bool(events["kind"].cast(pl.String).is_in(["kernel", "memcpy", "memset"]).any())


def _read_group(
    file: TraceFile,
    group: int,
    rank: RankGroups,
    warnings: list[str],
    *,
    salvage: bool,
    near: tuple[int, int] | None = None,
) -> pl.DataFrame | None:
    columns = columns_of(file, group)
    # Texts stay dictionaries: one long text that all rows share must not become as many copies.
    types = types_of(file)
    texts = [name for name in columns if family(types[name]) == "text"]
    try:
        whole = pq.ParquetFile(readable(file.path), metadata=file.parquet, read_dictionary=texts)
        if near is None or not {"kind", "start_ns"} <= set(columns):
            table_of_group = whole.read_row_group(group, columns=columns)
        else:
            table_of_group = _rows_near(whole, group, columns, near)
        arrow = bare(table_of_group)  # polars trusts what it is given
    except DAMAGED as error:
        rows = file.parquet.row_group(group).num_rows
        lost = f"{file.path.name}: row group {group} of rank {rank.key} ({counted(rows, 'row')}) is damaged ({reason(error)})"
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
