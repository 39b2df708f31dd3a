"""Shares, changes and counts as texts, and that nothing writes them in another way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import specanalyze
import speccollect
from specschema.figures import about, change, counted, percent, rounded, signed

_OTHER_WAYS = re.compile(r"\{[^{}]*:\+?\.?\d*%\}|\{[^{}]*\* 100:[^{}]*\} ?%|[\d}]%(?!\d)")
"""``f"{share:.0%}"``, ``f"{share * 100:.1f} %"``, ``99%``."""
_TYPED = ("5%", '"%"')
"""What a person types, and what a chart's axis is told."""


def test_figures() -> None:
    assert (percent(0.169), percent(0.4, 0), percent(None)) == ("16.9 %", "40 %", "–")
    assert (change(0.18), change(-0.051, 1), change(None)) == ("+18 %", "-5.1 %", "–")
    assert (counted(1, "instance"), counted(0, "instance"), counted(None, "request")) == (
        "1 instance",
        "0 instances",
        "– requests",
    )
    assert [counted(2, noun) for noun in ("device activity", "replay", "match")] == [
        "2 device activities",
        "2 replays",
        "2 matches",
    ]


SOURCES = sorted(p for package in (specanalyze, speccollect) for p in Path(str(package.__file__)).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_percentages_are_written_in_one_place(path: Path) -> None:
    """``32%`` in a finding stood beside ``16.9 %`` in its table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if _OTHER_WAYS.search(line) and not any(typed in line for typed in _TYPED)]
    assert found == []


def test_means_of_counts_are_rounded() -> None:
    assert [about(n) for n in (3, 7.70588, 15.1304, 4096.0)] == ["3", "7.7", "15.1", "4096"]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (change(-0.004), "0 %"),
        (change(0.0049), "0 %"),
        (change(-0.0), "0 %"),
        (change(-0.0051), "-1 %"),
        (change(-0.0004, 1), "0.0 %"),
        (percent(-0.0004), "0.0 %"),
        (signed(-0.0004), "0.000"),
        (signed(0.0004), "0.000"),
        (signed(-0.0006), "-0.001"),
        (signed(0.1214), "+0.121"),
        (signed(float("-inf")), "-inf"),
        (signed(None), "–"),
        (rounded(-0.04), "0.0"),
        (rounded(-0.06), "-0.1"),
        (rounded(None), "–"),
    ],
)
def test_what_rounds_to_zero_has_no_sign(written: str, wanted: str) -> None:
    """``-0 %`` and ``-0.000`` stood beside ``+0.000`` in one comparison, as if one were a win and the other a loss."""
    assert written == wanted


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_signs_are_written_in_one_place(path: Path) -> None:
    found = [
        line for line in path.read_text(encoding="utf-8").splitlines() if re.search(r"\{[^{}]*:\+|\"\+,?\.\d", line)
    ]
    assert found == []
