"""The same kernel slower on some ranks: four ranks whose every duration is chosen, the answer worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import traces
from story import ALLREDUCE, ATTENTION, MOE, Work, environment, tuned_recording

from specanalyze.answers.breakdown import Breakdown, break_down
from specanalyze.answers.instance_kernels import KEYS, TIMES, InstanceKernels
from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.medians import resampled_medians
from specanalyze.answers.ranks_report import compare_ranks, ranks_frame, ranks_json
from specanalyze.answers.uneven_kernels import (
    UNEVEN_SCHEMA,
    WORTH,
    WORTH_NS,
    compared_kernels,
    in_words,
    phase_instance_ns,
    placed_alike,
    ranks_in_words,
    short_name,
    sides,
    slower_ns,
    span_us,
    typical_ratio,
    uneven_kernels,
)
from specanalyze.diagnosis.diagnose import examine
from specanalyze.diagnosis.uneven_cost import UnevenCost, uneven_cost
from specanalyze.formats.load import open_trace
from specanalyze.render.ranks import draw
from specanalyze.trace import RankTrace, Trace

SUM = "triton_per_fused_copy__mul_sum_0"
FIRST_SLOW = {0: 40_000, 1: 10_000, 2: 40_000, 3: 11_000}
"""ns of a call of SUM on each rank."""
LAYERS = 2
VERIFY_NS = 1_000_000


def instance(
    rank: int, number: int, sum_ns: int, moe_ns: int = 100_000, *, layers: int = LAYERS, window: int = 0
) -> list[dict[str, Any]]:
    """A verify of 1 ms: in each layer experts, SUM and an all-reduce that ends at the same instant on all ranks."""
    start = number * VERIFY_NS
    correlation = number + 1
    rows = [
        traces.phase("spec.cycle", start, start + VERIFY_NS, window=window, cycle=number, mode="speculative"),
        traces.phase("spec.verify", start, start + VERIFY_NS, window=window, cycle=number),
        traces.launch("cudaGraphLaunch", start + 1, correlation, window=window),
    ]
    for layer in range(layers):
        at = start + 10_000 + layer * 300_000
        middle = at + moe_ns + sum_ns
        ends = (at, at + moe_ns), (at + moe_ns, middle), (middle, at + 250_000)
        names = ("fused_moe_kernel", SUM, ALLREDUCE)
        rows += [traces.kernel(n, a, b, correlation, window=window) for n, (a, b) in zip(names, ends, strict=True)]
    return [row | {"rank": rank} for row in rows]


def node(layer: int, place: int, name: str, module: str | None) -> dict[str, Any]:
    row = {"kind": "node", "name": name, "pid": 1, "start_ns": 0, "dur_ns": 0, "node_type": "kernel", "graph_id": 1}
    return row | {"node": 3 * layer + place, "module": module, "module_class": module and "FusedMoE"}


def nodes() -> list[dict[str, Any]]:
    names = ("fused_moe_kernel", SUM, ALLREDUCE)
    modules = ("model.layers.{}.mlp.experts",) * 2 + (None,)
    return [
        node(layer, place, name, None if path is None else path.format(layer))
        for layer in range(LAYERS)
        for place, (name, path) in enumerate(zip(names, modules, strict=True))
    ]


def four_ranks(sum_ns: dict[int, int] = FIRST_SLOW, *, mapped: tuple[int, ...] = (0, 1, 2, 3), count: int = 8) -> Trace:
    ranks = []
    for rank, ns in sum_ns.items():
        rows = [row for number in range(count) for row in instance(rank, number, ns)]
        ranks.append(traces.rank_trace([*rows, *(nodes() if rank in mapped else [])], rank))
    return traces.trace(*ranks)


def test_calls_and_instances_of_each_rank_as_worked_out_by_hand() -> None:
    (row,) = compare_ranks(four_ranks()).uneven.to_dicts()
    # Two calls an instance; 2 x (40 - 10) us of a verify of 1 ms.
    assert row == {
        "phase": "verify",
        "bucket": "moe",
        "module": "model.layers.N.mlp.experts",
        "name": SUM,
        "calls": 2,
        "ranks": ["0", "1", "2", "3"],
        "call_ns": [40_000.0, 10_000.0, 40_000.0, 11_000.0],
        "instance_ns": [80_000.0, 20_000.0, 80_000.0, 22_000.0],
        "fastest": "1",
        "slowest": "0",
        "difference_ns": 60_000.0,
        "difference_low_ns": 60_000.0,
        "difference_high_ns": 60_000.0,
        "share": pytest.approx(0.06),
    }
    assert sides(row) == (["0", "2"], ["1", "3"])
    assert span_us({"1": 10_000, "3": 11_000}, ["1", "3"]) == "10.0 to 11.0"


def test_what_the_table_says_goes_out_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    report = compare_ranks(four_ranks())
    verify = ranks_frame(report).filter(pl.col("phase") == "verify")
    assert verify.select("rank", "slower_ns").rows() == [("0", 60_000.0), ("1", 0.0), ("2", 60_000.0), ("3", 2_000.0)]
    assert ranks_json(report)["uneven_kernels"] == report.uneven.to_dicts()
    draw(report)
    out = capsys.readouterr().out
    assert "same kernel, other time" in out
    assert "0, 2: 40.0" in out
    assert "1, 3: 10.0 to 11.0" in out
    draw(compare_ranks(four_ranks(dict.fromkeys(range(4), 10_000))))
    assert "same kernel, other time" not in capsys.readouterr().out


def test_one_rank_has_nothing_to_compare() -> None:
    report = compare_ranks(four_ranks({0: 40_000}))
    assert report.uneven.schema == pl.Schema(UNEVEN_SCHEMA)
    assert report.uneven.height == 0
    assert ranks_frame(report).get_column("slower_ns").null_count() == ranks_frame(report).height


def test_communication_is_never_a_slower_kernel() -> None:
    """Ranks 1 and 3 wait 60 us an instance in all-reduce; that is no kernel of theirs that is slow."""
    assert compare_ranks(four_ranks()).uneven.get_column("name").to_list() == [SUM]


@pytest.mark.parametrize(("more", "found"), [(WORTH_NS // LAYERS - 1, 0), (WORTH_NS // LAYERS, 1)])
def test_a_difference_is_worth_a_row_from_ten_microseconds(more: int, found: int) -> None:
    assert compare_ranks(four_ranks({0: 10_000 + more, 1: 10_000})).uneven.height == found


def test_a_few_slow_instances_are_noise() -> None:
    rows = [row for n in range(9) for row in instance(0, n, 90_000 if n in (2, 5, 6, 8) else 10_000)]
    other = [row for n in range(9) for row in instance(1, n, 10_000)]
    report = compare_ranks(traces.trace(traces.rank_trace(rows, 0), traces.rank_trace(other, 1)))
    assert report.uneven.height == 0
    # Five of nine would move the median, but not beyond what chance does.
    more = [row for n in range(9) for row in instance(0, n, 90_000 if n in (2, 4, 5, 6, 8) else 10_000)]
    assert compare_ranks(traces.trace(traces.rank_trace(more, 0), traces.rank_trace(other, 1))).uneven.height == 0


def test_kernels_called_another_number_of_times_are_other_work() -> None:
    one = [row for n in range(8) for row in instance(0, n, 40_000, layers=1)]
    two = [row for n in range(8) for row in instance(1, n, 10_000)]
    assert compare_ranks(traces.trace(traces.rank_trace(one, 0), traces.rank_trace(two, 1))).uneven.height == 0


def test_an_instance_recorded_in_part_does_not_count() -> None:
    """Rank 0's last instance lost a layer: its median is that of the whole ones, and its calls are those of rank 1."""
    part = [row for n in range(7) for row in instance(0, n, 40_000)] + instance(0, 7, 15_000, layers=1)
    whole = [row for n in range(8) for row in instance(1, n, 10_000)]
    (row,) = compare_ranks(traces.trace(traces.rank_trace(part, 0), traces.rank_trace(whole, 1))).uneven.to_dicts()
    assert (row["calls"], row["instance_ns"]) == (2, [80_000.0, 20_000.0])


def test_fewer_than_five_instances_say_nothing() -> None:
    assert compare_ranks(four_ranks(count=4)).uneven.height == 0
    assert compare_ranks(four_ranks(count=5)).uneven.height == 1


def test_windows_are_taken_together() -> None:
    def rank(number: int, ns: int) -> RankTrace:
        rows = [row for n in range(8) for row in instance(number, n, ns, window=n // 4)]
        return traces.rank_trace(rows, number)

    (row,) = compare_ranks(traces.trace(rank(0, 40_000), rank(1, 10_000))).uneven.to_dicts()
    assert (row["calls"], row["difference_ns"], row["module"]) == (2, 60_000.0, None)


def test_ranks_of_which_one_knows_no_modules_are_compared_by_name() -> None:
    (row,) = compare_ranks(four_ranks(mapped=(0, 1, 3))).uneven.to_dicts()
    assert (row["module"], row["bucket"]) == (None, "moe")  # what the others' maps tell
    assert row["ranks"] == ["0", "1", "2", "3"]


def test_a_typical_kernel_is_the_median_of_time() -> None:
    compared = pl.DataFrame(
        {
            "ranks": [["0", "1"]] * 3,
            "instance_ns": [[100.0, 110.0], [50.0, 100.0], [30.0, 30.0]],
        }
    )
    # Rank 1's ratios 1, 1.1 and 2 stand for 30, 100 and 50 ns: half of 180 lies in the second, as the second of three does.
    assert typical_ratio(compared) == {"0": 1.0, "1": 1.1}


def test_one_long_kernel_or_many_short_ones_make_no_slow_rank() -> None:
    long = pl.DataFrame({"ranks": [["0", "1"]] * 3, "instance_ns": [[100.0, 200.0], [10.0, 10.0], [10.0, 10.0]]})
    assert typical_ratio(long)["1"] == 1.0
    short = pl.DataFrame({"ranks": [["0", "1"]] * 3, "instance_ns": [[100.0, 100.0], [10.0, 20.0], [10.0, 20.0]]})
    assert typical_ratio(short)["1"] == 1.0


def test_the_cycle_wins_no_more_than_its_least_patient_rank() -> None:
    cost = UnevenCost({"0": 60.0, "1": 0.0, "2": 20.0}, {"0": 5.0, "1": 50.0, "2": 45.0}, 60.0)
    assert cost.win == 50.0  # rank 1 saves nothing itself and waits 50
    assert cost.slowest == "0"
    assert cost.ahead() == {"0": 0.0, "1": 60.0, "2": 40.0}
    assert cost.agreement == pytest.approx((45 + 40) / 100)
    assert replace(cost, waits=None).win == 60.0
    assert replace(cost, waits=None).agreement is None


LAYERED = Work({ATTENTION: (61, 3 * 10**6), MOE: (61, 9 * 10**6), SUM: (61, 122_000), ALLREDUCE: (61, 4 * 10**6)})


def recording(**changes: Any) -> Measured:
    settings = {"ranks": 2, "verify": LAYERED, "cycles": 200, "traced": 10, **changes}
    return measure(tuned_recording(**settings).trace())


def test_the_others_waiting_confirms_what_is_slower() -> None:
    m = recording(slower_ns={1: (SUM, 1_220_000)})
    cost = uneven_cost(m, m.uneven)
    assert cost is not None
    assert cost.slower == {"0": 0.0, "1": 1_220_000.0}
    assert cost.waits == {"0": pytest.approx(1_220_000.0), "1": 0.0}
    assert cost.agreement == pytest.approx(1.0)
    result = examine(m)
    row = result.findings.filter(pl.col("rule") == "uneven_kernels").row(0, named=True)
    assert row["confidence"] == "high"
    assert row["win_ns_per_cycle"] == pytest.approx(1_220_000.0)
    assert row["evidence"] == [
        f"verify {m.uneven['bucket'][0]}, {SUM}, 61 calls: 22.0 us a call on rank 1, 2.0 on rank 0: 1.220 ms a verify",
        "rank 0 waits 1.220 ms a cycle longer than rank 1 in the collectives of verify: 100 % of what the slower kernels would make them wait",
    ]
    assert row["knob"].startswith("torch.compile made and tuned this kernel in each rank's own process")
    # The waiting is answered for once.
    assert "straggler" in result.clean


def test_waiting_that_slower_kernels_explain_is_no_stragglers() -> None:
    few = Work({ATTENTION: (2, 3 * 10**6), MOE: (2, 9 * 10**6), SUM: (2, 200_000), ALLREDUCE: (2, 8 * 10**6)})
    m = recording(slower_ns={1: (SUM, 1_220_000)}, lag_ns={1: 1_500_000}, verify=few)
    result = examine(m)
    late, slow = (
        result.findings.filter(pl.col("rule") == rule).row(0, named=True) for rule in ("straggler", "uneven_kernels")
    )
    assert slow["win_ns_per_cycle"] == pytest.approx(1_220_000.0)
    assert m.waits is not None
    table = m.waits.table("rank", "wait_ns", of=~pl.col("voided"))
    waited = float(table.filter(pl.col("rank") == "0")["wait_ns"].sum()) / m.cycle_count
    assert late["win_ns_per_cycle"] == pytest.approx(waited - 1_220_000.0)
    assert "1.220 ms of it is for kernels that are slower there" in late["evidence"][2]
    assert late["win_ns_per_cycle"] + slow["win_ns_per_cycle"] <= waited * (1 + 1e-9)


def test_slower_kernels_that_nobody_waits_for_win_nothing() -> None:
    """Rank 0 waits no longer than before: what is slower on rank 1 stands on nobody's path."""
    m = recording(slower_ns={1: (SUM, 1_220_000)})
    assert m.waits is not None
    patient = replace(m, waits=replace(m.waits, rows=m.waits.rows.with_columns(dur_ns=pl.col("transfer_ns"))))
    assert "uneven_kernels" in examine(patient).clean


def test_without_matched_collectives_the_confidence_is_low() -> None:
    row = examine(replace(recording(slower_ns={1: (SUM, 1_220_000)}), waits=None)).findings
    found = row.filter(pl.col("rule") == "uneven_kernels").row(0, named=True)
    assert found["confidence"] == "low"
    assert "what the other ranks wait for it is unknown" in found["evidence"][-1]


def test_a_rank_whose_every_kernel_is_slower_points_to_its_gpu() -> None:
    slow = {name: (calls, ns * 11 // 10) for name, (calls, ns) in LAYERED.kernels.items()}
    slow[ALLREDUCE] = (61, 4 * 10**6 - sum(slow[n][1] - LAYERED.kernels[n][1] for n in (ATTENTION, MOE, SUM)))
    quick = replace(tuned_recording(ranks=2, cycles=200, traced=10), phases={"verify": LAYERED})
    other = replace(quick, phases={"verify": Work(slow)})
    trace = quick.trace()
    mixed = replace(trace, sources=(trace.sources[0], other.trace().sources[1]))
    found = examine(measure(mixed)).findings.filter(pl.col("rule") == "uneven_kernels").row(0, named=True)
    assert found["title"] == "rank 1 takes longer for all of its kernels: 1.212 ms a cycle"
    assert found["evidence"][0] == "rank 1's typical kernel takes 1.10 times as long as on the fastest rank"
    assert found["knob"].startswith("that rank's GPU: `env`")


def test_experts_spread_over_ranks_are_to_be_balanced() -> None:
    m = recording(slower_ns={1: (MOE, 1_220_000)}, environment=environment(args={"ep_size": 8}))
    found = examine(m).findings.filter(pl.col("rule") == "uneven_kernels").row(0, named=True)
    assert "balance their load" in found["knob"]
    plain = examine(recording(slower_ns={1: (MOE, 1_220_000)})).findings
    assert "one cache for what is tuned at start" in plain.filter(pl.col("rule") == "uneven_kernels")["knob"][0]


def test_four_gpus_that_tuned_apart() -> None:
    """SGLang on four H200: inductor chose another configuration of one reduction on ranks 0 and 2."""
    path = Path(__file__).parents[2] / "samples" / "sglang_tp4_mla61_eagle3_steps2.parquet"
    if not path.exists():
        pytest.skip("the sample is not here")
    m = measure(open_trace([path]))
    (row,) = m.uneven.to_dicts()
    assert (row["name"], row["module"], row["calls"]) == (SUM, "DeepseekV2Model.layers.N.mlp.experts", 60)
    assert [round(ns / 1000, 1) for ns in row["call_ns"]] == [13.9, 2.6, 13.8, 2.6]
    # Plain sums of the same kernel over a window of about 40 cycles tell the same to a hundredth.
    whole = (
        m.kernels.filter(pl.col("phase") == "verify", pl.col("name") == SUM)
        .group_by("rank")
        .agg(pl.sum("sum_ns", "count"))
    )
    means = whole.sort("rank").select(pl.col("sum_ns") / pl.col("count")).to_series().to_list()
    assert row["call_ns"] == pytest.approx(means, rel=0.01)
    (found,) = examine(m).findings.filter(pl.col("rule") == "uneven_kernels").to_dicts()
    assert found["confidence"] == "high"
    assert found["win_ns_per_cycle"] == pytest.approx(675_771, rel=1e-6)


def test_ranks_without_device_work_have_nothing_to_compare() -> None:
    bare = [traces.phase("spec.verify", 0, 100, window=0)]
    made = compare_ranks(traces.trace(*(traces.rank_trace([r | {"rank": n} for r in bare], n) for n in (0, 1))))
    assert made.uneven.schema == pl.Schema(UNEVEN_SCHEMA)
    assert made.uneven.height == 0
    assert ranks_frame(made).get_column("slower_ns").to_list() == [0.0, 0.0]


# ---- by hand: what each kernel took in each instance

Counts = list[tuple[int, int, int]]
"""Calls, ns of all of them, and ns that the partition gave them, instance by instance; 0 calls: it did not run."""
MLP, EXPERTS = "M.layers.N.mlp", "M.layers.N.mlp.experts"


def kernels_of(work: dict[tuple[str, str, str | None, str], Counts]) -> InstanceKernels:
    """Instances 0 to 2 in window 0, the others in window 1, where they are counted from 0 again."""
    times = [
        (kernel, int(n > 2), n if n < 3 else n - 3, *counted)
        for kernel, counts in enumerate(work.values())
        for n, counted in enumerate(counts)
        if counted[0]
    ]
    return InstanceKernels(
        pl.DataFrame(list(work), schema=KEYS, orient="row"), pl.DataFrame(times, TIMES, orient="row")
    )


def verify_of(ns: int) -> Breakdown:
    rows = [traces.phase("spec.verify", 0, ns), traces.launch("cudaLaunchKernel", 1, 1), traces.kernel("x", 5, 6, 1)]
    return break_down(traces.trace(*(traces.rank_trace([r | {"rank": n} for r in rows], n) for n in (0, 1))))


def steady(calls: int, ns: int, count: int = 6) -> Counts:
    return [(calls, 3 * ns, ns)] * count


def key(
    name: str, bucket: str = "gemm", module: str | None = None, phase: str = "verify"
) -> tuple[str, str, str | None, str]:
    return (phase, bucket, module, name)


def compared(*ranks: dict[tuple[str, str, str | None, str], Counts], verify_ns: int = 1_000_000) -> pl.DataFrame:
    return compared_kernels({str(i): kernels_of(work) for i, work in enumerate(ranks)}, verify_of(verify_ns))


def test_figures_of_a_kernel_are_medians_over_its_usual_instances() -> None:
    """Ns a call of all that its calls took, ns an instance of what the partition gave them."""
    here: Counts = [(2, 60, 9), (2, 80, 20), (2, 100, 10), (3, 900, 900), (2, 120, 11), (2, 140, 12)]
    (row,) = compared({key("a"): here}, {key("a"): steady(2, 8)}).to_dicts()
    assert (row["calls"], row["ranks"]) == (2, ["0", "1"])
    assert (row["call_ns"], row["instance_ns"]) == ([50.0, 12.0], [11.0, 8.0])
    assert (row["fastest"], row["slowest"], row["difference_ns"]) == ("1", "0", 3.0)
    assert (row["difference_low_ns"], row["difference_high_ns"]) == (None, None)
    assert row["share"] == pytest.approx(3e-6)


def test_usual_is_the_lesser_of_two_numbers_of_calls_that_are_as_frequent() -> None:
    here: Counts = [(2, 20, 20)] * 5 + [(3, 90, 90)] * 5
    (row,) = compared({key("a"): here}, {key("a"): steady(2, 8)}).to_dicts()
    assert (row["calls"], row["instance_ns"]) == (2, [20.0, 8.0])


@pytest.mark.parametrize(("ran", "counts"), [(5, True), (4, False)])
def test_what_runs_in_few_instances_is_not_compared(ran: int, counts: bool) -> None:
    found = compared({key("a"): steady(1, 9, ran)}, {key("a"): steady(1, 8)})
    assert found.height == int(counts)


@pytest.mark.parametrize(("others", "counts"), [(10, True), (11, False)])
def test_what_runs_in_fewer_than_half_of_a_phases_instances_is_not_compared(others: int, counts: bool) -> None:
    """Of two windows; another phase's instances count for nothing."""
    rank = {
        key("a"): steady(1, 9, 5),
        key("b"): steady(1, 9, others),
        key("c", phase="draft"): steady(1, 9, 30),
    }
    found = compared(rank, rank).filter(phase="verify")
    assert found.get_column("name").to_list() == (["a", "b"] if counts else ["b"])


def test_kernels_of_one_rank_or_with_other_numbers_of_calls_are_not_compared() -> None:
    one = {key("a"): steady(1, 9), key("b"): steady(1, 9), key("c"): steady(2, 9)}
    other = {key("a"): steady(1, 8), key("c"): steady(1, 9), key("d"): steady(1, 9)}
    assert compared(one, other).get_column("name").to_list() == ["a"]
    assert compared(one, other, {key("b"): steady(1, 7)}).get_column("ranks").to_list() == [["0", "2"], ["0", "1"]]
    assert compared(one).height == 0
    assert compared(one).schema == pl.Schema(UNEVEN_SCHEMA)


def test_the_largest_difference_comes_first_and_equal_ones_by_phase_class_module_and_name() -> None:
    names = [
        key("z", "moe"),
        key("a", "moe"),
        key("a", "gemm", MLP),
        key("b", "gemm", EXPERTS),
        key("y", phase="draft"),
    ]
    one = {**{k: steady(1, 9) for k in names}, key("most"): steady(1, 30)}
    other = {k: steady(1, 8) for k in one}
    found = compared(one, other).select("phase", "bucket", "module", "name").rows()
    assert found == [key("most"), key("y", phase="draft"), names[2], names[3], names[1], names[0]]


@pytest.mark.parametrize(("share", "found"), [(WORTH, 1), (WORTH * 0.999, 0)])
def test_a_difference_is_worth_a_row_from_half_a_per_cent_of_its_phase(share: float, found: int) -> None:
    assert WORTH == 0.005
    work = [{key("a"): steady(1, ns)} for ns in (60_000, 40_000)]
    ranks = {str(i): kernels_of(w) for i, w in enumerate(work)}
    assert uneven_kernels(ranks, verify_of(round(20_000 / share))).height == found


def test_a_phase_that_no_rank_has_whole_has_no_share() -> None:
    one, other = ({key("a", phase="draft"): steady(1, ns)} for ns in (60_000, 40_000))
    assert compared(one, other).get_column("share").to_list() == [None]
    assert uneven_kernels({"0": kernels_of(one), "1": kernels_of(other)}, verify_of(100)).height == 0


def test_bounds_are_of_the_difference_of_instances_that_belong_together() -> None:
    """Both ranks grow alike with the context, so that the difference is always 20 us; without pairs its bounds would lie 20 us around it."""
    growing = [(1, 0, 100_000 + 10_000 * n) for n in range(6)]
    ranks = {
        "0": kernels_of({key("x"): steady(1, 5), key("a"): growing}),
        "1": kernels_of({key("a"): [(1, 0, ns - 20_000) for _, _, ns in growing]}),
    }
    (row,) = uneven_kernels(ranks, verify_of(1_000_000)).to_dicts()
    assert [row[f"difference{side}_ns"] for side in ("_low", "", "_high")] == pytest.approx([20_000] * 3)


def test_bounds_leave_out_half_of_a_per_cent_of_the_resamples_on_each_side() -> None:
    chance = np.random.default_rng(1)
    slow, fast = (chance.integers(0, 30_000, 40) + base for base in (80_000, 50_000))
    ranks = {
        str(i): kernels_of({key("x"): steady(1, 1, 40), key("a"): [(1, 7, ns) for ns in values.tolist()]})
        for i, values in enumerate((fast, slow))
    }
    (row,) = uneven_kernels(ranks, verify_of(1_000_000)).to_dicts()
    # Instances in the order of windows, not of their numbers.
    drawn = resampled_medians(slow.astype(float)) - resampled_medians(fast.astype(float))
    assert (row["difference_low_ns"], row["difference_high_ns"]) == pytest.approx(
        tuple(np.quantile(drawn, [0.005, 0.995]))
    )


def test_what_was_compared_is_not_compared_again() -> None:
    ranks = {str(i): kernels_of({key("a"): steady(1, ns)}) for i, ns in enumerate((60_000, 40_000))}
    rows = compared_kernels(ranks, verify_of(1_000_000))
    assert uneven_kernels(ranks, verify_of(1_000_000), rows.head(0)).height == 0
    assert uneven_kernels(ranks, verify_of(1_000_000), rows).height == 1


def test_instances_of_a_phase_are_averaged_over_the_ranks_that_have_any() -> None:
    def rank(number: int, *ends: int) -> RankTrace:
        rows = [traces.phase("spec.verify", 1000 * n, 1000 * n + end) for n, end in enumerate(ends)]
        at = [1000 * n for n in range(len(ends))]
        more = [
            row
            for t in at
            for row in (traces.launch("cudaLaunchKernel", t + 1, t + 1), traces.kernel("x", t + 5, t + 6, t + 1))
        ]
        draft = traces.phase("spec.draft", 9000, 9100)
        return traces.rank_trace([row | {"rank": number} for row in (*rows, *more, draft)], number)

    found = phase_instance_ns(break_down(traces.trace(rank(0, 100, 300), rank(1, 500), rank(2))))
    assert found == {"verify": 350.0, "draft": 100.0}


def test_an_instance_that_a_window_cuts_is_not_averaged() -> None:
    rows = [traces.phase("spec.verify", 1000 * n, 1000 * n + end) for n, end in enumerate((100, 300, 500))]
    for start in (0, 1000, 2000):
        rows += [traces.launch("cudaLaunchKernel", start + 1, start), traces.kernel("x", start + 5, start + 6, start)]
    found = break_down(traces.trace(traces.rank_trace(rows)))
    whole = [False, True, True]
    cut = found.ranks[0].phase_instances.with_columns(complete=pl.Series(whole))
    assert cut.height == len(whole)
    assert phase_instance_ns(found) == {"verify": 300.0}
    assert phase_instance_ns(replace(found, ranks=[replace(found.ranks[0], phase_instances=cut)])) == {"verify": 400.0}


# ---- by module, or by name


def test_ranks_that_know_a_tenth_less_of_a_kernels_calls_are_compared_by_module() -> None:
    def rank(known: int) -> InstanceKernels:
        return kernels_of({key("a", "moe", EXPERTS): steady(known, 9, 10), key("a"): steady(100 - known, 9, 10)})

    for one, other in ((50, 60), (0, 10), (100, 90)):
        ranks = {"0": rank(one), "1": rank(other)}
        assert placed_alike(ranks) == ranks
    placed = placed_alike({"0": rank(50), "1": rank(61)})
    assert [one.keys.rows() for one in placed.values()] == [[key("a", "moe")]] * 2
    assert placed["1"].times.select("calls", "busy_ns", "exposed_ns").unique().rows() == [(100, 54, 18)]


def test_shares_are_of_the_calls_of_all_instances() -> None:
    """Rank 0 knows nine of ten calls, though in an instance as many are known as not."""
    one = kernels_of({key("a", "moe", EXPERTS): steady(5, 9, 9), key("a"): steady(5, 9, 1)})
    half = kernels_of({key("a", "moe", EXPERTS): steady(5, 9, 9), key("a"): steady(5, 9, 9)})
    assert placed_alike({"0": one, "1": half})["1"].keys.rows() == [key("a", "moe")]
    assert placed_alike({"0": one, "1": one})["1"].keys.height == 2


def test_calls_of_a_class_are_added_up_over_ranks_and_modules() -> None:
    one = {
        key("a", "moe", EXPERTS): steady(3, 4),
        key("a", "moe", MLP): steady(3, 4),
        key("a", "gemm", MLP): steady(4, 4),
    }
    placed = placed_alike({"0": kernels_of(one), "1": kernels_of({key("a"): steady(10, 4)})})
    assert [rank.keys.rows() for rank in placed.values()] == [[key("a", "moe")]] * 2


def test_a_kernel_that_is_compared_by_name_is_of_the_class_that_most_placed_calls_are_of() -> None:
    one = {
        key("a", "other_compute"): steady(2, 4),
        key("b", "gemm", MLP): steady(1, 7),
        key("a", "gemm"): steady(1, 5),
    }
    other = {
        key("a", "moe", EXPERTS): steady(1, 3),
        key("a", "gemm", MLP): steady(1, 2),
        key("a", "attention", "M.layers.N.attn"): steady(2, 1),
        key("b", "gemm", MLP): steady(1, 7),
    }
    placed = placed_alike({"0": kernels_of(one), "1": kernels_of(other)})
    assert [sorted(p.keys.rows(), key=str) for p in placed.values()] == [
        [key("a", "attention"), key("b", "gemm", MLP)]
    ] * 2
    # As many calls of two classes: the first by name.
    del other[key("a", "attention", "M.layers.N.attn")]
    placed = placed_alike({"0": kernels_of(one), "1": kernels_of(other)})
    assert [sorted(p.keys.rows(), key=str) for p in placed.values()] == [[key("b", "gemm", MLP), key("a", "gemm")]] * 2


def test_a_kernel_of_another_phase_keeps_its_module() -> None:
    draft = key("a", "moe", EXPERTS, phase="draft")
    one = {draft: steady(1, 4), key("a"): steady(1, 4)}
    other = {draft: steady(1, 4), key("a", "moe", EXPERTS): steady(1, 4)}
    found = compared(one, other).sort("phase")
    assert found.select("phase", "bucket", "module").rows() == [("draft", "moe", EXPERTS), ("verify", "moe", None)]


# ---- what is made of them


def test_what_is_slower_is_summed_by_class() -> None:
    one = {
        key("a"): steady(1, 90),
        key("b"): steady(1, 50),
        key("e"): steady(1, 24),
        key("c", "moe"): steady(1, 7),
        key("d", phase="draft"): steady(1, 3),
    }
    other = {
        key("a"): steady(1, 60),
        key("b"): steady(1, 55),
        key("e"): steady(1, 20),
        key("c", "moe"): steady(1, 7),
        key("d", phase="draft"): steady(1, 2),
    }
    assert slower_ns(compared(one, other)).rows() == [
        ("0", "draft", "gemm", 1.0),
        ("0", "verify", "gemm", 34.0),
        ("0", "verify", "moe", 0.0),
        ("1", "draft", "gemm", 0.0),
        ("1", "verify", "gemm", 5.0),
        ("1", "verify", "moe", 0.0),
    ]


def test_kernels_that_are_never_seen_alone_have_no_ratio() -> None:
    rows = pl.DataFrame({"ranks": [["0", "1"]] * 2, "instance_ns": [[0.0, 5.0], [4.0, 5.0]]})
    assert typical_ratio(rows) == {"0": 1.0, "1": 1.25}
    alone = pl.DataFrame(
        {
            "ranks": [["0", "1"]] * 6,
            "instance_ns": [[0.0, 5.0], [0.0, 6.0], [0.0, 7.0], [1.0, 1.0], [100.0, 110.0], [1000.0, 2000.0]],
        }
    )
    # Three kernels have a ratio, 1, 1.1 and 2, and half of their time lies in the last.
    assert typical_ratio(alone)["1"] == 1.1


@pytest.mark.parametrize(("first", "ratio"), [(50.0, 1.5), (49.0, 2.0)])
def test_half_of_the_time_is_reached_with_the_kernel_that_completes_it(first: float, ratio: float) -> None:
    """Ratios 1.5, 2 and 4 of kernels of which the first takes half of the time on the fastest rank, or nearly."""
    least = (first, 30.0, 20.0)
    ns = [[one, one * times] for one, times in zip(least, (1.5, 2.0, 4.0), strict=True)]
    assert typical_ratio(pl.DataFrame({"ranks": [["0", "1"]] * 3, "instance_ns": ns}))["1"] == ratio


def test_a_rank_in_the_middle_is_with_the_slower_ones() -> None:
    row = {"ranks": ["0", "1", "2", "3"], "instance_ns": [10.0, 20.0, 30.0, 19.9]}
    assert sides(row) == (["1", "2"], ["0", "3"])


def test_a_row_in_words() -> None:
    row = {
        **dict(zip(("phase", "bucket", "module", "name"), key("void sum<bf16>(x*)", "moe", EXPERTS), strict=True)),
        "calls": 1,
        "ranks": ["0", "1", "2"],
        "instance_ns": [1_250_000.0, 50_000.0, 1_240_000.0],
        "call_ns": [20_640.0, 2_000.0, 20_600.0],
        "difference_ns": 1_200_000.0,
    }
    assert in_words(row) == (
        f"verify moe, sum in {EXPERTS}, 1 call: 20.6 us a call on ranks 0 and 2, 2.0 on rank 1: 1.200 ms a verify"
    )
    assert in_words({**row, "module": None, "calls": 3}).startswith("verify moe, sum, 3 calls: ")
    assert ranks_in_words(["0", "1", "3"]) == "ranks 0, 1 and 3"
    assert short_name("(anonymous namespace)::fill<int>(int*)") == "fill"
