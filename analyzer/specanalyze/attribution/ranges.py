"""The recognised host ranges of one rank: which phase each instant of each thread is in (RULES R3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.columns import Ints, distinct, factorize, integers, of_kind
from specanalyze.intervals import Segments, by_priority
from specanalyze.phase_names import recognise
from specschema.phases import CYCLE, OTHER_LEAF_PHASES, PHASE_KEYS, SPECULATIVE_PHASES

PHASE_CODE: Final = {phase: code for code, phase in enumerate(PHASE_KEYS)}
"""Phase -> code used in arrays."""

_SPECULATIVE = [PHASE_CODE[p] for p in SPECULATIVE_PHASES]
_OTHER = [PHASE_CODE[p] for p in OTHER_LEAF_PHASES]
_PRECEDENCE: Final = (_SPECULATIVE, _OTHER, [PHASE_CODE[CYCLE]])
"""Rule D10: a speculative leaf, else prefill, decode or idle, else the cycle."""


@dataclass(frozen=True)
class Ranges:
    """Recognised ranges of one rank, ranges of a phase nested in itself merged, in file order.

    Attributes:
        start, end: ns.
        thread: index of the (pid, tid) pair in ``threads``.
        phase: code of PHASE_CODE.
        cycle: number of the decode cycle, -1 where unknown.
        threads: distinct (pid, tid).
        unrecognised: distinct names that are no phase.
        crossing: (earlier phase, later phase) -> pairs of neighbouring leaf ranges of one thread that overlap without
            nesting.
    """

    start: Ints
    end: Ints
    thread: Ints
    phase: Ints
    cycle: Ints
    threads: tuple[tuple[int, int], ...]
    unrecognised: tuple[str, ...]
    crossing: dict[tuple[str, str], int]

    def __len__(self) -> int:
        return len(self.start)

    def instances(self) -> Ints:
        """Number of ranges of each phase code."""
        return np.bincount(self.phase, minlength=len(PHASE_KEYS)).astype(np.int64)

    def cover(self, which: Ints | None = None) -> list[Segments]:
        """Innermost range of each instant, for each precedence level of rule D10, best level first.

        The innermost range is the one that started last; of those that started together, the shorter one; of equal ones,
        the one listed last.

        Args:
            which: only these ranges (indices); all when None.

        Returns:
            One Segments a level; ``owner`` indexes this object's arrays.
        """
        rows = np.arange(len(self)) if which is None else which
        levels = []
        for codes in _PRECEDENCE:
            index = rows[np.isin(self.phase[rows], codes)]
            start, end = self.start[index], self.end[index]
            inner_first = np.lexsort((-index, end, -start))
            priority = np.empty(len(index), dtype=np.int64)
            priority[inner_first] = np.arange(len(index))
            segments = by_priority(start, end, priority)
            levels.append(Segments(segments.start, segments.end, index[segments.owner]))
        return levels

    def innermost(self, thread: Ints, instant: Ints) -> Ints:
        """Range that encloses each instant on its own thread: ``start <= instant < end``, innermost.

        Args:
            thread: index into ``threads`` for each instant, -1 for a thread without ranges.
            instant: ns.

        Returns:
            Range index for each instant, -1 where none.
        """
        found = np.full(len(instant), -1, dtype=np.int64)
        for number in range(len(self.threads)):  # one turn a thread
            asked = np.flatnonzero(thread == number)
            if not len(asked):
                continue
            when = instant[asked]
            answer = np.full(len(asked), -1, dtype=np.int64)
            for segments in reversed(self.cover(np.flatnonzero(self.thread == number))):
                if len(segments.start):
                    at = np.searchsorted(segments.start, when, side="right") - 1
                    inside = (at >= 0) & (when < segments.end[at])
                    answer[inside] = segments.owner[at[inside]]
            found[asked] = answer
        return found


def recognised_ranges(events: pl.DataFrame, phase_map: Mapping[str, str] | None = None) -> Ranges:
    """The recognised ranges among a rank's ``phase`` and ``cycle`` rows.

    A range without a duration (never closed) is not recognised. A range nested in one of the same phase on the same
    thread is merged into it. A decode range inside draft or draft_extend is the draft model's own forward: no instance.

    Args:
        events: one rank's events (columns of ``specschema.events``).
        phase_map: see ``phase_names.recognise``.
    """
    rows = of_kind(events, ("phase", "cycle"))
    codes, names = factorize(rows, "name")
    phases = recognise(names, phase_map)
    # the last one is that of a range without a name
    phase_of_name = np.array([*(-1 if p is None else PHASE_CODE[p] for p in phases), -1], dtype=np.int64)
    phase = phase_of_name[codes]
    start, duration = integers(rows, "start_ns", 0), integers(rows, "dur_ns", -1)
    keep = np.flatnonzero((phase >= 0) & (duration >= 0))
    phase, start, end = phase[keep], start[keep], (start + duration)[keep]
    cycle = integers(rows, "cycle", -1)[keep]
    ids = np.stack([integers(rows, "pid", 0)[keep], integers(rows, "tid", 0)[keep]], axis=1)
    threads, thread = np.unique(ids, axis=0, return_inverse=True)
    thread = thread.ravel().astype(np.int64)

    alive = ~_nested_in_itself(start, end, thread * len(PHASE_KEYS) + phase)
    inner = np.isin(phase, _OTHER)
    outer = np.isin(phase, _SPECULATIVE)
    alive &= ~(inner & _inside_another(start, end, thread, outer & alive))
    leaf = alive & (phase != PHASE_CODE[CYCLE])
    return Ranges(
        start[alive],
        end[alive],
        thread[alive],
        phase[alive],
        cycle[alive],
        tuple((int(p), int(t)) for p, t in threads),
        tuple(name for name, p in zip(names, phases, strict=True) if p is None),
        _crossings(start[leaf], end[leaf], thread[leaf], phase[leaf]),
    )


def _nested_in_itself(start: Ints, end: Ints, key: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which ranges lie inside an earlier-listed or longer range of the same key (phase and thread)."""
    order = np.lexsort((-end, start, key))
    nested = np.zeros(len(start), dtype=bool)
    for part in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):  # one turn a phase and thread
        reached = np.maximum.accumulate(end[part])
        nested[part[1:]] = end[part[1:]] <= reached[:-1]
    return nested


def _inside_another(
    start: Ints, end: Ints, thread: Ints, outer: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which ranges lie inside a range of ``outer`` on their own thread."""
    inside = np.zeros(len(start), dtype=bool)
    for number in distinct(thread[outer])[0]:  # one turn a thread
        holders = np.flatnonzero(outer & (thread == number))
        asked = np.flatnonzero(thread == number)
        holders = holders[np.argsort(start[holders])]
        reached = np.maximum.accumulate(end[holders])
        at = np.searchsorted(start[holders], start[asked], side="right") - 1
        inside[asked] = (at >= 0) & (end[asked] <= reached[np.maximum(at, 0)])
    return inside


def _crossings(start: Ints, end: Ints, thread: Ints, phase: Ints) -> dict[tuple[str, str], int]:
    """Neighbouring ranges of one thread that overlap without nesting, counted by their phases."""
    order = np.lexsort((-end, start, thread))
    s, e, t, p = start[order], end[order], thread[order], phase[order]
    # What starts together lies longest first, so that an end beyond the one before has a later start, too.
    crossing = np.flatnonzero((t[1:] == t[:-1]) & (s[1:] < e[:-1]) & (e[1:] > e[:-1]))
    pairs, times = np.unique(p[crossing] * len(PHASE_KEYS) + p[crossing + 1], return_counts=True)
    earlier, later = np.divmod(pairs, len(PHASE_KEYS))
    return {(PHASE_KEYS[a], PHASE_KEYS[b]): int(n) for a, b, n in zip(earlier, later, times, strict=True)}
