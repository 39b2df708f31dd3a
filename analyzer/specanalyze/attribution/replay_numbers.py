"""Which replay of its phase each communication kernel lies in, and its place there (RULES R7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specanalyze.columns import Ints

Array: TypeAlias = NDArray[Any]


def counted_calls(
    call_phase: Ints, call_start: Ints, codes: Sequence[int]
) -> tuple[Callable[[Ints], Ints], dict[int, int]]:
    """Number the graph launch calls of each phase in order of their start.

    Replays are counted by their launch calls, with or without records.

    Args:
        call_phase, call_start: phase code (-1: in no range) and start of all graph launch calls, in file order.
        codes: phases whose calls are numbered; the others have no number (-1).

    Returns:
        A function from the starts of calls to their numbers, and phase code -> calls.
        Two calls of one process never start together on one thread; of two that do the earlier row counts for both.
    """
    order = np.lexsort((np.arange(len(call_phase)), call_start))
    number = np.full(len(call_phase), -1, dtype=np.int64)
    counts: dict[int, int] = {}
    for code in codes:
        mine = order[call_phase[order] == code]
        number[mine] = np.arange(len(mine))
        counts[code] = len(mine)
    by_start = call_start[order]

    def numbers(starts: Ints) -> Ints:
        return number[order[np.searchsorted(by_start, starts)]]

    return numbers, counts


def placed_in_replays(
    phase: Ints, replay: Ints, start: Ints, counts: Mapping[int, int]
) -> tuple[Ints, dict[int, Ints]]:
    """Place of each kernel in its replay, in order of start.

    Args:
        phase, replay, start: of the kernels, in file order; ``replay`` becomes -1 for phases that are not counted.
        counts: phase code -> replays.

    Returns:
        Place of each kernel (-1 outside replays), and phase code -> kernels of each replay.
    """
    replay[~np.isin(phase, list(counts))] = -1
    position = np.full(len(phase), -1, dtype=np.int64)
    replays: dict[int, Ints] = {}
    for code, count in counts.items():
        members = np.flatnonzero((phase == code) & (replay >= 0))
        members = members[np.lexsort((members, start[members], replay[members]))]
        sizes = np.bincount(replay[members], minlength=count).astype(np.int64)
        position[members] = np.arange(len(members)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        replays[code] = sizes
    return position, replays


def replay_sizes(phase: Array, replay: Array, counts: Mapping[int, int]) -> dict[int, Ints]:
    """Phase code -> kernels of each replay; the arguments are those of ``placed_in_replays``, in integers of any width."""
    replay[~np.isin(phase, list(counts))] = -1
    inside = replay >= 0
    return {
        code: np.bincount(replay[inside & (phase == code)], minlength=count).astype(np.int64)
        for code, count in counts.items()
    }


class Replays(Protocol):
    """How many replays a rank recorded, window by window."""

    @property
    def key(self) -> str: ...
    @property
    def replays(self) -> dict[int, Ints]: ...
    @property
    def replays_by_window(self) -> dict[int, dict[int, Ints]]: ...


def replays_through(by_window: Mapping[int, Mapping[int, Ints]]) -> dict[int, Ints]:
    """The ``replays`` of ``replays_by_window``: phase code -> kernels of each replay, numbered through, window after window."""
    codes = {code for sizes in by_window.values() for code in sizes}
    return {code: np.concatenate([sizes[code] for sizes in by_window.values()]) for code in sorted(codes)}


def differing_replays(ranks: Sequence[Replays], code: int) -> str:
    """Where and how the ranks' replays of a phase differ in number, in all or in one window; empty where they agree."""
    numbers = {"": [len(r.replays[code]) for r in ranks]}
    for window in sorted({window for r in ranks for window in r.replays_by_window}):
        sizes = [r.replays_by_window.get(window, {}) for r in ranks]
        numbers[f" in window {window}"] = [len(s[code]) if s else 0 for s in sizes]
    for where, lengths in numbers.items():
        if len(set(lengths)) > 1:
            return f"{where} ({', '.join(f'rank {r.key}: {n}' for r, n in zip(ranks, lengths, strict=True))})"
    return ""


def none_matched(phase: str, differing: str) -> str:
    """Why no replay of a phase is matched; ``differing`` of ``differing_replays``."""
    return f"replays of {phase} differ in number{differing}: none of them is matched"


def some_unmatched(phase: str, odd: int, replays: int) -> str:
    """Why some replays of a phase are not matched."""
    return f"{odd} of {replays} replays of {phase} differ in their communication kernels: not matched"
