"""Recordings of Nsight Systems: SQLite and Parquet exports of every schema, and reports where nsys is installed."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from specanalyze.formats import nsys_tables as nsys
from specanalyze.formats.event_frame import count_kinds, table
from specanalyze.formats.nsys_device import UNNAMED, device_work, launches, texts
from specanalyze.formats.nsys_inputs import is_sqlite
from specanalyze.formats.nsys_install import MISSING, find
from specanalyze.formats.nsys_parquet import ParquetTables
from specanalyze.formats.nsys_ranges import host_ranges
from specanalyze.formats.nsys_sessions import Session, refuse_unrelated, span
from specanalyze.formats.nsys_sqlite import SqliteTables
from specanalyze.formats.recordings import rank_in_name
from specanalyze.trace import RankSource, RankTrace, Trace
from specanalyze.whole_number import whole_number
from specschema.errors import TraceError, UsageError
from specschema.figures import counted, were

_NEWEST_MAJOR: Final = 3
_WORKER: Final = re.compile(r"(?<![A-Za-z])(?:TP|rank)[-_]?(\d+)(?!\d)", re.IGNORECASE)
"""``sglang::scheduler_TP3``, ``VLLM::Worker_TP1``: what servers call their processes."""


@dataclass(frozen=True)
class _Process:
    """One process of an export that is a rank."""

    tables: nsys.Tables
    path: Path
    global_id: int
    base_ns: int
    rank: int
    host: str | None
    rows: int

    @property
    def pid(self) -> int:
        return nsys.process_id(self.global_id)


class _Progress:
    """Rows over all that will be read, told as bytes of the files."""

    def __init__(self, report: Callable[[int, int], None] | None) -> None:
        self._report = report
        self.bytes = 0
        self.rows = 0
        self._read = 0

    def add(self, rows: int) -> None:
        self._read = min(self._read + rows, self.rows)
        if self._report is not None and self.rows:
            self._report(self.bytes * self._read // self.rows, self.bytes)


def open_report(
    paths: Sequence[Path],
    *,
    name: str,
    salvage: bool = False,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Open exports or reports of one recording.

    Args:
        paths: of ``nsys_inputs``: SQLite files, folders of a Parquet export, reports.
        name: what to call the trace.
        salvage: read what is whole of damaged files.
        device: "cpu" accepts a recording without device work.
        progress: called with (bytes read, bytes of all files).

    Returns:
        One rank a process that used a GPU (key ``pid<N>``; its rank where MPI or the server's process names tell it). Times are
        Unix time by the host's clock where the export says when its session began, else from the session's start.

    Raises:
        UsageError: a report, and no nsys to read it.
        TraceError: damaged, no export of Nsight Systems, or no process with GPU activity.
    """
    warnings: list[str] = []
    done = _Progress(progress)
    found: list[_Process] = []
    facts: list[dict[str, Any]] = []
    sessions: list[Session] = []
    for path in paths:
        tables = _opened(path, salvage=salvage, rows_read=done.add)
        if not salvage:
            _refuse_nameless(tables)
        facts.append(_facts(tables, warnings))
        processes = _processes(tables, path, device, warnings)
        if len(paths) > 1:
            sessions.append(_session(tables, path, processes))
            if not processes:
                warnings.append(
                    f"{path.name}: no GPU activity in any process of it, so it is no part of this recording"
                )
        found += processes
        done.bytes += sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size
    done.rows = sum(process.rows for process in found)
    if not found:
        listed = ", ".join(path.name for path in paths)
        raise TraceError(
            f"{listed}: no GPU activity in any process of this recording: was cuda among nsys profile's --trace, and did the work run "
            "while it recorded? --device cpu reads its ranges alone"
        )
    refuse_unrelated(sessions)
    found = _told_apart(found)
    times = Counter(process.pid for process in found)
    found.sort(key=lambda p: (p.rank < 0, p.rank, p.pid))
    sources = []
    for process in found:
        key = f"pid{process.pid}" if times[process.pid] == 1 else f"{process.path.stem}:pid{process.pid}"
        read = partial(_read, process, key, warnings, device=device)
        sources.append(RankSource(key=key, source=str(process.path), read=read))
    return Trace(
        name=name, sources=tuple(sources), metadata=_metadata(found, sources, facts, device), warnings=warnings
    )


def _opened(path: Path, *, salvage: bool, rows_read: nsys.RowsRead) -> nsys.Tables:
    if path.is_dir():
        return ParquetTables(path, salvage=salvage, rows_read=rows_read)
    if is_sqlite(path):
        return SqliteTables(path, salvage=salvage, rows_read=rows_read)
    beside = path.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return SqliteTables(beside, salvage=salvage, rows_read=rows_read)
    installed = find()
    if installed.nsys is None:
        raise UsageError(f"{path}: {MISSING}")
    folder = tempfile.mkdtemp(prefix="specanalyze-nsys-")
    try:
        target = Path(folder) / f"{path.stem}.sqlite"
        installed.export_sqlite(path, target)
        tables = SqliteTables(target, salvage=salvage, rows_read=rows_read)
    except TraceError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(tables, shutil.rmtree, folder, ignore_errors=True)
    return tables


def _refuse_nameless(tables: nsys.Tables) -> None:
    """Names are numbers into a table of texts; without it no class, no replay and no phase of a registered name is known.

    Raises:
        TraceError: the table is not there.
    """
    calls = tables.columns(nsys.RUNTIME)
    if not tables.columns(nsys.STRINGS) and (tables.columns(nsys.KERNEL) or (calls and "name" not in calls)):
        raise TraceError(
            f"{tables.name} has no table {nsys.STRINGS}, so the names of its kernels and calls are unknown: this is no whole export of "
            "Nsight Systems; --salvage reads it all the same"
        )


def _first(tables: nsys.Tables, table_name: str, column: str) -> int | None:
    values = tables.read(table_name, [column]).get_column(column).drop_nulls()
    return int(values[0]) if values.len() else None


def _facts(tables: nsys.Tables, warnings: list[str]) -> dict[str, Any]:
    """Version of the export and GPU models. The target's environment and its list of processes stay where they are: they hold secrets."""
    pairs: dict[str, str] = {}
    for meta in nsys.META:
        rows = tables.read(meta, ["name", "value"])
        pairs.update(zip(rows["name"].to_list(), rows["value"].to_list(), strict=True))
    schema = pairs.get("EXPORT_SCHEMA_VERSION") or ""
    major = schema.split(".")[0]
    if (whole_number(major) or 0) > _NEWEST_MAJOR:
        warnings.append(
            f"{tables.name} has export schema {schema}, newer than this reader knows ({_NEWEST_MAJOR}.x): check a figure against nsys stats"
        )
    return {
        "nsight_systems": pairs.get("EXPORT_PRODUCT_VERSION"),
        "export_schema": schema or None,
        "gpu": sorted(set(tables.read(nsys.GPUS, ["name"]).get_column("name").drop_nulls().to_list())),
        "gpu_count": tables.read(nsys.GPUS, ["name"]).height or None,
    }


def _processes(tables: nsys.Tables, path: Path, device: str | None, warnings: list[str]) -> list[_Process]:
    """Processes with device work; with ``device="cpu"`` those with ranges where no process has any."""
    rows: Counter[int] = Counter()
    for name in nsys.EVENT_TABLES:
        rows.update(tables.processes(name))
    working = {process for name in nsys.DEVICE_TABLES for process in tables.processes(name)}
    if not working and device == "cpu":
        working = set(tables.processes(nsys.NVTX))
    base_ns = _first(tables, nsys.SESSION, "utcEpochNs")
    if base_ns is None and working:
        warnings.append(
            f"{tables.name} does not say when its session began: times count from there, not from the Unix epoch"
        )
    ranks = _ranks(tables)
    host = _host(tables)
    return [
        _Process(tables, path, process, base_ns or 0, ranks.get(process, -1), host, rows[process])
        for process in sorted(working)
    ]


def _session(tables: nsys.Tables, path: Path, processes: Sequence[_Process]) -> Session:
    named = nsys.DEVICE_TABLES if any(tables.processes(name) for name in nsys.DEVICE_TABLES) else (nsys.NVTX,)
    return Session(
        name=path.name,
        start_ns=_first(tables, nsys.SESSION, "utcEpochNs"),
        span_ns=span(tables, named) if processes else None,
        processes=frozenset(process.global_id for process in processes),
        ranks=tuple(process.rank for process in processes),
    )


def _told_apart(found: Sequence[_Process]) -> list[_Process]:
    """Replicas on several hosts each count their ranks from 0: a rank that occurs twice tells nothing, as within one file."""
    known = [process.rank for process in found if process.rank >= 0]
    return [*found] if len(set(known)) == len(known) else [replace(process, rank=-1) for process in found]


def _ranks(tables: nsys.Tables) -> dict[int, int]:
    """globalPid -> rank, as far as MPI or the names of the processes tell it; nothing where two would be the same."""
    found: dict[int, int] = {}
    mpi = tables.read(nsys.MPI_RANKS, ["globalTid", "rank"]).drop_nulls()
    for thread, rank in mpi.unique("globalTid").iter_rows():
        found[thread & nsys.PROCESS_MASK] = rank
    if not found:
        named = tables.read(nsys.PROCESSES, ["globalPid", "name"]).drop_nulls()
        found = {
            process: rank
            for process, text in named.iter_rows()
            if _WORKER.search(text) and (rank := rank_in_name(text)) is not None
        }
    return found if len(set(found.values())) == len(found) else {}


def _host(tables: nsys.Tables) -> str | None:
    rows = tables.read(nsys.SYSTEM, ["name", "value"]).drop_nulls()
    names = rows.filter(pl.col("name").is_in(["Hostname", "Host name"])).get_column("value")
    return str(names[0]) if names.len() else None


def _read(process: _Process, key: str, warnings: list[str], *, device: str | None) -> RankTrace:
    tables = process.tables
    strings = texts(tables)
    work = device_work(tables, strings, process.global_id)
    calls = launches(tables, strings, process.global_id, work.events.get_column("correlation").drop_nulls())
    ranges = host_ranges(tables, strings, process.global_id)
    events = pl.concat([ranges.events, calls, work.events], how="diagonal_relaxed").with_columns(
        pl.col("start_ns") + process.base_ns, pid=pl.lit(process.pid), rank=pl.lit(process.rank), window=pl.lit(0)
    )
    events = table(events)
    said = list(tables.lost)
    if work.whole_replays:
        said.append(
            f"rank {key}: {counted(work.whole_replays, 'graph replay')} {were(work.whole_replays)} recorded as a whole, without kernels: shown as graph_unresolved, "
            "and no class of kernel is known in them; record with nsys profile --cuda-graph-trace=node for a breakdown"
        )
    nameless = int(events["name"].cast(pl.String).is_in(UNNAMED).sum())
    if nameless:
        said.append(
            f"rank {key}: {counted(nameless, 'row')} of kernels and calls whose names are not in {nsys.STRINGS} of {tables.name}: of no class, "
            "and of no replay"
        )
    if ranges.open:
        said.append(
            f"rank {key}: {counted(ranges.open, 'range')} {were(ranges.open)} still open when the recording ended: not recognised as phases"
        )
    if ranges.asynchronous:
        phases = f" (among them {', '.join(ranges.asynchronous_phases[:4])})" if ranges.asynchronous_phases else ""
        said.append(
            f"rank {key}: {counted(ranges.asynchronous, 'start/end range')}{phases} of no thread's stack left out: phases are push/pop ranges"
        )
    if ranges.payloads_unread:
        said.append(
            f"rank {key}: {counted(ranges.payloads_unread, 'NCCL payload')} of a layout that the export does not tell: communicator and size unknown there"
        )
    warnings += [line for line in said if line not in warnings]
    has_work = count_kinds(events)[1] > 0
    return RankTrace(
        key=key,
        rank=process.rank,
        source=str(process.path),
        events=events,
        host=process.host,
        device="cuda" if has_work or device != "cpu" else "cpu",
    )


def _metadata(
    found: Sequence[_Process], sources: Sequence[RankSource], facts: Sequence[dict[str, Any]], device: str | None
) -> dict[str, Any]:
    known = facts[0]
    environment = {key: known[key] for key in ("gpu", "gpu_count") if known[key]}
    return {
        "recording": {
            "source": "import",
            "format": "Nsight Systems",
            "nsight_systems": known["nsight_systems"],
            "export_schema": known["export_schema"],
            "device": device or "cuda",
            "windows": [{"window": 0}],
            "unknown": ["accept lengths", "node map"],
        },
        "clock": {"unit": "ns", "epoch": "unix" if found[0].base_ns else "session"},
        "ranks": [
            {"key": source.key, "rank": process.rank, "pid": process.pid, "base_ns": process.base_ns}
            for process, source in zip(found, sources, strict=True)
        ],
        "environment": environment,
    }
