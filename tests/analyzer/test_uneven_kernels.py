"""The same kernel slower on some ranks: four ranks whose every duration is chosen, the answer worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces
from story import ALLREDUCE, ATTENTION, MOE, Work, environment, tuned_recording

from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.ranks_report import compare_ranks, ranks_frame, ranks_json
from specanalyze.answers.uneven_kernels import UNEVEN_SCHEMA, WORTH_NS, sides, span_us, typical_ratio
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
