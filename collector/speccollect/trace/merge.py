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

from speccollect.control.status import read_statuses
from speccollect.control.word import read_command, recording_folder
from speccollect.cycles.numbers import cycles_later
from speccollect.parts.part_file import read_part, writer_options
from speccollect.trace.rank_files import Part, damaged, facts, find_parts
from speccollect.trace.sections import (
    clock_section,
    environment_section,
    missing_ranks,
    recording_section,
    why_unfinished,
)
from speccollect.trace.totals import all_totals, rank_totals
from specschema import metadata
from specschema.errors import TraceError, UsageError
from specschema.events import EVENT_SCHEMA

ROWS_PER_GROUP: Final = 1_000_000
"""Rows outside windows that share one row group of their rank; bounds the memory of a merge."""


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
    parts = find_parts(source, problems)
    if not parts:
        details = "; ".join([*problems, *(f"rank {s.rank}: {s.message}" for s in statuses if s.message)])
        raise TraceError(f"no rank has written a file in {source}: {details or 'no process of the server took part'}")
    ranks = sorted({part.rank for part in parts})
    missing = missing_ranks(parts, statuses, expected_ranks, problems)
    totals = all_totals(
        {rank: rank_totals(facts([p for p in parts if p.rank == rank], problems), completion_tokens) for rank in ranks}
    )
    section = recording_section(parts, missing, totals, request_summary)
    section["problems"] = problems
    said = {s.rank: s for s in statuses if s.recording == section["id"]}
    problems.extend(
        f"rank {rank} did not end its recording{why_unfinished(said.get(rank))}: what came after its last file is lost"
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
                "clock": clock_section(parts),
                "ranks": [next(p.sections["ranks"][0] for p in parts if p.rank == rank) for rank in ranks],
                "environment": environment_section(parts),
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
                        problems.append(damaged(part, error))
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
