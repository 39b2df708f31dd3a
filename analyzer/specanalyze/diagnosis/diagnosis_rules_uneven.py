"""The rule about ranks whose GPUs take longer for the same kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from specanalyze.answers.environment import argument
from specanalyze.answers.uneven_kernels import in_words, ranks_in_words, short_name, sides, typical_ratio
from specanalyze.diagnosis.diagnosis_rule import HIGH, LOW, MEDIUM, Answer, Found, NotChecked, Rule, Subject, ms
from specanalyze.diagnosis.uneven_cost import UnevenCost, uneven_cost
from specanalyze.whole_number import whole_number
from specschema.figures import counted, percent
from specschema.phases import COMMUNICATION_BUCKETS

UNEVEN_SHARE: Final = 0.01
"""A win below this share of the cycle is not worth a rule."""
SLOW_RANK: Final = 1.05
"""A rank whose typical kernel takes this many times as long as on the fastest rank is slow as a whole; equal GPUs under the same
clocks of one host were seen to differ by up to 1.7 per cent."""
AGREE: Final = 0.7
PARTLY: Final = 0.4
"""Shares of the expected waiting that the other ranks do wait, from which confidence is high, and medium."""
SHOWN: Final = 3
INDUCTOR: Final = re.compile(r"^triton_(poi|per|red|tem|for)_")
"""Kernels that torch.compile's inductor writes: pointwise, persistent reduction, reduction, template, foreach."""

TUNING: Final = (
    "torch.compile made and tuned this kernel in each rank's own process: let all ranks choose alike: one TORCHINDUCTOR_CACHE_DIR (and "
    "TRITON_CACHE_DIR) for all of them, filled before they start; or no timing at all: TORCHINDUCTOR_DETERMINISTIC=1, where torch knows it; or start again and `compare`"
)
SLOW_GPU: Final = (
    "that rank's GPU: `env` for clocks and power limits that differ between ranks; nvidia-smi on that host for ECC errors, temperature and another "
    "process on the same GPU"
)
BALANCE: Final = "experts are spread over the ranks (expert parallelism): balance their load (more redundant experts, placement by use) before any tuning"
ALIKE: Final = "let all ranks run the same code: the same library versions and tuning files on all of them, one cache for what is tuned at start; start again and `compare`"


def uneven_kernels(s: Subject) -> Answer:
    if len(s.m.breakdown.ranks) < 2:
        return NotChecked("one rank was recorded: its kernels cannot be compared with another rank's; record all ranks")
    if s.on_a_cpu:
        return NotChecked("recorded on a CPU: the ranks' kernels are not known")
    if not s.m.compared.height:
        return NotChecked("no kernel was recorded on several ranks with as many calls on each")
    found = uneven(s)
    if found is None:
        return None
    rows, cost, slow = found
    agreement = cost.agreement
    evidence = [in_words(row) for row in rows.head(SHOWN).to_dicts()]
    if slow is not None:
        ratio = typical_ratio(s.m.compared)[slow]
        evidence.insert(0, f"rank {slow}'s typical kernel takes {ratio:.2f} times as long as on the fastest rank")
    evidence.append(_waiting(cost, rows))
    if cost.waits is None or agreement is None:
        confidence = LOW
    else:
        confidence = HIGH if agreement >= AGREE else MEDIUM if agreement >= PARTLY else LOW
    cells = {(p, b) for p, b in rows.select("phase", "bucket").iter_rows()}
    cells |= {(p, b) for p in rows["phase"].unique().to_list() for b in COMMUNICATION_BUCKETS}
    return Found(
        _title(rows, cost, slow),
        tuple(evidence),
        confidence,
        cost.win,
        of=tuple(sorted(cells)),
        knob=SLOW_GPU if slow is not None else _knob(rows.row(0, named=True), s.environment),
    )


def uneven(s: Subject) -> tuple[pl.DataFrame, UnevenCost, str | None] | None:
    """The kernels that are slower on some ranks, what they cost, and the rank that is slow as a whole; None where it is not worth a rule."""
    if s.on_a_cpu:
        return None
    rows, slow = s.m.uneven, None
    if s.m.compared.height:
        ratios = typical_ratio(s.m.compared)
        slowest = max(ratios, key=lambda rank: ratios[rank])
        if ratios[slowest] >= SLOW_RANK:
            # All of its kernels count, each of which may be too short to be worth a row.
            slow, rows = slowest, s.m.compared.filter(pl.col("slowest") == slowest)
    cost = uneven_cost(s.m, rows)
    if cost is None or cost.win < UNEVEN_SHARE * s.step_ns:
        return None
    return rows, cost, slow


def _title(rows: pl.DataFrame, cost: UnevenCost, slow: str | None) -> str:
    if slow is not None:
        return f"rank {slow} takes longer for all of its kernels: {ms(cost.win)} a cycle"
    first = rows.row(0, named=True)
    least, most = min(first["instance_ns"]), max(first["instance_ns"])
    times = f"{most / least:.1f} times as long" if least else "longer"
    slower, _ = sides(first)
    more = "" if rows.height == 1 else f", and {counted(rows.height - 1, 'other kernel')} longer on some ranks"
    return f"{short_name(first['name'])} takes {times} on {ranks_in_words(slower)}{more}: {ms(cost.win)} a cycle"


def _waiting(cost: UnevenCost, rows: pl.DataFrame) -> str:
    if cost.waits is None:
        return "the ranks' collectives could not be matched, so what the other ranks wait for it is unknown"
    base = cost.waits.get(cost.slowest, 0.0)
    early = {rank: ns for rank, ns in cost.ahead().items() if 2 * ns >= max(cost.ahead().values())}
    longer = [max(0.0, cost.waits.get(rank, 0.0) - base) for rank in early]
    told = f"{min(longer) / 1e6:.3f} to {ms(max(longer))}" if len(longer) > 1 else ms(longer[0])
    phases = " and ".join(rows["phase"].unique(maintain_order=True).to_list())
    return (
        f"{ranks_in_words(list(early))} {'wait' if len(early) > 1 else 'waits'} {told} a cycle longer than rank {cost.slowest} in the collectives of {phases}: "
        f"{percent(cost.agreement, 0)} of what the slower kernels would make them wait"
    )


def _knob(row: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """What to turn for the kernel that costs most."""
    spread = (whole_number(argument(environment, "ep_size", "expert_parallel_size")) or 1) > 1 or argument(
        environment, "enable_expert_parallel"
    ) is True
    if INDUCTOR.match(row["name"]):
        return TUNING
    return BALANCE if spread and row["bucket"] == "moe" else ALIKE


RULES: Final = (
    Rule(
        "uneven_kernels",
        "Does the same kernel take longer on some ranks?",
        {"any": ALIKE},
        "the ranks were meant to do different work (other requests, other experts); or the kernel takes as long on all ranks, and the cycle is no "
        "shorter",
        uneven_kernels,
    ),
)
"""The rule about uneven kernels."""
