"""Which of several settings gave the highest tok/s, and whether that is beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specanalyze.answers.bootstrap import Floats


@dataclass(frozen=True)
class Tried:
    """One recording at one setting: its tok/s, None where unknown, and that of resampled cycles."""

    x: str
    speed: float | None
    speeds: Floats | None


@dataclass(frozen=True)
class Best:
    """The best setting, the best other one, the share by which it is faster, and whether that is beyond noise."""

    x: str
    next_x: str
    margin: float
    clear: bool


def in_order(x: str) -> tuple[int, float, str]:
    """Numbers before words, each in their order."""
    try:
        return (0, float(x), x)
    except ValueError:
        return (1, 0.0, x)


def best_setting(tried: Sequence[Tried]) -> Best | None:
    """The setting of the highest tok/s; None where fewer than two settings have a known one: alone, none is best."""
    known = sorted(((t.speed, t) for t in tried if t.speed), key=lambda pair: -pair[0])
    if not known:
        return None
    fastest, first = known[0]
    for speed, other in known:
        if other.x == first.x:
            continue
        clear = False
        if first.speeds is not None and other.speeds is not None:
            # The two recordings are drawn with the same seed; shuffling one makes them independent.
            apart = first.speeds - np.random.default_rng(0).permutation(other.speeds)
            clear = bool(np.quantile(apart, 0.005) > 0)
        return Best(first.x, other.x, fastest / speed - 1, clear)
    return None


def no_best(tried: Sequence[Tried], over: str) -> str:
    """Why no setting is called the best although tok/s is known of one."""
    known = sorted({t.x for t in tried if t.speed}, key=in_order)
    others = sorted({t.x for t in tried} - {*known}, key=in_order)
    what = over.replace("_", " ")
    if others:
        return f"tok/s is known for {what} {known[0]} only, not for {', '.join(others)}: no setting is called the best"
    more = "record requests at other batch sizes" if over == "batch_size" else "give recordings at other settings"
    return f"one setting ({what} {known[0]}) is no sweep: there is nothing to be better than; {more}"
