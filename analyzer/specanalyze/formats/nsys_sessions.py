"""Whether several exports of Nsight Systems are of one recording.

Ranks under an nsys of their own (``mpirun nsys profile``, one a host) have a session each, begun at about the same time, and
nothing in the exports names the run that they belong to. What tells recordings apart is when their GPUs worked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from specanalyze.formats import nsys_tables as nsys
from specschema.errors import TraceError

_NAMED: Final = 4
"""Files that a message names."""
_NS: Final = 10**9


@dataclass(frozen=True)
class Session:
    """One export.

    Attributes:
        name: its file or folder.
        start_ns: Unix time of its time 0; None where it does not say.
        span_ns: first and last instant of its work, from its time 0; None where there is none.
        processes: global ids of the processes that worked.
        ranks: their ranks, -1 where unknown.
    """

    name: str
    start_ns: int | None
    span_ns: tuple[int, int] | None
    processes: frozenset[int]
    ranks: tuple[int, ...]


def span(tables: nsys.Tables, names: Sequence[str]) -> tuple[int, int] | None:
    """First and last instant of all rows of some tables, from the session's start; None without rows."""
    found = [bounds for name in names if (bounds := tables.span(name)) is not None]
    return (min(start for start, _ in found), max(end for _, end in found)) if found else None


def refuse_unrelated(sessions: Sequence[Session]) -> None:
    """Refuse exports that nothing shows to be of one recording.

    Raises:
        TraceError: one session exported twice; work at times that do not overlap; or no time to tell, and ranks that are unknown
            or occur twice.
    """
    sessions = [s for s in sessions if s.span_ns is not None]
    for at, one in enumerate(sessions):
        for other in sessions[:at]:
            if one.start_ns is not None and one.start_ns == other.start_ns and one.processes & other.processes:
                raise TraceError(
                    f"{other.name} and {one.name} are exports of the same session: its ranks would count twice; give one of them"
                )
    timeless = [s.name for s in sessions if s.start_ns is None]
    ranks = [rank for s in sessions for rank in s.ranks]
    if timeless and (min(ranks) < 0 or len(set(ranks)) < len(ranks)):
        raise TraceError(
            f"nothing shows that {_listed([s.name for s in sessions])} are of one recording ({timeless[0]} does not say when its session "
            "began, and their processes do not name a rank each): give the files of one"
        )
    parts = [] if timeless else _apart(sessions)
    if len(parts) > 1:
        names = [f"{_listed([s.name for s in part], 2)} ({_when(part[0])})" for part in parts]
        raise TraceError(
            f"{len(parts)} recordings, whose GPUs worked at different times: {_listed(names)}; choose one: give its files alone"
        )


def _apart(sessions: Sequence[Session]) -> list[list[Session]]:
    """Sessions in groups, such that work of one group never runs while another one's does; in order of time."""
    groups: list[list[Session]] = []
    until = 0
    for session in sorted(sessions, key=_begin):
        if not groups or _begin(session) > until:
            groups.append([])
            until = _end(session)
        groups[-1].append(session)
        until = max(until, _end(session))
    return groups


def _begin(session: Session) -> int:
    return (session.start_ns or 0) + (session.span_ns or (0, 0))[0]


def _end(session: Session) -> int:
    return (session.start_ns or 0) + (session.span_ns or (0, 0))[1]


def _when(session: Session) -> str:
    """To the second, in UTC; what no calendar holds as the number it is."""
    try:
        return datetime.fromtimestamp(_begin(session) // _NS, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{_begin(session)} ns"


def _listed(names: Sequence[str], most: int = _NAMED) -> str:
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
