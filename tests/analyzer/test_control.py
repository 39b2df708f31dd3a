"""The untraced control of traced cycles: the cycles beside the windows wherever cycles depend on their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import story
import traces

from specanalyze.answers.alike_cycles import alike_cycles
from specanalyze.answers.bootstrap import SEED
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.calibration import calibrate
from specanalyze.answers.control import WHOLE, Control, control_of
from specanalyze.answers.cycle_growth import growth_of
from specanalyze.answers.medians import FEWEST, bounded, median_interval, ratio_interval, resampled_medians
from specanalyze.answers.neighbours import neighbours
from specanalyze.answers.overhead import measure_overhead
from specanalyze.answers.phases_report import phase_report
from specanalyze.attribution.cycles import CYCLE_SCHEMA, cycle_table
from specanalyze.diagnosis.diagnose import diagnose
from specanalyze.trace import RankTrace, Trace

US = 1000
OBSERVER = 1.25
WOBBLE = (0, 2, -2, 1, -1)


def recording(
    cycle_us: Callable[[int], float],
    windows: Sequence[range] = (range(60, 100), range(160, 200)),
    count: int = 500,
    context: Callable[[int], int | None] = lambda n: 64 + 2 * n,
    rank: int = 0,
    observer: float = OBSERVER,
) -> RankTrace:
    """Cycles of one request that take ``cycle_us`` of their number, in windows ``observer`` times as long."""
    rows: list[dict[str, Any]] = []
    at = 0
    for n in range(count):
        window = next((w for w, part in enumerate(windows) if n in part), None)
        facts: dict[str, Any] = {"cycle": n, "window": window, "mode": "speculative", "context_tokens": context(n)}
        rows.append(traces.phase("spec.cycle", at, at + 10 * US, **facts))
        step = (cycle_us(n) + WOBBLE[n % len(WOBBLE)]) * (1 if window is None else observer)
        at += round(step * US)
    return traces.rank_trace(rows, rank=rank)


def control(rank: RankTrace) -> Control:
    found = control_of(alike_cycles(cycle_table(traces.trace(rank)))[0])
    assert found is not None
    return found


def growing(n: int) -> float:
    return 1000 + 2.0 * n


def test_windows_stand_against_the_cycles_of_their_own_context() -> None:
    found = control(recording(growing))
    # windows of 39 known steps each at cycles 60..98 and 160..198: their mean cycle is the 129th
    assert found.place == "context"
    assert found.untraced_ns.value == pytest.approx(growing(129) * US, rel=2e-3)
    assert found.traced_ns == pytest.approx(growing(129) * OBSERVER * US, rel=2e-3)
    assert found.effect is not None
    assert found.effect.value == pytest.approx(OBSERVER - 1, abs=3e-3)
    assert found.untraced_ns.low is not None
    assert found.untraced_ns.high is not None
    assert found.untraced_ns.low < growing(129) * US < found.untraced_ns.high
    assert found.span == (64 + 2 * 60, 64 + 2 * 198)
    # 30 on each side of each window, of which the 59 with a known step between them count once
    assert found.cycles == 119
    assert found.words == "untraced cycles beside the windows, at the same context"


def test_a_shrinking_cycle_is_no_cost_of_observing() -> None:
    found = control(recording(lambda n: 2000 - 2.0 * n, observer=1.0))
    assert found.place == "context"
    assert found.effect is not None
    assert found.effect.value == pytest.approx(0, abs=2e-3)


def test_without_contexts_the_place_in_the_request_counts() -> None:
    found = control(recording(growing, context=lambda _: None))
    assert found.place == "position"
    assert found.untraced_ns.value == pytest.approx(growing(129) * US, rel=2e-3)
    assert found.span == (60, 198)
    assert found.words == "untraced cycles beside the windows, before and after each"


def test_cycles_that_do_not_depend_on_their_place_are_all_the_control() -> None:
    rank = recording(lambda _: 1000)
    table = cycle_table(traces.trace(rank))
    timed = table.filter(table["step_ns"] > 0)
    traced, untraced = (
        timed.filter(timed["window"].is_null() == flag)["step_ns"].to_numpy().astype(float) for flag in (False, True)
    )
    found = control(rank)
    assert (found.place, found.span, found.words) == (None, None, WHOLE)
    assert found.untraced_ns == median_interval(untraced)
    assert found.traced_ns == float(np.median(traced))
    ratio = ratio_interval(traced, untraced)
    assert found.effect is not None
    assert (found.effect.value, found.effect.low) == pytest.approx((ratio.value - 1, (ratio.low or 0.0) - 1))
    assert found.cycles == len(untraced)


def test_a_server_that_is_slow_for_a_while_has_all_its_untraced_cycles_for_a_control() -> None:
    found = control(recording(lambda n: 1200 if 30 <= n < 230 else 1000))
    assert found.place is None
    assert found.untraced_ns.value == pytest.approx(1_000_000, rel=2e-3)


def test_a_window_at_the_end_is_drawn_out_from_before_it_only_where_cycles_grow() -> None:
    at_the_end = (range(460, 500),)
    grown = control(recording(growing, at_the_end))
    assert grown.place == "context"
    assert grown.untraced_ns.value == pytest.approx(growing(479) * US, rel=3e-3)
    slow = control(recording(lambda n: 1200 if n >= 400 else 1000, at_the_end))
    assert slow.place is None


def test_stalls_beside_a_window_do_not_bend_the_control() -> None:
    found = control(recording(lambda n: growing(n) + (50_000 if n % 13 == 0 else 0)))
    assert found.untraced_ns.value == pytest.approx(growing(129) * US, rel=0.01)


def test_the_control_of_another_run_is_taken_at_the_same_context_or_whole() -> None:
    def far(context: Callable[[int], int | None]) -> RankTrace:
        inside = recording(growing, (range(500),), 80, lambda n: 64 + 2 * (n + 20)).events
        other = recording(growing, (), 300, context).events.to_dicts()
        moved = [{**row, "start_ns": row["start_ns"] + 10**13} for row in other]
        return traces.rank_trace([*inside.to_dicts(), *moved])

    same = control(far(lambda n: 64 + 2 * n))
    assert same.place == "context"
    # the traced cycles 0..78 stand at the contexts of the other run's 20..98
    assert same.untraced_ns.value == pytest.approx(growing(59) * US, rel=3e-3)
    assert control(far(lambda _: None)).place is None


def test_too_few_neighbours_fall_back_to_all() -> None:
    assert control(recording(growing, (range(4, 490),))).place is None
    assert control(recording(growing, (range(5, 494),))).place is None


def test_windows_of_mixed_batches_fall_back_to_all() -> None:
    rows = recording(growing).events.to_dicts()
    for row in rows:
        row["batch_size"] = 2 if 60 <= row["cycle"] < 75 else 1
    mixed = cycle_table(traces.trace(traces.rank_trace(rows)))
    found = control_of(mixed)
    assert found is not None
    assert found.place is None


def test_nothing_untraced_is_no_control() -> None:
    rank = recording(growing, (range(500),))
    assert control_of(alike_cycles(cycle_table(traces.trace(rank)))[0]) is None


def test_one_untraced_cycle_has_no_bounds() -> None:
    rank = recording(growing, (range(20),), 22)  # the last one's length is not known
    found = control(rank)
    assert (found.cycles, found.untraced_ns.low, found.place) == (1, None, None)
    assert found.effect is not None
    assert found.effect.low is None


def test_json_of_a_control() -> None:
    found = control(recording(growing))
    told = found.to_json()
    assert told["of"] == "untraced cycles beside the windows"
    assert (told["along"], told["cycles"], told["windows_from"], told["windows_to"]) == ("context", 119, 184, 460)
    untraced = found.untraced_ns
    assert (told["untraced_ns"], told["untraced_low_ns"]) == (untraced.value, untraced.low)
    assert (told["untraced_high_ns"], told["traced_ns"]) == (untraced.high, found.traced_ns)
    whole = control(recording(lambda _: 1000)).to_json()
    assert (whole["of"], whole["along"], whole["windows_from"]) == (WHOLE, None, None)


def test_overhead_of_a_request_that_grows() -> None:
    found = measure_overhead(traces.trace(recording(growing)))
    assert found.effect is not None
    assert found.effect.value == pytest.approx(OBSERVER - 1, abs=3e-3)
    assert found.drift is not None  # before against after would be +71 %
    assert found.drift.value == pytest.approx(0, abs=0.02)
    assert not found.lasting
    over = dict(found.table.select("stretch", "over_untraced").iter_rows())
    assert over["before"] is over["between"] is over["after"] is None
    assert (over["window 0"], over["window 1"]) == pytest.approx((0.25, 0.25), abs=4e-3)
    assert any("beside the windows, at the same context (184 to 460 tokens)" in note for note in found.notes)
    assert any("the untraced cycle grows with the context" in note for note in found.notes)


def test_a_window_whose_cycles_tell_no_context_has_no_place() -> None:
    windows = (range(60, 100), range(160, 200), range(300, 303))
    rank = recording(growing, windows, context=lambda n: None if n in windows[2] else 64 + 2 * n)
    found = measure_overhead(traces.trace(rank))
    over = dict(found.table.select("stretch", "over_untraced").iter_rows())
    assert over["window 2"] is None
    assert over["window 1"] == pytest.approx(0.25, abs=4e-3)
    assert found.effect is not None
    assert found.effect.value == pytest.approx(OBSERVER - 1, abs=3e-3)


def test_a_slowdown_that_stays_is_seen_in_a_request_that_grows() -> None:
    found = measure_overhead(traces.trace(recording(lambda n: growing(n) * (1.2 if n >= 60 else 1.0))))
    assert found.growth is not None
    assert found.drift is not None
    assert found.drift.value == pytest.approx(0.2, abs=0.03)
    assert found.lasting


# ---- cycle by cycle: rows whose steps and places are chosen


Row = dict[str, Any]


def stretch(first: int, count: int, step: Callable[[int], float], window: int | None = None, **more: Any) -> list[Row]:
    """Cycles ``first`` and the following, whose context is their number."""
    return [
        {
            "rank": "0",
            "cycle": n,
            "mode": "speculative",
            "start_ns": 1_000_000 * n,
            "step_ns": round(step(n)),
            "window": window,
            "control": window is None,
            "batch_size": 1,
            "context_tokens": n,
            **more,
        }
        for n in range(first, first + count)
    ]


def control_in(*stretches: list[Row]) -> Control:
    found = control_of(pl.DataFrame([row for part in stretches for row in part], schema=CYCLE_SCHEMA))
    assert found is not None
    return found


def line(n: int) -> float:
    return 1_000_000 + 5_000 * n


def test_windows_count_by_their_cycles_on_every_rank() -> None:
    """Of two ranks, one slower and shrinking: the typical untraced cycle, its bounds, and the effect, worked out window by window."""
    noise = np.random.default_rng(5).normal(0, 20_000, 2_000).round()

    def slow(n: int) -> float:
        return 9_000_000 - 6_000 * n + float(noise[n])

    def quick(n: int) -> float:
        return line(n) + float(noise[n + 1000])

    def traced(step: Callable[[int], float]) -> Callable[[int], float]:
        return lambda n: 1.25 * step(n)

    table = pl.DataFrame(
        [
            *(*stretch(0, 60, quick), *stretch(60, 40, traced(quick), 0), *stretch(100, 100, quick)),
            *(*stretch(200, 10, traced(quick), 1), *stretch(210, 90, quick), *stretch(0, 100, slow, rank="1")),
            *(*stretch(100, 25, traced(slow), 0, rank="1"), *stretch(125, 200, slow, rank="1")),
        ],
        schema=CYCLE_SCHEMA,
    )
    found = control_of(table)
    assert found is not None

    value, drawn, apart, used = 0.0, np.zeros(1), [], 0
    for rank, window, count in (("0", 0, 40), ("0", 1, 10), ("1", 0, 25)):
        own = table.filter(pl.col("rank") == rank)
        inside = own.filter(pl.col("window") == window)
        x, y = (own.filter("control")[c].to_numpy().astype(float) for c in ("context_tokens", "step_ns"))
        places = inside["context_tokens"].to_numpy().astype(float)
        near = neighbours(x, y, float(places.mean()))
        assert near is not None
        assert found.beside[rank, window].x == near.x
        value += count / 75 * near.typical(float(places.mean()))
        drawn = drawn + count / 75 * near.drawn_at(float(places.mean()))
        apart.append(inside["step_ns"].to_numpy() - near.at(places))
        used += near.cycles[1] - near.cycles[0]
    off = np.concatenate(apart)
    untraced = bounded(value, drawn)
    effect = bounded(np.median(off) / value, (value + resampled_medians(off, SEED + 1)) / drawn - 1)
    assert found.untraced_ns.value == pytest.approx(untraced.value)
    assert (found.untraced_ns.low, found.untraced_ns.high) == pytest.approx((untraced.low, untraced.high))
    assert found.traced_ns == pytest.approx(value + np.median(off))
    assert found.effect is not None
    assert (found.effect.value, found.effect.low, found.effect.high) == pytest.approx(
        (effect.value, effect.low, effect.high)
    )
    assert (found.cycles, found.span, set(found.beside)) == (used, (60, 209), {("0", 0), ("0", 1), ("1", 0)})


def test_without_windows_all_untraced_cycles_are_the_control_and_observing_has_no_effect_known() -> None:
    found = control_in(stretch(0, 101, line))
    assert (found.untraced_ns.value, found.traced_ns, found.effect, found.cycles) == (line(50), None, None, 101)
    assert found.untraced_ns.low is not None
    assert found.beside == {}


def test_the_effect_is_the_ratio_of_all_cycles_with_what_chance_makes_of_it() -> None:
    noise = np.random.default_rng(8).normal(1_000_000, 50_000, 300).round()
    found = control_in(stretch(0, 200, lambda n: noise[n]), stretch(200, 100, lambda n: 1.25 * noise[n], 0))
    untraced = resampled_medians(noise[:200])
    traced = resampled_medians((1.25 * noise[200:]).round(), SEED + 1)
    value = np.median((1.25 * noise[200:]).round()) / np.median(noise[:200]) - 1
    want = bounded(float(value), traced / untraced - 1)
    assert found.effect is not None
    assert (found.effect.value, found.effect.low, found.effect.high) == pytest.approx((want.value, want.low, want.high))


@pytest.mark.parametrize(("untraced", "traced"), [(5, 5), (4, 5), (5, 4)])
def test_bounds_take_five_cycles(untraced: int, traced: int) -> None:
    assert FEWEST == 5
    found = control_in(stretch(0, untraced, line), stretch(untraced, traced, line, 0))
    assert (found.untraced_ns.low is not None) == (untraced >= FEWEST)
    assert found.effect is not None
    assert (found.effect.low is not None) == (min(untraced, traced) >= FEWEST)


def test_steps_of_nothing_do_not_count() -> None:
    found = control_in(stretch(0, 5, lambda n: n), stretch(5, 5, lambda n: n - 5, 0))
    assert (found.cycles, found.untraced_ns.value, found.traced_ns) == (4, 2.5, 2.5)
    assert found.effect is not None
    assert found.effect.value == 0.0


@pytest.mark.parametrize(("first", "beside"), [(132, True), (131, False), (69, False), (68, True)])
def test_the_control_stands_beside_the_windows_where_it_differs_by_two_per_cent(first: int, beside: bool) -> None:
    """200 untraced cycles around a window of 21: their median lies at 99.5 or 120.5, and 2 % of it are 42 cycles."""

    def gentle(n: int) -> float:
        return 1_000_000 + 500 * n

    behind = first + 21
    found = control_in(stretch(0, first, gentle), stretch(first, 21, gentle, 0), stretch(behind, 221 - behind, gentle))
    assert (found.place is not None) == beside


@pytest.mark.parametrize(("others", "beside"), [(10, True), (11, False)])
def test_windows_with_a_tenth_of_other_batches_have_a_place_and_with_more_none(others: int, beside: bool) -> None:
    found = control_in(
        stretch(0, 50, line),
        stretch(50, 100 - others, line, 0),
        stretch(150 - others, others, line, 0, batch_size=2),
        stretch(150, 350, line),
    )
    assert (found.place is not None) == beside


@pytest.mark.parametrize("flip", [False, True])
def test_one_window_that_differs_is_enough(flip: bool) -> None:
    windows = [(100, 1), (195, 0)] if flip else [(195, 0), (300, 1)]
    marked = {n: w for first, w in windows for n in range(first, first + 10)}
    rows = [stretch(n, 1, line, marked.get(n)) for n in range(400)]
    assert control_in(*rows).place == "context"


def test_one_window_without_neighbours_or_growth_leaves_all_untraced_cycles() -> None:
    grown = [stretch(0, 60, line), stretch(60, 40, line, 0), stretch(100, 200, line)]
    assert control_in(*grown).place == "context"
    level = [
        stretch(a, b, lambda _: 1_000_000, w, rank="1") for a, b, w in ((0, 60, None), (60, 40, 0), (100, 200, None))
    ]
    assert control_in(*grown, *level).place is None
    few = [stretch(0, 4, line, rank="1"), stretch(4, 40, line, 0, rank="1"), stretch(44, 4, line, rank="1")]
    assert control_in(*grown, *few).place is None


def test_steps_of_nothing_stand_beside_no_window() -> None:
    grown = [stretch(0, 60, line), stretch(60, 40, line, 0), stretch(100, 200, line)]
    lost = [stretch(30, 20, lambda _: 0), stretch(110, 20, lambda _: 0), stretch(60, 4, lambda _: 0, 0)]
    plain, found = control_in(*grown), control_in(*grown, *lost)
    assert found.place == "context"
    assert (found.untraced_ns, found.traced_ns, found.effect) == (plain.untraced_ns, plain.traced_ns, plain.effect)
    assert (found.cycles, found.span) == (plain.cycles, plain.span)


@pytest.mark.parametrize(("traced", "bounds"), [(5, True), (4, False)])
def test_the_effect_beside_the_windows_has_bounds_from_five_traced_cycles(traced: int, bounds: bool) -> None:
    found = control_in(stretch(0, 60, line), stretch(60, traced, line, 0), stretch(60 + traced, 200, line))
    assert found.place == "context"
    assert found.effect is not None
    assert (found.effect.low is not None) == bounds
    assert found.untraced_ns.low is not None


@pytest.mark.parametrize(("spread", "beside"), [(0.0, True), (0.1, False)])
def test_a_difference_within_the_noise_leaves_all_untraced_cycles(spread: float, beside: bool) -> None:
    """Cycles that double; a window whose cycles are 3 % longer than the median, which cycles that vary by a tenth cannot show."""
    noise = 1 + spread * np.random.default_rng(2).normal(0, 1, 420)

    def doubling(n: int) -> float:
        return float((1_000_000 + 2_500 * n) * noise[n])

    rows = stretch(0, 220, doubling), stretch(220, 20, doubling, 0), stretch(240, 180, doubling)
    untraced = np.array([row["step_ns"] for row in (*rows[0], *rows[2])], dtype=float)
    places = np.array([*range(220), *range(240, 420)], dtype=float)
    assert growth_of(places, untraced, "context") is not None
    near = neighbours(places, untraced, 229.5)
    assert near is not None
    whole = float(np.median(untraced))
    off = bounded(near.typical(229.5) / whole - 1, near.drawn_at(229.5) / whole - 1)
    assert abs(off.value) >= 0.02
    assert off.excludes_zero == beside
    assert (control_in(*rows).place is not None) == beside


def test_a_line_that_falls_below_nothing_is_no_control() -> None:
    """Untraced cycles shrink to 10 us and end; at the window's place the line would be at -200 us."""

    def falling(n: int) -> float:
        return 1_000_000 - 10_000 * n

    found = control_in(stretch(0, 100, falling), stretch(111, 20, lambda _: 10_000, 0))
    assert found.place is None
    found = control_in(stretch(0, 100, lambda n: falling(n) + 400_000), stretch(111, 20, lambda _: 10_000, 0))
    assert found.untraced_ns.value == pytest.approx(1_400_000 - 10_000 * 120.5)


def test_prefill_alone_has_all_its_untraced_cycles() -> None:
    found = control_in(stretch(0, 60, line, mode="prefill"), stretch(60, 40, line, 0, mode="prefill"))
    assert found.place is None


GROWN = replace(
    story.sweep_recording(2, cycles=400, traced=20), windows=(40, 90), grows_ns=100_000, observer_ns=3_000_000
)
"""A verify that grows by 100 us a token from 25.6 ms on, observed 3 ms longer a cycle."""


def grown(**changes: Any) -> Trace:
    return replace(GROWN, **changes).trace()


def test_idle_time_is_not_what_other_contexts_cost() -> None:
    trace = grown()
    found = calibrate(break_down(trace).ranks[0], cycle_table(trace))
    # the windows' mean cycle is the 74th; the observer's 3 ms are the only idle time beyond a cycle's own 0.6
    flat = break_down(grown(grows_ns=0, observer_ns=0)).ranks[0]
    cycle = flat.window_ns / 40 + 74.5 * 100_000
    assert found.untraced_ns is not None
    assert found.untraced_ns.value == pytest.approx(cycle, rel=3e-3)
    assert found.traced_ns == pytest.approx(cycle + 3_000_000, rel=3e-3)
    assert found.control == "untraced cycles beside the windows, at the same context"
    result = diagnose(trace)
    assert "idle_gaps" in result.clean
    assert result.window_cycle_ns == pytest.approx(cycle, rel=3e-3)
    assert result.cycle_ns > 1.3 * result.window_cycle_ns


def test_phases_say_how_the_cycle_grows_and_what_grows() -> None:
    report = phase_report(grown())
    assert report.growth is not None
    assert report.growth.slope.value == pytest.approx(100_000, rel=0.01)
    rows = report.grown.to_dicts()
    assert [(row["phase"], row["bucket"]) for row in rows] == [("verify", "attention")]
    assert rows[0]["ns_per_place"] is None  # the windows are less than two blocks of tokens apart
    assert any("by how much a token cannot be told from contexts" in note for note in report.notes)
    along = phase_report(grown(cycles=500, windows=(60, 400)))
    assert along.grown["ns_per_place"].to_list() == [pytest.approx(100_000, rel=0.01)]
    assert any("(+100.00 us a token, bounds +" in note for note in along.notes)
    assert any("the untraced cycle grows with the context" in note for note in report.notes)
    assert any(note.startswith("on the device, over the windows: verify attention") for note in report.notes)
    assert any("in untraced cycles beside the windows, at the same context (+9 %)" in note for note in report.notes)
    steady = phase_report(grown(grows_ns=0))
    assert steady.growth is None
    assert steady.grown.height == 0
    # 25.6 ms of verify, 0.65 of the other phases, 3 more of observing
    assert any("a cycle takes 29.25 ms inside the windows and 26.25 ms outside (+11 %)" in n for n in steady.notes)
