"""Microseconds in decimal text to integer nanoseconds, exactly: never through a binary floating-point number."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import polars as pl


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
    ns = text.to_frame().select(pl.when(decimals.str.len_bytes() <= 3).then(plain)).to_series()
    odd = ns.is_null() & text.is_not_null()
    if odd.any():
        where = odd.arg_true()
        ns = ns.scatter(where, [_exact(value) for value in text.gather(where)])
    return ns.alias("ns")


def _exact(text: str) -> int | None:
    """Exponents, more decimals, spaces: rare enough for one at a time."""
    try:
        # No context rounds here: scaleb and quantize would, beyond 28 digits.
        sign, digits, exponent = Decimal(text.strip()).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int) or exponent > 18:
        return None
    number = int("".join(map(str, digits)) or "0")
    exponent += 3
    if exponent >= 0:
        value = number * 10**exponent
    else:
        value = int(Decimal(number).scaleb(exponent).quantize(Decimal(1), ROUND_HALF_EVEN)) if exponent > -26 else 0
    value = -value if sign else value
    return value if -(2**63) <= value < 2**63 else None
