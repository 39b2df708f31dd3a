"""Accept length of other draft shapes, from acceptance by position: what is known, and what has to be assumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specanalyze.answers.bootstrap import Floats
from specschema.figures import counted, percent


@dataclass(frozen=True)
class Lengths:
    """An accept length and its bounds."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Lengths:
        return Lengths(self.value * factor, self.low * factor, self.high * factor)


def conditional(acceptance: Floats) -> Floats:
    """Acceptance of each position given that the one before was accepted; 0 once nothing gets that far."""
    before = np.concatenate([[1.0], acceptance[:-1]])
    rates: Floats = np.divide(acceptance, before, out=np.zeros_like(acceptance), where=before > 0)
    return rates


def with_steps(acceptance: Floats, steps: int) -> tuple[Lengths, list[str]]:
    """Accept length of a chain of ``steps`` drafts.

    Args:
        acceptance: share of verify steps that accepted at least k drafts, k = 1, 2, ...
        steps: drafts of the chain.

    Returns:
        The length, and the assumptions made. Up to the recorded depth it is known; beyond, the last position's conditional
        acceptance is taken to go on, bounded by none and by all being accepted there.
    """
    depth = len(acceptance)
    known = 1.0 + float(acceptance[:steps].sum())
    if steps <= depth:
        return Lengths(known, known, known), [
            "acceptance of the first position as recorded"
            if steps == 1
            else f"acceptance of the first {steps} positions as recorded"
        ]
    rate, reached = float(conditional(acceptance)[-1]), float(acceptance[-1])
    more = sum(reached * rate**k for k in range(1, steps - depth + 1))
    return Lengths(known + more, known, known + reached * (steps - depth)), [
        f"acceptance is recorded for {counted(depth, 'position')}; each one beyond is taken to be accepted {percent(rate, 0)} once reached, as "
        f"position {depth} is (bounds: never, always)"
    ]


def tree_lengths(acceptance: Floats, steps: int, branches: int) -> tuple[Lengths, list[str]]:
    """Accept length of a tree with ``branches`` choices at each depth.

    Returns:
        Bounds: the chain's own length (further branches never help), and independent branches, of which each is as good as the
        first. The value is the upper bound: a recording of a chain says nothing about second choices.
    """
    rates = list(conditional(acceptance))
    rates += [rates[-1]] * max(0, steps - len(rates))
    reach = np.cumprod([1 - (1 - rate) ** branches for rate in rates[:steps]])
    high = 1.0 + float(reach.sum())
    low = with_steps(acceptance, steps)[0].low
    return Lengths(high, low, high), [
        f"each of {branches} branches is as likely to be right as the first, independently: an upper bound, since second choices are "
        "less likely; the lower bound is the chain's own accept length"
    ]
