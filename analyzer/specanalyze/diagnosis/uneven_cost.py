"""What kernels that take longer on some ranks cost a cycle: the time they take more, and what the other ranks wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from specanalyze.answers.measured import Measured
from specanalyze.answers.uneven_kernels import slower_ns


@dataclass(frozen=True)
class UnevenCost:
    """ns a cycle.

    Attributes:
        slower: rank -> what its kernels take more than on the fastest rank.
        waits: rank -> waiting in the collectives of the same phases; None where nothing could be matched across ranks.
        most: of each kernel the difference between the slowest and the fastest rank, summed.
    """

    slower: Mapping[str, float]
    waits: Mapping[str, float] | None
    most: float

    @property
    def win(self) -> float:
        """What a cycle would win at most if each kernel were as fast as on its fastest rank.

        Each rank is then through with a cycle by what it saves itself and what it waits now, so the cycle wins no more than the rank
        that has least of both.
        """
        if self.waits is None:
            return self.most
        return min(self.most, *(ns + self.waits.get(rank, 0.0) for rank, ns in self.slower.items()))

    @property
    def slowest(self) -> str:
        """The rank whose kernels take most time more."""
        return max(self.slower, key=lambda rank: self.slower[rank])

    def ahead(self) -> dict[str, float]:
        """Rank -> by how much its kernels are through before the slowest rank's: what it is to wait for."""
        most = self.slower[self.slowest]
        return {rank: most - ns for rank, ns in self.slower.items()}

    @property
    def agreement(self) -> float | None:
        """How much of ``ahead`` the ranks do wait longer than the slowest one, as a share; None where waiting is unknown."""
        if self.waits is None:
            return None
        ahead, base = self.ahead(), self.waits.get(self.slowest, 0.0)
        told = sum(min(ns, max(0.0, self.waits.get(rank, 0.0) - base)) for rank, ns in ahead.items())
        return told / sum(ahead.values()) if any(ahead.values()) else None


def uneven_cost(m: Measured, rows: pl.DataFrame) -> UnevenCost | None:
    """The cost of some kernels.

    Args:
        m: the recording.
        rows: of ``Measured.uneven`` or ``Measured.compared``.

    Returns:
        None without rows.
    """
    if not rows.height:
        return None
    main, ranks = m.main_phase, m.breakdown.ranks
    each = {
        p: sum(r.instances.get(p, 0) for r in ranks) / max(sum(r.instances.get(main, 0) for r in ranks), 1)
        for p in rows["phase"].unique().to_list()
    }
    a_cycle = pl.col("phase").replace_strict(each, return_dtype=pl.Float64)
    most = float(rows.select(pl.col("difference_ns") * a_cycle).sum().item())
    summed = slower_ns(rows).group_by("rank").agg((pl.col("slower_ns") * a_cycle).sum())
    slower = {r.key: 0.0 for r in ranks} | dict(summed.iter_rows())
    return UnevenCost(slower, _waits(m, list(each)), most)


def _waits(m: Measured, phases: list[str]) -> dict[str, float] | None:
    if m.waits is None or not m.waits.matched:
        return None
    inside = pl.any_horizontal(*(m.waits.in_phase(phase) for phase in phases))
    used = m.waits.table("rank", "wait_ns", of=~pl.col("voided") & inside)
    if not used.height:
        return None
    cycles = max(m.cycle_count, 1)
    return {rank: ns / cycles for rank, ns in used.group_by("rank").agg(pl.col("wait_ns").sum()).iter_rows()}
