"""Cycle logs beside a trace (FILE.cycles.json): host stamps of the cycles, and the drafts accepted in each.

``results`` has a row for each processed batch: [number of the forward, cycles launched so far, start and end of the result's
processing in Unix ns, accepted drafts per request or null]. ``stamps_ns`` has a row for each host range: [name, cycle, start, end].
Times are the trace's own clock. Cycle 0 is the request's prefill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import polars as pl

from specanalyze.formats import bounded_json
from specanalyze.formats.event_frame import DTYPES, main_thread, table
from specschema.errors import TraceError
from specschema.figures import counted
from specschema.phases import CYCLE, RANGE_PREFIX, range_name

SUFFIX: Final = ".cycles.json"
_CYCLE_RANGE: Final = range_name(CYCLE)


_MOST_NS: Final = 2**62
_MOST: Final = 2**31 - 2
Time = Annotated[int, msgspec.Meta(ge=0, le=_MOST_NS)]
Number = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
Accepted = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class CycleLog(msgspec.Struct, frozen=True):
    """A cycle log as it is written; see the module."""

    results: list[tuple[Number | None, Number, Time, Time, list[Accepted | None] | None]]
    stamps_ns: list[tuple[str, Number, Time, Time]] = []


def read_cycle_log(path: Path) -> CycleLog:
    """Read a cycle log.

    Raises:
        TraceError: no JSON, not of the layout in the module's text, or times that run backwards.
    """
    try:
        log = bounded_json.decode(msgspec.json.Decoder(CycleLog), bounded_json.whole_file(path))
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path.name} is no cycle log (results: [forward, cycle, start, end, accepted drafts], "
            f"stamps_ns: [range, cycle, start, end]): {error}"
        ) from None
    for member, rows in (("results", _results(log)), ("stamps_ns", _stamps(log))):
        backwards = (rows["end_ns"] < rows["start_ns"]).arg_true()
        if backwards.len():
            raise TraceError(
                f"{path.name}: {member}[{backwards[0]}] ends before it starts: damaged, or not written by this tool"
            )
    return log


def add_cycles(
    events: pl.DataFrame, log: CycleLog, file: str, *, control: bool = True
) -> tuple[pl.DataFrame, list[str]]:
    """Cycles of a log beside the events of the rank's trace.

    In a log of the same run, cycles inside the recording get window 0. A trace without ``spec.*`` ranges also gets
    the log's stamps as ranges of the thread that launches graphs; one with its own gets cycle numbers and accepted drafts on its cycles.
    Cycles outside the recording, and those of another run, are untraced control: kind cycle, window null. Their length is
    that of the stamped range, and where only results were logged, the time from one result to the next. What straddles
    the edge of the recording is neither and is left out.

    Args:
        events: columns of ``specschema.events`` of one rank.
        log: the cycle log.
        file: the log's name, for warnings.
        control: whether cycles outside the recording are wanted.

    Returns:
        The events with the cycles behind them, and warnings.
    """
    timed = events.filter(pl.col("dur_ns").is_not_null() & (pl.col("dur_ns") >= 0) & pl.col("window").is_not_null())
    start, end = timed["start_ns"].min(), (timed["start_ns"] + timed["dur_ns"]).max()
    if not isinstance(start, int) or not isinstance(end, int):
        return events, [f"{file}: not used, the trace has no event with a time"]
    pid, tid = main_thread(events)
    results, stamps = _results(log), _stamps(log)
    same_run = _overlaps(results, start, end) or _overlaps(stamps, start, end)
    own = events["name"].cast(pl.String).str.starts_with(RANGE_PREFIX) & events["kind"].cast(pl.String).is_in(
        ("phase", "cycle")
    )
    warnings: list[str] = []
    if own.any() and same_run:
        events = _numbered(events, results)
    ranges = stamps.filter(pl.col("name").str.starts_with(RANGE_PREFIX))
    if not own.any() and same_run and ranges.height:
        rows = stamps
    elif stamps["name"].eq(_CYCLE_RANGE).any():
        rows = stamps.filter(pl.col("name") == _CYCLE_RANGE)
    else:
        rows = _between_results(results)
    stop = pl.col("start_ns") + pl.col("dur_ns")
    rows = rows.with_columns(
        kind=pl.when(pl.col("name") == _CYCLE_RANGE).then(pl.lit("cycle")).otherwise(pl.lit("phase")),
        outside=(stop <= start) | (pl.col("start_ns") >= end),
        inside=(pl.col("start_ns") >= start) & (stop <= end),
    )
    if rows["inside"].any() and (own.any() or not ranges.height):
        rows = rows.filter(~pl.col("inside"))  # the trace's own ranges stand for them
    edge = rows.filter(~pl.col("inside") & ~pl.col("outside"))
    if edge.height and ranges.height:
        warnings.append(f"{file}: {counted(edge.height, 'range')} across the edge of the recording left out")
    rows = rows.filter(pl.col("inside") | (pl.col("outside") & control)).join(
        results.select("cycle", accepted_draft_tokens="accepted"), on="cycle", how="left", maintain_order="left"
    )
    cycle = pl.col("kind") == "cycle"
    rows = rows.with_columns(
        accepted_draft_tokens=pl.when(cycle).then(pl.col("accepted_draft_tokens")),
        window=pl.when(pl.col("inside")).then(0),
        pid=pl.lit(pid),
        tid=pl.lit(tid),
        rank=pl.lit(events["rank"][0]),
    )
    rows = _with_accepts(rows)
    if not results["accepted"].count():  # a server without speculation
        rows = rows.with_columns(mode=pl.when(cycle).then(pl.lit("decode")))
    rows = rows.select(pl.col(c).cast(DTYPES[c]) for c in rows.columns if c in DTYPES)
    return table(pl.concat([events, rows], how="diagonal")), warnings


def _results(log: CycleLog) -> pl.DataFrame:
    """Columns cycle, launched, start_ns, end_ns, accepted: one row a processed batch, in order.

    A result may be processed after the next cycle was launched (overlapped scheduling), so ``launched`` is not its own number:
    that is the count of forwards since the request's first, its prefill.
    """
    frame = pl.DataFrame(
        log.results,
        schema={
            "forward": pl.Int64,
            "launched": pl.Int64,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "accepted": pl.List(pl.Int32),
        },
        orient="row",
    )
    position = pl.int_range(pl.len(), dtype=pl.Int64)
    number = position if frame["forward"].null_count() else pl.col("forward") - pl.col("forward").first()
    return frame.select(number.alias("cycle"), "launched", "start_ns", "end_ns", "accepted")


def _stamps(log: CycleLog) -> pl.DataFrame:
    frame = pl.DataFrame(
        log.stamps_ns,
        schema={"name": pl.String, "cycle": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )
    return frame.with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns"))


def _between_results(results: pl.DataFrame) -> pl.DataFrame:
    """Cycles as the time from one result to the next, where nothing else was logged."""
    return results.select(
        "cycle",
        name=pl.lit(_CYCLE_RANGE),
        start_ns=pl.col("start_ns").shift(1),
        dur_ns=pl.col("start_ns") - pl.col("start_ns").shift(1),
    ).filter(pl.col("start_ns").is_not_null() & (pl.col("cycle") > 0))


def _overlaps(rows: pl.DataFrame, start: int, end: int) -> bool:
    return bool(rows.select(((pl.col("start_ns") < end) & (pl.col("end_ns") > start)).any()).item())


def _numbered(events: pl.DataFrame, results: pl.DataFrame) -> pl.DataFrame:
    """Numbers and accepted drafts on the trace's own cycles.

    The first result processed after a cycle began knows how many cycles were launched by then: that is the cycle's number.
    """
    at = events.with_row_index("row").filter(pl.col("kind") == "cycle").select("row", "start_ns").sort("start_ns")
    if not at.height or not results.height:
        return events
    known = results.sort("start_ns").select("start_ns", cycle="launched")
    at = at.join_asof(known, on="start_ns", strategy="forward").drop_nulls("cycle")
    at = at.filter(pl.col("cycle").is_unique())
    at = at.join(
        results.select("cycle", accepted_draft_tokens="accepted"), on="cycle", how="left", maintain_order="left"
    )
    at = _with_accepts(at.drop("start_ns"))
    at = at.select("row", *(pl.col(c).cast(DTYPES[c]) for c in at.columns if c != "row"))
    kept = events.with_row_index("row").drop([c for c in at.columns if c in events.columns])
    return kept.join(at, on="row", how="left", maintain_order="left").drop("row")


def _with_accepts(rows: pl.DataFrame) -> pl.DataFrame:
    """Accept length and mode of cycles that have accepted drafts: each request also commits its bonus token (D8)."""
    accepted = pl.col("accepted_draft_tokens")
    number = accepted.list.len().cast(pl.Int32)
    speculative = accepted.is_not_null()
    return rows.with_columns(
        accept_lengths=accepted.list.eval(pl.element() + 1),
        batch_size=pl.when(speculative).then(number),
        mode=pl.when(speculative).then(pl.lit("speculative")),
    )
