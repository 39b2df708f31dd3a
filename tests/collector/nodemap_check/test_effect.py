"""The statistics of ``nodemap_check`` on made-up captures: what is known of graphs on an H200 is that two captures of one model
differ by a per cent or so for good, and single replays by a few. The check itself needs a GPU."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from speccollect.nodemap_check.cost import AGAIN, KINDS, MOST_SQUARES, PARTS, WITH, WITHOUT, as_kind
from speccollect.nodemap_check.effect import (
    ENOUGH_BLOCKS,
    Effect,
    Verdict,
    balanced_orders,
    effect,
    flat,
    neighbours,
    replay_orders,
    verdict,
)
from speccollect.nodemap_check.nodes import GraphFacts, NodeFacts, counts, differences

REPLAY = 450e-6
TRIES = 120


def captured(seed: int, slower: float, of_capture: float, squares: int, drift: float = 0.0) -> list[dict[str, float]]:
    """Replay times of graphs captured in the check's own order.

    Args:
        seed: of chance.
        slower: share that graphs with the map take longer.
        of_capture: standard deviation between captures, as a share.
        squares: of captures.
        drift: share by which each capture is slower than the one before.
    """
    draw = np.random.default_rng(seed)
    kinds = flat(balanced_orders(KINDS, MOST_SQUARES)[: squares * len(KINDS)])
    times = []
    for place, kind in enumerate(kinds):
        graph = REPLAY * (1 + drift * place) * (1 + of_capture * draw.standard_normal())
        replays = graph * (1 + slower * (kind == WITH)) * (1 + 0.03 * draw.standard_exponential(48))
        times.append(float(np.median(replays)))
    return neighbours(times, kinds)


def said(blocks: list[dict[str, float]]) -> Verdict:
    return verdict(effect(blocks, WITHOUT, WITH), effect(blocks, WITHOUT, AGAIN))


def verdicts(slower: float, of_capture: float, squares: int, drift: float = 0.0) -> Counter[Verdict]:
    return Counter(said(captured(seed, slower, of_capture, squares, drift)) for seed in range(TRIES))


def test_graphs_that_do_not_differ_are_called_the_same_and_hardly_ever_slower() -> None:
    quiet = verdicts(0.0, 0.003, 4)
    assert quiet[Verdict.SAME] > 0.9 * TRIES
    noisy = verdicts(0.0, 0.015, 6)  # as the older check saw: 1.3 to 3.5 % between two single graphs
    assert noisy[Verdict.SLOWER] <= 0.03 * TRIES
    assert noisy[Verdict.SAME] + noisy[Verdict.OPEN] >= 0.95 * TRIES


def test_graphs_that_are_three_per_cent_slower_are_called_so_whatever_captures_differ_by() -> None:
    assert verdicts(0.03, 0.003, 4)[Verdict.SLOWER] == TRIES
    assert verdicts(0.03, 0.015, 12)[Verdict.SLOWER] > 0.9 * TRIES


def test_a_slow_difference_is_never_called_the_same() -> None:
    assert verdicts(0.03, 0.015, 4)[Verdict.SAME] == 0
    assert verdicts(0.02, 0.01, 6)[Verdict.SAME] == 0


def test_a_drift_over_the_captures_favours_no_kind() -> None:
    drifting = verdicts(0.0, 0.003, 6, drift=0.002)
    assert drifting[Verdict.SLOWER] + drifting[Verdict.FASTER] <= 0.05 * TRIES


def test_two_single_graphs_would_not_have_decided() -> None:
    """Why the check was rewritten: with one graph each, captured in one order, chance alone fails it often."""
    failed = 0
    for seed in range(TRIES):
        first, second = (captured(seed + 1000 * k, 0.0, 0.015, 1)[0][WITHOUT] for k in (0, 1))
        failed += abs(first - second) >= 0.02 * first + 5e-6
    assert failed > 0.1 * TRIES


def test_few_blocks_decide_nothing() -> None:
    clear = Effect(0.5, 0.4, 0.6, ENOUGH_BLOCKS - 1)
    assert verdict(clear, Effect(0.0, -0.001, 0.001, ENOUGH_BLOCKS - 1)) is Verdict.OPEN


def test_a_difference_no_larger_than_the_controls_own_is_not_decided() -> None:
    method = Effect(0.02, 0.005, 0.035, 18)
    assert verdict(Effect(0.015, 0.002, 0.03, 18), method) is Verdict.OPEN
    assert verdict(Effect(0.05, 0.03, 0.07, 18), method) is Verdict.SLOWER
    assert verdict(Effect(-0.05, -0.07, -0.03, 18), method) is Verdict.FASTER


@pytest.mark.parametrize("kinds", [KINDS, (*KINDS, *PARTS)])
def test_each_kind_stands_equally_often_at_each_place(kinds: tuple[str, ...]) -> None:
    orders = balanced_orders(kinds, 6)
    assert len(orders) == 6 * len(kinds)
    for place in range(len(kinds)):
        assert set(Counter(order[place] for order in orders).values()) == {6}
    after = Counter((a, b) for order in orders for a, b in itertools.pairwise(order))
    if kinds == KINDS:
        assert len(after) == len(kinds) * (len(kinds) - 1)  # every kind follows every other one
    assert balanced_orders(kinds, 6) == orders  # the same on all ranks


def test_replays_are_mixed_and_each_graph_comes_once_a_round() -> None:
    orders = replay_orders(9, 6)
    assert all(sorted(order) == list(range(9)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6


def test_blocks_lack_no_kind() -> None:
    with pytest.raises(ValueError, match="lacks a kind"):
        neighbours([1.0, 2.0, 3.0], ["a", "a", "b"])
    with pytest.raises(ValueError, match="no block"):
        effect([], WITHOUT, WITH)


def test_nothing_is_left_of_a_kind() -> None:
    graph_class = torch.cuda.CUDAGraph
    before = {name: vars(graph_class).get(name) for name in ("capture_begin", "capture_end", "replay")}
    for kind in (*KINDS, *PARTS):
        with as_kind(kind):
            wrapped = vars(graph_class).get("capture_begin") is not before["capture_begin"]
            assert wrapped == (kind not in (WITHOUT, AGAIN))
            assert vars(graph_class).get("replay") is before["replay"]  # nothing runs at a replay
    assert {name: vars(graph_class).get(name) for name in before} == before


def test_graphs_are_compared_node_by_node() -> None:
    gemm = NodeFacts("kernel", "nvjet", (8, 1, 1), (128, 1, 1), 4096)
    one = GraphFacts((gemm, NodeFacts("memcpy"), gemm), 2)
    assert differences(one, one) == []
    assert counts(one) == {"kernel": 2, "memcpy": 1}
    wider = GraphFacts((gemm, NodeFacts("memcpy"), gemm._replace(grid=(16, 1, 1))), 2)
    assert differences(one, wider) == [
        "node 2: nvjet grid (8, 1, 1) block (128, 1, 1) shared 4096 and nvjet grid (16, 1, 1) block (128, 1, 1) shared 4096"
    ]
    longer = GraphFacts((*one.nodes, NodeFacts("event_record")), 3)
    assert differences(one, longer) == [
        "2 edges and 3",
        "3 nodes and 4: {'kernel': 2, 'memcpy': 1} and {'kernel': 2, 'memcpy': 1, 'event_record': 1}",
    ]
