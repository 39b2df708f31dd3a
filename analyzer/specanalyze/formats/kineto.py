"""torch.profiler (Kineto, Chrome JSON) files: who recorded them, and their events."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl

from specanalyze.collectives import group_ranks
from specanalyze.formats import chrome_member, json_repair, kineto_scan
from specanalyze.formats.compact_rank import CompactRank, OddRowsError
from specanalyze.formats.event_bounds import LATEST_NS
from specanalyze.formats.event_frame import empty, main_thread, table
from specanalyze.formats.event_text import EventText
from specanalyze.formats.file_text import FileText, Progress
from specanalyze.formats.frame_piece import FramePiece
from specanalyze.formats.kineto_columns import Row, columns, decode
from specanalyze.formats.kineto_scan import Rows
from specanalyze.formats.rank_collector import Collector, Piece
from specanalyze.formats.recording_sections import MOST_RANKS
from specanalyze.formats.recordings import RankFile, host_in_name, rank_in_name
from specanalyze.formats.scanned_piece import ScannedPiece
from specanalyze.native import collect
from specschema.errors import TraceError

_DEVICE_ROW: Final = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"')
_OVERLAP_BYTES: Final = 64
_HEADER_BYTES: Final = 1 << 17
"""Mostly holds what stands before the first event; more is read where that is longer."""
_NOT_SUMMED: Final = ("grid", "block", "bytes")
"""Arguments that sums over a rank don't need."""
_IDS: Final = ("graph_id", "node")
"""Arguments that they need with a node map only."""
_ONE_WINDOW: Final = {"window": 0}
_LONGEST_NUMBER: Final = 30
"""Digits; nanoseconds since 1970 have 19."""
_STREAMED_ROWS: Final = 1 << 16
_SCANNED_BYTES: Final = 1 << 20
"""Text scanned at once: small enough to stay in the processor's cache from reading to scanning."""


@dataclass(frozen=True)
class KinetoFile:
    """What a file says about itself beside its events.

    Attributes:
        file: rank, host and time base.
        metadata: top-level members, those behind the events included.
    """

    file: RankFile
    metadata: Mapping[str, Any] = field(default_factory=dict)


def identify(path: Path) -> KinetoFile:
    """Rank, host and time base of a file, without decoding its events.

    The rank is distributedInfo's, else the file name's (RULES R9). The host is the one the file names, else the
    file name's (RULES R7).

    Raises:
        TraceError: the file is empty, or no Chrome trace.
    """
    metadata = EventText(FileText(path, first_bytes=_HEADER_BYTES), decode).peek()
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _count(info.get("rank"))
    host = metadata.get("host_name")
    return KinetoFile(
        file=RankFile(
            path=path,
            rank=rank_in_name(path.name) if rank is None else rank,
            host=host if isinstance(host, str) and host else host_in_name(path.name),
            world_size=_count(info.get("world_size")),
            base_ns=_base_ns(metadata, path.name),
        ),
        metadata=metadata,
    )


def has_device_rows(path: Path) -> bool:
    """Whether any row of the file is a device activity; looks at the text alone."""
    before = b""
    for chunk in FileText(path).chunks():
        text = before + chunk
        if _DEVICE_ROW.search(text):
            return True
        before = text[-_OVERLAP_BYTES:]
    return False


def read_events(
    path: Path,
    rank: int,
    *,
    salvage: bool = False,
    progress: Progress | None = None,
    pick: Callable[[bytes], list[Row]] | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Events of one file, in file order.

    Args:
        path: JSON or JSON.gz of any size.
        rank: value of the ``rank`` column.
        salvage: read what is whole of a damaged file.
        progress: called with the bytes read.
        pick: gives some of the rows of a piece of text, instead of all; see profiler_folders.rows_of.

    Returns:
        Columns of ``specschema.events`` that are not all null, ``window`` 0 everywhere but in an export of ours (see ``chrome_member``);
        and one line for each thing that was repaired, left out or lost. ``pid`` of device work is that of the thread that launches.

    Raises:
        TraceError: see EventText; or the file merges several processes.
    """
    scan = None if pick is not None else kineto_scan.scanner(path.stat().st_size)
    read: Callable[[bytes], list[Any]] = (pick or decode) if scan is None else partial(_scanned, scan)
    source = FileText(path, progress) if scan is None else FileText(path, progress, chunk_bytes=_SCANNED_BYTES)
    text = EventText(source, read, salvage=salvage)
    with _no_cycle_collection():
        frames = _frames(text, scan)
    warnings = [json_repair.warning(path.name, text.repairs)] if text.repairs else []
    warnings += text.lost
    if not frames:
        return empty(), warnings
    events = pl.concat(frames, how="diagonal", rechunk=False)
    if events["merged"].any():
        raise TraceError(
            f"{path.name} merges the traces of several processes (its device rows name them in words), whose ids collide: "
            "give the files of the single ranks"
        )
    base_ns = _base_ns(text.metadata, path.name)
    events = events.with_columns(
        pl.col("pid").fill_null(pl.lit(main_thread(events)[0], dtype=pl.Int64)),
        # null, which event_bounds refuses, where the sum might not fit
        start_ns=pl.when(pl.col("ts_ns").fill_null(0).is_between(-LATEST_NS, LATEST_NS)).then(
            pl.col("ts_ns").fill_null(0) + base_ns
        ),
        rank=pl.lit(rank),
        window=pl.lit(0),
    )
    events, said = chrome_member.restored(table(events), text.metadata, path.name)
    return events, [*warnings, *said]


def read_compact(
    path: Path,
    rank: int,
    *,
    host: str | None,
    world_size: int | None,
    progress: Progress | None = None,
    nodes: bool = False,
) -> CompactRank | None:
    """A rank as sums over it need it, in memory that grows by 20 bytes a device row; None where it takes the whole table.

    Args:
        path: JSON or JSON.gz of any size.
        rank: global rank.
        host, world_size: as ``RankTrace`` has them.
        progress: called with the bytes read.
        nodes: keep the graph and the node that rows name, 8 bytes more a device row where they name any.

    Raises:
        TraceError: see EventText.
    """
    scan = kineto_scan.scanner(path.stat().st_size)
    compiled = collect.compiled(compile_it=path.stat().st_size > kineto_scan.COMPILES_ABOVE_BYTES)
    if scan is None or compiled is None:
        return None
    text = EventText(FileText(path, progress, chunk_bytes=_SCANNED_BYTES), partial(_scanned, scan))
    collector = Collector(compiled, nodes=nodes)
    try:
        with _no_cycle_collection():
            for piece in _streamed(text, scan, nodes=nodes):
                collector.add(piece)
        if text.repairs or text.lost or not collector.device_rows:
            return None
        base_ns = _base_ns(text.metadata, path.name)
        return collector.finished(str(rank), rank, str(path), host=host, world_size=world_size, base_ns=base_ns)
    except OddRowsError:
        return None


def _streamed(text: EventText[Any], scan: kineto_scan.Scanner, *, nodes: bool) -> Iterator[Piece]:
    """Events, in file order, some at a time; a piece is valid until the next one is asked for."""
    waiting = Rows(0, 0)
    for batch in text.batches():
        for scanned, items in groupby(batch, key=lambda item: isinstance(item, Rows)):
            if scanned:
                waiting = Rows(waiting.first, [*items][-1].last)
                continue
            yield from _pieces(scan, waiting, nodes=nodes)
            if (frame := columns(items)) is not None:
                yield FramePiece(_summed(frame), _ONE_WINDOW)
            waiting = Rows(waiting.last, waiting.last)
        if waiting.last >= _STREAMED_ROWS:
            yield from _pieces(scan, waiting, nodes=nodes)
            scan.clear()
            waiting = Rows(0, 0)
    yield from _pieces(scan, waiting, nodes=nodes)


def _pieces(scan: kineto_scan.Scanner, rows: Rows, *, nodes: bool) -> Iterator[Piece]:
    """Rows of a scanner; through a frame where they tell of collectives."""
    if rows.first == rows.last:
        return
    if not scan.tells(rows):
        yield ScannedPiece(scan, rows, nodes=nodes)
    elif (frame := scan.frame(rows, _NOT_SUMMED if nodes else (*_NOT_SUMMED, *_IDS))) is not None:
        yield FramePiece(_summed(frame), _ONE_WINDOW)


def _summed(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with the columns that ``rank_collector.Collector`` looks at.

    Raises:
        OddRowsError: device work of several processes, or host rows whose process has no number.
    """
    nameless = pl.col("pid").is_null() & pl.col("kind").is_in(("phase", "cycle", "launch"))
    if frame.select((pl.col("merged") | nameless).any()).item():
        raise OddRowsError
    return frame.drop("merged", "ts_ns").with_columns(start_ns=frame["ts_ns"].fill_null(0))


def _scanned(scan: kineto_scan.Scanner, text: bytes) -> list[Row | Rows]:
    """The rows of a JSON list: as a whole where the scanner can read it, else one by one."""
    rows = scan.rows(text)
    return [*decode(text)] if rows is None else [rows]


def _frames(text: EventText[Any], scan: kineto_scan.Scanner | None) -> list[pl.DataFrame]:
    """Events, in file order."""
    if scan is None:
        return [frame for batch in text.batches() if (frame := columns(batch)) is not None]
    parts: list[Rows | pl.DataFrame] = []
    for batch in text.batches():
        for scanned, items in groupby(batch, key=lambda item: isinstance(item, Rows)):
            if not scanned:
                frame = columns(items)
                parts += [] if frame is None else [frame]
                continue
            for rows in items:
                before = parts[-1] if parts else None
                if isinstance(before, Rows) and before.last == rows.first:
                    parts[-1] = Rows(before.first, rows.last)
                else:
                    parts.append(rows)
    frames = (scan.frame(part) if isinstance(part, Rows) else part for part in parts)
    return [frame for frame in frames if frame is not None]


def environment(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The environment as far as a Kineto file knows it: GPU models and versions."""
    found, info = metadata.get("deviceProperties"), metadata.get("distributedInfo")
    devices = [d for d in (found if isinstance(found, list) else []) if isinstance(d, dict)]
    info = info if isinstance(info, dict) else {}
    known = {
        "gpu": sorted({str(d["name"]) for d in devices if d.get("name")}),
        "gpu_count": len(devices) or None,
        "gpu_memory_bytes": sorted({n for d in devices if type(n := d.get("totalGlobalMem")) is int}),
        "cuda_driver": metadata.get("cuda_driver_version"),
        "cuda_runtime": metadata.get("cuda_runtime_version"),
        "cupti": metadata.get("cupti_version"),
        "hip_driver": metadata.get("hip_driver_version"),
        "hip_runtime": metadata.get("hip_runtime_version"),
        "nccl": info.get("nccl_version"),
    }
    told = {key: value for key, value in known.items() if value and value != "unknown"}
    return {key: value for key, value in told.items() if isinstance(value, (str, int, float, list))}


def process_groups(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Process groups of distributedInfo: name, description, ranks (null where abbreviated)."""
    info = metadata.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, dict) else None
    return [
        {
            "name": str(group.get("pg_name", "")),
            "description": str(group.get("pg_desc", "")),
            "ranks": group_ranks(str(group.get("ranks", ""))),
        }
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict)
    ]


@contextlib.contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Decoding makes many short-lived objects and no cycles; looking for cycles among them would take a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _integer(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, (int, str)) else None
    except ValueError:
        return None


def _count(value: object) -> int | None:
    """A rank or a number of ranks; None for what can be neither."""
    number = _integer(value)
    return number if number is not None and 0 <= number < MOST_RANKS else None


def _base_ns(metadata: Mapping[str, Any], name: str) -> int:
    """Unix time of the file's time 0.

    Raises:
        TraceError: no clock gives it.
    """
    said = metadata.get("baseTimeNanoseconds")
    base = 0 if said is None else _whole(said)
    if base is None or not 0 <= base <= LATEST_NS:
        raise TraceError(f"{name}: baseTimeNanoseconds {str(said)[:30]} is no time: the file is damaged")
    return base


def _whole(value: object) -> int | None:
    """An integer, also one that was rewritten with a decimal point or an exponent; None for anything else."""
    number = _integer(value)
    if number is not None or not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return number
    with contextlib.suppress(ArithmeticError, ValueError):
        exact = Decimal(value)
        if abs(exact.adjusted()) <= _LONGEST_NUMBER and exact == exact.to_integral_value():
            return int(exact)
    return None
