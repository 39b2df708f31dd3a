"""Real recordings against an independent slow sweep: window and per-phase totals by tier, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace
from specschema.phases import COMMUNICATION_BUCKETS, COMPUTE_BUCKETS, MEMORY_BUCKETS

TIER_OF = (
    dict.fromkeys(COMPUTE_BUCKETS, "compute")
    | dict.fromkeys(COMMUNICATION_BUCKETS, "comm")
    | dict.fromkeys(MEMORY_BUCKETS, "memcpy")
)
NAMES = (
    "h200_tp2_probe/rank0.json.gz",
    "h200_tp2_probe/rank1.json.gz",
    "sglang_h200/tp1/e2_eager_rank0.json.gz",
    "sglang_h200/tp1/e2_nodemap_m17_rank0.json.gz",
    "sglang_h200/tp1/e5_m13_rank0.json.gz",
    "sglang_h200/tp1/shared_e2_rank0.json.gz",
    "sglang_h200/tp1/shared_e2_rank1.json.gz",
    *(
        f"sglang_h200/tp2/{n}_rank{r}.json.gz"
        for n in ("e2_m13", "e2_m17", "e2_nccl_m17", "e2_nccl_nodemap_m17", "e5_m17")
        for r in (0, 1)
    ),
)


def by_tier(buckets: dict[str, int]) -> dict[str, int]:
    tiers: dict[str, int] = {}
    for bucket, ns in buckets.items():
        tier = TIER_OF.get(bucket, bucket)
        tiers[tier] = tiers.get(tier, 0) + ns
    return tiers


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_reference(name: str, reference: Path) -> None:
    want: dict[str, Any] = json.loads((reference / "traces/reference.json").read_text())["traces"][name]
    result = break_down(open_trace([reference / "traces" / name]))
    (rank,) = result.ranks
    assert rank.window_ns == want["window_ns"]
    got = {p: by_tier(b) for p, b in rank.buckets_ns.items() if b}
    assert got == want["phases"]
    assert {p: n for p, n in rank.instances.items() if n} == want["instances"]
    assert result.unclassified_share < 0.01


def test_every_reference_recording_is_tried(reference: Path) -> None:
    listed = json.loads((reference / "traces/reference.json").read_text())["traces"]
    assert sorted(listed) == sorted(NAMES)
