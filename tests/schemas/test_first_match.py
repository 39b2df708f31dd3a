"""Looking for words first must find what trying every pattern finds."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschema import pattern_words
from specschema.collective_families import FAMILIES
from specschema.first_match import FirstMatch, fingerprint
from specschema.kernel_function import function_of
from specschema.kernel_rules import RULES
from specschema.required_words import FILE, required_words, text

with Path(__file__).with_name("kernel_names.csv").open(encoding="utf-8", newline="") as _file:
    NAMES = [row["name"] for row in csv.DictReader(_file)]
EVERY = FirstMatch(RULES, (0, ()))
QUICK = FirstMatch(RULES, pattern_words.RULES)
PIECES = st.sampled_from(sorted({piece for name in NAMES for piece in re.findall(r"[A-Za-z0-9]+|\W|_", name)}))


class Row(NamedTuple):
    pattern: str
    whole_name: bool = False


def test_the_words_are_of_the_patterns_as_they_are() -> None:
    """python -m specschema.required_words"""
    written = FILE.read_text(encoding="utf-8")
    assert written == text()
    assert (
        written.count('"cross_device_reduce_1stage"') == 1
    )  # the families' words stand once, though both tables have them


def test_the_words_are_used() -> None:
    for table, (mark, words) in ((RULES, pattern_words.RULES), (FAMILIES, pattern_words.FAMILIES)):
        assert mark == fingerprint(row.pattern for row in table)
        assert len(words) == len(table)
        assert sum(found is None for found in words) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_every_known_name_is_found_by_the_same_rule(name: str) -> None:
    for written in (name, name.upper(), name.lower()):
        function = function_of(written)
        assert QUICK.of(written, function) == EVERY.of(written, function)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_names_made_of_pieces_are_found_by_the_same_rule(name: str) -> None:
    function = function_of(name)
    assert QUICK.of(name, function) == EVERY.of(name, function)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("gemm", ("gemm",)),
        ("GEMM|Bmm", ("bmm", "gemm")),
        (r"\bnccl\w*kernel_", ("kernel_",)),
        (r"(?:ab|abc)x", ("ab",)),
        (r"a(?:long word)?", ("a",)),
        (r"(?:word)+", ("word",)),
        (r"(?:word){2,3}x", ("word",)),
        (r"\d+|gemm", None),
        (r"[ab]c", ("c",)),
        (r"(?!gemm)mm", ("mm",)),
        (r"(?<!x)\w*", None),
    ],
)
def test_required_words(pattern: str, words: tuple[str, ...] | None) -> None:
    assert required_words(pattern) == words


def test_a_letter_that_matches_without_being_lower_case_is_found() -> None:
    """re.IGNORECASE takes the long s and the Kelvin sign for s and k."""
    match = FirstMatch([Row("sink")], (fingerprint(["sink"]), [("sink",)]))
    assert re.search("sink", "ſinK", re.IGNORECASE)
    assert match.of("ſinK", "ſinK") == 0


def test_words_of_other_patterns_are_not_used() -> None:
    table = [Row("gemm"), Row("nccl", whole_name=True)]
    stale = FirstMatch(table, (fingerprint(["gemm"]), [("conv",), ("conv",)]))
    assert (stale.of("void nccl()", "gemm_kernel"), stale.of("void nccl()", "x"), stale.of("x", "nccl")) == (0, 1, None)
