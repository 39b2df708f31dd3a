"""Microseconds in decimal text to integer nanoseconds, exactly: never through a binary floating-point number."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

import polars as pl

_WHOLE_DIGITS: Final = 18
"""Digits of whole microseconds; nanoseconds of more don't fit in 64 bits."""
_KEPT_DIGITS: Final = 60


def nanoseconds(values: Sequence[str | int | None]) -> pl.Series:
    """Times in nanoseconds.

    Args:
        values: microseconds as JSON wrote them: decimal text, integers, or None. More than three decimals are rounded
            to the nearest nanosecond (half to even).

    Returns:
        Int64 series of nanoseconds; null where there was no number, or none that fits.
    """
    text = pl.Series("text", values, dtype=pl.String, strict=False)
    parts = pl.col("text").str.splitn(".", 2)
    whole, decimals = parts.struct.field("field_0"), parts.struct.field("field_1").fill_null("")
    # Three decimals behind the whole microseconds, without the point, are the nanoseconds: "12" + "5".pad -> "12500".
    plain = (whole + decimals.str.pad_end(3, "0")).cast(pl.Int64, strict=False)
    # "" and "-" would pass the cast with the padding behind them
    is_plain = (decimals.str.len_bytes() <= 3) & ~whole.is_in(["", "-", "+"])
    ns = text.to_frame().select(pl.when(is_plain).then(plain)).to_series()
    odd = ns.is_null() & text.is_not_null()
    if odd.any():
        where = odd.arg_true()
        ns = ns.scatter(where, [_exact(value) for value in text.gather(where)])
    return ns.alias("ns")


def _exact(text: str) -> int | None:
    """Exponents, more decimals, spaces: rare enough for one at a time."""
    try:
        sign, digits, exponent = Decimal(text.strip()).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int):
        return None
    if not any(digits):
        return 0
    if len(digits) + exponent > _WHOLE_DIGITS:
        return None
    if len(digits) > _KEPT_DIGITS:  # what follows only tells a tie from what is above it
        rest = any(digits[_KEPT_DIGITS:])
        exponent += len(digits) - _KEPT_DIGITS - 1
        digits = (*digits[:_KEPT_DIGITS], int(rest))
    number = int("".join(map(str, digits)))
    exponent += 3
    if exponent >= 0:
        value = number * 10**exponent
    else:
        value = round(Fraction(number, 10**-exponent)) if exponent > -400 else 0  # half to even
    value = -value if sign else value
    return value if -(2**63) <= value < 2**63 else None
