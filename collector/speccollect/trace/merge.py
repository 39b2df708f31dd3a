"""All ranks' finished files -> one trace.parquet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from speccollect.control.status import RankStatus, alive, read_statuses
from speccollect.control.word import read_command, recording_folder
from speccollect.cycles.numbers import cycles_later, renumbered
from speccollect.parts.part_file import PART_NAME, read_part, writer_options
from speccollect.trace.totals import TOTAL_COLUMNS, all_totals, rank_totals
from specschema import metadata
from specschema.errors import TraceError, UsageError
from specschema.events import EVENT_SCHEMA

ROWS_PER_GROUP: Final = 1_000_000
"""Rows outside windows that share one row group of their rank; bounds the memory of a merge."""


@dataclass
class Part:
    """One finished file of one rank."""

    path: Path
    rank: int
    kind: str
    number: int
    sections: dict[str, Any]


@dataclass
class Merged:
    """What a merge made.

    Attributes:
        path: the trace.
        rows: its rows.
        ranks: ranks that are in it.
        problems: one line each: ranks missing, files that can't be read, rows lost. Also in the trace's metadata.
        recording: the metadata section ``recording``.
    """

    path: Path
    rows: int
    ranks: list[int]
    problems: list[str] = field(default_factory=list)
    recording: dict[str, Any] = field(default_factory=dict)


def _parts(folder: Path, problems: list[str]) -> list[Part]:
    parts = []
    for path in sorted(folder.iterdir()):
        match = PART_NAME.fullmatch(path.name)
        if match is None:
            if path.name.startswith(".rank") and path.name.endswith(".tmp"):
                problems.append(f"{path.name[1:-4]} was never finished (its process ended while it wrote)")
            continue
        try:
            sections = metadata.decode(pq.read_schema(path).metadata, str(path))
        except (pa.ArrowInvalid, OSError, TraceError) as error:
            problems.append(f"{path.name} can't be read ({str(error).splitlines()[0][:200]}): left out")
            continue
        parts.append(Part(path, int(match[1]), match[2], int(match[3] or 0), sections))
    order = {"nodes": 0, "window": 1, "segment": 2}
    return sorted(parts, key=lambda p: (p.rank, order[p.kind], p.number))


def _missing(parts: list[Part], statuses: list[RankStatus], expected: int | None, problems: list[str]) -> list[int]:
    """Ranks that should have written files and did not; each is named.

    The folder may be an older server's, too: what a rank said that is gone, and took no part, does not count.
    """
    number = parts[0].sections.get("recording", {}).get("id")
    here = [s for s in statuses if s.recording == number or alive(s) is not False]
    sizes = {part.rank: size for part in parts if (size := _world_size(part)) is not None}
    world = max([0, expected or 0, *sizes.values(), *(s.world_size or 0 for s in here)])
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"rank {rank} says {size}" for rank, size in sorted(sizes.items()))
        problems.append(
            f"the ranks don't agree how many they are ({said}): do two servers share the folder? Their cycles are not the same"
        )
    told = {s.rank: s for s in statuses}
    missing = sorted((set(range(world)) | {s.rank for s in here}) - {part.rank for part in parts})
    for rank in missing:
        status = told.get(rank)
        if status is None:
            problems.append(f"rank {rank} of {world} never announced itself: it is missing")
        else:
            why = f" ({status.message})" if status.message else ""
            problems.append(f"rank {rank} (process {status.pid}, {status.state}){why} left no file: it is missing")
    return missing


def _world_size(part: Part) -> int | None:
    """Ranks of the server that left a file; None where it has no process group."""
    told = part.sections.get("ranks") or [{}]
    size = told[0].get("world_size")
    return size if isinstance(size, int) else None


def _environment(parts: list[Part]) -> dict[str, Any]:
    """The first rank's environment, and where other ranks' differ."""
    by_rank = {part.rank: part.sections.get("environment", {}) for part in parts}
    if not by_rank:
        return {}
    first = by_rank[min(by_rank)]
    keys = sorted({key for e in by_rank.values() for key in e})
    differing = {
        key: {str(rank): environment.get(key) for rank, environment in sorted(by_rank.items())}
        for key in keys
        if any(environment.get(key) != first.get(key) for environment in by_rank.values())
    }
    return {**first, "differs_by_rank": differing} if differing else dict(first)


def _recording(
    parts: list[Part], missing: list[int], totals: Mapping[str, Any], requests: Mapping[str, Any] | None
) -> dict[str, Any]:
    sections = [(part, part.sections.get("recording", {})) for part in parts]
    first = sections[0][1]
    ranks = sorted({part.rank for part in parts})
    later = cycles_later((part.rank, part.sections) for part in parts)
    # the counts of what was lost only grow: each rank's last file has the final ones
    lost: dict[str, dict[str, int]] = {}
    messages: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    warmups: list[dict[str, Any]] = []
    written: dict[int, int] = {}
    complete: set[int] = set()
    tiers: list[str] = []
    for part, section in sections:
        if section.get("written_ns", 0) >= written.get(part.rank, 0):
            written[part.rank] = section.get("written_ns", 0)
            lost[str(part.rank)] = section.get("lost", {})
        for message in section.get("messages", []):
            entry = {"rank": part.rank, "message": message}
            if entry not in messages:
                messages.append(entry)
        for window in section.get("windows", []):
            numbered = renumbered(window, later.get(part.rank, 0))
            (warmups if "warmup" in window else windows).append({"rank": part.rank, **numbered})
        if section.get("complete"):
            complete.add(part.rank)
        tiers.extend(t for t in section.get("tiers", []) if t not in tiers)
    return {
        **{k: first.get(k) for k in ("tool", "version", "source", "id", "settings")},
        "device": "cuda" if any(s.get("device") == "cuda" for _, s in sections) else first.get("device"),
        "tiers": tiers,
        "started_ns": min(s.get("started_ns", 0) for _, s in sections),
        "ended_ns": max(written.values()),
        "windows": windows,
        "warmups": warmups,
        "lost": lost,
        "messages": messages,
        "missing_ranks": missing,
        "incomplete_ranks": [rank for rank in ranks if rank not in complete],
        "totals": dict(totals),
        "requests": dict(requests) if requests is not None else None,
    }


def merge(
    folder: Path,
    output: Path,
    *,
    recording: int | None = None,
    force: bool = False,
    expected_ranks: int | None = None,
    requests: pa.Table | None = None,
    request_summary: Mapping[str, Any] | None = None,
    completion_tokens: int | None = None,
) -> Merged:
    """Merge one recording's files.

    Args:
        folder: the collector's folder, or a recording's own folder in it.
        output: file to write, mode 0600.
        recording: number of the recording; the last one by default.
        force: overwrite ``output``.
        expected_ranks: ranks there should be, where nobody's status says.
        requests: rows of kind ``request`` as the client measured them; they go to the lowest rank's rows.
        request_summary: figures about them for the metadata.
        completion_tokens: tokens the client was told, for the check against the accept lengths.

    Returns:
        The trace and what is wrong with it.

    Raises:
        UsageError: ``output`` exists and ``force`` is not given.
        TraceError: no finished file at all.
    """
    if output.exists() and not force:
        raise UsageError(_taken(output))
    if os.path.exists(folder / "control"):  # a name that can be none is no reason to raise
        source = recording_folder(folder, recording if recording is not None else read_command(folder).recording)
        statuses = read_statuses(folder)
    else:
        source, statuses = folder, read_statuses(folder.parent)
    if not os.path.isdir(source):
        raise TraceError(f"{source} does not exist: nothing was recorded there (see `speccollect status`)")
    problems: list[str] = []
    parts = _parts(source, problems)
    if not parts:
        details = "; ".join([*problems, *(f"rank {s.rank}: {s.message}" for s in statuses if s.message)])
        raise TraceError(f"no rank has written a file in {source}: {details or 'no process of the server took part'}")
    ranks = sorted({part.rank for part in parts})
    missing = _missing(parts, statuses, expected_ranks, problems)
    totals = all_totals(
        {rank: rank_totals(_facts([p for p in parts if p.rank == rank], problems), completion_tokens) for rank in ranks}
    )
    section = _recording(parts, missing, totals, request_summary)
    section["problems"] = problems
    said = {s.rank: s for s in statuses if s.recording == section["id"]}
    problems.extend(
        f"rank {rank} did not end its recording{_why(said.get(rank))}: what came after its last file is lost"
        for rank in section["incomplete_ranks"]
    )
    for rank, lost in section["lost"].items():
        if any(lost.values()):
            what = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in lost.items() if n)
            problems.append(f"rank {rank} lost {what}")
    schema = EVENT_SCHEMA.with_metadata(
        metadata.encode(
            {
                "recording": section,
                "clock": _clock(parts),
                "ranks": [next(p.sections["ranks"][0] for p in parts if p.rank == rank) for rank in ranks],
                "environment": _environment(parts),
            }
        )
    )
    try:
        rows = _write(parts, output, schema, requests, force, problems)
    except OSError as error:
        raise TraceError(
            f"{output} can't be written ({error.strerror or error}); nothing is lost, the ranks' files are in {source}: "
            f"make room, then `speccollect merge --dir {folder} -o {output.name}`"
        ) from error
    return Merged(path=output, rows=rows, ranks=ranks, problems=problems, recording=section)


def _taken(output: Path) -> str:
    return f"{output} exists: give another name with -o, or --force to overwrite it"


def _why(status: RankStatus | None) -> str:
    """What is known of a rank that left files and no end."""
    if status is None:
        return ""
    facts = [status.message] if status.message else []
    if alive(status) is False:
        facts.append(f"its process {status.pid} is gone")
    return f" ({'; '.join(facts)})" if facts else ""


def _clock(parts: list[Part]) -> dict[str, Any]:
    clock = {**parts[0].sections.get("clock", {}), "ranks": {}}
    for part in parts:
        clock["ranks"].update(part.sections.get("clock", {}).get("ranks", {}))
    return clock


def _facts(parts: list[Part], problems: list[str]) -> pa.Table:
    """TOTAL_COLUMNS of the cycle and request rows of one rank; a file whose body is damaged is named."""
    tables = []
    for part in list(parts):
        if part.kind == "nodes":
            continue
        try:
            filters = [("kind", "in", ["cycle", "request"])]
            columns = [name for name in TOTAL_COLUMNS if name in pq.read_schema(part.path).names]
            tables.append(pq.read_table(part.path, columns=columns, filters=filters).replace_schema_metadata())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            problems.append(_damaged(part, error))
    empty = EVENT_SCHEMA.remove_metadata().empty_table().select(list(TOTAL_COLUMNS))
    return pa.concat_tables([*tables, empty], promote_options="permissive").unify_dictionaries()


def _damaged(part: Part, error: Exception) -> str:
    return f"{part.path.name} is damaged ({str(error).splitlines()[0][:200]})"


def _write(
    parts: list[Part],
    output: Path,
    schema: pa.Schema,
    requests: pa.Table | None,
    force: bool,
    problems: list[str],
) -> int:
    """One row group per rank and window; the rest of a rank in groups of at most about ROWS_PER_GROUP rows."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    rows = 0
    try:
        with open(descriptor, "wb") as file, pq.ParquetWriter(file, schema, **writer_options()) as writer:

            def flush(tables: list[pa.Table]) -> int:
                table = pa.concat_tables(tables).unify_dictionaries() if tables else None
                tables.clear()
                if table is None or table.num_rows == 0:
                    return 0
                writer.write_table(table.cast(schema), row_group_size=table.num_rows)
                return int(table.num_rows)

            waiting: list[pa.Table] = [requests] if requests is not None else []
            later = cycles_later((part.rank, part.sections) for part in parts)
            rank = parts[0].rank
            for part in parts:
                if part.rank != rank:
                    rows += flush(waiting)
                    rank = part.rank
                try:
                    table = read_part(part.path)
                    if later.get(part.rank):
                        at = table.schema.get_field_index("cycle")
                        table = table.set_column(at, "cycle", pc.add(table["cycle"], later[part.rank]))
                except (pa.ArrowInvalid, OSError) as error:
                    if not any(said.startswith(f"{part.path.name} is damaged") for said in problems):  # by _facts
                        problems.append(_damaged(part, error))
                    continue
                if part.kind == "segment":
                    waiting.append(table)
                    if sum(t.num_rows for t in waiting) >= ROWS_PER_GROUP:
                        rows += flush(waiting)
                else:
                    rows += flush([table])
            rows += flush(waiting)
        _name(temporary, output, force)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _name(temporary: Path, output: Path, force: bool) -> None:
    """Give a whole file its name; one that came there meanwhile stays, unless ``force``.

    Raises:
        UsageError: there is a file by now.
    """
    if not force:
        try:
            os.link(temporary, output)
            return
        except FileExistsError:
            raise UsageError(_taken(output)) from None
        except OSError:  # a file system without hard links
            if output.exists():
                raise UsageError(_taken(output)) from None
    os.replace(temporary, output)
