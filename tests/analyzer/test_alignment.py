"""Pairs of equal values in the same order: as many as there can be."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specanalyze.answers import alignment
from specanalyze.answers.alignment import aligned
from specschema.errors import TraceError


def pairs(one: str, other: str) -> list[tuple[int, int]]:
    first, second = (np.array([ord(letter) for letter in text], dtype=np.int64) for text in (one, other))
    found = aligned(first, second)
    return list(zip(*(places.tolist() for places in found), strict=True))


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        ("abc", "abc", [(0, 0), (1, 1), (2, 2)]),
        ("abc", "xabcy", [(0, 1), (1, 2), (2, 3)]),
        ("abxc", "abyc", [(0, 0), (1, 1), (3, 3)]),
        ("axbyc", "abc", [(0, 0), (2, 1), (4, 2)]),
        ("ab", "ba", [(0, 1)]),
        ("aaa", "aa", [(0, 0), (1, 1)]),
        ("abc", "xyz", []),
        ("", "abc", []),
        ("abc", "", []),
        ("", "", []),
    ],
)
def test_pairs_of_small_sequences(one: str, other: str, want: list[tuple[int, int]]) -> None:
    assert pairs(one, other) == want


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_as_many_as_by_trying_everything(one: str, other: str) -> None:
    @cache
    def most(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        return max(most(i + 1, j), most(i, j + 1), (one[i] == other[j]) + most(i + 1, j + 1))

    found = pairs(one, other)
    assert len(found) == most(0, 0)
    assert all(one[i] == other[j] for i, j in found)
    assert all(a < c and b < d for (a, b), (c, d) in zip(found, found[1:], strict=False))


def test_what_would_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MOST_CELLS", 30)
    assert len(pairs("abcabcabc", "abcabcabc")) == 9  # equal ends take none
    with pytest.raises(TraceError, match="sequences of 6 and 5 kernels"):
        pairs("aaaaaa", "bbbbb")
