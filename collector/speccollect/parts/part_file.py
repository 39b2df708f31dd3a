"""One closed file of a recording: written under a temporary name, renamed when whole, so that a kill loses no finished one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from speccollect.parts.table import present
from specschema import metadata
from specschema.events import EVENT_SCHEMA

PART_NAME: Final = re.compile(r"rank(\d+)\.(window|segment|nodes)(\d*)\.parquet")
"""rank00003.window002.parquet, rank00003.segment0007.parquet, rank00003.nodes.parquet"""

# measured on a real trace: smaller than pyarrow's defaults and a third faster to write
_DELTA: Final = ("start_ns", "correlation", "cycle", "node")
_SPLIT: Final = ("dur_ns",)


def writer_options() -> dict[str, Any]:
    """Compression and encodings of every file of ours."""
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [
            f.name for f in EVENT_SCHEMA if f.name not in (*_DELTA, *_SPLIT) and not pa.types.is_nested(f.type)
        ],
        "column_encoding": {
            **dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_SPLIT, "BYTE_STREAM_SPLIT"),
        },
        "write_statistics": True,
    }


_STATISTICS: Final = ("rank", "start_ns", "cycle", "window")
"""Columns of a rank's own file that have least and greatest values: what readers look for. All of them would cost a third of
the writing time."""


def _options_for(names: list[str]) -> dict[str, Any]:
    options = writer_options()
    options["use_dictionary"] = [name for name in options["use_dictionary"] if name in names]
    options["column_encoding"] = {n: how for n, how in options["column_encoding"].items() if n in names}
    options["write_statistics"] = [name for name in _STATISTICS if name in names]
    return options


def write_part(path: Path, table: pa.Table, sections: Mapping[str, Any]) -> int:
    """Write a file and give it its name when it is whole; return its size in bytes.

    A part has the schema's columns that are not null throughout; readers take the others for null (``read_part``).
    """
    table = present(table)
    temporary = path.with_name(f".{path.name}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    fields = [EVENT_SCHEMA.field(name) for name in table.column_names]
    schema = pa.schema(fields, metadata.encode(sections))
    try:
        options = _options_for(table.column_names)
        # Arrow's own file: through one of Python's each of its writes waits for the interpreter, and makes a server wait, 4 ms seen
        with pa.OSFile(os.fsencode(temporary), "wb") as file, pq.ParquetWriter(file, schema, **options) as writer:
            writer.write_table(table.cast(schema), row_group_size=max(1, table.num_rows))
        size = temporary.stat().st_size
        os.replace(temporary, path)
    except BaseException:
        # on a full disk the half file would take the room that the rank's last word needs
        temporary.unlink(missing_ok=True)
        raise
    return size


def read_part(path: Path) -> pa.Table:
    """A part with all of the schema's columns, those it leaves out null, without its metadata.

    Raises:
        pyarrow.ArrowInvalid, OSError: the file is damaged.
    """
    table = pq.read_table(path).replace_schema_metadata()
    rows = table.num_rows
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(rows, field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA.remove_metadata())
