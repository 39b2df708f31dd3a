"""Which device work grows with the context: windows whose every figure is chosen, the answer worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.cycle_growth import Growth
from specanalyze.answers.device_growth import GROWN_SCHEMA, WORK, device_growth, grown_part, too_near
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
    """Rows without the bounds of the growth."""
    return plain(device_growth(instances_of(work, len(places), **more), cycles_at(places), growing(slope)))


def plain(table: pl.DataFrame) -> list[tuple[Any, ...]]:
    return table.drop("low_ns_per_place", "high_ns_per_place").rows()


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
    (row,) = plain(device_growth(both, cycles_at((100, 500)), growing(10.0)))
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
    (row,) = plain(device_growth(instances, cycles, growing(100.0)))
    assert row == ("verify", "attention", 102.5, 1_250.5, 108.5, 1_850.5, None)
    # Of 11 cycles the one in the middle belongs to the first half.
    (row,) = plain(device_growth(instances.head(11), cycles, growing(100.0)))
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
    (row,) = plain(device_growth(instances, cycles_at((100, 300, 500)), growing(10.0)))
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


@pytest.mark.parametrize("missing", [0, 1])
def test_work_that_one_cycle_lacks_at_the_only_place_where_it_runs_is_told(missing: int) -> None:
    ns, slope = ((4_000, 0), -10.0) if missing == 0 else ((0, 4_000), 10.0)
    instances = instances_of({("verify", "attention"): ns})
    one = pl.when((pl.col("window") == missing) & (pl.col("cycle") % 100 == 7)).then(0).otherwise("attention")
    (row,) = plain(device_growth(instances.with_columns(attention=one), cycles_at((100, 500)), growing(slope)))
    assert (row[3], row[5]) == pytest.approx(ns, abs=3)


def test_windows_one_token_apart_are_at_two_places() -> None:
    (row,) = grown({("verify", "attention"): (4_000, 8_000)}, places=(300, 301))
    assert row[2:] == (305.5, 4_000.0, 306.5, 8_000.0, None)


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
    (row,) = plain(device_growth(instances, cycles_at((None, None)), growing(10.0, "position")))
    assert (row[2], row[4], row[6]) == (5.5, 17.5, None)


def test_growth_a_token_is_bounded_by_a_block_of_tokens_more_and_less() -> None:
    work = {("verify", "attention"): (4_000, 8_000)}
    (row,) = device_growth(instances_of(work, wobble=(0,)), cycles_at((100, 500)), growing(10.0)).to_dicts()
    # 4000 ns in 400 tokens, of which a kernel that grows in steps has done the work of 272 to 528
    assert row["ns_per_place"] == 10.0
    assert (row["low_ns_per_place"], row["high_ns_per_place"]) == (4_000 / 528, 4_000 / 272)
    (row,) = device_growth(instances_of(work), cycles_at((100, 500)), growing(10.0)).to_dicts()
    assert row["low_ns_per_place"] < 4_000 / 528
    assert row["high_ns_per_place"] > 4_000 / 272
    (row,) = device_growth(
        instances_of({("verify", "attention"): (8_000, 4_000)}, wobble=(0,)), cycles_at((100, 500)), growing(-10.0)
    ).to_dicts()
    assert (row["low_ns_per_place"], row["high_ns_per_place"]) == (-4_000 / 272, -4_000 / 528)


@pytest.mark.parametrize(
    ("last", "batch", "told"), [(356, 1, True), (355, 1, False), (612, 2, True), (611, 2, False), (356, None, True)]
)
def test_contexts_less_than_two_blocks_of_each_request_apart_tell_no_growth_a_token(
    last: int, batch: int | None, told: bool
) -> None:
    instances = instances_of({("verify", "attention"): (4_000, 8_000)})
    table = device_growth(instances, cycles_at((100, last), batch_size=batch), growing(10.0))
    assert table.height == 1
    assert (table["ns_per_place"][0] is not None) == told
    assert (too_near(table, "context") is None) == told


def test_a_kernel_that_grows_in_steps_is_not_told_by_one_window() -> None:
    """As seen: 4.2 ns a token, and 480 more with each 64th: 11.7 in all; a window without a step knew of the 4.2."""
    places = range(200, 240)

    def ns(place: int) -> float:
        return 5_000 + 4.2 * place + 480 * (place // 64)

    cycles = cycles_at((200,), len(places))
    instances = pl.DataFrame(
        [
            {"window": 0, "cycle": n, "phase": "verify", **dict.fromkeys(BUCKETS, 0), "attention": int(ns(place))}
            for n, place in enumerate(places)
        ]
    )
    table = device_growth(instances, cycles, growing(11.7))
    assert table["ns_per_place"].to_list() == [None]
    said = too_near(table, "context")
    assert said is not None
    assert "20 tokens apart" in said
    assert "record windows along the request" in said
    for first, last in ((100, 500), (120, 400), (1000, 1300)):  # wherever in a block they stand
        both = {("verify", "attention"): (int(ns(first + 6)), int(ns(last + 6)))}
        (row,) = device_growth(instances_of(both), cycles_at((first, last)), growing(11.7)).to_dicts()
        assert row["low_ns_per_place"] < 11.7 < row["high_ns_per_place"]


def test_a_part_that_changes_by_less_than_a_hundredth_of_itself_is_not_told() -> None:
    assert len(grown({("verify", "attention"): (100_000, 101_000)}, 1.0, wobble=(0,))) == 1
    assert grown({("verify", "attention"): (100_000, 100_999)}, 1.0, wobble=(0,)) == []


def test_a_part_in_words() -> None:
    row: dict[str, Any] = dict(
        zip(
            GROWN_SCHEMA,
            ("verify", "attention", 213.0, 4_150_000.0, 633.4, 9_180_000.0, 11_976.0, 9_170.0, 17_200.0),
            strict=True,
        )
    )
    assert grown_part(row, "context") == (
        "verify attention 4.15 ms at 213 tokens, 9.18 ms at 633 tokens (+11.98 us a token, bounds +9.2 to +17.2)"
    )
    assert grown_part(row, "position") == (
        "verify attention 4.15 ms at cycle 213, 9.18 ms at cycle 633 (+11.98 us a cycle, bounds +9.2 to +17.2)"
    )
    assert (
        grown_part({**row, "ns_per_place": None}, "context")
        == "verify attention 4.15 ms at 213 tokens, 9.18 ms at 633 tokens"
    )
    table = pl.DataFrame([row], schema=GROWN_SCHEMA)
    assert too_near(table, "context") is None
    assert too_near(table.clear(), "context") is None
