"""How fast tokens came: tok/s and inter-token latency from the cycles' steps and what they committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.attribution.cycles import decoding

QUANTILES: Final = (0.5, 0.9, 0.99)
"""Of the inter-token latency."""


@dataclass(frozen=True)
class Pace:
    """Speed of some cycles.

    Attributes:
        cycles: decode cycles whose step (start to start) is known.
        step_ns: p10, median and p90 of the step; None without any.
        tok_s: tokens a second of all replicas' batches together; None where tokens are unknown.
        tok_s_request: tokens a second that one request gets, on average; None where tokens are unknown.
        inter_token_ns: p50, p90, p99 over tokens. The tokens that a cycle commits for a request arrive together at its end; each
            is given an equal part of the cycle's step.
    """

    cycles: int
    step_ns: tuple[float, float, float] | None
    tok_s: float | None
    tok_s_request: float | None
    inter_token_ns: tuple[float, float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Documented JSON layout: null where unknown."""
        step = dict(zip(("p10", "median", "p90"), self.step_ns, strict=True)) if self.step_ns else None
        latency = dict(zip(("p50", "p90", "p99"), self.inter_token_ns, strict=True)) if self.inter_token_ns else None
        return {
            "cycles": self.cycles,
            "step_ns": step,
            "tok_s": self.tok_s,
            "tok_s_request": self.tok_s_request,
            "inter_token_ns": latency,
        }


def pace_of(cycles: pl.DataFrame) -> Pace:
    """Speed of the decode cycles among the rows.

    Args:
        cycles: columns of ``cycles.CYCLE_SCHEMA``, one rank a data-parallel replica.
    """
    timed = decoding(cycles).filter(pl.col("step_ns") > 0)
    steps = timed.get_column("step_ns").to_numpy()
    spread = np.percentile(steps, [10, 50, 90]) if len(steps) else None
    counted = timed.filter(pl.col("tokens").is_not_null())
    rates = counted.group_by("rank").agg((pl.col("tokens").sum() / pl.col("step_ns").sum() * 1e9).alias("rate"))
    pairs = token_pairs(timed)
    time = int(pairs.get_column("step_ns").sum())
    return Pace(
        cycles=len(steps),
        step_ns=None if spread is None else (float(spread[0]), float(spread[1]), float(spread[2])),
        tok_s=float(rates.get_column("rate").sum()) if rates.height else None,
        tok_s_request=int(pairs.get_column("committed").sum()) * 1e9 / time if time else None,
        inter_token_ns=inter_token(pairs),
    )


def token_pairs(cycles: pl.DataFrame) -> pl.DataFrame:
    """One row a (request, decode cycle) whose committed tokens are known.

    A plain decode cycle commits one token a request; where its batch is unknown it stands for one request.

    Returns:
        rank, cycle, window, control, mode, request (null where not recorded), committed, step_ns.
    """
    lists = [pl.col(c).list.len() for c in ("accept_lengths", "request_ids")]
    size = pl.coalesce(*lists, pl.col("batch_size"), pl.lit(1)).clip(lower_bound=1)
    rows = decoding(cycles).with_columns(place=pl.int_ranges(0, size)).explode("place")
    at = pl.col("place")
    committed = pl.col("accept_lengths").list.get(at, null_on_oob=True)
    plain = pl.when((pl.col("mode") == "decode") & pl.col("accept_lengths").is_null()).then(pl.lit(1))
    return rows.select(
        "rank",
        "cycle",
        "window",
        "control",
        "mode",
        request=pl.col("request_ids").list.get(at, null_on_oob=True),
        committed=pl.coalesce(committed, plain).cast(pl.Int64),
        step_ns="step_ns",
    ).filter(pl.col("committed").is_not_null())


def inter_token(pairs: pl.DataFrame, quantiles: Sequence[float] = QUANTILES) -> tuple[float, float, float] | None:
    """Quantiles of the inter-token latency over tokens, in ns; None without a timed token.

    Args:
        pairs: committed and step_ns, one row a (request, cycle).
    """
    rows = pairs.filter((pl.col("committed") > 0) & (pl.col("step_ns") > 0))
    if not rows.height:
        return None
    tokens: NDArray[np.int64] = rows.get_column("committed").to_numpy()
    latency = rows.get_column("step_ns").to_numpy() / tokens
    order = np.argsort(latency, kind="stable")
    reached = np.cumsum(tokens[order])
    at = np.searchsorted(reached, np.ceil(np.asarray(quantiles) * reached[-1]), side="left")
    first, second, third = (float(latency[order][i]) for i in at)
    return first, second, third
