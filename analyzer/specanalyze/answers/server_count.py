"""Whether the recorded tokens add up to what the server says it generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from specanalyze.columns import of_kind
from specanalyze.trace import RankTrace, Trace

REQUEST_SCHEMA: Final[dict[str, Any]] = {
    "request_ids": pl.List(pl.String),
    "prompt_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "first_token_ns": pl.Int64,
}
"""Columns of ``request_rows``."""


@dataclass(frozen=True)
class ServerCount:
    """Tokens the server says it generated against those recorded, over requests recorded from prefill to end.

    Attributes:
        requests: how many.
        completion_tokens: as the server (or the client it answered) tells.
        recorded_tokens: first tokens of their prefills and all tokens their cycles committed.
        told_by: ``server`` or ``client``.
    """

    requests: int
    completion_tokens: int
    recorded_tokens: int
    told_by: str

    @property
    def difference(self) -> int:
        """Told minus recorded."""
        return self.completion_tokens - self.recorded_tokens


def request_rows(rank: RankTrace) -> pl.DataFrame:
    """Requests that the rank's server or its client told of: columns of REQUEST_SCHEMA."""
    rows = of_kind(rank.events, ("request",))
    columns = [pl.col(c) if c in rows.columns else pl.lit(None).alias(c) for c in REQUEST_SCHEMA]
    return rows.select(columns).cast(REQUEST_SCHEMA)  # type: ignore[arg-type]


def server_count(trace: Trace, cycles: pl.DataFrame, requests: pl.DataFrame) -> ServerCount | None:
    """The server's count of the requests that were recorded from prefill to end.

    A prefill gives one token of its own; where its cycle has accept lengths, they say it.

    Args:
        trace: the recording; the totals in its metadata stand in where no request row can be compared.
        cycles: of ``cycles.cycle_table``, one rank a replica.
        requests: of ``request_rows``, all ranks.

    Returns:
        None where nothing tells.
    """
    told = requests.filter(pl.col("completion_tokens").is_not_null(), pl.col("request_ids").list.len() == 1)
    told = told.select(request=pl.col("request_ids").list.first(), told="completion_tokens").unique("request")
    nothing = pl.col("request_ids").list.eval(pl.lit(None, pl.Int64))
    rows = cycles.filter(pl.col("request_ids").is_not_null()).select(
        "mode",
        request="request_ids",
        tokens=pl.col("accept_lengths").fill_null(nothing),
        accepted=pl.col("accepted_draft_tokens").fill_null(nothing),
    )
    size = pl.col("request").list.len()
    rows = rows.filter(size == pl.col("tokens").list.len(), size == pl.col("accepted").list.len())
    rows = rows.explode("request", "tokens", "accepted")
    # of a mixed step's requests, those without accepted drafts were prefilled
    prefilled = (pl.col("mode") == "prefill") | ((pl.col("mode") == "mixed") & pl.col("accepted").is_null())
    recorded = rows.group_by("request").agg(
        prefilled=prefilled.any(),
        tokens=pl.col("tokens").sum() + (~pl.col("tokens").filter(prefilled).is_not_null().any()).cast(pl.Int64),
    )
    both = told.join(recorded.filter("prefilled"), on="request")
    if both.height:
        return ServerCount(both.height, int(both["told"].sum()), int(both["tokens"].sum()), "server")
    for totals in ((trace.metadata.get("recording") or {}).get("totals") or {}).values():
        if totals.get("completion_tokens") is not None and totals.get("difference") is not None:
            recorded_tokens = totals["completion_tokens"] - totals["difference"]
            return ServerCount(
                totals.get("compared_requests", 0), totals["completion_tokens"], recorded_tokens, totals["told_by"]
            )
    return None
