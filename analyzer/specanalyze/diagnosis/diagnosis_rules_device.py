"""Rules about device time: what verify spends, all-reduce, experts, sampling, clocks."""

from __future__ import annotations

from typing import Final

import polars as pl

from specanalyze.answers.measured import Measured
from specanalyze.answers.window_context import window_context
from specanalyze.diagnosis.diagnosis_rule import HIGH, LOW, MEDIUM, Answer, Found, NotChecked, Rule, Subject, ms
from specschema.figures import percent
from specschema.phases import COMPUTE_BUCKETS, DEVICE_BUCKETS

VERIFY_BOUND_SHARE: Final = 0.80
"""Above this share of the phases' device-view time, nothing done to the draft model can matter much."""
ALLREDUCE_SHARE: Final = 0.08
"""All-reduce below this share of the target's forward is not worth a rule."""
FAST_ALLREDUCE_NS: Final = 10_000
"""What one small all-reduce on NVLink can take: on two H200, 2.4 to 2.9 us by a custom kernel and 7 us by NCCL's LL ring
were measured; ten leaves room for eight GPUs."""
MANY_CALLS: Final = 20
"""All-reduces of one forward from which latency adds up."""
LARGE_CALL_NS: Final = 1_000_000
"""An all-reduce that transfers for longer than this moves data, or waits; latency alone does not take a millisecond."""
SLOW_LINK_SHARE: Final = 20.0
"""GB/s; an all-reduce below it is far from what NVLink (hundreds) or even PCIe moves: it is bound by latency."""
SAMPLING_SHARE: Final = 0.03
TREE_SUBCLASSES: Final = ("sampling", "tree", "verify", "draft")
CLOCK_SHARE: Final = 0.90
"""SM clock below this share of its maximum while serving."""
IDLE_CLOCK_SHARE: Final = 0.5
"""A clock below this share of its maximum was read on an idle GPU (an H200 idles at 345 of 1,980 MHz): throttling does not go there."""
MOE_GROWTH, GEMM_GROWTH = 1.3, 1.15
"""MoE time that grows more than the first while dense GEMM grows less than the second: more experts are read, not more work done."""
ATTENTION_GROWTH: Final = 1.5
"""From one token to a few, attention reads the same cache: more than this means another, slower kernel."""
ATTENTION_SHARE: Final = 0.05
UNCLASSIFIED_SHARE: Final = 0.10


def verify_bound(s: Subject) -> Answer:
    if not s.m.speculating:
        return NotChecked("plain decoding has no verify phase")
    phases = {p: s.phase_ns(p) for p in s.m.phases}
    total = sum(phases.values())
    share = phases["verify"] / total
    if share < VERIFY_BOUND_SHARE:
        return None
    rest = total - phases["verify"]
    parts = sorted(((ns, b) for b, ns in s.cells["verify"].items() if ns), reverse=True)[:4]
    each = ", ".join(f"{p} {ms(ns)}" for p, ns in phases.items())
    return Found(
        f"verify is {percent(share)} of the phases' device-view time: the draft model cannot win more than {ms(rest)} of their {ms(total)}",
        (
            f"phases ({s.parts_are_of}): {each}, together {ms(total)}",
            f"verify (the same): {', '.join(f'{b} {ms(ns)}' for ns, b in parts)}",
        ),
        HIGH,
    )


def allreduce_latency(s: Subject) -> Answer:
    calls = s.m.kernels.filter(pl.col("phase") == s.main, pl.col("bucket") == "allreduce")
    exposed = s.ns("allreduce", s.main)
    forward = s.phase_ns(s.main)
    if not calls.height or exposed < ALLREDUCE_SHARE * forward:
        return None
    instances = sum(r.whole.get(s.main, 0) for r in s.m.breakdown.ranks)
    count = int(calls.get_column("whole_count").sum()) / max(instances, 1)
    share = s.m.transfer_share(s.main, "allreduce")
    each = exposed * (1.0 if share is None else share) / max(count, 1)
    if count < MANY_CALLS or not 2 * FAST_ALLREDUCE_NS < each < LARGE_CALL_NS:
        return None
    known = "transfer, waiting taken off" if share is not None else "waiting included: one rank was recorded"
    evidence = [
        f"{count:.0f} all-reduces a forward, {each / 1000:.1f} us each ({known}), {percent(exposed / forward)} of {s.main}",
        f"a small all-reduce on NVLink takes about {FAST_ALLREDUCE_NS / 1000:.0f} us or less",
    ]
    confidence = MEDIUM if share is not None else LOW
    speed = _transfer_speed(s, each)
    if speed is not None:
        evidence.append(f"{speed:.2f} GB/s of payload: far below any link, so latency and not bandwidth")
        if speed > SLOW_LINK_SHARE:
            return None
        confidence = HIGH if share is not None else MEDIUM
    nccl = [n for n in calls.get_column("name").unique().to_list() if "nccl" in n.lower()]
    if nccl:
        evidence.append(f"done by NCCL: {nccl[0].split('(')[0]}")
    return Found(
        f"all-reduce is latency-bound: {count:.0f} calls of {each / 1000:.0f} us in each {s.main}",
        tuple(evidence),
        confidence,
        count * (each - FAST_ALLREDUCE_NS),
        of=((s.main, "allreduce"),),
    )


def _transfer_speed(s: Subject, each_ns: float) -> float | None:
    """GB/s of an all-reduce's payload, by the tokens and the model's hidden size; None where these are not recorded."""
    model = s.environment.get("model")
    hidden = model.get("hidden_size") if isinstance(model, dict) else None
    tokens = s.m.verify_tokens
    if not isinstance(hidden, int) or tokens is None or each_ns <= 0:
        return None
    return tokens * hidden * 2 / each_ns


def moe_experts(s: Subject) -> Answer:
    now = s.ns("moe", s.main)
    if not now:
        return None
    if s.baseline is None or s.baseline.speculating:
        return NotChecked(
            "needs a plain decoding recording beside it (--baseline): MoE time for one token and for many"
        )
    if not s.m.speculating:
        return NotChecked("plain decoding verifies nothing")
    then = s.baseline.mean_ns()["decode"]
    if not then.get("moe") or not then.get("gemm"):
        return None
    growth, dense = now / then["moe"], s.ns("gemm", "verify") / then["gemm"]
    if (
        growth < MOE_GROWTH
        or dense > GEMM_GROWTH * max(1.0, growth / MOE_GROWTH)
        or growth < dense * MOE_GROWTH / GEMM_GROWTH
    ):
        return None
    tokens, before = s.m.verify_tokens, s.baseline.verify_tokens
    evidence = [
        f"device time, mean of whole traced cycles of each: MoE {ms(then['moe'])} for {before or 1:g} token(s) a step, {ms(now)} for "
        f"{'more' if tokens is None else f'{tokens:g}'}; dense GEMM takes {dense:.2f} times as long",
    ]
    model = s.environment.get("model")
    if isinstance(model, dict):
        experts = next((model[k] for k in ("n_routed_experts", "num_experts") if isinstance(model.get(k), int)), None)
        active = model.get("num_experts_per_tok")
        if experts and isinstance(active, int) and tokens:
            one, many = (experts * (1 - (1 - active / experts) ** t) for t in (before or 1, tokens))
            evidence.append(
                f"{active} of {experts} experts a token: independent tokens would activate {one:.0f} and {many:.0f} of them"
            )
    return Found(
        f"MoE takes {growth:.2f} times as long in verify as in plain decoding: more tokens activate more experts",
        tuple(evidence),
        MEDIUM,
        now - then["moe"],
        of=((s.main, "moe"),),
    )


def verify_attention(s: Subject) -> Answer:
    now = s.ns("attention", s.main)
    if not s.m.speculating or not now:
        return NotChecked("plain decoding verifies nothing") if not s.m.speculating else None
    if s.baseline is None or s.baseline.speculating:
        return NotChecked(
            "needs a plain decoding recording beside it (--baseline): attention for one token and for many"
        )
    then = s.baseline.mean_ns()["decode"].get("attention", 0.0)
    if not then or now < ATTENTION_GROWTH * then or now - then < ATTENTION_SHARE * s.phase_ns(s.main):
        return None
    names = [_longest(m, p) for m, p in ((s.baseline, "decode"), (s.m, "verify"))]
    return Found(
        f"attention takes {now / then:.1f} times as long in verify as in plain decoding",
        (
            f"device time, mean of whole traced cycles of each: {ms(then)} in a plain step, {ms(now)} in verify{_contexts(s.baseline, s.m)}; it "
            "reads the same cache for all drafted tokens",
            f"longest kernel: {names[0]} there, {names[1]} here",
        ),
        MEDIUM,
        now - then,
        of=((s.main, "attention"),),
    )


def _contexts(plain: Measured, m: Measured) -> str:
    """At how much context the windows of both lie, where both tell."""
    there, here = window_context(plain), window_context(m)
    return "" if there is None or here is None else f" (at {there:.0f} and {here:.0f} tokens of context)"


def _longest(m: Measured, phase: str) -> str:
    rows = m.kernels.filter(pl.col("phase") == phase, pl.col("bucket") == "attention").sort("sum_ns", descending=True)
    return str(rows["name"][0]).split("(")[0].split("<")[0] if rows.height else "none"


def sampling_on_path(s: Subject) -> Answer:
    ns = s.exposed_ns(pl.col("subclass").is_in(list(TREE_SUBCLASSES)))
    share = ns / s.step_ns
    if share < SAMPLING_SHARE:
        return None
    rows = s.m.kernels.filter(pl.col("subclass").is_in(list(TREE_SUBCLASSES)))
    top = rows.group_by("name").agg(pl.col("exposed_ns").sum()).sort("exposed_ns", descending=True).head(3)
    return Found(
        f"sampling and tree building stand on the critical path: {ms(ns)} of the {ms(s.busy_ns)} that the device works a cycle",
        ("largest: " + ", ".join(name.split("<")[0].split("(")[0] for name in top["name"].to_list()),),
        MEDIUM,
        ns,
        of=tuple((None, b) for b in DEVICE_BUCKETS),
    )


def clocks_throttled(s: Subject) -> Answer:
    clocks = s.environment.get("clocks")
    if not isinstance(clocks, dict) and s.on_a_cpu:
        return NotChecked("recorded on a CPU: there are no GPU clocks")
    if not isinstance(clocks, dict):
        return NotChecked(
            "GPU clocks are not recorded; the collector asks NVML for them, by the Python package nvidia-ml-py in the server's environment"
        )
    now, most = (_numbers(clocks.get(k)) for k in ("sm_mhz", "sm_max_mhz"))
    reasons = [r for r in clocks.get("throttle_reasons") or () if "idle" not in str(r).lower()]
    shares = [a / b if b and a >= IDLE_CLOCK_SHARE * b else 1.0 for a, b in zip(now, most, strict=False)]
    if not shares and not reasons:
        return NotChecked("GPU clocks are not recorded; record where NVML can be asked")
    slowest = min(shares, default=1.0)
    if slowest >= CLOCK_SHARE and not reasons:
        return None
    evidence = []
    if shares:
        place = shares.index(slowest)
        evidence.append(
            f"GPU {place}: SM clock {now[place]:.0f} of {most[place]:.0f} MHz when the recording was written"
        )
    if reasons:
        evidence.append(f"throttle reasons: {', '.join(str(r) for r in reasons)}")
    compute = sum(s.ns(b) for b in COMPUTE_BUCKETS)
    return Found(
        f"the GPU runs at {percent(slowest, 0)} of its clock",
        tuple(evidence),
        MEDIUM if reasons else LOW,
        compute * (1 - slowest) if reasons else None,
        of=tuple((None, b) for b in COMPUTE_BUCKETS),
    )


def _numbers(value: object) -> list[float]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [float(v) for v in values if isinstance(v, (int, float))]


def unclassified(s: Subject) -> Answer:
    share = s.m.breakdown.unclassified_share
    if share < UNCLASSIFIED_SHARE:
        return None
    names: dict[str, int] = {}
    for r in s.m.breakdown.ranks:
        for name, ns in r.unclassified_names.items():
            names[name] = names.get(name, 0) + ns
    top = sorted(names, key=lambda n: -names[n])[:3]
    return Found(
        f"{percent(share, 0)} of the device time is in kernels that no rule knows: findings about classes may be wrong",
        (f"largest: {', '.join(n[:60] for n in top)}",),
        HIGH,
    )


RULES: Final = (
    Rule(
        "allreduce_latency",
        "Is all-reduce bound by latency rather than by data?",
        {
            "sglang": "NCCL_PROTO=LL NCCL_ALGO=Ring (and NCCL_P2P_LEVEL where peer access is off); custom all-reduce on "
            "(no --disable-custom-all-reduce); --enable-flashinfer-allreduce-fusion",
            "vllm": "NCCL_PROTO=LL NCCL_ALGO=Ring (and NCCL_P2P_LEVEL where peer access is off); custom all-reduce on "
            "(no --disable-custom-all-reduce); fused all-reduce and norm in the compilation config",
        },
        "`compare` with a recording under these settings shows the same transfer time, or `ranks` shows that it is waiting",
        allreduce_latency,
    ),
    Rule(
        "moe_experts",
        "Does verify read more experts than plain decoding?",
        {"any": "fewer draft tokens; expert parallelism; a draft whose tokens agree more"},
        "MoE time stays the same in a recording with fewer draft tokens",
        moe_experts,
    ),
    Rule(
        "verify_attention",
        "Does verify run a slower attention kernel than plain decoding?",
        {
            "sglang": "--attention-backend (fa3, flashinfer, flashmla), --speculative-attention-mode decode",
            "vllm": "VLLM_ATTENTION_BACKEND; a backend that verifies several tokens with its decode kernel",
        },
        "the time is the same with another attention backend, or the recordings' context lengths differ",
        verify_attention,
    ),
    Rule(
        "sampling_on_path",
        "Do sampling and tree building take visible time?",
        {
            "sglang": "--sampling-backend flashinfer; topk 1 (a chain needs no tree); greedy where the task allows",
            "vllm": "FlashInfer sampling (VLLM_USE_FLASHINFER_SAMPLER=1); greedy where the task allows",
        },
        "the cycle does not get shorter with greedy sampling",
        sampling_on_path,
    ),
    Rule(
        "clocks_throttled",
        "Does the GPU run at its clock?",
        {
            "any": "power limit and cooling (nvidia-smi -q -d PERFORMANCE,POWER); lock the clocks for measurements (nvidia-smi -lgc)"
        },
        "the clock read during decoding (not when the recording was written) is at its maximum",
        clocks_throttled,
    ),
    Rule(
        "verify_bound",
        "Is it verify that the cycle consists of?",
        {
            "any": "leave the draft model alone; look at verify (`breakdown`, `layers`), at all-reduce and at fixed cost (`sweep`)"
        },
        "a recording without the draft's work (or a much smaller draft) is faster by more than its phases took",
        verify_bound,
    ),
    Rule(
        "unclassified",
        "Are kernels known by name?",
        {"any": "record with the node map (collector), so that classes come from modules"},
        "the named kernels belong to other_compute",
        unclassified,
    ),
)
"""Rules about device time."""
