"""Rules about drafting: does it pay, how many steps, is it wired rightly, what does its own tensor parallelism cost."""

from __future__ import annotations

from typing import Final

import polars as pl

from specanalyze.answers.advice import ACCEPTS, SETTINGS, advice
from specanalyze.answers.cycle_account import CLOCKS, UNTRACED, account, common_clock
from specanalyze.answers.environment import tensor_parallel
from specanalyze.answers.medians import ratio_interval
from specanalyze.answers.positions import acceptance_by_position
from specanalyze.answers.whatif import DRAFT_PHASES, Changes, predict
from specanalyze.answers.wiring import simulated, wiring_warnings
from specanalyze.diagnosis.diagnosis_rule import HIGH, LOW, MEDIUM, Answer, Found, NotChecked, Rule, Subject, ms
from specschema.figures import percent
from specschema.phases import COMMUNICATION_BUCKETS

DRAFT_COMMUNICATION_SHARE: Final = 0.10
"""Communication below this share of the draft's phases is not worth a rule."""
BETTER: Final = 1.03
"""tok/s gain below which another step count is not worth a recording."""


def _no_accepts(s: Subject) -> str:
    return f"accepts are not recorded; {advice(s.m.trace, ACCEPTS, 'give the cycle log (--cycles)')}"


def draft_allreduce(s: Subject) -> Answer:
    size = tensor_parallel(s.m.trace)
    phases = [p for p in DRAFT_PHASES if p in s.m.phases]
    talk = 0.0
    for p in phases:
        for b in COMMUNICATION_BUCKETS:
            # Waiting for a late rank is no cost of sharding: without these collectives the next ones wait for it.
            share = s.m.transfer_share(p, b)
            talk += s.ns(b, p) * (1.0 if share is None else share)
    total = sum(s.phase_ns(p) for p in phases)
    if not total or size is None or size < 2 or talk < DRAFT_COMMUNICATION_SHARE * total:
        return None
    compute = sum(s.ns(b, *phases) for b in ("attention", "moe", "gemm"))
    win = talk - compute * (size - 1)
    evidence = (
        f"draft and re-extend take {ms(total)} a cycle, {ms(talk)} of it communication ({percent(talk / total, 0)}; {s.parts_are_of})",
        f"on one rank its {ms(compute)} of compute would take up to {size} times as long",
    )
    if win <= 0:
        return None
    title = f"the draft model pays {ms(talk)} a cycle for tensor parallelism over {size} ranks"
    return Found(title, evidence, MEDIUM, win, of=tuple((p, b) for p in phases for b in COMMUNICATION_BUCKETS))


def below_breakeven(s: Subject) -> Answer:
    if not s.m.speculating:
        return NotChecked("plain decoding drafts nothing")
    if s.baseline is None or s.baseline.speculating:
        return NotChecked("needs a plain decoding recording of the same server (--baseline)")
    length, tokens = s.m.accept_length, s.m.tokens_per_cycle
    if length is None or tokens is None:
        return NotChecked(_no_accepts(s))
    clock = common_clock((s.m, s.baseline))  # one clock for both: a traced cycle over an untraced step is no break-even
    ours, plain = account(s.m, clock), account(s.baseline, clock)
    cycle, base = ours.median_ns, plain.median_ns
    needed = cycle / base
    if length >= needed:
        return None
    per_token = cycle / length - base
    bounds = ratio_interval(ours.cycles_ns, plain.cycles_ns)
    edge = bounds.low is not None and length >= bounds.low
    between = "" if bounds.low is None else f" (95 % bounds {bounds.low:.2f} to {bounds.high:.2f})"
    outcome = "at the edge, within the noise" if edge else "speculation loses against plain decoding"
    sure = HIGH if clock == UNTRACED else MEDIUM
    return Found(
        f"accept length {length:.2f} is below break-even {needed:.2f}: {outcome}",
        (
            f"break-even = cycle / plain step = {cycle / 1e6:.3f} ms / {base / 1e6:.3f} ms = {needed:.2f}{between}; each the {CLOCKS[clock]}",
            f"each token costs {ms(cycle / length)} with speculation, {ms(base)} without (the same clock)",
        ),
        LOW if edge else sure,
        per_token * tokens,
    )


def draft_steps(s: Subject) -> Answer:
    steps = s.m.draft_steps
    acceptance = s.m.acceptance()
    if not s.m.speculating:
        return NotChecked("plain decoding drafts nothing")
    if _steps(s).height and _simulated(s):
        return NotChecked("acceptance is simulated, so it says nothing about step counts; record with the draft's own")
    if not len(acceptance):
        return NotChecked(_no_accepts(s))
    if steps is None or s.m.verify_tokens is None:
        return NotChecked(f"the number of draft steps is not recorded; {advice(s.m.trace, SETTINGS)}")
    here = s.m.tokens_per_second or 0.0
    options = {n: predict(s.m, Changes(steps=n)) for n in range(1, steps + 2) if n != steps}
    speeds = {n: r.speed_bounds or (0.0, 0.0) for n, r in options.items()}
    best = max(speeds, key=lambda n: sum(speeds[n]))
    low, high = speeds[best]
    middle = (low + high) / 2
    if not middle or middle < BETTER * here:  # nothing was committed: no step count is better
        return None
    sure = low >= BETTER * here
    what = "too many" if best < steps else "too few"
    positions = ", ".join(f"{share:.3f}" for share in acceptance)
    return Found(
        f"{steps} draft steps {'are' if sure else 'may be'} {what}: {best} would give {low:.1f} to {high:.1f} tok/s instead of {here:.1f}",
        (
            f"share of verify steps that accept at least 1, 2, ... drafts: {positions}",
            f"tok/s by the cycle: {s.cycle_is_of}",
            *options[best].assumptions,
        ),
        HIGH if sure else LOW,
        s.m.step_ns - (s.m.tokens_per_cycle or 1.0) / middle * 1e9,
    )


def _steps(s: Subject) -> pl.DataFrame:
    return s.m.accepts().drop_nulls("committed")


def _lines(s: Subject) -> list[str]:
    steps = _steps(s)
    lines = wiring_warnings(steps, acceptance_by_position(steps), s.environment)
    return [line for line in lines if not line.startswith("the draft is a tree")]


def _simulated(s: Subject) -> bool:
    return simulated(_steps(s).get_column("accepted"), s.environment) is not None


def wiring(s: Subject) -> Answer:
    if not s.m.speculating:
        return NotChecked("plain decoding drafts nothing")
    if not _steps(s).height:
        return NotChecked(_no_accepts(s))
    if _simulated(s):
        return NotChecked("acceptance is simulated; record with the draft's own")
    lines = _lines(s)
    if not lines:
        return None
    return Found("acceptance looks like a draft that is wired wrongly", tuple(lines), MEDIUM)


def simulated_acceptance(s: Subject) -> Answer:
    if not s.m.speculating:
        return NotChecked("plain decoding drafts nothing")
    if not _steps(s).height:
        return NotChecked(_no_accepts(s))
    said = simulated(_steps(s).get_column("accepted"), s.environment)
    if said is None:
        return None
    return Found("acceptance is simulated: accept length and tok/s say nothing about this draft", (said,), HIGH)


RULES: Final = (
    Rule(
        "below_breakeven",
        "Does speculation pay at all?",
        {
            "sglang": "fewer --speculative-num-steps, a better draft, or no --speculative-algorithm for this load; first shorten verify",
            "vllm": "fewer num_speculative_tokens, a better draft, or no speculative_config for this load; first shorten verify",
        },
        "plain decoding recorded again, right now on this server, has longer steps than the baseline",
        below_breakeven,
    ),
    Rule(
        "draft_steps",
        "Is the number of draft steps right?",
        {
            "sglang": "--speculative-num-steps and --speculative-num-draft-tokens",
            "vllm": "num_speculative_tokens in speculative_config",
        },
        "`sweep` over recordings at the two step counts does not agree",
        draft_steps,
    ),
    Rule(
        "draft_allreduce",
        "Does the draft model pay for tensor parallelism?",
        {
            "sglang": "a draft that is not sharded where the version allows it; NCCL_PROTO=LL or custom all-reduce for its small tensors",
            "vllm": "draft_tensor_parallel_size 1 in speculative_config",
        },
        "`compare` with an unsharded draft shows longer draft phases",
        draft_allreduce,
    ),
    Rule(
        "wiring",
        "Does acceptance look like that of a rightly wired draft?",
        {
            "any": "check the draft against its target: same tokenizer and vocabulary map, the hidden layers it was trained on, positions"
        },
        "the draft's acceptance on its own training data, offline, shows the same pattern",
        wiring,
    ),
    Rule(
        "simulated_acceptance",
        "Is acceptance the draft's own?",
        {"sglang": "unset SGLANG_SIMULATE_ACC_LEN", "any": "serve without simulated acceptance"},
        "the variable was not read by the server, and its log shows varying accept lengths",
        simulated_acceptance,
    ),
)
"""Rules about drafting."""
