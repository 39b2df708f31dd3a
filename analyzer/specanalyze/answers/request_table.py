"""How fast each request was: its steps, tokens and latency, from cycles of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from specanalyze.answers.pace import inter_token, token_pairs
from specanalyze.answers.phase_cycles import OTHER
from specanalyze.attribution.cycles import DECODING
from specschema.errors import TraceError

if TYPE_CHECKING:
    from specanalyze.answers.phases_report import PhaseReport

CLOCKS: Final = ("untraced", "traced", "disturbed")
"""Kinds of cycles that a request's times can be of, the truest first."""


def request_table(report: PhaseReport) -> pl.DataFrame:
    """One row a request of the counted ranks: untraced cycles where it has any, else its traced ones.

    Returns:
        request, traced (True: its speed is distorted by observing), clock (the one kind of cycles that its times are of: ``untraced``, ``traced``, or
        ``disturbed``: beside a window), cycles, tokens (in these cycles), accept_length (of its
        verify steps), tok_s, step_p10_ns, step_median_ns, step_p90_ns, inter_token_p50_ns, _p90_ns, _p99_ns, the medians
        ``<phase>_ns`` of the host view, prompt_tokens, completion_tokens, first_token_ns (null where not recorded).

    Raises:
        TraceError: no cycle names its requests, or no step of one is timed.
    """
    counted = report.cycles.filter(pl.col("rank").is_in(report.counted), pl.col("mode").is_in(DECODING))
    pairs = token_pairs(counted).filter(pl.col("request").is_not_null())
    if not pairs.height:
        raise TraceError(
            f"{report.name} does not say which requests its cycles decoded: the scheduler's hooks of the collector do; a profiler's file cannot"
        )
    # Undisturbed untraced cycles where the request has any, else traced ones, else what is left.
    # Never two kinds in one figure: see CLOCKS.
    worth = pl.when("control").then(0).when(pl.col("window").is_not_null()).then(1).otherwise(2)
    timed = pairs.filter(pl.col("step_ns") > 0).with_columns(worth=worth)
    timed = timed.filter(pl.col("worth") == pl.col("worth").min().over("request"))
    if not timed.height:
        raise TraceError(
            f"{report.name} has no step of a request whose length is known (a step lasts until the next cycle begins): record several "
            "cycles in a row"
        )
    host = [f"host_{p}_ns" for p in (*report.phases, OTHER)]
    timed = timed.join(
        counted.select("rank", "window", "cycle", *host), on=["rank", "window", "cycle"], nulls_equal=True
    )
    rows = []
    for (request,), mine in timed.group_by("request", maintain_order=True):  # one turn a request
        steps = mine.get_column("step_ns").to_numpy()
        verify = pairs.filter(pl.col("request") == request, pl.col("mode") != "decode")
        latency = inter_token(mine) or (None, None, None)
        spread = np.percentile(steps, [10, 50, 90])
        rows.append(
            {
                "request": request,
                "traced": mine["worth"][0] > 0,
                "clock": CLOCKS[mine["worth"][0]],
                "cycles": mine.height,
                "tokens": int(mine["committed"].sum()),
                "accept_length": verify["committed"].mean(),
                "tok_s": int(mine["committed"].sum()) * 1e9 / int(steps.sum()),
                **{f"step_{q}_ns": float(v) for q, v in zip(("p10", "median", "p90"), spread, strict=True)},
                **{f"inter_token_{q}_ns": v for q, v in zip(("p50", "p90", "p99"), latency, strict=True)},
                **{column.removeprefix("host_"): mine[column].median() for column in host},
            }
        )
    told = report.requests.filter(pl.col("request_ids").list.len() == 1)
    told = told.with_columns(request=pl.col("request_ids").list.first()).unique("request").drop("request_ids")
    return pl.DataFrame(rows).join(told, on="request", how="left", maintain_order="left")
