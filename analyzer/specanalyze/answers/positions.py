"""Acceptance by draft position: how often the k-th drafted token survives verification."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

POSITION_SCHEMA: Final[dict[str, Any]] = {
    "position": pl.Int64,
    "proposed": pl.Int64,
    "reached": pl.Int64,
    "accepted": pl.Int64,
    "conditional": pl.Float64,
    "cumulative": pl.Float64,
}
"""Columns of ``acceptance_by_position``."""


def verify_steps(cycles: pl.DataFrame, draft_steps: int | None) -> pl.DataFrame:
    """Verify steps of some cycles.

    Args:
        cycles: decode cycles, columns of ``cycles.CYCLE_SCHEMA``.
        draft_steps: depth of the draft; None where it is not known.

    Returns:
        One row a request and verify step whose accepts are known: drafted (the depth of the draft, not the size of its tree), accepted, committed.
    """
    rows = cycles.filter(pl.col("accepted_draft_tokens").is_not_null())
    drafted = pl.min_horizontal("draft_tokens", pl.lit(draft_steps)).cast(
        pl.Int64
    )  # of a null and a number: the number
    return (
        rows.filter(pl.col("accepted_draft_tokens").list.len() == pl.col("accept_lengths").list.len())
        .select(
            drafted.alias("drafted"),
            pl.col("accepted_draft_tokens").alias("accepted"),
            pl.col("accept_lengths").alias("committed"),
        )
        .explode("accepted", "committed", empty_as_null=True)
        .drop_nulls("accepted")
    )


def acceptance_by_position(steps: pl.DataFrame) -> pl.DataFrame:
    """Acceptance at each draft position, counted from 1, as the verifier counts it (stop tokens play no part).

    Args:
        steps: one row a (request, verify step): drafted (null where it was not recorded) and accepted drafts.

    Returns:
        position; proposed: steps that drafted so far; reached: those of them whose earlier drafts were all accepted;
        accepted: those whose draft here was accepted, too; conditional = accepted / reached (null where none reached);
        cumulative = accepted / proposed. Steps whose draft length was not recorded count as proposing up to the longest
        acceptance seen, so positions beyond it are unknown and absent. In a tree the position is the depth.
    """
    known = steps.filter(pl.col("accepted").is_not_null()).select("drafted", "accepted")
    longest = known.select(pl.max_horizontal(pl.col("drafted").max(), pl.col("accepted").max())).item()
    seen = known.get_column("accepted").max()
    counts = known.group_by("drafted", "accepted").len(name="steps")
    drafted = pl.col("drafted").fill_null(pl.lit(seen))
    at = pl.DataFrame({"position": range(1, (longest or 0) + 1)}, schema={"position": pl.Int64})
    table = at.join(counts.with_columns(drafted=drafted), how="cross").filter(pl.col("drafted") >= pl.col("position"))
    n, position = pl.col("steps"), pl.col("position")
    table = (
        table.group_by("position", maintain_order=True)
        .agg(
            proposed=n.sum(),
            reached=n.filter(pl.col("accepted") >= position - 1).sum(),
            accepted=n.filter(pl.col("accepted") >= position).sum(),
        )
        .sort("position")
    )
    table = table.with_columns(
        conditional=pl.when(pl.col("reached") > 0).then(pl.col("accepted") / pl.col("reached")),
        cumulative=pl.col("accepted") / pl.col("proposed"),
    )
    return table.select(pl.col(c).cast(t) for c, t in POSITION_SCHEMA.items())


def accept_length_by_steps(positions: pl.DataFrame) -> pl.DataFrame:
    """Accept length that each number of draft steps would have had on these very tokens.

    A chain of n drafts commits the bonus token and as many of its first n drafts as were accepted, so the accept length
    is 1 + the cumulative acceptance up to n. Stop tokens cut the last step of a request; that is not in it.

    Args:
        positions: of ``acceptance_by_position``.

    Returns:
        steps (from 0: no draft), accept_length.
    """
    cumulative = positions.get_column("cumulative")
    lengths = pl.concat([pl.Series("accept_length", [1.0]), (1.0 + cumulative.cum_sum()).rename("accept_length")])
    return pl.DataFrame({"steps": range(len(lengths)), "accept_length": lengths}, schema_overrides={"steps": pl.Int64})
