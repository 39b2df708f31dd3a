"""Whether graphs of one kind take longer than graphs of another: the statistics of ``nodemap_check``, without any GPU.

Two captures of one model differ by a per cent or two for good (where their memory lies, when they were captured), and no number
of replays averages that away. So captures are the sample: they are made in balanced order, each gives one median, and kinds are
compared within blocks of neighbours. A kind that is the control once more tells what the method itself makes of nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from specschema.figures import change, counted

RESAMPLES: Final = 4000
LEVEL: Final = 0.99
MARGIN: Final = 0.01
"""Share within which two kinds count as equal."""
ENOUGH_BLOCKS: Final = 9
"""Fewer blocks give an interval that is too narrow: resampling knows only what it has seen."""

Floats = npt.NDArray[np.float64]


class Verdict(Enum):
    SAME = "the same"
    SLOWER = "slower"
    FASTER = "faster"
    OPEN = "not decided"


@dataclass(frozen=True)
class Effect:
    """How much longer one kind takes than the control.

    Attributes:
        share: of the control, 0.01 for one per cent; the mean over blocks.
        low, high: its bounds at LEVEL, resampled over blocks, that is over captures.
        blocks: how many.
    """

    share: float
    low: float
    high: float
    blocks: int

    def __str__(self) -> str:
        return f"{change(self.share, 2)} ({change(self.low, 2)} .. {change(self.high, 2)}, {counted(self.blocks, 'block')} of captures)"


def balanced_orders(kinds: Sequence[str], squares: int, seed: int = 1) -> list[list[str]]:
    """Orders in which to capture: blocks of all kinds, in which each kind stands equally often at each place.

    Args:
        kinds: names.
        squares: a square is as many blocks as there are kinds: one order, drawn by chance, and its rotations in turn with their
            reverse, so that a drift within blocks favours nobody.
        seed: the same orders on all ranks.
    """
    draw = random.Random(seed)
    orders = []
    for number in range(squares):
        order = list(kinds)
        draw.shuffle(order)
        rotations = [order[place:] + order[:place] for place in range(len(order))]
        orders += [block[::-1] for block in rotations] if number % 2 else rotations
    return orders


def effect(blocks: Sequence[Mapping[str, float]], control: str, kind: str, seed: int = 1) -> Effect:
    """How much longer ``kind`` takes.

    Args:
        blocks: kind -> its time (one capture's median) of each block.
        control, kind: names.

    Raises:
        ValueError: no block.
    """
    if not blocks:
        raise ValueError("no block to compare")
    ratios: Floats = np.array([np.log(block[kind] / block[control]) for block in blocks])
    draws = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    means = ratios[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    share, low, high = (float(np.expm1(value)) for value in (ratios.mean(), low, high))
    return Effect(share, low, high, len(ratios))


def verdict(found: Effect, method: Effect, margin: float = MARGIN) -> Verdict:
    """What an effect says, seen beside the control's own against itself.

    Args:
        found: of the kind in question.
        method: of the control against the control: nothing is different there, so this is what the method errs by.
        margin: share within which kinds are equal.
    """
    if found.blocks < ENOUGH_BLOCKS:
        return Verdict.OPEN
    errs = max(abs(method.low), abs(method.high))
    inside = -margin <= found.low and found.high <= margin
    if inside and errs <= 2 * margin:
        return Verdict.SAME
    if found.low > 0 and found.share > abs(method.share):
        return Verdict.SLOWER
    if found.high < 0 and -found.share > abs(method.share):
        return Verdict.FASTER
    return Verdict.OPEN


def replay_orders(graphs: int, rounds: int, seed: int = 1) -> list[list[int]]:
    """Order in which to replay some graphs, round by round: every pair of graphs meets in both orders alike by chance."""
    draw = random.Random(seed)
    orders = []
    for _ in range(rounds):
        order = list(range(graphs))
        draw.shuffle(order)
        orders.append(order)
    return orders


def neighbours(values: Sequence[float], kinds: Sequence[str]) -> list[dict[str, float]]:
    """Values in order of capture -> blocks.

    Raises:
        ValueError: a block lacks a kind.
    """
    size = len(set(kinds))
    pairs = list(zip(kinds, values, strict=True))
    blocks = [dict(pairs[at : at + size]) for at in range(0, len(pairs), size)]
    if any(len(block) != size for block in blocks):
        raise ValueError("a block of captures lacks a kind")
    return blocks


def flat(orders: Sequence[Sequence[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(orders))
