"""RULES R1 to R5 once more, slowly and instant by instant, sharing no code with the analyzer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

LEAVES = ("draft", "verify", "draft_extend")
LESSER = ("prefill", "decode", "idle")
TIERS = {
    "attention": 0,
    "moe": 0,
    "gemm": 0,
    "other_compute": 0,
    "graph_unresolved": 0,
    "allreduce": 1,
    "other_comm": 1,
    "memcpy": 2,
}


@dataclass
class Answer:
    """What the rules say about one rank."""

    window_ns: int = 0
    buckets: dict[str, dict[str, int]] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    hidden: dict[str, int] = field(default_factory=dict)


def _recognised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ranges = []
    for position, row in enumerate(rows):
        if row["kind"] in ("phase", "cycle") and row["dur_ns"] is not None and row["name"].startswith("spec."):
            phase = row["name"][5:]
            if phase in (*LEAVES, *LESSER, "cycle"):
                s = row["start_ns"]
                ranges.append(
                    {"phase": phase, "s": s, "e": s + row["dur_ns"], "t": (row["pid"], row["tid"]), "i": position}
                )

    def inside_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
        """a is nested in b, or its equal and listed later."""
        if a is b or a["phase"] != b["phase"] or a["t"] != b["t"] or not (b["s"] <= a["s"] and a["e"] <= b["e"]):
            return False
        return (a["s"], a["e"]) != (b["s"], b["e"]) or b["i"] < a["i"]

    kept = [a for a in ranges if not any(inside_same(a, b) for b in ranges)]
    return [
        a
        for a in kept
        if a["phase"] not in LESSER
        or not any(b["phase"] in LEAVES and b["t"] == a["t"] and b["s"] <= a["s"] and a["e"] <= b["e"] for b in kept)
    ]


def _innermost(ranges: list[dict[str, Any]], t: int) -> dict[str, Any] | None:
    for names in (LEAVES, LESSER, ("cycle",)):
        open_now = [r for r in ranges if r["phase"] in names and r["s"] <= t < r["e"]]
        if open_now:
            return min(open_now, key=lambda r: (-r["s"], r["e"] - r["s"], -r["i"]))
    return None


def partition(rows: list[dict[str, Any]], bucket_of: dict[str, str]) -> Answer | None:
    """The partition of one rank's rows (see ``traces``); ``bucket_of`` gives each kernel name its bucket."""
    ranges = _recognised(rows)
    if not ranges:
        return None
    launches = [
        {"s": r["start_ns"], "c": r["correlation"], "graph": r["name"] in ("cudaGraphLaunch", "cuGraphLaunch"), "i": i}
        | {"in": _innermost([x for x in ranges if x["t"] == (r["pid"], r["tid"])], r["start_ns"]), "acts": []}
        for i, r in enumerate(rows)
        if r["kind"] == "launch"
    ]
    acts: list[dict[str, Any]] = []
    for i, r in enumerate(rows):
        if r["kind"] in ("kernel", "memcpy", "memset") and r["dur_ns"] is not None and r["dur_ns"] >= 0:
            bucket = "memcpy" if r["kind"] != "kernel" else bucket_of[r["name"]]
            acts.append({"s": r["start_ns"], "e": r["start_ns"] + r["dur_ns"], "q": r["stream"], "b": bucket, "i": i})
            owner = next((x for x in launches if r["correlation"] is not None and x["c"] == r["correlation"]), None)
            acts[-1]["launch"] = owner
            if owner is None:
                acts[-1]["phase"] = "unattributed"
            else:
                owner["acts"].append(acts[-1])
                acts[-1]["phase"] = owner["in"]["phase"] if owner["in"] else "outside"
    original = [(a["s"], a["e"]) for a in acts]
    for a, (s, e) in zip(acts, original, strict=True):
        later = sorted(b["s"] for b in acts if b["q"] == a["q"] and s < b["s"] < e)
        if len(later) >= 3:
            a["e"] = later[0]
    w0 = min(r["s"] for r in ranges)
    inside = [a["e"] for a in acts if a["launch"] is not None and a["launch"]["in"] is not None]
    w1 = max([r["e"] for r in ranges] + inside)
    active_launches = [x for x in launches if x["acts"]]
    for x in active_launches:
        x["first"], x["last"] = min(a["s"] for a in x["acts"]), max(a["e"] for a in x["acts"])
        x["phase"] = x["in"]["phase"] if x["in"] else "outside"
    points = {w0, w1}
    for a in acts:
        points |= {a["s"], a["e"]}
    for r in ranges:
        points |= {r["s"], r["e"]}
    for x in active_launches:
        points |= {x["s"], x["first"], x["last"]}
    cuts = sorted(p for p in points if w0 <= p <= w1)
    buckets: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    busy: dict[str, int] = defaultdict(int)
    talking: dict[str, int] = defaultdict(int)
    for t, until in zip(cuts, cuts[1:], strict=False):
        running = [a for a in acts if a["s"] <= t < a["e"]]
        for p in {a["phase"] for a in running}:
            busy[p] += until - t
        for p in {a["phase"] for a in running if TIERS[a["b"]] == 1}:
            talking[p] += until - t
        spans = [x for x in active_launches if x["graph"] and x["first"] <= t < x["last"]]
        waits = [x for x in active_launches if x["s"] <= t < x["first"]]
        if running:
            a = min(running, key=lambda a: (TIERS[a["b"]], a["s"], a["q"], a["i"]))
            key = (a["phase"], a["b"])
        elif spans:
            key = (min(spans, key=lambda x: (x["s"], x["i"]))["phase"], "graph_gap")
        elif waits:
            key = (min(waits, key=lambda x: (x["s"], x["i"]))["phase"], "launch")
        else:
            innermost = _innermost(ranges, t)
            key = (innermost["phase"] if innermost else "between", "host")
        buckets[key[0]][key[1]] += until - t
    answer = Answer(w1 - w0)
    answer.buckets = {p: dict(b) for p, b in buckets.items()}
    answer.busy = dict(busy)
    for p, length in talking.items():
        shown = sum(ns for b, ns in buckets[p].items() if TIERS.get(b) == 1)
        answer.hidden[p] = length - shown
    for r in ranges:
        answer.instances[r["phase"]] = answer.instances.get(r["phase"], 0) + 1
    return answer
