"""The ranks' finished files of one recording, and what can't be read of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from speccollect.parts.part_file import PART_NAME
from speccollect.trace.totals import TOTAL_COLUMNS
from specschema import metadata
from specschema.errors import TraceError
from specschema.events import EVENT_SCHEMA


@dataclass
class Part:
    """One finished file of one rank."""

    path: Path
    rank: int
    kind: str
    number: int
    sections: dict[str, Any]


def find_parts(folder: Path, problems: list[str]) -> list[Part]:
    """Finished files in a recording's folder, by rank: node map, windows, the rest.

    Args:
        problems: one line is added for each file that is not finished or can't be read.
    """
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


def facts(parts: list[Part], problems: list[str]) -> pa.Table:
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
            problems.append(damaged(part, error))
    empty = EVENT_SCHEMA.remove_metadata().empty_table().select(list(TOTAL_COLUMNS))
    return pa.concat_tables([*tables, empty], promote_options="permissive").unify_dictionaries()


def damaged(part: Part, error: Exception) -> str:
    """The line about a file whose body can't be read."""
    return f"{part.path.name} is damaged ({str(error).splitlines()[0][:200]})"
