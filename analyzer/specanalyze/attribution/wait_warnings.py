"""What a reader of waiting and transfer must know: void matches, missing ranks, kernels left unmatched; one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from specschema.figures import counted, were

_LISTED: Final = 5
"""Collectives named one by one."""
_RANKS: Final = 8
"""Ranks named one by one."""


class Matched(Protocol):
    """What the warnings need of ``waits.Waits``, or of the sums that stand for it."""

    @property
    def unmatched(self) -> Mapping[str, int]: ...
    @property
    def voided(self) -> int: ...
    @property
    def missing(self) -> Sequence[tuple[str, int, int]]: ...
    @property
    def reasons(self) -> Sequence[str]: ...


def wait_warnings(waits: Matched, absent: Sequence[int]) -> list[str]:
    """One line for each thing that keeps the figures of waiting from being whole.

    Args:
        waits: what matching the ranks' collectives says.
        absent: of ``absent_ranks``.
    """
    said = list(waits.reasons)
    if waits.voided:
        said.append(
            f"{counted(waits.voided, 'matched collective')} {were(waits.voided)} void and not used: ends differ by more than the "
            "shortest duration, so the ranks' kernels are not of the same collective"
        )
    by_seq: dict[int, list[int]] = {}
    for _, seq, rank in waits.missing:
        by_seq.setdefault(seq, []).append(rank)
    for seq, ranks in list(by_seq.items())[:_LISTED]:
        said.append(f"collective Seq {seq}: no record of {_ranks(ranks)}; its waits are lower bounds")
    if len(by_seq) > _LISTED:
        more = counted(len(by_seq) - _LISTED, "more collective")
        said.append(f"{more} without all ranks; their waits are lower bounds")
    if absent:
        said.append(
            f"{_ranks(absent)} missing from this recording: the others may wait for a missing rank, so their waits are lower bounds"
        )
    if any(waits.unmatched.values()):
        listed = ", ".join(f"rank {key}: {n}" for key, n in waits.unmatched.items())
        said.append(f"communication kernels not matched with the other ranks' ({listed}): their waiting is unknown")
    return said


def absent_ranks(present: Sequence[int], world: int | None) -> list[int]:
    """Ranks 0 to ``world`` - 1 that are not there; none where their number is not known."""
    return sorted(set(range(world or 0)) - set(present))


def _ranks(numbers: Sequence[int]) -> str:
    listed = sorted(set(numbers))
    names = ", ".join(f"rank {n}" for n in listed[:_RANKS])
    return names + (f" and {len(listed) - _RANKS} more" if len(listed) > _RANKS else "")
