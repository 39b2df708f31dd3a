"""Writes Chrome JSON as torch.profiler does, so that Perfetto, chrome://tracing and our own importer read it.

Times are decimal microseconds with three places from ``baseTimeNanoseconds``: no nanosecond is lost. What the format has no row for is said
in ``LEFT_OUT``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl

from specanalyze.columns import factorize
from specanalyze.exports.export_events import ExportedRank
from specanalyze.formats import chrome_member

CATEGORIES: Final = {
    "phase": "user_annotation",
    "cycle": "user_annotation",
    "op": "cpu_op",
    "collective": "cpu_op",
    "launch": "cuda_runtime",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "request": "request",
}
"""Kind -> category, as torch.profiler names it."""

UNTRACED: Final = "untraced"
"""Category of host ranges outside every profiler window: no phases to a tool that reads the rows alone, because nothing would say that no
device work was recorded there."""

PARTITION: Final = "partition"

LEFT_OUT: Final = (
    "the partition, classes and phases are drawn but not imported: an import works them out anew",
    "correlation ids that repeat among profiler windows are numbered anew",
)
"""What an import of the written file does not bring back; the rest that Chrome has no row for is in a member (``formats.chrome_member``)."""

_CHUNK: Final = 1 << 16
"""Events whose rows stand together, before the arrows between them."""
_PIECE: Final = 1 << 14
"""Rows whose texts are in memory at once."""
_FACTS: Final = (
    "cycle",
    "batch_size",
    "draft_tokens",
    "graph_batch_size",
    "context_tokens",
    "prompt_tokens",
    "completion_tokens",
)
_NODE_ID: Final = (pl.col("graph_id").fill_null(0).cast(pl.Int64) + 1) * (1 << 32) + pl.col("node").cast(pl.Int64)
"""A node's id as torch.profiler has it: its ordinal in the low 32 bits, above them the executable graph, which is not 0."""
_PARTITION_THREAD: Final = 1 << 30
"""Thread id of the partition's row; no thread of the host has it."""


def write_chrome(file: BinaryIO, rank: ExportedRank, sections: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Write one rank as one file.

    Args:
        file: where to.
        rank: one rank; a file of several would have their ids collide.
        sections: metadata of the recording, which an import reads back.

    Returns:
        Number of events.
    """
    # A device row at time 0 counts as one without a time (RULES R1), so the first event is not at 0.
    origin = max(0, (rank.start_ns or 0) - 1000)
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": origin}
    if rank.trace.rank >= 0:
        head["distributedInfo"] = {"rank": rank.trace.rank} | (
            {"world_size": rank.trace.world_size} if rank.trace.world_size is not None else {}
        )
    if rank.trace.host is not None:
        head["host_name"] = rank.trace.host
    own = rank.of_kinds(*chrome_member.KINDS)
    at = np.flatnonzero(own)
    others = rank.events.select("start_ns", "window").filter(~own)
    head[chrome_member.MEMBER] = chrome_member.member(rank.rows(at), at, others, sections)
    file.write(json.dumps(head, default=str).encode()[:-1] + b', "traceEvents": [\n')
    pid = rank.pid
    lines = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": rank.label}}]
    lines.append(
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": _PARTITION_THREAD, "args": {"name": "partition"}}
    )
    file.write(",\n".join(json.dumps(line) for line in lines).encode())
    timed = rank.timed()
    traced = bool(rank.events.get_column("window").is_not_null().to_numpy()[timed].any())
    for start in range(0, len(timed), _CHUNK):
        block = timed[start : start + _CHUNK]
        for low in range(0, len(block), _PIECE):
            _write(file, _rows(rank.rows(block[low : low + _PIECE]), origin, pid, traced=traced))
        for low in range(0, len(block), _PIECE):
            _write(file, _flows(rank.rows(block[low : low + _PIECE]), origin, pid))
    for start in range(0, rank.partition.height, _PIECE):
        _write(file, _partition(rank.partition[start : start + _PIECE], origin, pid))
    file.write(b"\n]}\n")
    return len(timed)


def _write(file: BinaryIO, lines: pl.Series) -> None:
    """Append rows. A null row would be an event lost without a word: a bug."""
    if lines.null_count():
        raise AssertionError(f"{lines.null_count()} rows have no text")
    if len(lines):
        # One text after another, as Arrow keeps them.
        told = lines.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
        offsets = np.frombuffer(told.buffers()[1], dtype=np.int64, count=len(told) + 1 + told.offset)
        file.write(told.buffers()[2][offsets[told.offset] : offsets[-1]])


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """1234567 ns -> ``1234.567``."""
    return pl.format("{}.{}", ns // 1000, (ns % 1000).cast(pl.String).str.zfill(3))


def _quoted(frame: pl.DataFrame, column: str) -> pl.Series:
    """A text column as JSON texts, each distinct text once."""
    codes, values = factorize(frame, column)
    return pl.Series(column, [*(json.dumps(value) for value in values), None], dtype=pl.String)[
        pl.Series(codes % (len(values) + 1))
    ]


def _rows(events: pl.DataFrame, origin: int, pid: int, *, traced: bool) -> pl.Series:
    kind = pl.col("kind").cast(pl.String)
    device = kind.is_in(["kernel", "memcpy", "memset"])
    category = kind.replace_strict(CATEGORIES, default=None, return_dtype=pl.String)
    untraced = pl.col("window").is_null() & kind.is_in(["phase", "cycle"]) & pl.lit(traced)
    events = events.with_columns(pl.when(pl.col("dur_ns") >= 0).then("dur_ns").alias("dur_ns"))
    told = {name for name in events.columns if events[name].null_count() < events.height}
    texts = ("name", "op", "dtype", "group", "mode", "module")
    quoted = events.with_columns(_quoted(events, c) for c in texts if c in told)
    place = [
        pl.when(device).then("device").otherwise(pl.col("pid").fill_null(pid)).fill_null(0).alias("on"),
        pl.when(device).then("stream").otherwise("tid").alias("at"),
    ]
    rows = quoted.with_columns(
        *place,
        pl.col("name").fill_null('""'),
        pl.when(untraced).then(pl.lit(UNTRACED)).otherwise(category).alias("category"),
        _arguments(device, told).alias("args"),
    )
    mark = pl.concat_str(
        pl.lit(',\n{"ph": "i", "s": "t", "name": '),
        "name",
        pl.lit(', "pid": '),
        "on",
        _thread(),
        pl.lit(', "ts": '),
        _microseconds(pl.col("start_ns") - origin),
        pl.lit("}"),
    )
    return rows.select(pl.when(kind == "mark").then(mark).otherwise(_line(origin)).alias("line")).to_series()


def _thread() -> pl.Expr:
    return pl.concat_str(pl.lit(', "tid": '), "at").fill_null("")


def _line(origin: int) -> pl.Expr:
    duration = pl.concat_str(pl.lit(', "dur": '), _microseconds(pl.col("dur_ns")))
    return pl.concat_str(
        pl.lit(',\n{"ph": "X", "cat": "'),
        "category",
        pl.lit('", "name": '),
        "name",
        pl.lit(', "pid": '),
        "on",
        _thread(),
        pl.lit(', "ts": '),
        _microseconds(pl.col("start_ns") - origin),
        duration.fill_null(""),
        pl.lit(', "args": {'),
        "args",
        pl.lit("}}"),
    )


def _arguments(device: pl.Expr, told: Collection[str]) -> pl.Expr:
    """The inside of ``args``, under the names that torch.profiler gives them.

    Args:
        device: whether a row is device work.
        told: columns that are not null throughout.
    """

    def argument(name: str, value: pl.Expr) -> pl.Expr:
        return pl.concat_str(pl.lit(f'"{name}": '), value.cast(pl.String))

    def each(column: str) -> pl.Expr:
        texts = pl.col(column).cast(pl.List(pl.String)).list.eval(pl.element().fill_null("null"))
        return pl.concat_str(pl.lit("["), texts.list.join(", "), pl.lit("]"))

    def text(value: pl.Expr) -> pl.Expr:
        return pl.concat_str(pl.lit('"'), value.cast(pl.String), pl.lit('"'))

    def triple(column: str) -> pl.Expr:
        return pl.concat_str(
            pl.lit("["), pl.col(column).cast(pl.String).str.replace_all("x", ", ", literal=True), pl.lit("]")
        )

    arguments = (
        ("correlation", "correlation", pl.col("correlation")),
        ("device", "device", pl.when(device).then("device")),
        ("stream", "stream", pl.when(device).then("stream")),
        ("bytes", "bytes", pl.col("bytes")),
        ("grid", "grid", triple("grid")),
        ("block", "block", triple("block")),
        ("op", "Collective name", pl.col("op")),
        ("dtype", "dtype", pl.col("dtype")),
        ("elements", "In msg nelems", pl.col("elements")),
        ("group", "Process Group Name", pl.col("group")),
        ("group_ranks", "Process Group Ranks", text(each("group_ranks"))),
        ("seq", "Seq", pl.col("seq")),
        ("graph_id", "graph id", pl.col("graph_id")),
        ("node", "graph node id", _NODE_ID),
        ("phase", "phase", text(pl.col("phase"))),
        ("bucket", "class", text(pl.col("bucket"))),
        ("subclass", "subclass", text(pl.col("subclass"))),
        ("mode", "mode", pl.col("mode")),
        ("module", "module", pl.col("module")),
        *((name, name, pl.col(name)) for name in _FACTS),
        *((name, name, each(name)) for name in ("accept_lengths", "accepted_draft_tokens")),
    )
    shown = [argument(name, value) for column, name, value in arguments if column in told]
    if not shown:
        return pl.lit("")
    return pl.concat_str(*shown, separator=", ", ignore_nulls=True)


def _flows(events: pl.DataFrame, origin: int, pid: int) -> pl.Series:
    """Arrows from launch calls to their first activity: rows that importers leave alone."""
    call = pl.col("kind").cast(pl.String) == "launch"
    rows = events.filter(pl.col("correlation").is_not_null(), call | pl.col("first").fill_null(False))
    return rows.select(
        pl.concat_str(
            pl.when(call).then(pl.lit(',\n{"ph": "s"')).otherwise(pl.lit(',\n{"ph": "f", "bp": "e"')),
            pl.lit(', "cat": "ac2g", "name": "ac2g", "id": '),
            "correlation",
            pl.lit(', "pid": '),
            pl.when(call).then(pl.col("pid").fill_null(pid)).otherwise("device").fill_null(0),
            pl.lit(', "tid": '),
            pl.when(call).then("tid").otherwise("stream").fill_null(0),
            pl.lit(', "ts": '),
            _microseconds(pl.col("start_ns") - origin),
            pl.lit("}"),
        )
    ).to_series()


def _partition(parts: pl.DataFrame, origin: int, pid: int) -> pl.Series:
    return parts.select(
        pl.concat_str(
            pl.lit(f',\n{{"ph": "X", "cat": "{PARTITION}", "name": "'),
            pl.col("phase").cast(pl.String),
            pl.lit(": "),
            pl.col("bucket").cast(pl.String),
            pl.lit(f'", "pid": {pid}, "tid": {_PARTITION_THREAD}, "ts": '),
            _microseconds(pl.col("start_ns") - origin),
            pl.lit(', "dur": '),
            _microseconds(pl.col("dur_ns")),
            pl.lit("}"),
        )
    ).to_series()
