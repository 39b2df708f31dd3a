"""Which replay a kernel lies in, and whether ranks have as many."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specanalyze.attribution.replay_numbers import (
    counted_calls,
    differing_replays,
    none_matched,
    placed_in_replays,
    replay_sizes,
    replays_through,
    some_unmatched,
)
from specanalyze.columns import Ints


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def test_calls_are_numbered_by_their_start_within_their_phase() -> None:
    """In file order they start at 30, 10, 20, 40 and 50; the last two lie in no range and in a phase that is not asked for."""
    number, counts = counted_calls(ints(1, 1, 0, -1, 7), ints(30, 10, 20, 40, 50), [0, 1, 2])
    assert counts == {0: 1, 1: 2, 2: 0}
    assert number(ints(10, 20, 30, 40, 50, 10)).tolist() == [0, 0, 1, -1, -1, 0]


def test_kernels_have_places_in_order_of_start_and_file() -> None:
    """Two replays of phase 1, one of them empty; phase 7 is not counted."""
    phase, replay, start = ints(1, 1, 1, 7, 1, 0), ints(2, 0, 2, 0, 2, -1), ints(90, 5, 80, 7, 80, 1)
    position, replays = placed_in_replays(phase, replay, start, {0: 1, 1: 4})
    assert position.tolist() == [2, 0, 0, -1, 1, -1]
    assert replay.tolist() == [2, 0, 2, -1, 2, -1]
    assert {code: sizes.tolist() for code, sizes in replays.items()} == {0: [0], 1: [1, 0, 3, 0]}


def test_sizes_alone_are_the_same() -> None:
    phase, replay = np.array([1, 1, 1, 7, 1, 0], dtype=np.uint8), np.array([2, 0, 2, 0, 2, -1], dtype=np.int32)
    sizes = replay_sizes(phase, replay, {0: 1, 1: 4})
    assert {code: found.tolist() for code, found in sizes.items()} == {0: [0], 1: [1, 0, 3, 0]}
    assert replay.tolist() == [2, 0, 2, -1, 2, -1]


@dataclass
class Rank:
    """What is asked of a rank."""

    key: str
    replays_by_window: dict[int, dict[int, Ints]]
    replays: dict[int, Ints] = field(init=False)

    def __post_init__(self) -> None:
        self.replays = replays_through(self.replays_by_window)


def rank(key: str, windows: dict[int, int]) -> Rank:
    """So many empty replays of phase 1 in each window."""
    return Rank(key, {window: {1: ints(*[0] * count), 0: ints()} for window, count in windows.items()})


def test_replays_are_numbered_through_all_windows() -> None:
    found = replays_through({3: {1: ints(4, 5), 0: ints()}, 1: {1: ints(6), 0: ints(2)}})
    assert {code: sizes.tolist() for code, sizes in found.items()} == {0: [2], 1: [4, 5, 6]}


def test_where_ranks_differ_is_said() -> None:
    alike = [rank("0", {0: 2, 1: 1}), rank("1", {0: 2, 1: 1})]
    assert differing_replays(alike, 1) == ""
    more = differing_replays([*alike, rank("2", {0: 2, 1: 2})], 1)
    assert more == " (rank 0: 3, rank 1: 3, rank 2: 4)"
    assert none_matched("draft", more) == (
        "replays of draft differ in number (rank 0: 3, rank 1: 3, rank 2: 4): none of them is matched"
    )
    assert differing_replays([*alike, rank("2", {0: 2, 1: 0, 2: 1})], 1) == (
        " in window 1 (rank 0: 1, rank 1: 1, rank 2: 0)"
    )
    assert differing_replays([rank("0", {1: 1, 2: 0}), rank("1", {2: 1})], 1) == " in window 1 (rank 0: 1, rank 1: 0)"
    assert differing_replays([rank("0", {1: 1, 2: 0}), rank("1", {1: 1})], 1) == ""
    assert some_unmatched("verify", 2, 5) == (
        "2 of 5 replays of verify differ in their communication kernels: not matched"
    )
