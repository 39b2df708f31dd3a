"""Typed NVTX payloads of an Nsight Systems export: what NCCL says of each call, decoded by the schemas that the export holds.

From schema 3.24 (2026.1) on, ``NVTX_EVENTS.binaryData`` holds 32 bytes of little-endian uint64 (domain, schema, bytes of the payload, and where
the payload begins or how long all is: files were seen of both kinds), then the payload; NVTX_PAYLOAD_SCHEMAS and NVTX_PAYLOAD_SCHEMA_ENTRIES tell
its layout. Field names are NCCL's own (src/include/nvtx_payload_schemas.h), numbers of types NVTX 3's (nvToolsExtPayload.h).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.formats import nsys_tables as nsys

COMMUNICATOR: Final = "NCCL communicator ID"
MESSAGE_BYTES: Final = "Message size [bytes]"
_WANTED: Final = (COMMUNICATOR, MESSAGE_BYTES)

_HEADER: Final = 32
_STATIC: Final = 1
"""NVTX_PAYLOAD_SCHEMA_TYPE_STATIC: every payload of the schema has the same layout."""
_TYPES: Final = {
    1: "<i1",
    2: "<u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<i8",
    8: "<u8",
    9: "<i8",
    10: "<u8",
    11: "<i1",
    12: "<u1",
    13: "<i2",
    14: "<u2",
    15: "<i4",
    16: "<u4",
    17: "<i8",
    18: "<u8",
    22: "<u8",
}
"""NVTX_PAYLOAD_ENTRY_TYPE_* of whole numbers, as they lie in memory on Linux."""


class Payloads(NamedTuple):
    """What payloads say, row by row.

    Attributes:
        group: id of the communicator, as text; null where the row has no payload that can be read, or none that says it.
        message_bytes: bytes of the message; null likewise.
        unread: payloads whose layout the export does not tell, or tells in two ways, or that are not of that layout.
    """

    group: pl.Series
    message_bytes: pl.Series
    unread: int


def payloads(tables: nsys.Tables, rows: pl.DataFrame) -> Payloads:
    """Decode the payloads of NCCL's ranges.

    Args:
        tables: the export, for its schemas.
        rows: domainId and binaryData.
    """
    data = rows.get_column("binaryData")
    found: dict[str, NDArray[np.uint64]] = {name: np.zeros(rows.height, dtype=np.uint64) for name in _WANTED}
    known: dict[str, NDArray[np.bool_]] = {name: np.zeros(rows.height, dtype=bool) for name in _WANTED}
    present = data.is_not_null().to_numpy()
    read = np.zeros(rows.height, dtype=bool)
    if present.any():
        layouts = _layouts(tables)
        domain = rows.get_column("domainId").fill_null(-1).to_numpy()
        length = data.bin.size().fill_null(0).cast(pl.Int64).to_numpy()
        for size in np.unique(length[present]).tolist():  # one turn a length, of which schemas have few
            index = np.flatnonzero(present & (length == size))
            if size < _HEADER:
                continue
            text = np.frombuffer(b"".join(data.gather(index).to_list()), dtype=np.uint8).reshape(len(index), size)
            header = np.ascontiguousarray(text[:, :_HEADER]).view("<u8")
            whole = (header[:, 0] == domain[index].astype(np.uint64)) & (header[:, 2] == size - _HEADER)
            whole &= (header[:, 3] == _HEADER) | (header[:, 3] == size)
            for schema in np.unique(header[whole, 1]).tolist():
                of_schema = whole & (header[:, 1] == schema)
                for number in np.unique(domain[index[of_schema]]).tolist():
                    fields = layouts.get((number, schema))
                    if fields is None or any(at + _width(kind) > size - _HEADER for _, at, kind in fields):
                        continue
                    mine = np.flatnonzero(of_schema & (domain[index] == number))
                    read[index[mine]] = True
                    for name, at, kind in fields:
                        bytes_of = np.ascontiguousarray(text[mine, _HEADER + at : _HEADER + at + _width(kind)])
                        found[name][index[mine]] = bytes_of.view(kind)[:, 0].astype(np.uint64)
                        known[name][index[mine]] = True
    communicator, message = (
        pl.Series(found[name]).set(pl.Series(~known[name]), None) for name in (COMMUNICATOR, MESSAGE_BYTES)
    )
    return Payloads(communicator.cast(pl.String), message.cast(pl.Int64, strict=False), int((present & ~read).sum()))


def _width(kind: str) -> int:
    return np.dtype(kind).itemsize


def _layouts(tables: nsys.Tables) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    """(domain, schema) -> (name, offset, numpy type) of the fields that are asked for.

    Each process registers its schemas anew, and the tables don't say which did: a schema that is told in two ways is left out.
    """
    entries = tables.read(nsys.PAYLOAD_ENTRIES, ["domainId", "schemaId", "idx", "flags", "type", "name", "offset"])
    schemas = tables.read(nsys.PAYLOAD_SCHEMAS, ["domainId", "schemaId", "type"])
    entries = entries.with_columns(pl.col("flags", "offset").fill_null(0)).unique()
    keys = ["domainId", "schemaId"]
    static = schemas.group_by(keys).agg((pl.col("type").fill_null(_STATIC) == _STATIC).all().alias("static"))
    once = entries.group_by(keys).agg((pl.col("idx").n_unique() == pl.len()).alias("once"))
    good = static.filter("static").join(once.filter("once"), on=keys)
    kept = entries.join(good, on=keys, how="semi").filter(
        pl.col("name").is_in(_WANTED) & pl.col("type").is_in(list(_TYPES)) & (pl.col("flags") == 0)
    )
    # An offset of 0 behind the first field means that its place follows from alignment, which the exports seen never leave open.
    kept = kept.filter((pl.col("idx") == 0) | (pl.col("offset") > 0))
    layouts: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for domain, schema, name, offset, kind in kept.select(*keys, "name", "offset", "type").iter_rows():
        layouts.setdefault((domain, schema), []).append((name, offset, _TYPES[kind]))
    return layouts
