"""Which device work grows with the context: windows whose every figure is chosen, the answer worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.cycle_growth import Growth
from specanalyze.answers.device_growth import GROWN_SCHEMA, WORK, device_growth, grown_part
from specanalyze.attribution.cycles import CYCLE_SCHEMA
from specschema.phases import BUCKETS

COUNT = 12
"""Cycles of a window."""
WOBBLE = (0, 3, -3, 1, -1, 2, -2, 0)
"""ns by which cycles of a window differ."""

Work = Mapping[tuple[str, str], Sequence[int]]
"""(Phase, bucket) -> ns in each window."""


def cycles_at(places: Sequence[int | None], count: int = COUNT, **more: Any) -> pl.DataFrame:
    """Windows whose contexts are around the places, a token apart, each in its first cycle's order; without a place none is told."""
    rows = [
        {
            "rank": "0",
            "cycle": 100 * window + n,
            "mode": "speculative",
            "start_ns": 1000 * (100 * window + n),
            "step_ns": 900,
            "window": window,
            "control": False,
            "batch_size": 1,
            "draft_tokens": 3,
            "context_tokens": None if place is None else place + n,
            **more,
        }
        for window, place in enumerate(places)
        for n in range(count)
    ]
    return pl.DataFrame(rows, schema=CYCLE_SCHEMA)


def instances_of(work: Work, windows: int = 2, count: int = COUNT, wobble: Sequence[int] = WOBBLE) -> pl.DataFrame:
    rows = [
        {
            "window": window,
            "cycle": 100 * window + n,
            "phase": phase,
            **dict.fromkeys(BUCKETS, 0),
            bucket: ns[window] + (wobble[n % len(wobble)] if ns[window] else 0),
        }
        for (phase, bucket), ns in work.items()
        for window in range(windows)
        for n in range(count)
    ]
    return pl.DataFrame(rows)


def growing(ns_a_place: float, kind: str = "context") -> Growth:
    return Growth(kind, (0.0, 1.0), (9.0, 2.0), Interval(ns_a_place, ns_a_place, ns_a_place))


def grown(work: Work, slope: float = 10.0, places: Sequence[int] = (100, 500), **more: Any) -> list[tuple[Any, ...]]:
    return device_growth(instances_of(work, len(places), **more), cycles_at(places), growing(slope)).rows()


def test_the_most_growing_part_comes_first_with_the_windows_medians() -> None:
    found = grown(
        {
            ("verify", "moe"): (20_000, 20_000),
            ("verify", "gemm"): (8_000, 9_200),
            ("draft", "attention"): (1_000, 2_600),
            ("verify", "attention"): (4_000, 8_000),
        }
    )
    # Contexts 100 to 111 and 500 to 511; wobbles of 12 cycles lie around 0.
    assert found == [
        ("verify", "attention", 105.5, 4_000.0, 505.5, 8_000.0, 10.0),
        ("draft", "attention", 105.5, 1_000.0, 505.5, 2_600.0, 4.0),
        ("verify", "gemm", 105.5, 8_000.0, 505.5, 9_200.0, 3.0),
    ]


def test_communication_idle_time_and_what_is_in_no_phase_are_no_work_that_grows() -> None:
    assert "allreduce" not in WORK
    assert "host" not in WORK
    work = {("verify", "allreduce"): (1, 9_000), ("verify", "host"): (1, 9_000), ("between", "attention"): (1, 9_000)}
    assert grown(work) == []


def test_instances_of_one_cycle_are_added() -> None:
    both = pl.concat([instances_of({("draft", "attention"): ns}) for ns in ((1_000, 3_000), (500, 2_500))])
    (row,) = device_growth(both, cycles_at((100, 500)), growing(10.0)).rows()
    assert row[3:] == (1_500.0, 505.5, 5_500.0, 10.0)


@pytest.mark.parametrize(("slope", "found"), [(100.0, 1), (100.1, 0), (-100.0, 0)])
def test_a_part_is_told_from_a_tenth_of_what_the_cycle_grows(slope: float, found: int) -> None:
    assert len(grown({("verify", "attention"): (4_000, 8_000)}, slope)) == found


def test_what_shrinks_is_told_where_the_cycle_shrinks() -> None:
    (row,) = grown({("verify", "attention"): (8_000, 4_000), ("verify", "moe"): (4_000, 8_000)}, -10.0)
    assert row[1:] == ("attention", 105.5, 8_000.0, 505.5, 4_000.0, -10.0)


def test_the_windows_at_the_least_and_the_greatest_place_are_compared() -> None:
    work = {("verify", "attention"): (9_000, 1_000, 4_000)}
    (row,) = grown(work, places=(500, 100, 300))
    assert row[2:] == (105.5, 1_000.0, 505.5, 9_000.0, 20.0)


def test_the_only_window_is_compared_by_its_halves() -> None:
    cycles = cycles_at((100,))
    instances = pl.DataFrame(
        [
            {
                "window": 0,
                "cycle": n,
                "phase": "verify",
                **dict.fromkeys(BUCKETS, 0),
                "attention": 1_000 + 100 * n + (n % 2),
            }
            for n in range(COUNT)
        ]
    )
    # Contexts 100 to 105 and 106 to 111.
    (row,) = device_growth(instances, cycles, growing(100.0)).rows()
    assert row == ("verify", "attention", 102.5, 1_250.5, 108.5, 1_850.5, 100.0)
    # Of 11 cycles the one in the middle belongs to the first half.
    (row,) = device_growth(instances.head(11), cycles, growing(100.0)).rows()
    assert row[2:5:2] == (102.5, 108.0)


@pytest.mark.parametrize(("count", "found"), [(5, 1), (4, 0)])
def test_fewer_than_five_cycles_at_one_place_say_nothing(count: int, found: int) -> None:
    work = {("verify", "attention"): (4_000, 8_000)}
    last = (pl.col("window") == 0) | (pl.col("cycle") < 100 + count)
    table = device_growth(instances_of(work, wobble=(0,)).filter(last), cycles_at((100, 500)), growing(10.0))
    assert table.height == found
    assert table.schema == pl.Schema(GROWN_SCHEMA)


@pytest.mark.parametrize(("count", "found"), [(5, 2), (4, 1)])
def test_a_phase_in_fewer_than_five_cycles_at_one_place_is_left_out(count: int, found: int) -> None:
    work = {("draft", "attention"): (4_000, 8_000), ("verify", "attention"): (4_000, 8_000)}
    seen = (pl.col("phase") == "verify") | (pl.col("window") == 1) | (pl.col("cycle") < count)
    table = device_growth(instances_of(work, wobble=(0,)).filter(seen), cycles_at((100, 500)), growing(10.0))
    assert table.height == found


def test_a_window_of_a_few_cycles_is_passed_over() -> None:
    work = {("verify", "attention"): (1_000, 4_000, 9_000)}
    instances = instances_of(work, 3).filter((pl.col("window") < 2) | (pl.col("cycle") < 204))
    (row,) = device_growth(instances, cycles_at((100, 300, 500)), growing(10.0)).rows()
    assert row[2:6] == (105.5, 1_000.0, 305.5, 4_000.0)


def test_a_difference_within_the_noise_is_none() -> None:
    work = {("verify", "attention"): (6_000, 6_400), ("verify", "gemm"): (6_000, 6_400)}
    loud, quiet = (
        instances_of({key: work[key]}, wobble=w) for key, w in zip(work, ((-2_500, 2_500, 0), WOBBLE), strict=True)
    )
    table = device_growth(pl.concat([loud, quiet]), cycles_at((100, 500)), growing(1.0))
    assert table.get_column("bucket").to_list() == ["gemm"]


def test_work_that_ran_at_one_place_only_grew() -> None:
    (row,) = grown({("verify", "attention"): (0, 4_000)})
    assert (row[3], row[5]) == (0.0, 4_000.0)
    (row,) = grown({("verify", "attention"): (4_000, 0)}, -10.0)
    assert (row[3], row[5]) == (4_000.0, 0.0)


def test_nothing_is_told_without_growth_cycles_or_places_to_compare() -> None:
    instances = instances_of({("verify", "attention"): (4_000, 8_000)})
    cycles = cycles_at((100, 500))
    none = pl.DataFrame(schema=GROWN_SCHEMA)
    for given in (
        (instances, cycles, None),
        (instances.clear(), cycles, growing(10.0)),
        (instances, cycles_at((100, 500), mode="prefill"), growing(10.0)),
        (instances, cycles, growing(10.0, "position")),
        (instances, cycles_at((300, 300)), growing(10.0)),
    ):
        assert device_growth(*given).equals(none)
    # Without contexts, by their position among the cycles: 0 to 11 and 12 to 23.
    (row,) = device_growth(instances, cycles_at((None, None)), growing(10.0, "position")).rows()
    assert (row[2], row[4], row[6]) == (5.5, 17.5, pytest.approx(4_000 / 12))


def test_a_part_in_words() -> None:
    names = ("phase", "bucket", "first_place", "first_ns", "last_place", "last_ns", "ns_per_place")
    row = dict(zip(names, ("verify", "attention", 213.0, 4_150_000.0, 633.4, 9_180_000.0, 11_976.0), strict=True))
    assert grown_part(row, "context") == (
        "verify attention 4.15 ms at 213 tokens, 9.18 ms at 633 tokens (+11.98 us a token)"
    )
    assert grown_part(row, "position") == (
        "verify attention 4.15 ms at cycle 213, 9.18 ms at cycle 633 (+11.98 us a cycle)"
    )
