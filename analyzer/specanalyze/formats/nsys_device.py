"""Device work and launch calls of one process of an Nsight Systems export, as events."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from specanalyze.formats import nsys_tables as nsys
from specschema.phases import WHOLE_REPLAY

_NODE_MASK: Final = 0xFFFFFFFF
"""CUPTI's graph node id holds the node's ordinal in its low 32 bits and the graph in the high ones."""

_VERSION: Final = r"(?:_ptsz|_ptds)?_v\d+$"
"""``cudaGraphLaunch_v10000`` -> cudaGraphLaunch (RULES R2)."""

_PUTS_WORK: Final = r"Launch|Memcpy|Memset|MemPrefetch"
"""Calls that are kept even where no device work carries their id: a replay without its kernels is one of them."""

_COPY_KINDS: Final = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "unified HtoD",
    12: "unified DtoH",
    13: "unified DtoD",
}
"""CUpti_ActivityMemcpyKind, and what Nsight Systems adds for unified memory (ENUM_CUDA_MEMCPY_OPER)."""

UNNAMED: Final = ("unnamed kernel", "unnamed call")
"""Names of what the export's strings do not name."""

_TIMES: Final = ("start", "end", "globalPid", "correlationId")
_PLACE: Final = ("deviceId", "streamId", "graphNodeId", "graphId")
_GRID: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


class DeviceWork(NamedTuple):
    """Events of device work, and how many replays were recorded as a whole."""

    events: pl.DataFrame
    whole_replays: int


def texts(tables: nsys.Tables) -> pl.DataFrame:
    """The export's strings: id, value (Categorical)."""
    return (
        tables.read(nsys.STRINGS, ["id", "value"])
        .unique("id", keep="first")
        .with_columns(pl.col("value").cast(pl.Categorical))
    )


def named(rows: pl.DataFrame, column: str, strings: pl.DataFrame, name: str) -> pl.DataFrame:
    """Rows with the text (column ``name``) that their id in ``column`` stands for."""
    return rows.join(strings.rename({"id": column, "value": name}), on=column, how="left", maintain_order="left")


def device_work(tables: nsys.Tables, strings: pl.DataFrame, process: int) -> DeviceWork:
    """Kernels, copies, fills, and replays of which no kernel was recorded (one activity each, RULES R5).

    Times are the export's own (from the start of its session).
    """
    kernels = tables.read(nsys.KERNEL, [*_TIMES, *_PLACE, "demangledName", "shortName", *_GRID], process)
    kernels = named(named(kernels, "demangledName", strings, "long"), "shortName", strings, "short")
    kernels = kernels.select(
        pl.lit("kernel").alias("kind"),
        pl.coalesce(_nonempty("long"), _nonempty("short"), pl.lit(UNNAMED[0])).alias("name"),
        *_common(),
        _dimensions("grid", *_GRID[:3]),
        _dimensions("block", *_GRID[3:]),
    )
    copies = tables.read(nsys.MEMCPY, [*_TIMES, *_PLACE, "bytes", "copyKind"], process)
    copies = copies.select(
        pl.lit("memcpy").alias("kind"),
        ("Memcpy " + pl.col("copyKind").replace_strict(_COPY_KINDS, default="of unknown kind", return_dtype=pl.String))
        .fill_null("Memcpy of unknown kind")
        .alias("name"),
        *_common(),
        "bytes",
    )
    fills = tables.read(nsys.MEMSET, [*_TIMES, *_PLACE, "bytes"], process)
    fills = fills.select(pl.lit("memset").alias("kind"), pl.lit("Memset").alias("name"), *_common(), "bytes")
    events = pl.concat([kernels, copies, fills], how="diagonal_relaxed")
    replays = tables.read(nsys.GRAPH_TRACE, [*_TIMES, *_PLACE], process).select(
        pl.lit("kernel").alias("kind"), pl.lit(WHOLE_REPLAY).alias("name"), *_common()
    )
    # A report may hold some graphs node by node and others whole; a replay with its nodes must not count twice.
    resolved = events.filter(pl.col("correlation").is_not_null()).select("correlation").unique()
    replays = replays.join(resolved, on="correlation", how="anti", maintain_order="left")
    return DeviceWork(
        pl.concat([events, replays], how="diagonal_relaxed").sort("start_ns", maintain_order=True), replays.height
    )


def launches(tables: nsys.Tables, strings: pl.DataFrame, process: int, correlations: pl.Series) -> pl.DataFrame:
    """Runtime and driver calls that put work on a device.

    Args:
        tables, strings, process: the export, its strings, the process.
        correlations: ids of the process' device work.
    """
    calls = tables.read(nsys.RUNTIME, ["start", "end", "globalTid", "correlationId", "nameId", "name"], process)
    calls = calls.rename({"name": "own"})  # schema 2.9 had the name itself beside its id
    calls = named(calls, "nameId", strings, "text").filter(pl.col("correlationId").is_not_null())
    name = pl.coalesce(_nonempty("text"), _nonempty("own"), pl.lit(UNNAMED[1])).str.replace(_VERSION, "")
    known = pl.DataFrame(
        {"correlationId": correlations.unique(), "has_work": True},
        schema={"correlationId": pl.Int64, "has_work": pl.Boolean},
    )
    return (
        calls.join(known, on="correlationId", how="left", maintain_order="left")
        .with_columns(name.alias("name"))
        .filter(pl.col("has_work").fill_null(False) | pl.col("name").str.contains(_PUTS_WORK))
        .select(
            pl.lit("launch").alias("kind"),
            "name",
            pl.col("start").alias("start_ns"),
            _duration(),
            (pl.col("globalTid") & ~nsys.PROCESS_MASK).alias("tid"),
            pl.col("correlationId").alias("correlation"),
        )
        .sort("start_ns", maintain_order=True)
    )


def _nonempty(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return pl.when(text != "").then(text)


def _duration() -> pl.Expr:
    """ns; null for a row that was never closed or ends before it starts (RULES R1)."""
    return pl.when(pl.col("end") >= pl.col("start")).then(pl.col("end") - pl.col("start")).alias("dur_ns")


def _common() -> list[pl.Expr]:
    node, graph = pl.col("graphNodeId"), pl.col("graphId")
    return [
        pl.col("start").alias("start_ns"),
        _duration(),
        pl.col("correlationId").alias("correlation"),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        # Before schema 3.24 the graph was only in the node's id.
        pl.coalesce(graph, pl.when(node > _NODE_MASK).then(node // (_NODE_MASK + 1))).alias("graph_id"),
        (node & _NODE_MASK).alias("node"),
    ]


def _dimensions(name: str, x: str, y: str, z: str) -> pl.Expr:
    return pl.concat_str(x, y, z, separator="x").alias(name)
