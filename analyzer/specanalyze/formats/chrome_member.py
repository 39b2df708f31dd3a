"""What Chrome JSON has no row for, in a member of its own beside the events: our export writes it, our import reads it back.

Viewers and other tools leave members alone that they do not know. The member is ``specanalyze``:

- ``version``: of this layout.
- ``windows``: [[window, start_ns], ...]: from that start on, a device row, launch call, operator or mark lies in that window (null: in none);
  null as a whole where starts cannot tell.
- ``rows``: all events of the kinds of KINDS, column by column; texts as ``{"values": [...], "codes": [...]}``.
- ``at``: the place of each of them among all events of the rank.
- ``sections``: the recording's metadata (``specschema.metadata``), each as a JSON text: whoever reads the members around it may take decimal
  numbers for texts, as ``event_text`` does.

Times are Unix nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from specanalyze.columns import factorize
from specanalyze.formats.event_bounds import LATEST_NS
from specanalyze.formats.event_frame import DTYPES, table
from specanalyze.formats.recording_sections import checked
from specschema.errors import TraceError
from specschema.events import COLUMN_NAMES
from specschema.metadata import SECTIONS

MEMBER: Final = "specanalyze"
VERSION: Final = 1
KINDS: Final = ("cycle", "phase", "request", "node")
"""Kinds that Chrome's rows cannot hold, or not all of: numbers, modes and accepts of cycles, modules, rows outside windows."""

_DRAWN: Final = ("cycle", "phase")
"""Those that Chrome's rows show all the same."""


def member(
    rows: pl.DataFrame, at: npt.NDArray[np.int64], others: pl.DataFrame, sections: Mapping[str, Any]
) -> dict[str, Any]:
    """The member of one rank's file.

    Args:
        rows: its events of the kinds of KINDS: columns of ``specschema.events``, and any others.
        at: the place of each of them among all events of the rank.
        others: start_ns and window of the other events.
        sections: metadata of the recording.
    """
    return {
        "version": VERSION,
        "windows": _windows(others),
        "rows": {
            name: _written(rows, name)
            for name in COLUMN_NAMES
            if name != "rank" and name in rows.columns and rows[name].null_count() < rows.height
        },
        "at": at.tolist(),
        "sections": {name: json.dumps(value) for name, value in sections.items() if name in SECTIONS},
    }


def restored(events: pl.DataFrame, metadata: Mapping[str, Any], file: str) -> tuple[pl.DataFrame, list[str]]:
    """The events of a rank with what the file's member keeps, and warnings.

    Args:
        events: what the rows of the file tell, window 0 everywhere.
        metadata: members of the file.
        file: its name, for messages.

    Raises:
        TraceError: a damaged or newer member.
    """
    found = _member(metadata, file)
    if found is None:
        return events, []
    rows = _rows(found.get("rows"), file).with_columns(rank=pl.lit(events["rank"].first()))
    others = events.filter(~pl.col("kind").cast(pl.String).is_in(_DRAWN))
    runs, said = found.get("windows"), list[str]()
    if runs is None:
        rows = rows.with_columns(_one_window())
        said.append(
            f"{file}: its profiler windows are read as one, because the starts of its rows do not tell them apart"
        )
    else:
        others = others.with_columns(_windowed(others, runs, file))
    both = pl.concat([others, rows], how="diagonal")
    return table(both[_order(others.height, rows.height, found.get("at"), file)]), said


def sections_of(metadata: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Metadata of the recording as the member keeps them; empty without one.

    Raises:
        TraceError: a damaged or newer member.
    """
    found = _member(metadata, file)
    sections = {} if found is None else found.get("sections")
    if not isinstance(sections, dict):
        raise _damaged(file, "sections")
    try:
        texts = {
            name: json.loads(text) for name, text in sections.items() if name in SECTIONS and isinstance(text, str)
        }
    except (ValueError, RecursionError):
        raise _damaged(file, "sections") from None
    kept = checked(texts, file)
    for entry in kept.get("ranks") or ():
        entry.pop("row_groups", None)  # of another file
    return kept


def _member(metadata: Mapping[str, Any], file: str) -> Mapping[str, Any] | None:
    found = metadata.get(MEMBER)
    if found is None:
        return None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is not int:
        raise _damaged(file, "version")
    if version > VERSION:
        raise TraceError(
            f"{file} was exported by a newer specanalyze (layout {version}; this one reads up to {VERSION}): update specanalyze"
        )
    return found  # type: ignore[no-any-return]


def _damaged(file: str, part: str) -> TraceError:
    return TraceError(f"{file}: {part} of its member {MEMBER!r} cannot be read: damaged, or not written by this tool")


def _order(others: int, own: int, at: Any, file: str) -> npt.NDArray[np.int64]:
    """The order in which these rows stood in their recording; where some are missing, own rows come last."""
    places = _series("node", at if isinstance(at, list) else [None], file, "at").to_numpy()
    count = others + own
    if (
        len(places) != own
        or not places.dtype == np.int64
        or (own and (places.min() < 0 or (np.diff(places) <= 0).any()))
    ):
        raise _damaged(file, "at")
    if own and places[-1] >= count:
        return np.arange(count)
    order = np.empty(count, dtype=np.int64)
    is_own = np.zeros(count, dtype=bool)
    is_own[places] = True
    order[is_own], order[~is_own] = np.arange(others, count), np.arange(others)
    return order


def _one_window() -> pl.Expr:
    return pl.when(pl.col("window").is_not_null()).then(0).alias("window")


def _windows(others: pl.DataFrame) -> list[list[int | None]] | None:
    """Where windows begin among the starts of these rows; None where starts do not tell."""
    timed = others.select("start_ns", "window").drop_nulls("start_ns")
    if timed.height and timed["window"].n_unique() == 1:
        return [[timed["window"][0], timed["start_ns"].min()]]
    timed = timed.unique().sort("start_ns")
    if not timed["start_ns"].is_unique().all():
        return None
    changed = timed["window"].ne_missing(timed["window"].shift(1))
    first = timed.with_row_index().filter(changed | (pl.col("index") == 0))
    return [[window, start] for window, start in first.select("window", "start_ns").iter_rows()]


def _windowed(others: pl.DataFrame, runs: Any, file: str) -> pl.Series:
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        raise _damaged(file, "windows")
    numbers, begins = [run[0] for run in runs], [run[1] for run in runs]
    times = all(type(begin) is int and abs(begin) <= LATEST_NS for begin in begins)
    if not times or begins != sorted(begins):
        raise _damaged(file, "windows")
    known = _series("window", numbers, file, "windows")
    if not len(known):
        return pl.Series("window", np.zeros(others.height, dtype=np.int32))
    starts = others["start_ns"].fill_null(begins[0]).to_numpy()
    at = np.searchsorted(np.array(begins, dtype=np.int64), starts, side="right") - 1
    return known[pl.Series(np.maximum(at, 0))]


def _written(rows: pl.DataFrame, name: str) -> Any:
    if rows.schema[name] != pl.Categorical and rows.schema[name] != pl.String:
        return rows[name].to_list()
    codes, values = factorize(rows, name)
    known = pl.Series(codes)
    return {"values": values, "codes": known.set(known < 0, None).to_list()}


def _rows(columns: Any, file: str) -> pl.DataFrame:
    if not isinstance(columns, dict) or not set(columns) <= set(COLUMN_NAMES):
        raise _damaged(file, "rows")
    series = [_read(name, column, file) for name, column in columns.items()]
    if len({len(column) for column in series}) > 1:
        raise _damaged(file, "rows")
    frame = pl.DataFrame(series) if series else pl.DataFrame()
    missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in ("kind", "start_ns", "window") if c not in frame.columns]
    frame = frame.with_columns(missing) if series else pl.DataFrame(schema={c: DTYPES[c] for c in COLUMN_NAMES})
    if (
        not frame["kind"].cast(pl.String).is_in(KINDS).all()
        or frame["kind"].null_count()
        or frame["start_ns"].null_count()
    ):
        raise _damaged(file, "rows")
    return frame


def _read(name: str, column: Any, file: str) -> pl.Series:
    if DTYPES[name] != pl.Categorical:
        return _series(name, column if isinstance(column, list) else [column], file, "rows")
    values, codes = (column.get("values"), column.get("codes")) if isinstance(column, dict) else (None, None)
    if not isinstance(values, list) or not isinstance(codes, list) or not {*map(type, values)} <= {str}:
        raise _damaged(file, "rows")
    places = _series("node", codes, file, "rows")
    if not places.drop_nulls().is_between(0, len(values) - 1).all():
        raise _damaged(file, "rows")
    return pl.Series(name, values, dtype=pl.String).gather(places).cast(DTYPES[name])


def _series(name: str, values: list[Any], file: str, part: str) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=DTYPES[name], strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        raise _damaged(file, part) from None
