"""Figures as texts: shares, changes and counts are written one way wherever a person reads them."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "–"
"""Where there is no number."""


def rounded(value: float | None, decimals: int = 1) -> str:
    """A figure: ``12.3``, ``-0.4``; a dash where there is no number.

    What rounds to zero is written ``0.0``: a minus before it would tell a direction that the figure beside it does not bear out.
    """
    return UNKNOWN if value is None else _without_signed_zero(f"{value:.{decimals}f}")


def signed(value: float | None, decimals: int = 3) -> str:
    """A difference: ``+0.121``, ``-0.533``; what rounds to zero has no sign (``0.000``), and a dash stands where there is no number."""
    return UNKNOWN if value is None else _without_signed_zero(f"{value:+.{decimals}f}")


def _without_signed_zero(text: str) -> str:
    return text.lstrip("+-") if float(text) == 0 else text


def percent(share: float | None, decimals: int = 1) -> str:
    """A share (0..1): ``16.9 %``; a dash where there is no number."""
    return UNKNOWN if share is None else f"{rounded(share * 100, decimals)} %"


def change(share: float | None, decimals: int = 0) -> str:
    """A change (0.18 is 18 % more): ``+18 %``, ``0 %`` where it rounds to nothing; a dash where there is no number."""
    return UNKNOWN if share is None else f"{signed(share * 100, decimals)} %"


def counted(n: int | None, noun: str) -> str:
    """``1 instance``, ``2 instances``; a dash where there is no number."""
    return f"{UNKNOWN if n is None else n} {noun if n == 1 else plural(noun)}"


def about(n: float) -> str:
    """A mean of counts: ``3``, ``7.7``."""
    return f"{round(n, 1):g}"


def plural(noun: str) -> str:
    """``activity`` -> ``activities``; of several words the last one changes."""
    if noun.endswith("y") and noun[-2:-1] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def were(n: int) -> str:
    """The verb behind ``counted``."""
    return "was" if n == 1 else "were"


def are(n: int) -> str:
    """The verb behind ``counted``."""
    return "is" if n == 1 else "are"
