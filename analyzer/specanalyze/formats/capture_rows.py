"""Rows of a torch.profiler trace of CUDA graph capture: calls, modules, operators, and work that ran all the same."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from specanalyze.collectives import group_ranks, operation
from specanalyze.formats import bounded_json, json_repair
from specanalyze.formats.decimal_time import nanoseconds
from specanalyze.formats.event_text import EventText
from specanalyze.formats.file_text import FileText

MODULE_ROW: Final = "nn.Module: "
"""Kineto writes a module call as a Python frame ``nn.Module: Class_3``: the number counts the class's instances in order of first
call (with_stack=True)."""

_WHAT: Final = {
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "hip_driver": "call",
    "cpu_op": "op",
    "python_function": "module",
    "kernel": "device",
    "gpu_memcpy": "device",
    "gpu_memset": "device",
}
"""Category of a complete ('X') row -> what it is here. Python frames that are no module calls are left out."""
_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "what": pl.String,
    "name": pl.String,
    "pid": pl.Int64,
    "tid": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "correlation": pl.Int64,
    "kernel": pl.String,
    "op": pl.String,
    "dtype": pl.String,
    "elements": pl.Int64,
    "group": pl.String,
    "group_ranks": pl.List(pl.Int32),
}


class _Args(
    msgspec.Struct,
    gc=False,
    rename={
        "op": "Collective name",
        "elements": "In msg nelems",
        "group": "Process Group Name",
        "group_ranks": "Process Group Ranks",
    },
):
    correlation: object = None
    kernel: object = None
    op: object = None
    dtype: object = None
    elements: object = None
    group: object = None
    group_ranks: object = None


class _Row(msgspec.Struct, gc=False):
    ph: object = None
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: object = None
    dur: object = None
    args: object = None


_DECODER: Final = msgspec.json.Decoder(list[_Row], float_hook=str)
_NO_ARGS: Final = _Args()
_FIELDS: Final = attrgetter("cat", "name", "pid", "tid", "ts", "dur")
_ARGS: Final = attrgetter(*_Args.__struct_fields__)


def read_rows(path: Path, *, salvage: bool = False) -> tuple[pl.DataFrame, list[str]]:
    """The rows that tell of a capture, in order of start; of rows that start together, the longest first.

    Args:
        path: JSON or JSON.gz.
        salvage: read what is whole of a damaged file.

    Returns:
        what (call, op, module, device), name, pid, tid, start_ns and end_ns by the file's own clock, correlation, kernel (the name that
        ROCm writes into a launch call), and what torch says of a collective: op, dtype, elements, group, group_ranks; and one line for each thing that was repaired or lost.

    Raises:
        TraceError: see EventText.
    """
    text = EventText(FileText(path), _decode, salvage=salvage)
    frames = [_columns(batch) for batch in text.batches() if batch]
    rows = pl.concat(frames) if frames else pl.DataFrame(schema=_SCHEMA)
    timed = rows.filter(pl.col("start_ns").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns")))
    said = [json_repair.warning(path.name, text.repairs)] if text.repairs else []
    return timed.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True), [*said, *text.lost]


def _decode(text: bytes) -> list[_Row]:
    return [row for row in bounded_json.decode(_DECODER, text) if row.ph == "X" and _wanted(row)]


def _wanted(row: _Row) -> bool:
    what = _WHAT.get(row.cat) if isinstance(row.cat, str) else None
    return what is not None and isinstance(row.name, str) and (what != "module" or row.name.startswith(MODULE_ROW))


def _columns(rows: list[_Row]) -> pl.DataFrame:
    cat, name, pid, tid, ts, dur = zip(*map(_FIELDS, rows), strict=True)
    found = [msgspec.convert(row.args, _Args) if isinstance(row.args, dict) else _NO_ARGS for row in rows]
    args = dict(zip(_Args.__struct_fields__, zip(*map(_ARGS, found), strict=True), strict=True))
    start, length = (nanoseconds([v if type(v) in (str, int) else None for v in column]) for column in (ts, dur))
    groups = {text: group_ranks(text) for text in {str(v) for v in args["group_ranks"] if v is not None}}
    ops = {text: operation(text) for text in {v for v in args["op"] if isinstance(v, str) and v}}
    columns = [
        pl.Series("what", [_WHAT[c] for c in cat], dtype=pl.String),
        pl.Series("name", name, dtype=pl.String),
        *(_integers(key, values) for key, values in (("pid", pid), ("tid", tid))),
        start.alias("start_ns"),
        (start + length).alias("end_ns"),
        _integers("correlation", args["correlation"]),
        _texts("kernel", args["kernel"]),
        pl.Series("op", [ops.get(v) if isinstance(v, str) else None for v in args["op"]], dtype=pl.String),
        _texts("dtype", args["dtype"]),
        _integers("elements", args["elements"]),
        _texts("group", args["group"]),
        pl.Series("group_ranks", [groups.get(str(v)) for v in args["group_ranks"]], dtype=pl.List(pl.Int32)),
    ]
    return pl.DataFrame(columns)


def _integers(name: str, values: tuple[Any, ...]) -> pl.Series:
    kept = [v if type(v) is int and -(2**63) <= v < 2**63 else None for v in values]
    return pl.Series(name, kept, dtype=pl.Int64)


def _texts(name: str, values: tuple[Any, ...]) -> pl.Series:
    return pl.Series(name, [v if type(v) is str and v else None for v in values], dtype=pl.String)
