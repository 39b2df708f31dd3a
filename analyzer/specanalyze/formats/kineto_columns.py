"""Rows of a Kineto (Chrome) trace to columns of the event table, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec
import polars as pl

from specanalyze.collectives import group_ranks, operation
from specanalyze.formats import bounded_json
from specanalyze.formats.decimal_time import nanoseconds

KIND_OF_CATEGORY: Final = {
    "user_annotation": "phase",
    "cpu_op": "op",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "hip_driver": "launch",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
}
"""Category of a complete ('X') row -> kind of event. Rows of any other category are no events: they are projections of host
ranges to the device (gpu_user_annotation), waits (cuda_sync), the profiler's own time (overhead, Trace) or Python frames."""

_DEVICE: Final = ("kernel", "memcpy", "memset")
_MARK_PHASES: Final = ("i", "I")
NODE_MASK: Final = 0xFFFFFFFF
"""CUPTI's graph node id holds the node's ordinal in its low 32 bits."""


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "op": "Collective name",
        "elements": "In msg nelems",
        "group": "Process Group Name",
        "ranks": "Process Group Ranks",
        "seq": "Seq",
        "graph_id": "graph id",
        "node": "graph node id",
    },
):
    """The arguments that are kept. Values of unexpected types are cleaned column by column."""

    correlation: object = None
    device: object = None
    stream: object = None
    bytes: object = None
    grid: object = None
    block: object = None
    op: object = None
    dtype: object = None
    elements: object = None
    group: object = None
    ranks: object = None
    seq: object = None
    graph_id: object = None
    node: object = None


class Row(msgspec.Struct, gc=False):
    """One row of ``traceEvents``."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: object = None
    tid: object = None
    ts: object = None
    dur: object = None
    args: Args | None = None


_DECODER: Final = msgspec.json.Decoder(list[Row], float_hook=str)
_ANY: Final = msgspec.json.Decoder(list[Any], float_hook=str)
_NO_ARGS: Final = Args()
_FIELDS: Final = attrgetter("ph", "cat", "name", "pid", "tid", "ts", "dur")
_ARG_NAMES: Final = Args.__struct_fields__
_ARGS: Final = attrgetter(*_ARG_NAMES)


def decode(text: bytes) -> list[Row]:
    """Rows of a JSON list. Decimal numbers stay text.

    Raises:
        msgspec.DecodeError: not JSON, or nested too deeply.
    """
    try:
        return bounded_json.decode(_DECODER, text)
    except msgspec.ValidationError:
        return [_lenient(item) for item in bounded_json.decode(_ANY, text) if isinstance(item, dict)]


def _lenient(item: dict[str, Any]) -> Row:
    def text(key: str) -> str | None:
        value = item.get(key)
        return value if isinstance(value, str) or value is None else str(value)

    args = item.get("args")
    return Row(
        ph=text("ph"),
        cat=text("cat"),
        name=text("name"),
        pid=item.get("pid"),
        tid=item.get("tid"),
        ts=item.get("ts"),
        dur=item.get("dur"),
        args=msgspec.convert(args, Args) if isinstance(args, dict) else None,
    )


def columns(rows: Iterable[Row]) -> pl.DataFrame | None:
    """Events of some rows.

    Args:
        rows: decoded rows, in file order.

    Returns:
        One row an event, in file order: kind, name, pid (null for device work and where it is no number), tid, ``ts_ns`` (not yet
        shifted by the file's base time), dur_ns (null for an invalid row, RULES R1), and those columns of device work and
        collectives that occur. ``merged`` is true for device work that names its process in words: a trace merged from several
        processes. None where no row is an event.
    """
    kept = [row for row in rows if (row.cat in KIND_OF_CATEGORY if row.ph == "X" else row.ph in _MARK_PHASES)]
    if not kept:
        return None
    ph, cat, name, pid, tid, ts, dur = zip(*map(_FIELDS, kept), strict=True)
    args = dict(zip(_ARG_NAMES, zip(*map(_ARGS, [row.args or _NO_ARGS for row in kept]), strict=True), strict=True))
    kinds = ["mark" if p != "X" else KIND_OF_CATEGORY[c] for p, c in zip(ph, cat, strict=True)]
    pids = _integers("pid", pid)
    frame = pl.DataFrame(
        [
            pl.Series("kind", kinds, dtype=pl.String),
            pl.Series("name", name, dtype=pl.String).fill_null(""),
            pids,
            _integers("tid", tid),
            nanoseconds(_decimals(ts)).alias("ts_ns"),
            nanoseconds(_decimals(dur)).alias("dur_ns"),
            *(_integers(key, args[key]) for key in ("correlation", "device", "stream", "bytes") if _any(args[key])),
            *(_integers(key, args[key]) for key in ("elements", "seq", "graph_id", "node") if _any(args[key])),
            *(column_of(args[key]) for key, column_of in VALUES_OF.items() if _any(args[key])),
        ]
    )
    return by_kind(frame, named_in_words=pl.Series([isinstance(p, str) for p in pid]) & pids.is_null())


def by_kind(frame: pl.DataFrame, named_in_words: pl.Series) -> pl.DataFrame:
    """Each column only on the kinds that it belongs to; see ``specschema.events``.

    Args:
        frame: the columns of ``columns``, in which kind is that of the category and device work may have any column.
        named_in_words: rows whose process is named in words.
    """
    has = set(frame.columns)
    kind = pl.col("kind")
    if "op" in has:
        frame = frame.with_columns(
            pl.when((kind == "op") & pl.col("op").is_not_null())
            .then(pl.lit("collective"))
            .otherwise(kind)
            .alias("kind")
        )
    frame = frame.with_columns(
        pl.when((kind == "phase") & (pl.col("name") == "spec.cycle"))
        .then(pl.lit("cycle"))
        .otherwise(kind)
        .alias("kind")
    )
    device = kind.is_in(_DEVICE)
    invalid = (pl.col("dur_ns") < 0) | (device & (pl.col("ts_ns") == 0))
    exprs = [
        pl.when(kind == "mark").then(0).when(~invalid.fill_null(True)).then(pl.col("dur_ns")).alias("dur_ns"),
        pl.when(~device).then(pl.col("tid")).alias("tid"),
        pl.when(~device).then(pl.col("pid")).alias("pid"),
        (device & pl.Series("merged", named_in_words)).alias("merged"),
    ]
    for column, number in (("device", "pid"), ("stream", "tid")):
        # Kineto draws device work on the row (pid = device, tid = stream)
        value = pl.coalesce(column, number) if column in has else pl.col(number)
        exprs.append(pl.when(device).then(value).alias(column))
    communication = kind.is_in(("kernel", "collective"))
    exprs += [pl.when(kind.is_in((*_DEVICE, "launch"))).then(pl.col(c)).alias(c) for c in ("correlation",) if c in has]
    exprs += [pl.when(kind.is_in(("memcpy", "memset"))).then(pl.col(c)).alias(c) for c in ("bytes",) if c in has]
    exprs += [pl.when(kind == "kernel").then(pl.col(c)).alias(c) for c in ("grid", "block") if c in has]
    exprs += [
        pl.when(communication).then(pl.col(c)).alias(c)
        for c in ("op", "dtype", "elements", "group", "group_ranks", "seq")
        if c in has
    ]
    # Kineto writes both ids as 0 for work of no graph; a node's id is never 0, since its high half is the graph
    ids = [pl.col(column) for column in ("node", "graph_id") if column in has]
    graphed = device & (pl.coalesce(ids) != 0) if ids else device
    if "graph_id" in has:
        exprs.append(pl.when(graphed).then(pl.col("graph_id")).alias("graph_id"))
    if "node" in has:
        exprs.append(pl.when(graphed).then(pl.col("node") & NODE_MASK).alias("node"))
    frame = frame.with_columns(exprs)
    useless = (kind == "launch") & (pl.col("correlation").is_null() if "correlation" in has else pl.lit(True))
    timeless = pl.col("ts_ns").is_null() & ~device
    return frame.filter(~(useless | timeless)).with_columns(pl.col("kind", "name").cast(pl.Categorical))


def _any(values: Sequence[object]) -> bool:
    return values.count(None) != len(values)


def _decimals(values: Sequence[Any]) -> list[str | int | None] | Sequence[Any]:
    if {*map(type, values)} <= {str, int, type(None)}:
        return values
    return [v if type(v) in (str, int) else None for v in values]


def _integers(name: str, values: Sequence[Any]) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return pl.Series(name, [_integer(v) for v in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    """An exact integer; ids above 2**63 wrap, so that equal ids stay equal and different ones different."""
    if isinstance(value, str):
        try:
            value = int(value.removesuffix(".0"))
        except ValueError:
            return None
    if type(value) is not int or not -(2**63) <= value < 2**64:
        return None
    return value if value < 2**63 else value - 2**64


def _texts(name: str, values: Sequence[Any]) -> pl.Series:
    text = [v if type(v) is str or v is None else str(v) for v in values]
    if name == "op":
        known = {v: operation(v) for v in {*text} if v}
        text = [known.get(v) if v else None for v in text]
    return pl.Series(name, text, dtype=pl.String).cast(pl.Categorical)


def _groups(values: Sequence[Any]) -> pl.Series:
    text = [v if type(v) is str or v is None else str(v) for v in values]
    known = {v: group_ranks(v) for v in {*text} if v}
    return pl.Series("group_ranks", [known.get(v) if v else None for v in text], dtype=pl.List(pl.Int32))


class _Dimensions(dict[Any, "str | None"]):
    """[132, 1, 1] -> 132x1x1, each triple once."""

    def __missing__(self, key: Any) -> str | None:
        text = None
        if isinstance(key, tuple) and len(key) == 3 and all(type(n) is int for n in key):
            text = "x".join(map(str, key))
        self[key] = text
        return text


def _dimensions(name: str, values: Sequence[Any]) -> pl.Series:
    known = _Dimensions()
    text = [known[(*v,)] if type(v) is list else None for v in values]
    return pl.Series(name, text, dtype=pl.String).cast(pl.Categorical)


VALUES_OF: Final[dict[str, Callable[[Sequence[Any]], pl.Series]]] = {
    **{name: partial(_dimensions, name) for name in ("grid", "block")},
    **{name: partial(_texts, name) for name in ("op", "dtype", "group")},
    "ranks": _groups,
}
"""Argument that is no number -> the column that its values, as JSON has them, become."""
