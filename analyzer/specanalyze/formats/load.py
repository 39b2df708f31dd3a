"""Opens a recording, whatever form it has: trace.parquet, torch.profiler JSON, or per-table rank files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specanalyze.formats import chrome_member, kineto, profiler_folders, sidecars
from specanalyze.formats.chrome_windows import unsaid_windows
from specanalyze.formats.event_bounds import bounded
from specanalyze.formats.event_frame import count_kinds
from specanalyze.formats.event_text import NotATraceError
from specanalyze.formats.input_files import input_files, is_foreign, is_parquet, unfinished
from specanalyze.formats.input_path import misnamed, refuse_names, refuse_twice, usable
from specanalyze.formats.kineto_columns import Row
from specanalyze.formats.nsys_inputs import nsys_inputs
from specanalyze.formats.plain_text import plain, plain_document
from specanalyze.formats.recordings import RankFile, refuse_two_recordings
from specanalyze.reading_progress import Reading
from specanalyze.remote_path import path_of
from specanalyze.trace import RankSource, RankTrace, Trace
from specanalyze.whole_number import whole_number
from specschema.errors import TraceError, UsageError

if TYPE_CHECKING:
    from specanalyze.formats.compact_rank import CompactRank

_NAMED: Final = 4
"""Files that a message names."""


def open_trace(
    paths: Sequence[Path],
    *,
    cycles: Path | None = None,
    node_map: Path | None = None,
    salvage: bool = False,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Open one recording.

    Args:
        paths: files of one recording, or folders that hold them: trace.parquet, torch.profiler JSON or JSON.gz, one file a rank, or
            per-table rank files. What a file is, its content says.
        cycles: cycle log of this or another run, instead of the FILE.cycles.json beside each file.
        node_map: nodes of the captured graphs, instead of the FILE.nodemap.json beside each file.
        salvage: read what is whole of damaged files; what was lost is said in ``warnings``.
        device: "cpu" accepts a trace without device work.
        progress: called with (bytes read, bytes of all files) while ranks are read.

    Returns:
        The trace; its ranks are read when asked for. Warnings that reading brings up are appended then.

    Raises:
        UsageError: no such file, or nothing in it that could be a trace.
        TraceError: damaged, newer, or two recordings.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"device {device!r} is not known: cpu or cuda")
    progress = None if progress is None else Reading(progress)
    paths = [usable(path_of(path)) for path in paths]
    refuse_twice(paths)
    name = plain(", ".join(str(path) for path in paths))
    if nsys := nsys_inputs(paths):
        from specanalyze.formats.nsys_report import open_report  # what reads a form loads when the form is met

        opened = open_report(nsys, name=name, salvage=salvage, device=device, progress=progress)
        return _with_sidecars(opened, cycles, node_map, salvage=salvage)
    files, folder = input_files(paths)
    parquet = [path for path in files if is_parquet(path)]
    refuse_names(parquet)
    if folder:
        parquet = [path for path in parquet if not is_foreign(path)]
        foreign = [path for path in files if path not in parquet and is_parquet(path)]
        files = [path for path in files if path not in foreign]
        if not files:
            names = ", ".join(path.name for path in foreign[:_NAMED]) + (", ..." if len(foreign) > _NAMED else "")
            raise TraceError(f"none of {names} is a trace of ours: their metadata name no schema version")
    if not parquet:
        trace = _open_kineto(files, folder, name, salvage=salvage, device=device, progress=progress)
    else:
        others = [path.name for path in files if path not in parquet]
        if others and not folder:
            raise UsageError(
                f"{parquet[0].name} and {others[0]} are of different forms: give the files of one recording"
            )
        if others and any(_identify(path, folder=True) for path in files if path not in parquet):
            raise UsageError(
                f"this folder holds both {parquet[0].name} and torch.profiler files ({others[0]}): give the files you mean"
            )
        from specanalyze.formats.trace_files import read_trace

        trace = read_trace(parquet, name=name, salvage=salvage, device=device, progress=progress)
    trace.warnings.extend(unfinished(paths))
    return _with_sidecars(trace, cycles, node_map, salvage=salvage)


def _with_sidecars(trace: Trace, cycles: Path | None, node_map: Path | None, *, salvage: bool) -> Trace:
    ranks = [rank_in_key(source.key) for source in trace.sources]
    sources = []
    for source, rank in zip(trace.sources, ranks, strict=True):
        files = sidecars.find(path_of(source.source), rank, ranks, cycles, node_map)
        read = partial(_read_enriched, source, files, trace.warnings, salvage=salvage)
        compact = sidecars.compactly(source.compact, files, trace.warnings)
        # What lies beside a rank is laid over all of its events.
        near = None if source.near is None or files != sidecars.Sidecars() else partial(_near_bounded, source.near)
        sources.append(replace(source, read=read, compact=compact, near=near))
    return replace(trace, sources=tuple(sources), metadata=plain_document(trace.metadata))


def rank_in_key(key: str) -> int:
    """``"3"`` -> 3; -1 for a key that names a process only."""
    number = whole_number(key)
    return -1 if number is None else number


def _read_enriched(source: RankSource, files: sidecars.Sidecars, warnings: list[str], *, salvage: bool) -> RankTrace:
    rank, lines = bounded(source.read(), salvage=salvage)
    rank, more = sidecars.add(rank, files)
    warnings.extend(line for line in (*lines, *more) if line not in warnings)
    return rank


def _near_bounded(near: Callable[[int, int], RankTrace], first_ns: int, last_ns: int) -> RankTrace:
    return bounded(near(first_ns, last_ns))[0]  # what is left out was said when the rank was read


def _open_kineto(
    files: Sequence[Path],
    folder: bool,
    name: str,
    *,
    salvage: bool,
    device: str | None,
    progress: Callable[[int, int], None] | None,
) -> Trace:
    warnings: list[str] = []
    if folder:
        files, warnings = profiler_folders.without_merged(files)
    if len(files) == 1 and (merged := profiler_folders.merged_ranks(files[0])):
        return _open_merged(files[0], merged, name, salvage=salvage, device=device, progress=progress)
    found = _identified(files, folder, warnings)
    for k in found:
        if chrome_member.MEMBER not in k.metadata and (windows := unsaid_windows(k.file.path)) > 1:
            warnings.append(
                f"{k.file.path.name}: exported by an older specanalyze, which did not write windows down: its {windows} profiler windows are read "
                "as one, and the time between them counts as host time; export the recording anew"
            )
    done = _Progress(progress, sum(k.file.path.stat().st_size for k in found))
    refuse_two_recordings([k.file for k in found])
    found.sort(key=lambda k: k.file.rank or 0)
    metadata = _metadata(found, device)
    device = device or metadata["recording"].get("device")
    sources = tuple(
        RankSource(
            key=str(k.file.rank),
            source=str(k.file.path),
            read=partial(_read_kineto, k.file, warnings, salvage=salvage, device=device, progress=done),
            compact=None
            if salvage or chrome_member.MEMBER in k.metadata
            else partial(_compact_kineto, k.file, progress=done),
        )
        for k in found
    )
    return Trace(name=name, sources=sources, metadata=metadata, warnings=warnings)


def _open_merged(
    path: Path,
    merged: Sequence[profiler_folders.MergedRank],
    name: str,
    *,
    salvage: bool,
    device: str | None,
    progress: Callable[[int, int], None] | None,
) -> Trace:
    """Ranks of a trace that a server merged from all of them: the file is read once a rank."""
    whole = kineto.identify(path)
    warnings = [
        f"{path.name} merges {len(merged)} ranks, which are read apart; all their times count from one base, that of the first file"
    ]
    done = _Progress(progress, path.stat().st_size)
    sources = []
    for place in merged:
        file = RankFile(path, place.rank, host=whole.file.host, world_size=None, base_ns=whole.file.base_ns)
        rows = profiler_folders.rows_of(place.label)
        read = partial(
            _read_kineto, file, warnings, salvage=salvage, device=device, progress=done, pick=rows, key=place.key
        )
        sources.append(RankSource(key=place.key, source=str(path), read=read))
    metadata = _metadata([kineto.KinetoFile(RankFile(path, p.rank), whole.metadata) for p in merged], device)
    for entry, place in zip(metadata["ranks"], merged, strict=True):
        entry["key"] = place.key
    return Trace(name=name, sources=tuple(sources), metadata=metadata, warnings=warnings)


class _Progress:
    """Bytes over all files; a file read twice counts once."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self._report = report
        self._total = total
        self._done: dict[Path, int] = {}

    def of(self, path: Path) -> Callable[[int], None] | None:
        if self._report is None:
            return None
        report, size = self._report, path.stat().st_size
        read = 0

        def add(n: int) -> None:
            nonlocal read
            read += n
            self._done[path] = max(self._done.get(path, 0), min(read, size))
            report(sum(self._done.values()), self._total)

        return add


def _identified(files: Iterable[Path], folder: bool, warnings: list[str]) -> list[kineto.KinetoFile]:
    """Files that are ranks of the recording (RULES R9)."""
    found: list[kineto.KinetoFile] = []
    others: list[str] = []
    for path in files:
        k = _identify(path, folder)
        if k is None:
            others.append(path.name)
        else:
            found.append(k)
    if not found:
        raise TraceError(f"none of {', '.join(others)} is a trace: no traceEvents in them")
    if any(k.file.rank is not None for k in found):
        nameless = [k for k in found if k.file.rank is None and not kineto.has_device_rows(k.file.path)]
        warnings += [
            f"{k.file.path.name}: no rank and no GPU rows, so it is no rank of this recording" for k in nameless
        ]
        found = [k for k in found if k not in nameless]
    return [_with_rank(k, warnings) for k in found]


def _identify(path: Path, folder: bool) -> kineto.KinetoFile | None:
    try:
        return kineto.identify(path)
    except NotATraceError as error:
        if not folder:
            raise NotATraceError(misnamed(path) or str(error)) from None
        return None


def _with_rank(k: kineto.KinetoFile, warnings: list[str]) -> kineto.KinetoFile:
    if k.file.rank is not None:
        return k
    warnings.append(f"{k.file.path.name} names no rank (no distributedInfo): taken as rank 0")
    file = k.file
    return kineto.KinetoFile(
        RankFile(file.path, 0, host=file.host, world_size=file.world_size, base_ns=file.base_ns), k.metadata
    )


def _read_kineto(
    file: RankFile,
    warnings: list[str],
    *,
    salvage: bool,
    device: str | None,
    progress: _Progress,
    pick: Callable[[bytes], list[Row]] | None = None,
    key: str | None = None,
) -> RankTrace:
    rank = file.rank or 0
    events, found = kineto.read_events(file.path, rank, salvage=salvage, progress=progress.of(file.path), pick=pick)
    launches, activities = count_kinds(events)
    if activities == 0 and device != "cpu":
        raise TraceError(
            f"{file.path.name}: no GPU activity in this trace ({launches} launch call{'s' if launches != 1 else ''}, 0 kernels): "
            "was CUDA among the profiler's activities, or did CUPTI fail? --device cpu reads it as a run on a CPU"
        )
    warnings += [line for line in found if line not in warnings]
    return RankTrace(
        key=key or str(rank),
        rank=rank,
        source=str(file.path),
        events=events,
        host=file.host,
        device="cuda" if activities else "cpu",
        world_size=file.world_size,
    )


def _compact_kineto(file: RankFile, *, progress: _Progress, nodes: bool = False) -> CompactRank | None:
    return kineto.read_compact(
        file.path,
        file.rank or 0,
        host=file.host,
        world_size=file.world_size,
        progress=progress.of(file.path),
        nodes=nodes,
    )


def _metadata(found: Sequence[kineto.KinetoFile], device: str | None) -> dict[str, Any]:
    """Sections of the recording: what the files say, or what an export of ours kept of it."""
    kept = [chrome_member.sections_of(k.metadata, k.file.path.name) for k in found]
    told = _told(found, device)
    if not all(kept):
        return told
    sections: dict[str, Any] = told | kept[0]
    recorded = {entry.get("rank"): entry for entry in sections["ranks"]}
    sections["ranks"] = [*({**entry, **recorded.pop(entry["rank"], {})} for entry in told["ranks"]), *recorded.values()]
    return sections


def _told(found: Sequence[kineto.KinetoFile], device: str | None) -> dict[str, Any]:
    return {
        "recording": {
            "source": "import",
            "format": "torch.profiler",
            "device": device or "cuda",
            "windows": [{"window": 0}],
        },
        "clock": {"unit": "ns", "epoch": "unix"},
        "ranks": [
            {
                "rank": k.file.rank,
                "world_size": k.file.world_size,
                "base_ns": k.file.base_ns,
                "process_groups": kineto.process_groups(k.metadata),
            }
            for k in found
        ],
        "environment": kineto.environment(found[0].metadata),
    }
