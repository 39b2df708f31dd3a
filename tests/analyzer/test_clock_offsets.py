"""How far the clocks of other hosts are ahead, from the ends of collectives."""

from __future__ import annotations

import polars as pl

from specanalyze.attribution.clock_offsets import clock_offsets


def matched(*rows: tuple[str, int, int, bool]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=["match", "who", "end_ns", "voided"], orient="row")


def ends(*apart: int, who: int = 1) -> list[tuple[str, int, int, bool]]:
    """Collectives of rank 0 and another that end so far apart."""
    pairs = [(f"c{n}", 1000 * n, 1000 * n + ns) for n, ns in enumerate(apart)]
    return [row for c, one, other in pairs for row in ((c, 0, one, False), (c, who, other, False))]


def test_the_offset_is_a_median_and_its_error_the_median_deviation() -> None:
    assert clock_offsets(matched(*ends(500, 510, 506, 9000, 507)), ["a", "b"]) == ({0: 0, 1: 507}, {0: 0, 1: 3})


def test_a_void_match_says_nothing() -> None:
    rows = [*ends(500), ("void", 0, 7000, True), ("void", 1, 9000, True)]
    assert clock_offsets(matched(*rows), ["a", "b"]) == ({0: 0, 1: 500}, {0: 0, 1: 0})


def test_collectives_without_the_first_rank_say_nothing() -> None:
    """Rank 2 meets rank 1 only; rank 1 meets rank 0, too."""
    rows = [*ends(500), ("other", 1, 3000, False), ("other", 2, 3100, False)]
    assert clock_offsets(matched(*rows), ["a", "b", "b"]) == ({0: 0, 1: 500}, {0: 0, 1: 0})


def test_ranks_of_one_host_share_a_clock() -> None:
    assert clock_offsets(matched(*ends(500)), ["a", "a"]) == ({}, {})
    assert clock_offsets(matched(*ends(500, who=2)), ["a", "a", "b"]) == ({0: 0, 2: 500}, {0: 0, 2: 0})
