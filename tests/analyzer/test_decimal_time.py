"""Decimal microseconds to integer nanoseconds, compared with Python's exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.formats.decimal_time import nanoseconds


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5107095718335.684", 5107095718335684),
        ("1718233344455500.001", 1718233344455500001),  # float64 has steps of 250 ns here
        ("1682725898236567", 1682725898236567000),
        ("0.000", 0),
        ("-1", -1000),
        ("-0.5", -500),
        ("1.5", 1500),
        ("1.0005", 1000),  # half to even
        ("1.0015", 1002),
        ("1.00051", 1001),
        ("1.7e3", 1700000),
        ("1E-3", 1),
        ("9223372036854775.807", 2**63 - 1),
        ("9223372036854775.808", None),
        ("1e400", None),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        # more digits than Python turns into a number at once (found by fuzzing)
        pytest.param("9" * 5000, None, id="5000 digits"),
        pytest.param("1." + "0" * 5000 + "1", 1000, id="5001 decimals"),
        pytest.param("1.0005" + "0" * 5000, 1000, id="half, exactly"),
        pytest.param("1.0005" + "0" * 5000 + "1", 1001, id="more than half by the last of 5000"),
        pytest.param("0." + "9" * 5000, 1000, id="5000 nines"),
        pytest.param("-1" + "0" * 5000 + "e-5000", -1000, id="minus one, at length"),
        pytest.param("0" * 5000, 0, id="5000 zeros"),
        (12, 12000),
        (-1, -1000),
        (None, None),
    ],
)
def test_exact_value(text: str | int | None, ns: int | None) -> None:
    assert nanoseconds([text]).to_list() == [ns]


_NUMBER = st.from_regex(
    re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?", re.ASCII), fullmatch=True
)


@given(st.lists(_NUMBER | st.integers(-(2**70), 2**70) | st.none(), min_size=1, max_size=20))
def test_equals_exact_fractions(values: list[str | int | None]) -> None:
    def exact(value: str | int | None) -> int | None:
        if value is None:
            return None
        ns = round(Fraction(value) * 1000)  # Python rounds fractions half to even
        return ns if -(2**63) <= ns < 2**63 else None

    assert nanoseconds(values).to_list() == [exact(value) for value in values]


@given(st.integers(0, 2**63 - 1))
def test_every_nanosecond_of_nineteen_digits_survives(ns: int) -> None:
    assert nanoseconds([f"{ns // 1000}.{ns % 1000:03d}"]).to_list() == [ns]
