"""The ranks' metadata -> the merged trace's: one section of each kind, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speccollect.control.status import RankStatus, alive
from speccollect.cycles.numbers import cycles_later, renumbered
from speccollect.trace.rank_files import Part


def missing_ranks(
    parts: list[Part], statuses: list[RankStatus], expected: int | None, problems: list[str]
) -> list[int]:
    """Ranks that should have written files and did not; each is named.

    The folder may be an older server's, too: what a rank said that is gone, and took no part, does not count.
    """
    number = parts[0].sections.get("recording", {}).get("id")
    here = [s for s in statuses if s.recording == number or alive(s) is not False]
    sizes = {part.rank: size for part in parts if (size := _world_size(part)) is not None}
    world = max([0, expected or 0, *sizes.values(), *(s.world_size or 0 for s in here)])
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"rank {rank} says {size}" for rank, size in sorted(sizes.items()))
        problems.append(
            f"the ranks don't agree how many they are ({said}): do two servers share the folder? Their cycles are not the same"
        )
    told = {s.rank: s for s in statuses}
    missing = sorted((set(range(world)) | {s.rank for s in here}) - {part.rank for part in parts})
    for rank in missing:
        status = told.get(rank)
        if status is None:
            problems.append(f"rank {rank} of {world} never announced itself: it is missing")
        else:
            why = f" ({status.message})" if status.message else ""
            problems.append(f"rank {rank} (process {status.pid}, {status.state}){why} left no file: it is missing")
    return missing


def _world_size(part: Part) -> int | None:
    """Ranks of the server that left a file; None where it has no process group."""
    told = part.sections.get("ranks") or [{}]
    size = told[0].get("world_size")
    return size if isinstance(size, int) else None


def environment_section(parts: list[Part]) -> dict[str, Any]:
    """The first rank's environment, and where other ranks' differ."""
    by_rank = {part.rank: part.sections.get("environment", {}) for part in parts}
    if not by_rank:
        return {}
    first = by_rank[min(by_rank)]
    keys = sorted({key for e in by_rank.values() for key in e})
    differing = {
        key: {str(rank): environment.get(key) for rank, environment in sorted(by_rank.items())}
        for key in keys
        if any(environment.get(key) != first.get(key) for environment in by_rank.values())
    }
    return {**first, "differs_by_rank": differing} if differing else dict(first)


def recording_section(
    parts: list[Part], missing: list[int], totals: Mapping[str, Any], requests: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Section ``recording`` of all ranks together.

    Args:
        missing: ranks that left no file.
        totals: accept lengths against the tokens that were told, by rank.
        requests: what the client measured; None without one.
    """
    sections = [(part, part.sections.get("recording", {})) for part in parts]
    first = sections[0][1]
    ranks = sorted({part.rank for part in parts})
    later = cycles_later((part.rank, part.sections) for part in parts)
    # the counts of what was lost only grow: each rank's last file has the final ones
    lost: dict[str, dict[str, int]] = {}
    messages: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    warmups: list[dict[str, Any]] = []
    written: dict[int, int] = {}
    complete: set[int] = set()
    tiers: list[str] = []
    for part, section in sections:
        if section.get("written_ns", 0) >= written.get(part.rank, 0):
            written[part.rank] = section.get("written_ns", 0)
            lost[str(part.rank)] = section.get("lost", {})
        for message in section.get("messages", []):
            entry = {"rank": part.rank, "message": message}
            if entry not in messages:
                messages.append(entry)
        for window in section.get("windows", []):
            numbered = renumbered(window, later.get(part.rank, 0))
            (warmups if "warmup" in window else windows).append({"rank": part.rank, **numbered})
        if section.get("complete"):
            complete.add(part.rank)
        tiers.extend(t for t in section.get("tiers", []) if t not in tiers)
    return {
        **{k: first.get(k) for k in ("tool", "version", "source", "id", "settings")},
        "device": "cuda" if any(s.get("device") == "cuda" for _, s in sections) else first.get("device"),
        "tiers": tiers,
        "started_ns": min(s.get("started_ns", 0) for _, s in sections),
        "ended_ns": max(written.values()),
        "windows": windows,
        "warmups": warmups,
        "lost": lost,
        "messages": messages,
        "missing_ranks": missing,
        "incomplete_ranks": [rank for rank in ranks if rank not in complete],
        "totals": dict(totals),
        "requests": dict(requests) if requests is not None else None,
    }


def why_unfinished(status: RankStatus | None) -> str:
    """What is known of a rank that left files and no end."""
    if status is None:
        return ""
    facts = [status.message] if status.message else []
    if alive(status) is False:
        facts.append(f"its process {status.pid} is gone")
    return f" ({'; '.join(facts)})" if facts else ""


def clock_section(parts: list[Part]) -> dict[str, Any]:
    """The clock of every rank."""
    clock = {**parts[0].sections.get("clock", {}), "ranks": {}}
    for part in parts:
        clock["ranks"].update(part.sections.get("clock", {}).get("ranks", {}))
    return clock
