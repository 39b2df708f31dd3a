"""NVTX ranges and marks of one process of an Nsight Systems export, as events."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import polars as pl

from specanalyze.collectives import operation
from specanalyze.formats import nsys_tables as nsys
from specanalyze.formats.nsys_device import named
from specanalyze.formats.nsys_payloads import COMMUNICATOR, MESSAGE_BYTES, payloads
from specanalyze.phase_names import recognise
from specschema.phases import CYCLE, RANGE_PREFIX, range_name

_MARK: Final = 34
_PUSH_POP: Final = 59
_START_END: Final = 60
_DOMAIN: Final = 75
"""ENUM_NSYS_EVENT_TYPE of the rows that say something; the same number in every schema seen."""

OUR_DOMAIN: Final = "spec"
"""The collector's domain; what is in it is ours, with the ``spec.`` before its name or without."""

_OPERATOR: Final = r", (?:op_id|seq) = \d+"
"""``aten::mul, op_id = 317177``: torch.autograd.profiler.emit_nvtx writes CPU operators as ranges."""

_NCCL: Final = (
    r"^nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|Bcast|AlltoAll|AllToAll|Send|Recv|Gather|Scatter)"
)
"""NCCL's own ranges (domain NCCL, NCCL >= 2.4), named after its functions."""

_PAYLOADS: Final = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_COLUMNS: Final = (
    *("start", "end", "eventType", "globalTid", "endGlobalTid", "text", "textId", "domainId", "jsonText", "jsonTextId"),
    *_PAYLOADS,
    "binaryData",
)
_SAYS: Final = r'"%s"\s*:\s*"?([^",}\s]+)'
"""A member of a payload as JSON, which exports before 3.24 write."""


class HostRanges(NamedTuple):
    """Events of NVTX rows (kinds cycle, phase, op, collective, mark), and what was not taken.

    Attributes:
        events: push/pop ranges and marks, by start.
        open: push/pop ranges that were never closed (null ``dur_ns``: never recognised).
        asynchronous: start/end ranges, which belong to no thread's stack.
        asynchronous_phases: names of those among them that would be phases.
        payloads_unread: payloads of collectives that could not be decoded.
    """

    events: pl.DataFrame
    open: int
    asynchronous: int
    asynchronous_phases: tuple[str, ...]
    payloads_unread: int


def host_ranges(tables: nsys.Tables, strings: pl.DataFrame, process: int) -> HostRanges:
    """Read them. Times are the export's own (from the start of its session)."""
    rows = tables.read(nsys.NVTX, _COLUMNS, process)
    rows = named(named(rows, "textId", strings, "registered"), "jsonTextId", strings, "registered_json")
    rows = rows.with_columns(
        pl.coalesce(pl.col("registered").cast(pl.String), "text").fill_null("").alias("name"),
        pl.coalesce("jsonText", pl.col("registered_json").cast(pl.String)).alias("payload"),
    )
    domains = (
        rows.filter(pl.col("eventType") == _DOMAIN).sort("start").unique("domainId", keep="first", maintain_order=True)
    )
    rows = rows.join(
        domains.select("domainId", pl.col("name").alias("domain")), on="domainId", how="left", maintain_order="left"
    ).with_columns(pl.col("domain").fill_null(""))
    ours = pl.col("domain") == OUR_DOMAIN
    rows = rows.with_columns(
        pl.when(ours & ~pl.col("name").str.starts_with(RANGE_PREFIX))
        .then(RANGE_PREFIX + pl.col("name"))
        .otherwise("name")
        .alias("name")
    )
    ranges = rows.filter(pl.col("eventType") == _PUSH_POP)
    apart = rows.filter(pl.col("eventType") == _START_END)
    ranges, unread = _with_payloads(tables, ranges.with_columns(_is_collective().alias("collective")))
    events = pl.concat([_ranges(ranges), _marks(rows.filter(pl.col("eventType") == _MARK))], how="diagonal_relaxed")
    names = apart.get_column("name").unique(maintain_order=True).to_list()
    return HostRanges(
        events.sort("start_ns", maintain_order=True),
        ranges.get_column("end").null_count(),
        apart.height,
        tuple(name for name, phase in zip(names, recognise(names), strict=True) if phase is not None),
        unread,
    )


def _is_collective() -> pl.Expr:
    return ((pl.col("domain") == "NCCL") | (pl.col("domain") == "")) & pl.col("name").str.contains(_NCCL)


def _with_payloads(tables: nsys.Tables, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Ranges with group and bytes of collectives, as NCCL tells them; and how many payloads could not be read."""
    said = pl.col("payload").str
    rows = rows.with_columns(
        said.extract(_SAYS % re.escape(COMMUNICATOR)).alias("group"),
        said.extract(_SAYS % re.escape(MESSAGE_BYTES)).cast(pl.Int64, strict=False).alias("bytes"),
    )
    told = rows.get_column("collective") & rows.get_column("binaryData").is_not_null()
    if not told.any():
        return rows, 0
    found = payloads(tables, rows.filter(told))
    at = told.arg_true()
    decoded = pl.DataFrame({"row": at, "group_told": found.group, "bytes_told": found.message_bytes})
    rows = (
        rows.with_row_index("row")
        .join(decoded.cast({"row": pl.UInt32}), on="row", how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("group_told", "group").alias("group"), pl.coalesce("bytes_told", "bytes").alias("bytes")
        )
    )
    return rows.drop("row", "group_told", "bytes_told"), found.unread


def _thread() -> pl.Expr:
    return (pl.col("globalTid") & ~nsys.PROCESS_MASK).alias("tid")


def _ranges(rows: pl.DataFrame) -> pl.DataFrame:
    name = pl.col("name")
    collective = pl.col("collective")
    operator = name.str.contains(_OPERATOR)
    kind = (
        pl.when(collective)
        .then(pl.lit("collective"))
        .when(operator)
        .then(pl.lit("op"))
        .when(name == range_name(CYCLE))
        .then(pl.lit("cycle"))
        .otherwise(pl.lit("phase"))
    )
    calls = rows.filter(collective).get_column("name").unique().to_list()
    op = {call: operation(call.removeprefix("nccl")) for call in calls}
    return rows.select(
        kind.alias("kind"),
        pl.when(operator).then(name.str.replace(_OPERATOR + ".*$", "")).otherwise(name).alias("name"),
        pl.col("start").alias("start_ns"),
        pl.when(pl.col("end") >= pl.col("start")).then(pl.col("end") - pl.col("start")).alias("dur_ns"),
        _thread(),
        pl.when(name.str.starts_with(RANGE_PREFIX)).then(pl.coalesce(*_PAYLOADS)).alias("cycle"),
        pl.when(collective).then(name.replace_strict(op, default=None, return_dtype=pl.String)).alias("op"),
        pl.when(collective).then(pl.col("group")).alias("group"),
        pl.when(collective).then(pl.col("bytes")).alias("bytes"),
    )


def _marks(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.lit("mark").alias("kind"), "name", pl.col("start").alias("start_ns"), pl.lit(0).alias("dur_ns"), _thread()
    )
