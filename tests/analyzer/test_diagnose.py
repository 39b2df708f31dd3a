"""Every diagnosis rule on a recording that has the fault and on one that has not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from story import (
    ALLREDUCE,
    ATTENTION,
    GEMM,
    MISERABLE_ACCEPTANCE,
    MOE,
    NCCL_VARIABLES,
    SAMPLING,
    Recording,
    Work,
    baseline_recording,
    draft_work,
    environment,
    first_recording,
    speculative,
    sweep_recording,
    tuned_recording,
    verify_work,
)

from specanalyze.answers.measured import measure
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.cli import run
from specanalyze.diagnosis.diagnose import Diagnosis, examine
from specanalyze.diagnosis.diagnosis_claims import beyond, bounded, claimable
from specanalyze.diagnosis.diagnosis_rule import Found, Subject
from specanalyze.diagnosis.diagnosis_rules import RULES
from specanalyze.formats.load import open_trace


def with_work(recording: Recording, phase: str, **changes: Any) -> Recording:
    """The recording with one phase's work changed."""
    return replace(recording, phases={**recording.phases, phase: replace(recording.phases[phase], **changes)})


def with_kernels(recording: Recording, phase: str, **kernels: tuple[str, int, int]) -> Recording:
    """The recording with more kernels in one phase, each (name, calls, ns in all)."""
    more = {name: (calls, ns) for name, calls, ns in kernels.values()}
    return with_work(recording, phase, kernels={**recording.phases[phase].kernels, **more})


def ranks_with(**section: Any) -> dict[str, Any]:
    return {**environment(), "differs_by_rank": section}


def slow_clock(mhz: int) -> dict[str, Any]:
    return environment(
        gpus=[{"name": "NVIDIA H200", "clock_sm": mhz, "clock_sm_max": 1980, "power_limit": 700_000}] * 8
    )


SHORT: dict[str, Any] = {"cycles": 200, "traced": 10}
"""Enough for every rule, and quick."""
TWO = sweep_recording(2, **SHORT)
EAGLE = first_recording(**SHORT)
PLAIN = baseline_recording(15_900_000, tuned=False, **SHORT)
SHORT_VERIFY = speculative(6_000_000, 8_000_000, 1_000_000, 2, verify=verify_work(8_000_000, allreduce_ns=800_000))
SHARDED = replace(
    TWO,
    environment=environment(args={"tp_size": 2}),
    phases={**TWO.phases, "draft": draft_work(3_368_000, 2, 3_000_000)},
)
SAME_MOE = Recording(
    {"decode": Work(TWO.phases["verify"].kernels)},
    mode="decode",
    draft_tokens=None,
    environment=environment(args={"speculative_num_steps": None}),
    **SHORT,
)
FAST_ALLREDUCE = replace(TWO, phases={**TWO.phases, "verify": verify_work(18_000_000, allreduce_ns=122 * 15_000)})
FEW_LARGE_ALLREDUCES = Work(
    {ALLREDUCE: (2, 8_000_000), MOE: (61, 6_000_000), GEMM: (61, 3_000_000), ATTENTION: (61, 10**6)}
)
INDUCTOR = "triton_per_fused_copy__mul_sum_0"
REDUCED_LAYERS = Work(
    {ATTENTION: (61, 3 * 10**6), MOE: (61, 9 * 10**6), INDUCTOR: (61, 122_000), ALLREDUCE: (61, 4 * 10**6)}
)
PATTERNS = {"good": (0.75, 0.55), "bad": (0.10, 0.01), "first": (0.3, 0.29), "deep": (0.95, 0.91)}


@dataclass(frozen=True)
class Case:
    """A fault: recordings with it and without, what the title says, and the baseline where the rule needs one."""

    fault: Recording
    clean: Recording
    title: str
    baseline: Recording | None = None
    clean_baseline: Recording | None = None


CASES: dict[str, Case] = {
    "verify_bound": Case(EAGLE, SHORT_VERIFY, "the draft model cannot win more than 1.210 ms of their 27.280 ms"),
    "allreduce_latency": Case(TWO, FAST_ALLREDUCE, "122 calls of 85 us"),
    "moe_experts": Case(TWO, TWO, "MoE takes 3.42 times as long", PLAIN, SAME_MOE),
    "sampling_on_path": Case(
        with_kernels(TWO, "verify", more=(SAMPLING, 1, 3_000_000)),
        TWO,
        "sampling and tree building stand on the critical path",
    ),
    "clocks_throttled": Case(replace(TWO, environment=slow_clock(1200)), TWO, "the GPU runs at 61 % of its clock"),
    "unclassified": Case(
        with_kernels(TWO, "verify", more=("zzz_unheard_of", 61, 9_000_000)), TWO, "kernels that no rule knows"
    ),
    "idle_gaps": Case(
        with_work(TWO, "verify", gap_ns=9_000_000),
        TWO,
        "idles 26 % of the untraced cycle, the largest part of it: gaps inside graph replays",
    ),
    "eager_verify": Case(with_work(TWO, "verify", graph=False), TWO, "verify runs eagerly"),
    "graph_padding": Case(
        replace(TWO, batch_size=3, graph_batch_size=8),
        replace(TWO, batch_size=8, graph_batch_size=8),
        "graphs are padded: 62 %",
    ),
    "profiler_distortion": Case(
        replace(TWO, observer_ns=13_000_000), TWO, "observing makes the cycle 1.50 times as long"
    ),
    "below_breakeven": Case(
        replace(sweep_recording(5, **SHORT), environment=tuned_recording().environment),
        replace(TWO, environment=environment()),
        "accept length 2.50 is below break-even 2.69",
        baseline_recording(11_100_000, tuned=True, **SHORT),
        PLAIN,
    ),
    "draft_steps": Case(
        first_recording(), replace(TWO, acceptance=(0.85, 0.2)), "5 draft steps may be too many: 2 would give"
    ),
    "draft_allreduce": Case(SHARDED, TWO, "the draft model pays 3.000 ms a cycle for tensor parallelism over 2 ranks"),
    "wiring": Case(
        replace(TWO, acceptance=PATTERNS["bad"]), replace(TWO, acceptance=PATTERNS["good"]), "wired wrongly"
    ),
    "simulated_acceptance": Case(
        replace(TWO, environment=environment(variables={"SGLANG_SIMULATE_ACC_LEN": "2.0"})),
        TWO,
        "acceptance is simulated",
    ),
    "verify_attention": Case(
        with_kernels(TWO, "verify", more=(ATTENTION, 61, 6_000_000)),
        TWO,
        "attention takes 3.8 times as long in verify",
        PLAIN,
    ),
    "context_growth": Case(
        replace(TWO, traced=20, windows=(40, 80), grows_ns=100_000),
        replace(TWO, traced=20, windows=(40, 80), grows_ns=10_000),
        "verify attention grows with the context: the untraced cycle is 70 % longer at the end of the request (+100.00 us a token)",
    ),
    "straggler": Case(
        tuned_recording(ranks=2, lag_ns={1: 1_500_000}, verify=FEW_LARGE_ALLREDUCES, **SHORT),
        tuned_recording(ranks=2, lag_ns={1: 50_000}, verify=FEW_LARGE_ALLREDUCES, **SHORT),
        "rank 1 is a straggler: the others wait 1.500 ms a cycle",
    ),
    "uneven_kernels": Case(
        tuned_recording(ranks=2, slower_ns={1: (INDUCTOR, 1_220_000)}, verify=REDUCED_LAYERS, **SHORT),
        tuned_recording(ranks=2, slower_ns={1: (INDUCTOR, 61_000)}, verify=REDUCED_LAYERS, **SHORT),
        "triton_per_fused_copy__mul_sum_0 takes 11.0 times as long on rank 1: 1.220 ms a cycle",
    ),
    "nccl_variables": Case(
        TWO, replace(TWO, environment=environment(variables=NCCL_VARIABLES)), "NCCL_PROTO and NCCL_ALGO are not set"
    ),
    "wrong_nccl": Case(
        replace(
            TWO,
            environment=environment(nccl={"path": "/opt/libnccl.so.2", "version": "2.21.5", "torch_version": "2.28.9"}),
        ),
        TWO,
        "the NCCL that runs is not the one expected",
    ),
}


def diagnosed(recording: Recording, baseline: Recording | None = None) -> Diagnosis:
    return examine(measure(recording.trace()), None if baseline is None else measure(baseline.trace()))


def finding(result: Diagnosis, rule: str) -> dict[str, Any]:
    return result.findings.filter(pl.col("rule") == rule).row(0, named=True)


def test_every_rule_has_its_two_recordings() -> None:
    assert {rule.name for rule in RULES} == set(CASES)


@pytest.mark.parametrize("rule", sorted(CASES))
def test_the_fault_is_found(rule: str) -> None:
    case = CASES[rule]
    row = finding(diagnosed(case.fault, case.baseline), rule)
    assert case.title in row["title"]
    assert row["evidence"]
    assert row["knob"]
    assert row["disproof"]
    assert row["confidence"] in ("high", "medium", "low")


@pytest.mark.parametrize("rule", sorted(CASES))
def test_without_the_fault_the_rule_is_clean(rule: str) -> None:
    case = CASES[rule]
    result = diagnosed(case.clean, case.clean_baseline or case.baseline)
    assert rule in result.clean, (result.not_checked, result.findings.filter(pl.col("rule") == rule).to_dicts())


def test_findings_are_ranked_by_what_a_token_wins() -> None:
    result = diagnosed(with_work(TWO, "verify", gap_ns=20_000_000))
    wins = [w if w is not None else 0.0 for w in result.findings["win_ms_per_token"]]
    assert wins == sorted(wins, reverse=True)
    assert result.findings["rule"][0] == "idle_gaps"
    (per_token, per_cycle) = result.findings.select("win_ms_per_token", "win_ns_per_cycle").row(0)
    assert per_token == pytest.approx(per_cycle / 1e6 / 2.465)


@pytest.mark.parametrize("rule", sorted(CASES))
def test_promises_are_bounded_by_what_is_there_and_by_the_cycle(rule: str) -> None:
    case = CASES[rule]
    promises(diagnosed(case.fault, case.baseline))


def promises(result: Diagnosis) -> pl.DataFrame:
    """Findings with a win: each no more than the cycle, and what none above claims no more than it, together."""
    rows = result.findings.drop_nulls("win_ns_per_cycle")
    assert (rows["win_ns_per_cycle"] <= result.window_cycle_ns).all()
    assert (rows["beyond_ns_per_cycle"] <= rows["win_ns_per_cycle"] + 1e-6).all()
    assert (rows["beyond_ns_per_cycle"] >= 0).all()
    assert float(rows["beyond_ns_per_cycle"].sum()) <= result.window_cycle_ns * (1 + 1e-9)
    return rows


def test_a_win_is_no_more_than_the_part_of_the_cycle_it_names() -> None:
    subject = Subject(measure(TWO.trace()))
    there = subject.ns("allreduce", "verify")
    found = Found("", ("",), "low", 10 * there, of=(("verify", "allreduce"),))
    assert bounded(subject, found) == pytest.approx(there)
    assert bounded(subject, replace(found, of=())) == pytest.approx(min(10 * there, subject.step_ns))
    assert bounded(subject, replace(found, of=(("draft", "moe"),))) == 0.0


def test_what_a_finding_above_claims_is_not_claimed_twice() -> None:
    subject = Subject(measure(TWO.trace()))
    there = subject.ns("moe", "verify")
    all_of_it = Found("", ("",), "low", there, of=(("verify", "moe"),))
    half = replace(all_of_it, win_ns=there / 2)
    whole = replace(all_of_it, win_ns=there * 1.25, of=())
    found = [(f, bounded(subject, f)) for f in (half, all_of_it, replace(half, win_ns=None), whole)]
    assert beyond(subject, found) == pytest.approx([there / 2, there / 2, None, there / 4], nan_ok=True)
    everything = [(f, bounded(subject, f)) for f in (replace(whole, win_ns=1e12), replace(whole, win_ns=1e12))]
    assert beyond(subject, everything) == pytest.approx([subject.step_ns, 0.0])


def test_a_straggler_answers_only_for_the_waiting_that_it_causes() -> None:
    lags = tuned_recording(ranks=2, lag_ns={1: 3_000_000}, verify=FEW_LARGE_ALLREDUCES, **SHORT)
    extend = Work({ALLREDUCE: (1, 6_000_000), GEMM: (2, 200_000)})
    first_late = replace(lags, phases={**lags.phases, "draft_extend": extend})
    m = measure(first_late.trace())
    assert m.waits is not None
    # In the re-extend it is rank 0 that is late: it waits least there.
    extended = pl.col("phase") == PHASE_CODE["draft_extend"]
    wait = pl.col("dur_ns") - pl.col("transfer_ns")
    turned = m.waits.rows.with_columns(
        pl.when(extended).then(1 - pl.col("who").cast(pl.Int8)).otherwise("who").cast(pl.UInt16).alias("who"),
        pl.when(extended).then(pl.col("transfer_ns") + wait // 3).otherwise("dur_ns").alias("dur_ns"),
    )
    result = examine(replace(m, waits=replace(m.waits, rows=turned)))
    row = finding(result, "straggler")
    assert row["title"] == "rank 1 is a straggler: the others wait 3.000 ms a cycle for it"
    assert "rank 1 is last for 75 % of all waiting time" in row["evidence"][0]


def test_advice_on_gaps_is_withheld_without_an_untraced_control() -> None:
    gaps = with_work(TWO, "verify", gap_ns=9_000_000)
    row = finding(diagnosed(replace(gaps, control=False)), "idle_gaps")
    assert row["win_ns_per_cycle"] is None
    assert row["withheld"].startswith("withheld: observing makes launches, gaps and host time longer")
    assert "record with untraced control cycles" in row["withheld"]
    eager = finding(diagnosed(replace(with_work(TWO, "verify", graph=False), control=False)), "eager_verify")
    assert eager["withheld"] is not None
    assert eager["confidence"] == "high"  # that it is eager is certain; what a graph would win is not


def test_gaps_that_only_observing_makes_are_no_finding() -> None:
    assert "idle_gaps" in diagnosed(replace(TWO, observer_ns=13_000_000)).clean


def test_the_clock_of_an_idle_gpu_is_no_throttling() -> None:
    assert "clocks_throttled" in diagnosed(replace(TWO, environment=slow_clock(345))).clean


def test_recorded_throttle_reasons_give_the_win_a_figure() -> None:
    clocks = {"sm_mhz": [1200], "sm_max_mhz": [1980], "throttle_reasons": ["sw_power_cap"]}
    section = {k: v for k, v in environment().items() if k != "gpus"}
    row = finding(diagnosed(replace(TWO, environment={**section, "clocks": clocks})), "clocks_throttled")
    assert row["confidence"] == "medium"
    assert row["win_ns_per_cycle"] > 0
    assert "sw_power_cap" in row["evidence"][1]


def test_ranks_that_differ_in_nccl_variables_are_named() -> None:
    section = ranks_with(variables={"0": {"NCCL_PROTO": "LL"}, "1": {"NCCL_PROTO": "Simple"}, "2": {}})
    row = finding(diagnosed(replace(TWO, environment=section)), "nccl_variables")
    assert row["title"] == "ranks differ in NCCL_PROTO"
    assert row["evidence"] == ["NCCL_PROTO: rank 0 LL, rank 1 Simple, rank 2 unset"]
    assert row["confidence"] == "high"


def test_ranks_that_loaded_different_nccl_libraries_are_named() -> None:
    section = ranks_with(nccl={"0": {"path": "/a", "version": "2.28.9"}, "1": {"path": "/b", "version": "2.21.5"}})
    row = finding(diagnosed(replace(TWO, environment=section)), "wrong_nccl")
    assert "rank 1 2.21.5 (/b)" in row["evidence"][0]


def test_a_first_position_far_below_the_rest_and_simulated_acceptance() -> None:
    first = finding(diagnosed(replace(TWO, acceptance=PATTERNS["first"])), "wiring")
    assert any("first draft position" in line for line in first["evidence"])
    simulated = diagnosed(replace(TWO, environment=environment(variables={"SGLANG_SIMULATE_ACC_LEN": "2.0"})))
    assert "simulated" in simulated.not_checked["wiring"]
    assert "simulated" in simulated.not_checked["draft_steps"]


def test_too_few_steps() -> None:
    row = finding(diagnosed(replace(TWO, acceptance=PATTERNS["deep"])), "draft_steps")
    assert "2 draft steps may be too few: 3 would give" in row["title"]


def test_knobs_are_those_of_the_server() -> None:
    def knob(**server: Any) -> str:
        return str(finding(diagnosed(replace(EAGLE, environment=environment(**server))), "draft_steps")["knob"])

    assert knob() == "--speculative-num-steps and --speculative-num-draft-tokens"
    assert knob(server="vllm") == "num_speculative_tokens in speculative_config"
    assert knob(server=None).startswith("sglang: ")


def test_what_cannot_be_checked_says_what_to_record() -> None:
    result = diagnosed(replace(TWO, environment={}, graph_batch_size=None))
    assert {"straggler", "below_breakeven", "moe_experts", "nccl_variables", "wrong_nccl", "clocks_throttled"} <= set(
        result.not_checked
    )
    assert "--baseline" in result.not_checked["below_breakeven"]
    assert all("record" in reason or "needs" in reason for reason in result.not_checked.values())


def test_an_allreduce_that_waits_is_not_called_slow() -> None:
    case = CASES["straggler"]
    assert "allreduce_latency" in diagnosed(case.fault).clean


def test_plain_decoding_is_diagnosed_too() -> None:
    result = diagnosed(PLAIN)
    assert "allreduce_latency" in result.findings["rule"].to_list()
    assert "verify_bound" in result.not_checked


def test_the_first_recording_is_miserable_but_not_wired_wrongly() -> None:
    assert MISERABLE_ACCEPTANCE[0] > 0.5
    assert "wiring" in diagnosed(EAGLE).clean


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plain = str(TWO.write(tmp_path)), str(PLAIN.write(tmp_path))
    assert run(["diagnose", path, "--baseline", plain]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1. all-reduce is latency-bound" in out
    assert "wrong if:" in out
    assert "MoE takes 3.42 times as long" in out
    assert run(["diagnose", path, "-o", str(tmp_path / "findings.csv")]) == 0
    assert "allreduce_latency" in (tmp_path / "findings.csv").read_text()


def test_real_recordings(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "traces" / "sglang_h200" / "tp2"
    files = [str(folder / f"e2_m17_rank{rank}.json.gz") for rank in (0, 1)]
    assert run(["diagnose", *files, "--baseline", str(folder / "base_m17_rank?.json.gz")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1. the device idles 60 % of the untraced cycle" in out  # host-bound, as its server's log says
    assert "accept length 2.00 is below break-even" in out
    assert "acceptance is simulated" in out
    assert run(["diagnose", str(folder.parent / "tp1" / "e2_eager_rank0.json.gz")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "verify runs eagerly, without a CUDA graph" in out
    assert "advice withheld" in out


def test_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).resolve().parents[2] / "samples"
    speculating, plain = (str(folder / f"sglang_tp2_{name}.parquet") for name in ("eagle3_steps2", "plain"))
    assert run(["diagnose", speculating, "--baseline", plain]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1. the device idles 33 % of the untraced cycle" in out
    assert "accept length 2.00 is below break-even 2.36" in out
    assert "attention takes 4.2 times as long in verify as in plain decoding" in out
    assert "SGLANG_SIMULATE_ACC_LEN=2.0 is set" in out


SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def test_promises_on_the_samples_are_bounded() -> None:
    plain = measure(open_trace([SAMPLES / "sglang_tp2_plain.parquet"]))
    for path in sorted(SAMPLES.rglob("*tp2_eagle3*.parquet")) + sorted((SAMPLES / "story").glob("*.parquet")):
        m = measure(open_trace([path]))
        rows = promises(examine(m, plain))
        assert rows.height >= 2, path
        waiting = [r for r in rows.iter_rows(named=True) if r["rule"] == "straggler"]
        for row in waiting:  # what the other rank waits, at most all waiting there is
            assert m.waits is not None
            waits = float(m.waits.collectives["wait_ns"].sum()) / m.cycle_count
            assert row["win_ns_per_cycle"] < waits


def test_shares_and_figures_have_the_denominator_they_name() -> None:
    row = finding(diagnosed(EAGLE), "verify_bound")
    assert row["title"] == (
        "verify is 95.6 % of the phases' device-view time: the draft model cannot win more than 1.210 ms of their 27.280 ms"
    )
    assert row["evidence"][0].startswith("phases (mean of 10 whole traced cycles")
    assert row["evidence"][0].endswith("together 27.280 ms")
    late = finding(diagnosed(CASES["straggler"].fault), "straggler")
    assert "of all waiting time (`ranks` counts instead: last in so many of the collectives)" in late["evidence"][0]


def test_one_sentence_has_one_basis() -> None:
    """``verify_bound`` set phases of traced cycles that add up to 13.9 ms beside an untraced cycle of 13.6 ms."""
    plain = measure(open_trace([SAMPLES / "sglang_tp4_mla61_plain.parquet"]))
    m = measure(open_trace([SAMPLES / "sglang_tp4_mla61_eagle3_steps2.parquet"]))
    result = examine(m, plain)
    assert (result.clock, result.covers["phases, buckets and wins"]) == (
        "untraced",
        f"mean of {m.cycle_count} whole traced cycles, idle time scaled to the untraced cycle",
    )
    assert "untraced cycles, over the whole recording" in result.covers["cycle_ns"]
    phases = finding(result, "verify_bound")["evidence"][0]
    each, together = phases.split(": ", 1)[1].split(", together ")
    assert sum(float(part.split()[1]) for part in each.split(", ")) == pytest.approx(
        float(together.split()[0]), abs=0.002
    )
    for line in lines_of(result):
        scaled = line.replace("idle time scaled to the untraced cycle", "")
        assert not ("untraced" in scaled and re.search(r"(?<!un)traced", scaled)), line


def lines_of(result: Diagnosis) -> list[str]:
    return [line for row in result.findings.iter_rows(named=True) for line in (row["title"], *row["evidence"])]


def test_all_that_is_claimed_of_a_cycle_is_no_more_than_it() -> None:
    """Means of traced cycles come to more than the median untraced one here."""
    m = measure(open_trace([SAMPLES / "sglang_tp4_mla61_eagle3_steps2.parquet"]))
    subject = Subject(m)
    assert sum(sum(row.values()) for row in subject.cells.values()) > m.window_step_ns
    assert sum(claimable(subject).values()) == pytest.approx(m.window_step_ns)


def test_break_even_is_a_ratio_of_times_by_one_clock() -> None:
    """An untraced cycle over a traced step, which observing makes longer, would promise too little accept length."""
    plain = replace(baseline_recording(11_100_000, tuned=True), observer_ns=1_000_000)
    for baseline, clock in ((plain, "untraced"), (replace(plain, control=False), "traced")):
        row = finding(diagnosed(EAGLE, baseline), "below_breakeven")
        assert f"each the median of {clock} cycles" in row["evidence"][0]
        assert row["confidence"] == {"untraced": "high", "traced": "medium"}[clock]


def test_idle_kinds_add_up_to_the_idle_time_they_are_of() -> None:
    for name in ("sglang_tp2_eagle3_steps2", "sglang_v1_tp1_eagle3_steps2", "vllm_tp1_eagle3_steps2"):
        result = examine(measure(open_trace([SAMPLES / f"{name}.parquet"])))
        for row in result.findings.filter(pl.col("rule") == "idle_gaps").iter_rows(named=True):
            left, kinds = re.fullmatch(r"what is left, ([\d.]+) ms, .*: (.*)", row["evidence"][2]).groups()  # type: ignore[union-attr]
            told = [float(ms) for ms in re.findall(r"([\d.]+) ms", kinds)]
            assert sum(told) == pytest.approx(float(left), abs=0.003), name


def test_a_recording_on_a_cpu_has_no_gpu_clocks_to_ask_for() -> None:
    trace = open_trace([Path(__file__).parents[1] / "cases" / "27-cpu-only-trace"], device="cpu")
    not_checked = examine(measure(trace)).not_checked
    assert not_checked["clocks_throttled"] == "recorded on a CPU: there are no GPU clocks"
    assert not_checked["idle_gaps"].startswith("recorded on a CPU")
