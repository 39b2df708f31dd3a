"""Rules about the context: what makes a cycle longer the further a request has come."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.cycle_growth import FEWEST, Growth
from specanalyze.answers.cycle_place import place_in_words
from specanalyze.answers.device_growth import UNITS, grown_part, too_near
from specanalyze.answers.measured import Measured
from specanalyze.answers.neighbours import FEW
from specanalyze.diagnosis.diagnosis_rule import HIGH, LOW, MEDIUM, Answer, Found, NotChecked, Rule, Subject
from specschema.figures import counted, percent, signed

GROWTH: Final = 0.2
"""A cycle that grows less than this share over the request is as long as plain reading of a cache may make it."""
OWN_GROWTH: Final = 1.5
"""Growth a token, over plain decoding's, up to which it is the model's own reading of the cache."""
SHOWN: Final = 3


def context_growth(s: Subject) -> Answer:
    if s.on_a_cpu:
        return NotChecked("recorded on a CPU: device work over the context is not known")
    growth = s.m.growth
    if growth is None and len(s.m.steps_ns(traced=False)) < FEWEST:
        return NotChecked(
            f"fewer than {FEWEST} untraced cycles: whether the cycle grows over a request is unknown; record a longer answer"
        )
    if growth is None or growth.share < GROWTH:
        return None
    grown = s.m.grown
    if not grown.height:
        if s.m.cycle_count < 2 * FEW:
            return NotChecked(
                f"{growth.sentence('the cycle')}, but {counted(s.m.cycle_count, 'traced cycle')} cannot show which device work does: "
                "record windows along the request (--windows record=40,repeat=3,gap=100)"
            )
        return None
    evidence = [growth.sentence("the untraced cycle")]
    evidence += [f"device time: {grown_part(row, growth.kind)}" for row in grown.head(SHOWN).to_dicts()]
    if unknown := too_near(grown, growth.kind):
        evidence.append(unknown)
    if kernel := _longest(s.m, str(grown["phase"][0]), str(grown["bucket"][0])):
        evidence.append(f"longest kernel of it: {kernel}")
    slope, own, confidence = growth.slope, Interval(0.0, 0.0, 0.0), LOW
    if s.baseline is None or s.baseline.speculating or not s.m.speculating:
        evidence.append(
            "how much of it plain decoding has as well is not known"
            + (" (--baseline tells)" if s.m.speculating else "")
        )
    else:
        plain = s.baseline.growth
        then = 0.0 if plain is None else plain.slope.value
        if plain is None and len(s.baseline.steps_ns(traced=False)) < FEWEST:
            evidence.append("the baseline has too few untraced cycles to show how it grows")
        elif plain is not None and plain.kind != growth.kind:
            evidence.append("the baseline does not tell the context of its cycles")
        else:
            if slope.value < OWN_GROWTH * then:
                return None
            evidence.append(
                "plain decoding's untraced step does not grow"
                if plain is None
                else plain.sentence("plain decoding's untraced step")
            )
            own = own if plain is None else plain.slope
            confidence = HIGH if then * OWN_GROWTH < slope.value - then else MEDIUM
    place = (float(grown["first_place"][0]) + float(grown["last_place"][0])) / 2
    more = slope.value - own.value
    evidence.insert(1, _over_the_recording(s, growth, slope, own, place))
    parts = tuple(dict.fromkeys(grown.select("phase", "bucket").iter_rows()))
    names = " and ".join(f"{phase} {bucket}" for phase, bucket in parts[:2])
    return Found(
        f"{names} {'grows' if len(parts) == 1 else 'grow'} with the context: the untraced cycle is {percent(growth.share, 0)} longer at "
        f"the end of the request ({signed(growth.slope.value / 1000, 2)} us a {UNITS[growth.kind]})",
        tuple(evidence),
        confidence,
        more * (place - growth.first[0]),
        of=parts,
    )


def _over_the_recording(s: Subject, growth: Growth, slope: Interval, own: Interval, place: float) -> str:
    """What the win is over all untraced cycles, whose contexts are others than the windows', with bounds from both slopes."""
    here, there = place_in_words(place, growth.kind), place_in_words(growth.mean_place or place, growth.kind)
    further = (growth.mean_place or place) - growth.first[0]
    more = slope.value - own.value
    tokens = s.m.tokens_per_cycle
    each = further / 1e6 / (tokens or 1.0)
    bounds = ""
    if slope.low is not None and slope.high is not None and own.low is not None and own.high is not None:
        low = more - math.hypot(slope.value - slope.low, own.high - own.value)
        high = more + math.hypot(slope.high - slope.value, own.value - own.low)
        bounds = f" (95 % bounds {low * each:.3f} to {high * each:.3f})"
    return (
        f"that is for the windows' place, {here}; over the whole recording, {there} on average, it is up to "
        f"{more * each:.3f} ms a {'token' if tokens else 'cycle'}{bounds}"
    )


def _longest(m: Measured, phase: str, bucket: str) -> str:
    rows = m.kernels.filter(pl.col("phase") == phase, pl.col("bucket") == bucket).sort("sum_ns", descending=True)
    return str(rows["name"][0]).split("(")[0].split("<")[0] if rows.height else ""


RULES: Final = (
    Rule(
        "context_growth",
        "Does the cycle grow with the context, more than plain decoding does?",
        {
            "sglang": "--attention-backend (fa3, flashinfer, flashmla, cutlass_mla, trtllm_mla), --speculative-attention-mode decode: a kernel that "
            "reads the cache once for all drafted tokens, split over the context; fewer draft tokens for long requests",
            "vllm": "VLLM_ATTENTION_BACKEND: a backend that verifies several tokens with its decode kernel, split over the context; fewer "
            "draft tokens for long requests",
        },
        "the same request grows as much a token under another attention backend, or a request that starts with a long prompt is as fast at "
        "its first tokens as a short one (within one request context and time go together)",
        context_growth,
    ),
)
"""Rules about the context."""
