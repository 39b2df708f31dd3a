"""What findings claim of a cycle: no win is more than the time it names, and together they are no more than the cycle.

Findings overlap: a late rank's host shows as waiting on the others and as idle time on itself. So beside each win stands what of it
no finding above it has claimed already; these parts do add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from specanalyze.diagnosis.diagnosis_rule import Found, Subject

REST = ("rest", "host")
"""Time of the cycle outside the phases."""

Part = tuple[str | None, str]
"""(phase or None for all, bucket)."""


def claimable(s: Subject) -> dict[tuple[str, str], float]:
    """(phase, bucket) -> ns of the typical cycle, which they sum to.

    Parts are means of traced cycles: where they come to more than the typical cycle, all are taken as that much less.
    """
    cells = {(p, b): ns for p, row in s.cells.items() for b, ns in row.items() if ns > 0}
    together = sum(cells.values())
    fitting = min(1.0, s.step_ns / together) if together else 1.0
    return {**{c: ns * fitting for c, ns in cells.items()}, REST: max(0.0, s.step_ns - together)}


def bounded(s: Subject, found: Found) -> float | None:
    """The win, no more than the parts of the cycle that the finding names have."""
    if found.win_ns is None:
        return None
    cells = claimable(s)
    there = sum(cells[c] for c in _named(cells, found.of)) if found.of else s.step_ns
    return max(0.0, min(found.win_ns, there))


def beyond(s: Subject, findings: Sequence[tuple[Found, float | None]]) -> list[float | None]:
    """Of each win what no earlier finding claims, ns a cycle; None without a win.

    Args:
        s: the recording.
        findings: with their wins (of ``bounded``), in the order of their rank. A finding that names no part (the cycle as a whole)
            counts everything claimed before it as its own.
    """
    left = claimable(s)
    claimed = 0.0
    more: list[float | None] = []
    for found, win in findings:
        if win is None:
            more.append(None)
            continue
        named = _named(left, found.of)
        there = sum(left[c] for c in named)
        own = min(win if found.of else max(0.0, win - claimed), there)
        for c in named:
            left[c] -= own * left[c] / there if there else 0.0
        claimed += own
        more.append(own)
    return more


def _named(cells: dict[tuple[str, str], float], of: Sequence[Part]) -> list[tuple[str, str]]:
    """The cells of some parts; all cells where none is named."""
    return [(p, b) for p, b in cells if not of or (p, b) in of or (None, b) in of]
