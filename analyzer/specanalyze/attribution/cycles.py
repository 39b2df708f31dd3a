"""The cycles of a recording, traced and untraced: when each ran, what it decoded, and what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.attribution.disturbance import WARMUP, disturbed
from specanalyze.attribution.host_rows import host_rows
from specanalyze.attribution.instances import cycle_numbers
from specanalyze.attribution.ranges import PHASE_CODE, Ranges, recognised_ranges
from specanalyze.columns import factorize, of_kind
from specanalyze.engines.engine import each_rank
from specanalyze.phase_names import recognise
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.phases import CYCLE, PHASE_KEYS

CYCLE_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "cycle": pl.Int64,
    "mode": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "step_ns": pl.Int64,
    "window": pl.Int64,
    "control": pl.Boolean,
    "disturbed": pl.String,
    "batch_size": pl.Int64,
    "draft_tokens": pl.Int64,
    "graph_batch_size": pl.Int64,
    "context_tokens": pl.Int64,
    "request_ids": pl.List(pl.String),
    "accept_lengths": pl.List(pl.Int64),
    "accepted_draft_tokens": pl.List(pl.Int64),
    "tokens": pl.Int64,
}
"""Columns of ``cycle_table``."""

STAMP_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "window": pl.Int64,
    "cycle": pl.Int64,
    "phase": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""Columns of ``phase_stamps``."""

DECODING: Final = ("speculative", "decode", "mixed")
"""Modes whose cycles commit tokens of running requests."""

APART_CYCLES: Final = 50
"""Untraced cycles further than this from every window belong to another run."""

_FACTS: Final = tuple(
    c for c in CYCLE_SCHEMA if c not in ("rank", "end_ns", "step_ns", "control", "disturbed", "tokens")
)
_PROFILED: Final = ("launch", "kernel", "memcpy", "memset", "op")


def cycle_table(trace: Trace, phase_map: Mapping[str, str] | None = None) -> pl.DataFrame:
    """All cycles of all ranks.

    Returns:
        Columns of CYCLE_SCHEMA, one row a rank and cycle, by rank and start: rank (its key), cycle (its number within the
        recording; counted within the window where nothing numbers it), mode (null where nothing tells; where all that is told
        is plain decoding, the rest is, too), start_ns, end_ns and dur_ns of the cycle's host range, step_ns (from its start to
        the start of the next cycle of the same stretch of the same requests; null at the end of a stretch, at the edges of
        windows and warm-ups, and where another mode or a lost cycle comes between), window (null: untraced), control (untraced
        and undisturbed: shows how fast the server is when nobody looks), disturbed (``warm-up`` or ``reading``: why an untraced
        cycle is no control, see ``disturbance``), batch_size, draft_tokens, graph_batch_size, context_tokens, request_ids,
        accept_lengths, accepted_draft_tokens, and tokens: those committed by the whole batch, null where one of them is
        unknown. A plain decode step commits one token a request by definition.

        In a window without cycle rows, the cycles are those that ``instances.cycle_numbers`` finds among the phases.
    """
    tables = list(each_rank(trace, _cycles_of, phase_map))
    return pl.concat(tables) if tables else pl.DataFrame(schema=CYCLE_SCHEMA)


def phase_stamps(trace: Trace, phase_map: Mapping[str, str] | None = None) -> pl.DataFrame:
    """All leaf phase ranges of all ranks as the host saw them, in windows and outside.

    Returns:
        Columns of STAMP_SCHEMA, one row a range, by rank and start: rank (its key), window (null: untraced), cycle (null
        where unknown), phase, start_ns, end_ns.
    """
    tables = list(each_rank(trace, _stamps_of, phase_map))
    return pl.concat(tables) if tables else pl.DataFrame(schema=STAMP_SCHEMA)


def _cycles_of(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> pl.DataFrame:
    return rank_cycles(host_rows(source), phase_map, trace.metadata)


def _stamps_of(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> pl.DataFrame:
    return rank_stamps(host_rows(source), phase_map)


def rank_cycles(
    rank: RankTrace, phase_map: Mapping[str, str] | None = None, metadata: Mapping[str, Any] | None = None
) -> pl.DataFrame:
    """``cycle_table`` of one rank; ``metadata`` is the trace's, without which no untraced cycle counts as disturbed."""
    tables = []
    for window, rows in _by_window(rank.events):
        ranges = recognised_ranges(rows, phase_map)
        own = _cycle_rows(rows, phase_map)
        table = _derived(ranges) if own is None else _completed(own, ranges)
        tables.append(table.with_columns(window=pl.lit(window, pl.Int64)).select(*_FACTS))
    if not tables:
        return pl.DataFrame(schema=CYCLE_SCHEMA)
    table = pl.concat(tables).sort("start_ns", maintain_order=True).with_columns(rank=pl.lit(rank.key))
    if set(table.get_column("mode").drop_nulls()) == {"decode"}:
        table = table.with_columns(mode=pl.lit("decode"))  # a log of plain decoding says nothing but the time
    table = _with_steps(disturbed(table, rank.rank, metadata or {}))
    table = table.with_columns(control=pl.col("window").is_null() & pl.col("disturbed").is_null())
    return table.select(pl.col(c).cast(t) for c, t in CYCLE_SCHEMA.items())


def rank_stamps(rank: RankTrace, phase_map: Mapping[str, str] | None = None) -> pl.DataFrame:
    """``phase_stamps`` of one rank."""
    tables = []
    for window, rows in _by_window(rank.events):
        ranges = recognised_ranges(rows, phase_map)
        leaf = ranges.phase != PHASE_CODE[CYCLE]
        table = _phases(ranges).filter(pl.Series(leaf, dtype=pl.Boolean))
        tables.append(table.with_columns(rank=pl.lit(rank.key), window=pl.lit(window, pl.Int64)).select(*STAMP_SCHEMA))
    if not tables:
        return pl.DataFrame(schema=STAMP_SCHEMA)
    return pl.concat(tables).sort("start_ns", maintain_order=True)


def replicas(trace: Trace, table: pl.DataFrame) -> list[str]:
    """Ranks to count tokens on, one a data-parallel replica: tensor-parallel ranks all record the same accepts.

    Args:
        trace: the recording; ``metadata["ranks"]`` tells the ``data`` coordinate of each rank where it is known.
        table: of ``cycle_table``.

    Returns:
        Keys of ranks in their order: of each data coordinate, or where that is not known of the ranks whose shared cycles agree
        in mode, batch, requests and accepts, the first rank that knows most accepts.
    """
    keys = table.get_column("rank").unique(maintain_order=True).to_list()
    known = table.group_by("rank").agg(pl.col("accept_lengths").is_not_null().sum().alias("n"))
    accepts = dict(zip(known["rank"], known["n"], strict=True))
    chosen: dict[Any, str] = {}
    coordinates = data_coordinates(trace)
    for key in keys:
        place = coordinates.get(key)
        if place is None:
            twins = (p for p, k in chosen.items() if k not in coordinates and _agree(table, k, key))
            place = next(twins, ("rank", key))
        if place not in chosen or accepts[key] > accepts[chosen[place]]:
            chosen[place] = key
    return sorted(chosen.values(), key=keys.index)


def control_is_another_run(table: pl.DataFrame) -> bool:
    """Whether the untraced cycles stand apart from the windows: the control of another run, not the same request's cycles.

    Told by time alone: on every rank that has both, the nearest untraced cycle is further from any window than
    APART_CYCLES cycles and a second.
    """
    both = []
    for mine in table.partition_by("rank"):
        untraced = mine.filter(pl.col("window").is_null())
        traced = mine.filter(pl.col("window").is_not_null())
        if not (untraced.height and traced.height):
            continue
        starts = traced.select("start_ns").sort("start_ns")
        near = untraced.select("start_ns").sort("start_ns")
        near = near.join_asof(starts.rename({"start_ns": "at"}), left_on="start_ns", right_on="at", strategy="nearest")
        gap = near.select((pl.col("start_ns") - pl.col("at")).abs().min()).item()
        step = mine.select(pl.coalesce(pl.col("step_ns").median(), pl.col("dur_ns").median())).item()
        both.append(gap > max(1_000_000_000, APART_CYCLES * step))
    return bool(both) and all(both)


def decoding(table: pl.DataFrame) -> pl.DataFrame:
    """Cycles that decode: speculative, plain and mixed ones."""
    return table.filter(pl.col("mode").is_in(DECODING))


def data_coordinates(trace: Trace) -> dict[str, Any]:
    """Rank key -> data-parallel coordinate, where the recording tells it."""
    found: dict[str, Any] = {}
    for entry in trace.metadata.get("ranks") or ():
        if isinstance(entry, Mapping) and entry.get("data") is not None and entry.get("rank") is not None:
            found[str(entry["rank"])] = ("data", entry["data"])
    return found


def _agree(table: pl.DataFrame, one: str, other: str) -> bool:
    """Whether two ranks serve the same requests: they share a request id, or, where no ids are known, the same accepts.

    Ids decide alone where both have them: arming a busy server may shift one rank's cycles by one, and a rank may miss the
    accepts of a last cycle, so cycle by cycle even ranks of one replica need not agree.
    """
    ids = [
        set(table.filter(pl.col("rank") == key).get_column("request_ids").drop_nulls().list.explode().drop_nulls())
        for key in (one, other)
    ]
    if all(ids):
        return bool(ids[0] & ids[1])
    facts = ["mode", "batch_size", "request_ids", "accept_lengths"]
    at = [pl.col("window").is_null().alias("untraced"), "cycle", *facts]
    left = table.filter(pl.col("rank") == one, pl.col("cycle").is_not_null()).select(at)
    right = table.filter(pl.col("rank") == other, pl.col("cycle").is_not_null()).select(at)
    both = left.join(right, on=["untraced", "cycle"], suffix="_other")
    if not both.height:
        return False
    same = pl.all_horizontal(pl.col(f).eq_missing(pl.col(f"{f}_other")) for f in facts)
    return bool(both.select(same.all()).item())


def _by_window(events: pl.DataFrame) -> Iterator[tuple[int | None, pl.DataFrame]]:
    """Cycle and phase rows with a usable time, window by window; what lies in none comes last, under None.

    As in ``analysis.analyse_rank``, a trace that names no window at all is one window, if a profiler ran in it.
    """
    rows = of_kind(events, ("cycle", "phase")).filter(pl.col("dur_ns") >= 0)
    known = "window" in events.columns and events.get_column("window").null_count() < events.height
    if not known:
        profiled = events.select(pl.col("kind").cast(pl.String).is_in(_PROFILED).any()).item()
        if rows.height:
            yield (0 if profiled else None), rows
        return
    for window in sorted(rows.get_column("window").drop_nulls().unique().to_list()):
        yield int(window), rows.filter(pl.col("window") == window)
    outside = rows.filter(pl.col("window").is_null())
    if outside.height:
        yield None, outside


def _cycle_rows(rows: pl.DataFrame, phase_map: Mapping[str, str] | None) -> pl.DataFrame | None:
    """The cycle ranges among the rows with every fact column, outermost only; None without any."""
    _, names = factorize(rows, "name")
    cycles = [n for n, phase in zip(names, recognise(names, phase_map), strict=True) if phase == CYCLE]
    kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
    own = rows.filter((kind == "cycle") | name.is_in(cycles))
    if not own.height:
        return None
    facts = [
        (pl.col(c) if c in own.columns else pl.lit(None)).cast(CYCLE_SCHEMA[c]).alias(c)
        for c in _FACTS
        if c != "window"
    ]
    thread = [(pl.col(c) if c in own.columns else pl.lit(0)).alias(f"_{c}") for c in ("pid", "tid")]
    own = own.select(*facts, *thread).sort("start_ns", "dur_ns", descending=[False, True], maintain_order=True)
    end = pl.col("start_ns") + pl.col("dur_ns")
    nested = end <= end.cum_max().shift(1).over("_pid", "_tid")
    return own.filter(~nested.fill_null(value=False)).select(c for c in _FACTS if c != "window")


def _completed(own: pl.DataFrame, ranges: Ranges) -> pl.DataFrame:
    """Cycle rows with a number and a mode where the rows have none but the ranges around them tell."""
    if own.get_column("cycle").null_count() == own.height:
        own = own.with_columns(cycle=pl.int_range(pl.len(), dtype=pl.Int64))
    start = own.get_column("start_ns").to_numpy()
    end = start + own.get_column("dur_ns").to_numpy()
    has = {}
    for phase in ("draft", "verify", "decode", "prefill", "idle"):
        begun = np.sort(ranges.start[ranges.phase == PHASE_CODE[phase]])
        has[phase] = np.searchsorted(begun, end, side="left") > np.searchsorted(begun, start, side="left")
    seen = pl.DataFrame(has)
    knows = pl.col("accepted_draft_tokens").is_not_null() | (pl.col("draft_tokens") > 0)
    told = pl.when(knows.fill_null(value=False)).then(pl.lit("speculative"))
    return own.with_columns(mode=pl.coalesce("mode", seen.select(_mode()).to_series(), told))


def _mode() -> pl.Expr:
    """Mode of a cycle from the phases that begin in it (columns draft, verify, decode, prefill, idle)."""
    speculative = pl.col("draft") | pl.col("verify")
    return (
        pl.when(speculative & pl.col("prefill"))
        .then(pl.lit("mixed"))
        .when(speculative)
        .then(pl.lit("speculative"))
        .when(pl.col("decode"))
        .then(pl.lit("decode"))
        .when(pl.col("prefill"))
        .then(pl.lit("prefill"))
        .when(pl.col("idle"))
        .then(pl.lit("idle"))
        .otherwise(pl.lit(None, pl.String))
        .alias("mode")
    )


def _phases(ranges: Ranges) -> pl.DataFrame:
    """Recognised ranges as rows: cycle, phase, start_ns, end_ns."""
    numbers = cycle_numbers(ranges)
    names = pl.Series(PHASE_KEYS, dtype=pl.String).gather(ranges.phase)
    frame = pl.DataFrame({"cycle": numbers, "phase": names, "start_ns": ranges.start, "end_ns": ranges.end})
    return frame.with_columns(cycle=pl.when(pl.col("cycle") >= 0).then(pl.col("cycle")))


def _derived(ranges: Ranges) -> pl.DataFrame:
    """Cycles of a window that has phases only, from the start of the phase that opens each to the end of its last."""
    phases = _phases(ranges).filter(pl.col("cycle").is_not_null())
    opening = pl.col("phase") != "draft_extend"
    # A re-extend before the first verify belongs to a cycle that began before the window.
    begun = phases.with_columns(first=pl.col("start_ns").filter(opening).min().over("cycle"))
    begun = begun.filter(pl.col("start_ns") >= pl.col("first"))
    table = begun.group_by("cycle", maintain_order=True).agg(
        pl.col("start_ns").min(),
        (pl.col("end_ns").max() - pl.col("start_ns").min()).alias("dur_ns"),
        *((pl.col("phase") == p).any().alias(p) for p in ("draft", "verify", "decode", "prefill", "idle")),
    )
    table = table.with_columns(_mode())
    missing = [c for c in _FACTS if c not in table.columns and c != "window"]
    table = table.with_columns(pl.lit(None, CYCLE_SCHEMA[c]).alias(c) for c in missing)
    return table.select(pl.col(c).cast(CYCLE_SCHEMA[c]) for c in _FACTS if c != "window")


def _with_steps(table: pl.DataFrame) -> pl.DataFrame:
    """Add end_ns, step_ns and tokens to rows sorted by start."""
    table = table.with_columns(_warm=(pl.col("disturbed") == WARMUP).fill_null(value=False))
    following = {c: pl.col(c).shift(-1) for c in ("start_ns", "cycle", "mode", "window", "_warm", "request_ids")}
    shared = pl.col("request_ids").list.set_intersection(following["request_ids"]).list.len() > 0
    same = (
        pl.col("mode").eq_missing(following["mode"])
        & pl.col("window").eq_missing(following["window"])
        & pl.col("_warm").eq_missing(following["_warm"])
        & (following["cycle"] - pl.col("cycle") == 1).fill_null(value=True)
        & shared.fill_null(value=True)
    )
    lengths = pl.col("accept_lengths")
    whole = lengths.is_not_null() & (lengths.list.eval(pl.element().is_null()).list.sum() == 0)
    return table.with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        step_ns=pl.when(same).then(following["start_ns"] - pl.col("start_ns")),
        tokens=pl.when(whole)
        .then(lengths.list.sum())
        .when(lengths.is_null() & (pl.col("mode") == "decode"))
        .then(pl.col("batch_size")),
    )
