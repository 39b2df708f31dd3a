"""Replays on several streams are read stream by stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.attribution.replay_lanes import MOST_LANES, lanes, read_lanes


def reading(nodes: str, *streams: str) -> tuple[list[int], list[bool]] | None:
    """Lane of each node and whether it is unsure, for nodes and activities named by letters."""
    found = read_lanes([len(one) for one in streams], lambda node, lane, place: nodes[node] == streams[lane][place])
    return None if found is None else (found.lane.tolist(), found.unsure.tolist())


def test_branches_are_told_apart_by_what_runs_on_each_stream() -> None:
    # routed experts on the first stream, shared experts on the second, captured after them
    assert reading("nrmatgaxn", "nrmatxn", "ga") == ([0, 0, 0, 0, 0, 1, 1, 0, 0], [False] * 9)


def test_an_equal_kernel_on_both_streams_is_unsure_and_stays_on_the_stream_of_the_node_before() -> None:
    # q's norm and kv's norm are the same kernel, one on each stream
    assert reading("gnnq", "gnq", "n") == ([0, 0, 1, 0], [False, True, True, False])


def test_what_cannot_be_shuffled_from_the_streams_is_not_read() -> None:
    assert reading("abcd", "ba", "cd") is None
    assert reading("abcd", "ab", "ce") is None


def test_a_way_that_ends_early_is_no_way() -> None:
    # the first a may be of either stream, but only one of them can go on to the end
    assert reading("abac", "ab", "ac") == ([0, 0, 1, 1], [False] * 4)
    assert reading("acab", "ab", "ac") == ([1, 1, 0, 0], [False] * 4)


def test_too_many_ways_are_given_up() -> None:
    assert reading("a" * 300, "a" * 150, "a" * 150) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdefgh")), min_size=1, max_size=40))
def test_every_node_that_is_sure_is_right(captured: list[tuple[int, str]]) -> None:
    nodes = "".join(name for _, name in captured)
    streams = ["".join(name for lane, name in captured if lane == k) for k in range(3)]
    found = reading(nodes, *streams)
    if found is None:  # only where equal names allow too many ways
        assert len(set(nodes)) < len(nodes)
        return
    place = [0, 0, 0]
    for (lane, name), told, unsure in zip(captured, *found, strict=True):
        assert streams[told][place[told]] == name
        place[told] += 1
        assert told == lane or unsure


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=5))
def test_lanes_put_each_replay_in_order_of_its_streams(replays: list[list[int]]) -> None:
    stream = np.array([s for one in replays for s in one], dtype=np.uint16)
    bounds = np.append(0, np.cumsum([len(one) for one in replays]))
    found = lanes(np.arange(len(stream)), stream, bounds)
    for low, high, one, mixed in zip(bounds[:-1], bounds[1:], replays, found.mixed.tolist(), strict=True):
        in_order_of_appearance = list(dict.fromkeys(one))
        by_lane = [int(low) + i for s in in_order_of_appearance for i, other in enumerate(one) if other == s]
        assert found.order[low:high].tolist() == by_lane
        assert found.lane[low:high].tolist() == [in_order_of_appearance.index(one[i - int(low)]) for i in by_lane]
        assert mixed == (len(in_order_of_appearance) > 1)


def test_a_replay_on_very_many_streams_stays_in_order_of_start() -> None:
    stream = np.array([*range(MOST_LANES + 1), 0, 1, 0], dtype=np.uint16)
    found = lanes(np.arange(len(stream)), stream, np.array([0, MOST_LANES + 1, len(stream)]))
    assert found.order.tolist() == [*range(MOST_LANES + 1), MOST_LANES + 1, MOST_LANES + 3, MOST_LANES + 2]
    assert found.lane[: MOST_LANES + 1].tolist() == [0] * (MOST_LANES + 1)
    assert found.mixed.tolist() == [False, True]


@pytest.mark.parametrize(("streams", "mixed"), [(8, True), (9, False)])
def test_a_replay_on_up_to_eight_streams_is_read_by_streams(streams: int, mixed: bool) -> None:
    stream = np.array([*range(streams), 0], dtype=np.uint16)
    found = lanes(np.arange(len(stream)), stream, np.array([0, len(stream)]))
    assert found.mixed.tolist() == [mixed]
    assert found.lane.tolist() == ([0, *range(streams)] if mixed else [0] * len(stream))


@pytest.mark.parametrize("bounds", [[], [0], [0, 0], [0, 0, 0]])
def test_replays_without_activities_have_one_stream(bounds: list[int]) -> None:
    none = np.empty(0, dtype=np.uint16)
    found = lanes(np.empty(0, dtype=np.int64), none, np.array(bounds, dtype=np.int64))
    assert (found.order.tolist(), found.lane.tolist()) == ([], [])
    assert found.mixed.tolist() == [False] * max(0, len(bounds) - 1)


def test_up_to_64_ways_are_followed() -> None:
    """After n equal nodes of two streams there are n + 1 ways, up to the length of the shorter one."""
    assert reading("a" * 126, "a" * 63, "a" * 63) == ([0] * 63 + [1] * 63, [True] * 126)
    assert reading("a" * 128, "a" * 64, "a" * 64) is None
