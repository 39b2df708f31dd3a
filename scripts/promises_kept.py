#!/usr/bin/env python3
"""What ``diagnose`` promises on the samples, and what came where another sample has the change. Run where ``samples/`` is:
docs/story.md shows its output.

A change counts as made when two samples differ in it alone. Measured: ms a token of untraced cycles, before less after; device: the
same of device work (transfer included, waiting not), which other starts of a server hardly move.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specanalyze.answers.measured import Measured, measure
from specanalyze.diagnosis.diagnose import examine
from specanalyze.formats.load import open_trace

EVENING = "sglang_tp2_eagle3_steps"
STORY = "story/eagle3_steps"
PLAIN = "sglang_tp2_plain"
RECORDINGS = (
    *(f"{EVENING}{name}" for name in ("2", "5", "2_nccl")),
    *(f"{STORY}{name}" for name in ("1", "2", "3", "5", "2_nccl", "2_nccl_p2p_off")),
    "story/pinning_free",
    "story/recv_every_step",
)


@dataclass(frozen=True)
class Acted:
    """A finding's knob, turned.

    Attributes:
        before: the recording with the finding.
        rule: the finding.
        turned: which of its knobs.
        after: the recording with the change.
        label: what the pair is called.
    """

    before: str
    rule: str
    turned: str
    after: str
    label: str = ""


ACTED = (
    Acted(f"{EVENING}2", "below_breakeven", "no speculation", PLAIN),
    Acted(f"{EVENING}5", "below_breakeven", "no speculation", PLAIN),
    Acted(f"{EVENING}5", "below_breakeven", "fewer steps", f"{EVENING}2"),
    Acted(f"{STORY}5", "below_breakeven", "fewer steps", f"{STORY}3"),
    Acted(f"{STORY}5", "below_breakeven", "fewer steps", f"{STORY}2"),
    Acted(f"{STORY}5", "below_breakeven", "fewer steps", f"{STORY}1"),
    Acted("story/pinning_free", "idle_gaps", "core of its own", "story/pinning_main_thread", "third machine, pinned"),
    Acted("story/recv_every_step", "idle_gaps", "recv interval 10", "story/recv_every_10th", "fourth, fewer receives"),
)
WOULD_ACT = {
    "idle_gaps": "a faster host",
    "straggler": "the late rank's host made faster",
    "verify_attention": "another --attention-backend",
}


@cache
def measured(name: str) -> Measured:
    return measure(open_trace([Path(f"samples/{name}.parquet")]))


@cache
def findings(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(examine(measured(name), measured(PLAIN)).findings.iter_rows(named=True))


def token_ms(m: Measured) -> float:
    """ms a token by the untraced cycle."""
    tokens = m.tokens_per_cycle
    assert tokens
    return m.step_ns / tokens / 1e6


def device_token_ms(m: Measured) -> float:
    """Device work of a token, ms: kernels and copies, communication by its transfer."""
    total = 0.0
    for phase, row in m.mean_ns().items():
        for bucket, ns in row.items():
            if bucket in ("allreduce", "other_comm"):
                ns *= m.transfer_share(phase, bucket) or 1.0
            total += 0.0 if bucket in ("graph_gap", "launch", "host") else ns
    tokens = m.tokens_per_cycle
    assert tokens
    return total / tokens / 1e6


def main() -> None:
    print(f"{'first finding of each recording':36}{'rule':18}{'up to':>7}  acted on by, or what would")
    for name in RECORDINGS:
        first = findings(name)[0]
        acted = [a.after for a in ACTED if (a.before, a.rule) == (name, first["rule"])]
        said = ", ".join(acted) if acted else WOULD_ACT.get(first["rule"], "plain decoding of the same server")
        print(f"  {name:34}{first['rule']:18}{first['win_ms_per_token']:7.3f}  {said}")
    print(f"\n{'acted on: ms a token':36}{'turned':16}{'up to':>7}{'measured':>10}{'device':>8}")
    for a in ACTED:
        row = next(r for r in findings(a.before) if r["rule"] == a.rule)
        before, after = measured(a.before), measured(a.after)
        won, device = token_ms(before) - token_ms(after), device_token_ms(before) - device_token_ms(after)
        label = f"{a.before.rpartition('/')[2]} -> {a.after.rpartition('_')[2]}".replace("sglang_tp2_", "")
        place = "story " if a.before.startswith("story") else ""
        print(f"  {a.label or place + label:34}{a.turned:16}{row['win_ms_per_token']:7.3f}{won:10.3f}{device:8.3f}")


if __name__ == "__main__":
    main()
