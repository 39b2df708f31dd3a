"""The calibrated breakdown: busy as measured, idle scaled to the untraced cycle."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import story
import traces

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.breakdown import break_down
from specanalyze.answers.breakdown_table import breakdown_frame
from specanalyze.answers.calibration import (
    CELL_SCHEMA,
    Calibration,
    beside,
    calibrate,
    calibrated_columns,
    calibration_json,
    withheld_reasons,
)
from specanalyze.answers.overhead import measure_overhead
from specanalyze.attribution.cycles import cycle_table
from specanalyze.formats.load import open_trace
from specanalyze.render.breakdown import draw
from specanalyze.trace import RankTrace
from specschema.phases import IDLE_BUCKETS

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"


def cycle(number: int, at: int, window: int | None, mode: str = "speculative") -> list[dict[str, Any]]:
    """100 ns: 20 launching, 60 of GEMM, 20 host behind it."""
    rows = [
        traces.phase("spec.cycle", at, at + 100, cycle=number, mode=mode, window=window),
        traces.phase("spec.verify", at, at + 100, cycle=number, window=window),
    ]
    if window is not None:
        rows.append(traces.launch("cudaLaunchKernel", at, number, window=window))
        rows.append(traces.kernel(GEMM, at + 20, at + 80, number, window=window))
    return rows


def rank(untraced: int = 9, step: int = 70, traced: int = 4, odd: int = 0) -> RankTrace:
    rows = [row for n in range(untraced) for row in cycle(n, n * step, None)]
    begin = untraced * step + 1000
    rows += [
        row
        for n in range(traced)
        for row in cycle(untraced + n, begin + n * 100, 0, "speculative" if n >= odd else "prefill")
    ]
    return traces.rank_trace(rows)


def calibration(*args: Any, **more: Any) -> Calibration:
    trace = traces.trace(rank(*args, **more))
    return calibrate(break_down(trace).ranks[0], cycle_table(trace))


def cells(of: Calibration) -> dict[str, tuple[float, float, float, float]]:
    return {
        row["bucket"]: (row["measured_ns"], row["calibrated_ns"], row["low_ns"], row["high_ns"])
        for row in of.cells.to_dicts()
    }


def test_idle_buckets_share_what_the_untraced_cycle_leaves() -> None:
    found = calibration()
    assert found.reason is None
    assert (found.measured_ns, found.scale) == (100, 0.25)
    # 70 untraced, 60 of them busy: 10 are left for launch and host, each of which may have all or nothing of it
    assert cells(found) == {"gemm": (60, 60, 60, 60), "launch": (20, 5, 0, 10), "host": (20, 5, 0, 10)}


def test_a_lower_bound_where_the_others_cannot_take_all() -> None:
    # 90 untraced: 30 are left, but neither idle bucket was longer than 20, so each has at least 10
    assert cells(calibration(step=90))["host"] == (20, 15, 10, 20)


def test_no_idle_time_is_left_where_busy_work_alone_is_longer() -> None:
    assert cells(calibration(step=50)) == {"gemm": (60, 60, 60, 60), "launch": (20, 0, 0, 0), "host": (20, 0, 0, 0)}


def test_an_untraced_cycle_that_is_longer_stretches_the_idle_time() -> None:
    assert cells(calibration(step=120))["host"] == (20, 30, 20, 40)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"untraced": 0}, "no untraced speculative cycle stands beside"),
        ({"untraced": 4}, "only 3 untraced speculative cycles stand beside"),
        ({"odd": 1}, "only 3 of the 4 traced cycles are speculative cycles of one batch size"),
        ({"odd": 4}, "the windows hold no decode cycle"),
    ],
)
def test_it_is_withheld_with_the_reason(given: dict[str, int], reason: str) -> None:
    found = calibration(**given)
    assert found.cells.height == 0
    assert found.reason is not None
    assert f"rank 0: no calibrated times: {reason}" in found.reason
    assert withheld_reasons({"0": found}) == [found.reason]


def test_columns_beside_the_breakdown() -> None:
    trace = traces.trace(rank())
    result, cycles = break_down(trace), cycle_table(trace)
    frame = calibrated_columns(breakdown_frame(result), {r.key: calibrate(r, cycles) for r in result.ranks})
    assert frame.select("bucket", "total_ns", "calibrated_ns", "calibrated_low_ns", "calibrated_high_ns").rows() == [
        ("gemm", 240, 240, 240, 240),
        ("launch", 80, 20, 0, 40),
        ("host", 80, 20, 0, 40),
    ]
    turned = calibrated_columns(breakdown_frame(result).reverse(), {"0": calibrate(result.ranks[0], cycles)})
    assert turned["bucket"].to_list() == ["host", "launch", "gemm"]
    alone = calibrated_columns(breakdown_frame(result), {"0": calibration(untraced=0)})
    assert alone["calibrated_ns"].to_list() == [None] * 3


def test_a_real_trace_with_the_control_of_another_run(reference: Path) -> None:
    folder = reference / "traces/sglang_h200/tp2"
    trace = open_trace([folder / "e2_m17_rank0.json.gz"], cycles=folder / "e2_m15_rank0.cycles.json")
    found = calibrate(break_down(trace).ranks[0], cycle_table(trace))
    assert found.untraced_ns is not None
    assert found.cells["measured_ns"].sum() == pytest.approx(found.measured_ns)
    assert found.cells["calibrated_ns"].sum() == pytest.approx(found.untraced_ns.value)
    idle = found.cells.filter(pl.col("bucket").is_in(IDLE_BUCKETS))
    assert found.scale == pytest.approx(0.246, abs=1e-3)
    assert idle.filter(pl.col("low_ns") > pl.col("calibrated_ns")).height == 0
    assert idle.filter(pl.col("high_ns") < pl.col("calibrated_ns")).height == 0


def test_what_observing_cost_is_the_same_figure_as_in_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    trace = traces.trace(rank(traced=9))
    result = break_down(trace)
    found = calibrate(result.ranks[0], result.cycles)
    effect = measure_overhead(trace).effect
    assert effect is not None
    assert found.untraced_ns is not None
    assert found.traced_ns is not None
    assert found.traced_ns / found.untraced_ns.value - 1 == pytest.approx(effect.value)
    draw(result, breakdown_frame(result, "verify"), "verify", "rank", {"0": found})
    out = " ".join(capsys.readouterr().out.split())
    assert "observing made the median cycle 0.000 ms long instead of 0.000 (+43 %)" in out
    assert "the untraced estimate and its bounds are means over instances" in out


def test_busy_work_longer_than_the_untraced_cycle_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trace = traces.trace(rank(step=50))
    result = break_down(trace)
    draw(result, breakdown_frame(result, "verify"), "verify", "rank", {"0": calibrate(result.ranks[0], result.cycles)})
    assert "busy work alone is at least as long as the untraced cycle" in " ".join(capsys.readouterr().out.split())


def estimated(low: float | None, value: float, high: float | None, scale: float | None = 0.5) -> Calibration:
    """70 ns of busy work in two buckets, 40 ns idle in two."""
    measured = (("gemm", 60.0), ("moe", 10.0), ("launch", 15.0), ("host", 25.0))
    rows = [{"rank": "0", "phase": "verify", "bucket": bucket, "measured_ns": ns} for bucket, ns in measured]
    untraced = Interval(value, low, high)
    return Calibration("0", None, pl.DataFrame(rows, schema=CELL_SCHEMA), 110.0, untraced, scale)


@pytest.mark.parametrize(
    ("untraced", "part_ns", "estimate"),
    [
        # 25 to 35 ns are left for idle time; the other parts were 20 ns long, so that this one has at least 5 of them
        ((95, 100, 105), 20.0, (10.0, 5.0, 20.0)),
        ((95, 100, 105), 30.0, (15.0, 15.0, 30.0)),
        ((95, 100, 105), 38.0, (19.0, 23.0, 35.0)),
        # 45 to 55 ns are left, more than was measured: this part may have all that is more, and none is shorter than measured
        ((115, 120, 125), 20.0, (10.0, 20.0, 35.0)),
        # busy work alone is longer than the untraced cycle
        ((50, 60, 65), 20.0, (10.0, 0.0, 0.0)),
        ((50, 60, 65), 40.0, (20.0, 0.0, 0.0)),
        # no bounds: nothing is sure from below, and the median stands for the bound above
        ((None, 100, None), 20.0, (10.0, 0.0, 20.0)),
        ((None, 100, None), 35.0, (17.5, 0.0, 30.0)),
    ],
)
def test_an_idle_part_is_bounded_by_what_the_untraced_cycle_leaves(
    untraced: tuple[float | None, float, float | None], part_ns: float, estimate: tuple[float, float, float]
) -> None:
    assert estimated(*untraced).idle_estimate(part_ns) == estimate


def test_an_idle_part_that_is_a_bucket_has_the_buckets_bounds() -> None:
    for step in (50, 70, 90, 120):
        found = calibration(step=step)
        for bucket, (measured, *rest) in cells(found).items():
            if bucket in IDLE_BUCKETS:
                assert found.idle_estimate(measured) == tuple(rest), (step, bucket)


def test_no_estimate_without_a_calibration() -> None:
    assert estimated(95, 100, 105, scale=None).idle_estimate(20.0) is None
    assert dataclasses.replace(estimated(95, 100, 105), untraced_ns=None).idle_estimate(20.0) is None


def test_five_untraced_cycles_are_a_control() -> None:
    assert calibration(untraced=6).reason is None  # the last one's length is not known


def test_json_of_a_calibration() -> None:
    found = dataclasses.replace(calibration(), untraced_ns=Interval(70.0, 69.0, 72.0))
    assert calibration_json(found) == {
        "reason": None,
        "estimate": True,
        "traced_cycle_ns": 100,
        "traced_median_ns": 100,
        "untraced_cycle_ns": 70,
        "untraced_low_ns": 69,
        "untraced_high_ns": 72,
        "idle_scale": 0.25,
        "control": "all untraced cycles",
        "per_cycle": {
            "verify": {
                bucket: dict(zip(("measured_ns", "calibrated_ns", "low_ns", "high_ns"), values, strict=True))
                for bucket, values in {
                    "gemm": (60, 60, 60, 60),
                    "launch": (20, 5, 0, 10),
                    "host": (20, 5, 0, 10),
                }.items()
            }
        },
    }
    withheld = calibration(untraced=0)
    assert calibration_json(withheld) == {"reason": withheld.reason}
    assert withheld.reason
    assert calibration_json(dataclasses.replace(found, untraced_ns=None)) == {"reason": None}


def test_nothing_is_calibrated_without_windows() -> None:
    untraced = traces.trace(traces.rank_trace([row for n in range(9) for row in cycle(n, 70 * n, None)]))
    found = calibrate(break_down(traces.trace(rank())).ranks[0], cycle_table(untraced))
    assert found.reason == "rank 0: no calibrated times: no cycle was traced"
    empty = dataclasses.replace(break_down(traces.trace(rank())).ranks[0], window_ns=0)
    assert calibrate(empty, cycle_table(traces.trace(rank()))).reason == found.reason


def of_steps(untraced: list[int], traced: list[int]) -> Calibration:
    """Calibration of cycles that follow each other after so many ns each; the last one of each kind has no length."""
    rows: list[dict[str, Any]] = []
    at = number = 0
    for window, steps in ((None, untraced), (0, traced)):
        for step in (*steps, 1000):
            rows += cycle(number, at, window)
            at, number = at + step, number + 1
    trace = traces.trace(traces.rank_trace(rows))
    return calibrate(break_down(trace).ranks[0], cycle_table(trace))


def test_bounds_of_the_untraced_median_bound_the_cells() -> None:
    found = of_steps([95, 120, 101, 98, 115, 99, 130, 105, 97, 111], [100] * 5)
    assert found.untraced_ns is not None
    assert found.untraced_ns.low is not None
    assert found.untraced_ns.high is not None
    assert found.untraced_ns.low < found.untraced_ns.value < found.untraced_ns.high
    for bucket, (measured, *rest) in cells(found).items():
        if bucket in IDLE_BUCKETS:
            assert found.idle_estimate(measured) == pytest.approx(tuple(rest)), bucket
            assert rest[1] < rest[0] < rest[2], bucket


def test_the_traced_cycle_is_a_median() -> None:
    assert of_steps([70] * 8, [100, 100, 180, 100, 100]).traced_ns == 100


def test_one_odd_cycle_in_ten_is_let_pass() -> None:
    assert calibration(traced=10, odd=1).reason is None


@pytest.mark.parametrize(
    ("cycles", "said"),
    [
        (0, "no untraced speculative cycle stands"),
        (1, "only 1 untraced speculative cycle stands"),
        (2, "only 2 untraced speculative cycles stand"),
        (4, "only 4 untraced speculative cycles stand"),
    ],
)
def test_how_few_untraced_cycles_stand_beside_is_said(cycles: int, said: str) -> None:
    assert beside(cycles, "speculative") == said


def test_what_a_long_traced_cycle_makes_of_the_mean_is_in_the_bounds_of_idle_time() -> None:
    """Its kernels lasted three times as long: taken from the untraced median, mean busy time left too little for idle."""
    off = [0] * 120
    off[60] = 2000
    observer_ns = 1_000_000
    shape = dataclasses.replace(story.sweep_recording(2, cycles=120, traced=20), windows=(50,), observer_ns=observer_ns)
    trace = dataclasses.replace(shape, jitter=off).trace()
    found = calibrate(break_down(trace).ranks[0], cycle_table(trace))
    (host,) = found.cells.filter(pl.col("phase") == "draft", pl.col("bucket") == "host").to_dicts()
    assert host["measured_ns"] == pytest.approx(observer_ns, rel=0.1)
    gap = found.cells.filter(pl.col("phase") == "verify", pl.col("bucket") == "graph_gap").to_dicts()[0]
    assert gap["low_ns"] <= gap["measured_ns"] <= gap["high_ns"]
    assert found.untraced_ns is not None
    assert found.bounds_ns is not None
    assert (found.bounds_ns.high or 0) > (found.untraced_ns.high or 0) + observer_ns / 2
