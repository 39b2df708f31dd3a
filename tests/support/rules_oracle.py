"""The rules of tests/cases/RULES.md done the slow way, from the files alone.

A second opinion for the analyzer's numbers: plain Python over plain lists, no module of the analyzer, its readers
included, so that a fault they share cannot hide. Times are integer nanoseconds; every rule is a literal reading of its
paragraph (R1 to R5, R7, R9, R10). Classes of names are given by the caller: naming is another test.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

STRONG = ("draft", "verify", "draft_extend")
WEAK = ("prefill", "decode", "idle")
TIERS = {
    **dict.fromkeys(("attention", "moe", "gemm", "other_compute", "graph_unresolved"), 0),
    **dict.fromkeys(("allreduce", "other_comm"), 1),
    "memcpy": 2,
}
GRAPH_LAUNCHES = {"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"}
DEVICE_CATEGORIES = {"kernel": None, "gpu_memcpy": "memcpy", "gpu_memset": "memcpy"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}


@dataclass
class Span:
    """A recognised range: half open, ``order`` is its place in the file."""

    phase: str
    start: int
    end: int
    thread: Any
    order: int


@dataclass
class Call:
    """A launch call."""

    name: str
    start: int
    thread: Any
    correlation: int
    order: int
    phase: str = "outside"
    activities: list[Activity] = field(default_factory=list)
    again: bool = False  # a graph launch of which another row stands for the same call


@dataclass
class Activity:
    """A valid device activity."""

    name: str
    bucket: str
    start: int
    end: int
    stream: int
    correlation: int
    order: int
    group: str | None = None
    seq: int | None = None
    group_ranks: tuple[int, ...] = ()
    device: int = 0
    call: Call | None = None

    @property
    def phase(self) -> str:
        return "unattributed" if self.call is None else self.call.phase


@dataclass
class Rank:
    """One process: what its file holds once it is read."""

    key: str
    spans: list[Span]
    calls: list[Call]
    activities: list[Activity]
    invalid: int = 0
    host: str = ""
    cut: int = 0
    world_size: int | None = None

    def join(self) -> Rank:
        """Merge ranges, cut impossible durations, give every activity its call and every call its phase."""
        self.spans = merged(self.spans)
        self.cut = cut_overruns(self.activities)
        calls: dict[int, Call] = {}
        for call in sorted(
            self.calls, key=lambda c: (c.start, c.order)
        ):  # the runtime's call before the driver's in it
            calls.setdefault(call.correlation, call)
        graphs: dict[int, Call] = {}
        for call in sorted(self.calls, key=lambda c: (c.start, c.order)):
            if call.name in GRAPH_LAUNCHES:
                call.again = graphs.setdefault(call.correlation, call) is not call
        for activity in self.activities:
            activity.call = calls.get(activity.correlation)
            if activity.call is not None:
                activity.call.activities.append(activity)
        for call in self.calls:
            call.phase = phase_at([s for s in self.spans if s.thread == call.thread], call.start) or "outside"
        return self


def nanoseconds(text: Any) -> int:
    """Microseconds in decimal text or a parsed Decimal, as integer nanoseconds."""
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


def merged(spans: Sequence[Span]) -> list[Span]:
    """R3: a range inside another of its name and thread is part of the outer one.

    A prefill, decode or idle range that a decoding phase of its thread encloses whole is no instance: all its instants are that phase's.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start, -s.end, s.order)):
        if not any(
            o.phase == span.phase and o.thread == span.thread and o.start <= span.start and span.end <= o.end
            for o in kept
        ):
            kept.append(span)
    strong = [s for s in kept if s.phase in STRONG]
    return [
        span
        for span in kept
        if span.phase not in WEAK
        or not any(o.thread == span.thread and o.start <= span.start and span.end <= o.end for o in strong)
    ]


def cut_overruns(activities: Sequence[Activity]) -> int:
    """R10: an activity past three later starts of its own stream ends at the next start there."""
    streams: dict[tuple[int, int], list[Activity]] = defaultdict(list)
    for activity in sorted(activities, key=lambda a: (a.start, a.order)):
        streams[activity.device, activity.stream].append(activity)
    cuts = []
    for row in streams.values():
        for activity in row:
            later = [b.start for b in row if activity.start < b.start < activity.end]
            if len(later) >= 3:
                cuts.append((activity, min(later)))
    for activity, end in cuts:
        activity.end = end
    return len(cuts)


def covering(spans: Sequence[Span], instant: int) -> Span | None:
    """The innermost range over an instant: decoding phases first, then prefill, decode and idle, then the cycle."""
    for names in (STRONG, WEAK, ("cycle",)):
        over = [s for s in spans if s.phase in names and s.start <= instant < s.end]
        if over:
            return max(over, key=lambda s: (s.start, -(s.end - s.start), s.order))
    return None


def phase_at(spans: Sequence[Span], instant: int) -> str | None:
    span = covering(spans, instant)
    return None if span is None else span.phase


def window(rank: Rank) -> tuple[int, int]:
    """R5: W."""
    start = min(s.start for s in rank.spans)
    ends = [s.end for s in rank.spans]
    ends += [a.end for a in rank.activities if a.phase not in ("unattributed", "outside")]
    return start, max(ends)


def partition(rank: Rank) -> list[tuple[int, int, str, str]]:
    """R5: (start, end, phase, bucket) of every elementary stretch of the window, equal neighbours joined."""
    low, high = window(rank)
    cuts = {low, high}
    cuts |= {t for span in rank.spans for t in (span.start, span.end)}
    cuts |= {t for a in rank.activities for t in (a.start, a.end)}
    cuts |= {call.start for call in rank.calls}
    edges = sorted(c for c in cuts if low <= c <= high)
    launches = [call for call in rank.calls if call.activities]
    out: list[tuple[int, int, str, str]] = []
    for start, end in zip(edges, edges[1:], strict=False):
        owner = owner_of(rank, launches, start)
        if out and out[-1][2:] == owner:
            out[-1] = (out[-1][0], end, *owner)
        else:
            out.append((start, end, *owner))
    return out


def owner_of(rank: Rank, launches: Sequence[Call], instant: int) -> tuple[str, str]:
    """R5 (a) to (d) at one instant."""
    running = [a for a in rank.activities if a.start <= instant < a.end]
    if running:
        first = min(running, key=lambda a: (TIERS[a.bucket], a.start, a.stream, a.order))
        return first.phase, first.bucket
    replays = [
        c
        for c in launches
        if c.name in GRAPH_LAUNCHES and min(a.start for a in c.activities) <= instant < max(a.end for a in c.activities)
    ]
    if replays:
        return min(replays, key=lambda c: (c.start, c.order)).phase, "graph_gap"
    waiting = [c for c in launches if c.start <= instant < min(a.start for a in c.activities)]
    if waiting:
        return min(waiting, key=lambda c: (c.start, c.order)).phase, "launch"
    return phase_at(rank.spans, instant) or "between", "host"


def union(pieces: Sequence[tuple[int, int]]) -> int:
    total, reached = 0, None
    for start, end in sorted(pieces):
        if reached is None or start > reached:
            total, reached = total + max(0, end - start), max(start, end)
        elif end > reached:
            total, reached = total + end - reached, end
    return total


def figures(rank: Rank) -> dict[str, Any]:
    """``ranks.<rank>`` of an expected.json."""
    low, high = window(rank)
    buckets: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for start, end, phase, bucket in partition(rank):
        buckets[phase][bucket] += end - start
    inside: dict[str, list[Activity]] = defaultdict(list)
    for a in rank.activities:
        if (a.start < high and a.end > low) or (a.start == a.end and low <= a.start < high):
            inside[a.phase].append(a)
    instances: dict[str, int] = defaultdict(int)
    for span in rank.spans:
        instances[span.phase] += 1
    phases = {}
    for phase in sorted({*buckets, *inside, *instances}):
        clipped = [(a, max(a.start, low), min(a.end, high)) for a in inside[phase]]
        comm = union([(s, e) for a, s, e in clipped if TIERS[a.bucket] == 1])
        given = buckets[phase]
        phases[phase] = {
            "instances": instances[phase],
            "total_ns": sum(given.values()),
            "gpu_busy_ns": union([(s, e) for _, s, e in clipped]),
            "hidden_comm_ns": comm - given["allreduce"] - given["other_comm"],
            "buckets_ns": {k: v for k, v in given.items() if v},
        }
    result: dict[str, Any] = {"window_ns": high - low, "phases": phases}
    for name in ("unattributed", "outside"):
        own = [a for a in rank.activities if a.phase == name]
        if own:
            result[name] = {"count": len(own), "busy_ns": union([(a.start, a.end) for a in own])}
    if rank.invalid:
        result["invalid"] = {"count": rank.invalid}
    return result


def is_comm(activity: Activity) -> bool:
    return TIERS[activity.bucket] == 1


def waits(ranks: Mapping[str, Rank]) -> dict[str, Any] | None:
    """R7: ``wait`` of an expected.json, without ``matched_by``."""
    if len(ranks) < 2:
        return None
    matched: list[tuple[dict[str, Activity], set[int]]] = []
    used: set[int] = set()
    by_seq: dict[tuple[str, tuple[int, ...], int], dict[str, Activity]] = defaultdict(dict)
    memberships: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for activity in (a for rank in ranks.values() for a in rank.activities if a.group is not None and a.group_ranks):
        memberships[activity.group or ""].add(activity.group_ranks)
    for key, rank in ranks.items():
        told = [a for a in rank.activities if is_comm(a) and a.group is not None and a.seq is not None]
        # One name may be of several groups; where it is of one, a kernel that tells the name alone is of that.
        only = {name: next(iter(found)) for name, found in memberships.items() if len(found) == 1}
        here = {name: found for name, found in only.items() if int(key.removeprefix("pid")) in found}
        keys = [(a.group or "", a.group_ranks or here.get(a.group or "", ()), a.seq or 0) for a in told]
        for activity, of in zip(told, keys, strict=True):
            if keys.count(of) == 1:  # which of two is which, nothing tells
                by_seq[of][key] = activity
    every = {r for rank in ranks.values() for r in range(rank.world_size or 0)}
    for (_, of_group, _), members in by_seq.items():
        wanted = {*of_group} or every  # of a group known by name, any rank may be
        if len(members) > 1:
            matched.append((members, wanted - {int(k) for k in members}))
            used |= {id(a) for a in members.values()}
    for phase in (*STRONG, *WEAK, "cycle"):
        replays = {
            key: sorted(
                (c for c in rank.calls if c.name in GRAPH_LAUNCHES and c.phase == phase and not c.again),
                key=lambda c: (c.start, c.order),
            )
            for key, rank in ranks.items()
        }
        if len({len(r) for r in replays.values()}) != 1:
            continue
        for nth in zip(*replays.values(), strict=True):
            kernels = [
                sorted(
                    (a for a in c.activities if is_comm(a) and (a.group is None or a.seq is None)),
                    key=lambda a: (a.start, a.stream, a.order),
                )
                for c in nth
            ]
            if len({len(k) for k in kernels}) != 1:
                continue
            for collective in zip(*kernels, strict=True):
                members = dict(zip(replays, collective, strict=True))
                matched.append((members, every - {int(k) for k in members if k.isdigit()}))
                used |= {id(a) for a in collective}
    matched.sort(key=lambda m: min(a.start for a in m[0].values()))
    rows: list[dict[str, int] | None] = []
    wait: dict[str, int] = defaultdict(int)
    transfer: dict[str, int] = defaultdict(int)
    for members, _ in matched:
        durations = {k: a.end - a.start for k, a in members.items()}
        shortest = min(durations.values())
        hosts: dict[str, list[int]] = defaultdict(list)
        for k, a in members.items():
            hosts[ranks[k].host].append(a.end)
        if any(max(ends) - min(ends) > shortest for ends in hosts.values()):
            rows.append(None)
            continue
        rows.append({k: d - shortest for k, d in durations.items()})
        for k, d in durations.items():
            wait[k] += d - shortest
            transfer[k] += shortest
    return {
        "complete": not any(missing for _, missing in matched) if matched else None,
        "voided": sum(r is None for r in rows),
        "unmatched_kernels": {
            k: sum(is_comm(a) and id(a) not in used for a in rank.activities) for k, rank in ranks.items()
        },
        "per_collective_ns": rows,
        "wait_ns": {k: wait[k] for k in ranks},
        "transfer_ns": {k: transfer[k] for k in ranks},
    }


# ---- files


def text_of(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")


def text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def server_phase(name: str) -> str | None:
    if name in ("draft", "draft_extend"):
        return name
    for pattern, phase in (
        (r"step\[(TARGET_)?VERIFY .*\]", "verify"),
        (r"step\[DRAFT_EXTEND_V2 .*\]", "draft_extend"),
        (r"step\[DECODE .*\]", "decode"),
    ):
        if re.fullmatch(pattern, name):
            return phase
    return None


def recognised(rows: Sequence[tuple[str, int, int, Any, int]]) -> list[Span]:
    """R3: spans of (name, start, end, thread, order), ours or, in a process without any of ours, the server's."""
    ours = any(name.startswith("spec.") for name, *_ in rows)
    spans = []
    for name, start, end, thread, order in rows:
        phase = (
            name.removeprefix("spec.") if ours and name.startswith("spec.") else None if ours else server_phase(name)
        )
        if phase in (*STRONG, *WEAK, "cycle"):
            spans.append(Span(phase, start, end, thread, order))
    return spans


def read_kineto(path: Path, bucket_of: Callable[[str, str | None], str]) -> Rank:
    """One Kineto JSON(.gz) file: R1, R2, R3, R9."""
    document = json.loads(text_of(path), parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    info = {} if isinstance(document, list) else document
    base = int(Decimal(info.get("baseTimeNanoseconds", 0)))
    ranges, calls, activities, invalid = [], [], [], 0
    for order, event in enumerate(events):
        category, args = event.get("cat"), event.get("args") or {}
        if event.get("ph") != "X":
            continue
        if category in DEVICE_CATEGORIES:
            duration = event.get("dur")
            if duration is None or Decimal(duration) < 0 or Decimal(event.get("ts") or 0) == 0:
                invalid += 1
                continue
            start = base + nanoseconds(event["ts"])
            collective = args.get("Collective name")
            bucket = DEVICE_CATEGORIES[category] or bucket_of(event["name"], collective)
            ranks_text = args.get("Process Group Ranks")
            group_ranks = tuple(int(x) for x in re.findall(r"\d+", str(ranks_text))) if ranks_text else ()
            stream = args.get("stream", event.get("tid"))
            activities.append(
                Activity(
                    event["name"], bucket, start, start + nanoseconds(duration), int(stream),
                    int(args.get("correlation", -1)), order, text_or_none(args.get("Process Group Name")),
                    None if args.get("Seq") is None else int(args["Seq"]), group_ranks, int(args.get("device", 0)),
                )
            )  # fmt: skip
        elif event.get("dur") is None or event.get("ts") is None:
            continue
        else:
            start = base + nanoseconds(event["ts"])
            thread = (event.get("pid"), event.get("tid"))
            if category in LAUNCH_CATEGORIES:
                if args.get("correlation") is not None:
                    calls.append(Call(event["name"], start, thread, int(args["correlation"]), order))
            elif category == "user_annotation":
                ranges.append((event["name"], start, start + nanoseconds(event["dur"]), thread, order))
    distributed = info.get("distributedInfo") or {}
    rank = distributed.get("rank")
    if rank is None:
        found = re.search(r"TP-?(\d+)|rank-?(\d+)", path.name)
        rank = int(next(g for g in found.groups() if g)) if found else 0
    host = re.match(r"(.+?)_\d+\.", path.name)
    return Rank(
        str(rank), recognised(ranges), calls, activities, invalid, host[1] if host else "",
        world_size=distributed.get("world_size"),
    ).join()  # fmt: skip


def read_nsys(path: Path, bucket_of: Callable[[str, str | None], str]) -> list[Rank]:
    """One nsys SQLite export: a rank a process, keys ``pid<process id>``."""
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    base.row_factory = sqlite3.Row
    tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type='table'")}

    def rows(table: str) -> list[sqlite3.Row]:
        return list(base.execute(f"SELECT * FROM {table}")) if table in tables else []

    strings = {row["id"]: row["value"] for row in rows("StringIds")}
    parts: dict[int, tuple[list[Any], list[Call], list[Activity]]] = defaultdict(lambda: ([], [], []))
    invalid: dict[int, int] = defaultdict(int)
    order = 0
    for row in rows("NVTX_EVENTS"):
        order += 1
        keys = row.keys()
        text = row["text"] if row["text"] is not None else strings.get(row["textId"] if "textId" in keys else None)
        closed = row["end"] is not None and row["end"] >= row["start"]
        if row["eventType"] in (59, 70) and closed and text is not None:
            parts[row["globalTid"] >> 24 & 0xFFFFFF][0].append(
                (text, row["start"], row["end"], row["globalTid"] & 0xFFFFFF, order)
            )
    for row in rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
        order += 1
        name = re.sub(r"_v\d+$", "", strings[row["nameId"]])
        pid = row["globalTid"] >> 24 & 0xFFFFFF
        parts[pid][1].append(Call(name, row["start"], row["globalTid"] & 0xFFFFFF, row["correlationId"], order))
    for table, bucket in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", None),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "memcpy"),
        ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph_unresolved"),
    ):
        for row in rows(table):
            order += 1
            if row["end"] is None or row["end"] < row["start"]:
                invalid[row["globalPid"] >> 24 & 0xFFFFFF] += 1
                continue
            name = strings[row["demangledName"]] if bucket is None else table
            parts[row["globalPid"] >> 24 & 0xFFFFFF][2].append(
                Activity(
                    name, bucket or bucket_of(name, None), row["start"], row["end"], row["streamId"],
                    -1 if row["correlationId"] is None else row["correlationId"], order,
                )
            )  # fmt: skip
    return [
        Rank(f"pid{pid}", recognised(ranges), calls, activities, invalid[pid]).join()
        for pid, (ranges, calls, activities) in sorted(parts.items())
        if ranges
    ]


def expected(paths: Sequence[Path], bucket_of: Callable[[str, str | None], str]) -> dict[str, Any]:
    """``ranks`` and ``wait`` of an expected.json, from a case's files."""
    ranks: dict[str, Rank] = {}
    for path in paths:
        found = read_nsys(path, bucket_of) if path.suffix == ".sqlite" else [read_kineto(path, bucket_of)]
        ranks.update({rank.key: rank for rank in found})
    order = sorted(ranks, key=lambda k: int(k.removeprefix("pid")))
    ranks = {k: ranks[k] for k in order}
    return {"ranks": {k: figures(r) for k, r in ranks.items()}, "wait": waits(ranks)}
