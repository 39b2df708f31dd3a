"""``accept``: accept length and acceptance, per request, batch size, draft length and over time (RULES R8)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from specanalyze.answers.advice import ACCEPTS, CYCLES, advice
from specanalyze.answers.environment import environment_of
from specanalyze.answers.positions import acceptance_by_position
from specanalyze.answers.server_count import REQUEST_SCHEMA, ServerCount, request_rows, server_count
from specanalyze.answers.wiring import wiring_warnings
from specanalyze.attribution.cycles import CYCLE_SCHEMA, control_is_another_run, rank_cycles, replicas
from specanalyze.attribution.host_rows import host_rows
from specanalyze.engines.engine import each_rank
from specanalyze.formats.input_path import is_file
from specanalyze.trace import RankSource, Trace
from specschema.errors import TraceError, UsageError
from specschema.figures import counted

GROUPINGS: Final = ("request", "batch", "position", "time", "draft", "mode")
"""What ``accept`` can be split by: ``draft`` is the draft length of the step, which adaptive speculation varies; ``mode``
tells steps that mix prefill with verify from the others."""

SLICES: Final = 20
"""Stretches of equally many verify steps that ``--by time`` shows."""

STEP_FILE: Final = "steps.jsonl"
"""Beside a trace, or in a folder of ranks: accepts that the trace itself does not hold."""

STEP_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.String,
    "cycle": pl.Int64,
    "start_ns": pl.Int64,
    "mode": pl.String,
    "request": pl.String,
    "batch_size": pl.Int64,
    "drafted": pl.Int64,
    "accepted": pl.Int64,
    "committed": pl.Int64,
}
"""One row a (request, verify step)."""


@dataclass(frozen=True)
class Accepts:
    """Verify steps of a recording.

    Attributes:
        name: recording or step file.
        steps: columns of STEP_SCHEMA; committed is never null.
        excluded: kind of step that is no verify step -> (request, step) pairs; ``unknown``: its accept length never
            reached the host.
        server: the server's own count; None where it is not recorded.
        warnings: one line each.
    """

    name: str
    steps: pl.DataFrame
    excluded: dict[str, int]
    server: ServerCount | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def verify_steps(self) -> int:
        """(request, verify step) pairs."""
        return self.steps.height

    @property
    def committed_tokens(self) -> int:
        """Tokens of the verify steps, bonus included, nothing after a stop token."""
        return int(self.steps.get_column("committed").sum())

    @property
    def accept_length(self) -> float:
        """Tokens committed per (request, verify step)."""
        return self.committed_tokens / self.verify_steps

    @property
    def accepted_draft_tokens(self) -> float:
        """Accept length - 1."""
        return self.accept_length - 1

    @property
    def beyond_the_end(self) -> int:
        """Tokens that the verifier took and the server cut: what lies behind a stop token or the token limit."""
        known = self.steps.filter(pl.col("accepted").is_not_null())
        return int((known.get_column("accepted").cast(pl.Int64) + 1 - known.get_column("committed")).clip(0).sum())

    @property
    def draft_accept_rate(self) -> float | None:
        """The verifier's own accepted / drafted; None where draft lengths are not recorded."""
        both = self.steps.filter(pl.col("drafted").is_not_null() & pl.col("accepted").is_not_null())
        drafted = int(both.get_column("drafted").sum())
        return int(both.get_column("accepted").sum()) / drafted if drafted else None


def accepts_of_trace(trace: Trace, phase_map: Mapping[str, str] | None = None) -> Accepts:
    """Verify steps of a recording's cycles, each data-parallel replica counted once.

    Raises:
        TraceError: no verify step with an accept length; the line says what to record.
    """
    tables, requests = [pl.DataFrame(schema=CYCLE_SCHEMA)], [pl.DataFrame(schema=REQUEST_SCHEMA)]
    for table, asked in each_rank(trace, _rank, phase_map):
        tables.append(table)
        requests.append(asked)
    cycles = pl.concat(tables)
    chosen = cycles.filter(pl.col("rank").is_in(replicas(trace, cycles)))
    steps, excluded = verify_steps_of(chosen)
    if not steps.height:
        raise TraceError(_nothing(trace, cycles, excluded))
    server = server_count(trace, chosen, pl.concat(requests))
    result = _warned(Accepts(trace.name, steps, excluded, server, list(trace.warnings)), environment_of(trace))
    traced = cycles.filter(pl.col("window").is_not_null() & pl.col("accept_lengths").is_not_null())
    if not traced.height and control_is_another_run(cycles):
        result.warnings.append("the accept lengths are those of the untraced run beside the trace, not the trace's own")
    return result


def _rank(source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One rank's cycles and requests."""
    rank = host_rows(source)
    return rank_cycles(rank, phase_map, trace.metadata), request_rows(rank)


def accepts_of_cycles(trace: Trace, cycles: pl.DataFrame) -> Accepts | None:
    """Verify steps of cycles at hand; None where none has an accept length.

    Args:
        trace: the recording, for its environment.
        cycles: of ``cycles.cycle_table``, one rank a replica.
    """
    steps, excluded = verify_steps_of(cycles)
    return _warned(Accepts(trace.name, steps, excluded), environment_of(trace)) if steps.height else None


def accepts_of_steps(path: Path) -> Accepts:
    """Verify steps of a steps.jsonl.

    Raises:
        UsageError: no such file.
        TraceError: a line that is no step, or no verify step in the file.
    """
    from specanalyze.formats.steps import read_steps

    rows = read_steps(path)
    said = [c for c in rows.columns if c != "rank"]
    # Without a cycle's number equal lines of one rank are steps of their own: the n-th of each is the same step on all ranks.
    nth = pl.when(pl.col("cycle").is_null()).then(pl.int_range(pl.len()).over("rank", *said)).otherwise(0)
    # Tensor-parallel ranks write the same (request, step) again; rows without a request (idle) are each their own.
    first = pl.struct(*said, "nth").is_first_distinct() | pl.col("request").is_null()
    rows = rows.with_columns(nth=nth).filter(first).drop("nth")
    verify = (pl.col("kind") == "verify") & (pl.col("num_draft") > 0).fill_null(value=True)
    other = rows.filter(~verify).select(
        kind=pl.when(pl.col("kind") == "verify").then(pl.lit("no_draft")).otherwise(pl.col("kind"))
    )
    steps = rows.filter(verify).select(
        rank=pl.col("rank"),
        cycle=pl.col("cycle"),
        start_ns=pl.lit(None),
        mode=pl.lit("speculative"),
        request=pl.col("request"),
        batch_size=pl.len().over("rank", "cycle"),
        drafted=pl.col("num_draft"),
        accepted=pl.col("num_accepted_draft"),
        committed=pl.col("num_committed"),
    )
    steps = steps.select(pl.col(c).cast(t) for c, t in STEP_SCHEMA.items())
    counted = _counted(other)
    if not steps.height:
        raise TraceError(f"{path.name} holds no verify step, only {_listed(counted)}")
    return _warned(Accepts(str(path), steps, counted), {})


def steps_beside(paths: Sequence[Path]) -> Path | None:
    """The step file among the paths, in a folder among them, or beside a trace among them."""
    for path in paths:
        if path.suffix == ".jsonl":
            return path
        beside = (path if os.path.isdir(path) else path.parent) / STEP_FILE
        if is_file(beside):
            return beside
    return None


def accept_frame(result: Accepts, by: str = "request") -> pl.DataFrame:
    """Accept lengths split one way.

    Args:
        result: of ``accepts_of_trace`` or ``accepts_of_steps``.
        by: one of GROUPINGS.

    Returns:
        By position: ``positions.acceptance_by_position``. Else one row a group: its key (request; batch_size; drafted; mode;
        or for time slice, first_cycle, last_cycle, start_ns of SLICES stretches of equally many steps), verify_steps,
        committed_tokens, accept_length, accepted_draft_tokens, draft_accept_rate (null where drafts are unknown).

    Raises:
        UsageError: an unknown grouping.
    """
    if by not in GROUPINGS:
        raise UsageError(f"cannot split by {by!r}; use one of {', '.join(GROUPINGS)}")
    if by == "position":
        return acceptance_by_position(result.steps)
    both = pl.col("drafted").is_not_null() & pl.col("accepted").is_not_null()
    drafted = pl.col("drafted").filter(both).sum()
    figures = (
        pl.len().cast(pl.Int64).alias("verify_steps"),
        pl.col("committed").sum().alias("committed_tokens"),
        pl.col("committed").mean().alias("accept_length"),
        (pl.col("committed").mean() - 1).alias("accepted_draft_tokens"),
        pl.when(drafted > 0).then(pl.col("accepted").filter(both).sum() / drafted).alias("draft_accept_rate"),
    )
    steps = result.steps
    if by == "time":
        steps = steps.sort("start_ns", "cycle", maintain_order=True)
        count = min(SLICES, steps.height)
        steps = steps.with_columns(slice=pl.int_range(pl.len(), dtype=pl.Int64) * count // steps.height)
        edges = (
            pl.col("cycle").min().alias("first_cycle"),
            pl.col("cycle").max().alias("last_cycle"),
            pl.col("start_ns").min(),
        )
        return steps.group_by("slice", maintain_order=True).agg(*edges, *figures)
    key = {"batch": "batch_size", "draft": "drafted"}.get(by, by)
    table = steps.group_by(key, maintain_order=True).agg(*figures)
    return table if by == "request" else table.sort(key, nulls_last=True)


def accept_json(result: Accepts) -> dict[str, Any]:
    """The documented JSON layout of ``accept``: the figures of RULES R8 at the top, then each way of splitting."""
    server = result.server
    return {
        "trace": result.name,
        "accept_length": result.accept_length,
        "accepted_draft_tokens": result.accepted_draft_tokens,
        "verify_steps": result.verify_steps,
        "committed_tokens": result.committed_tokens,
        "draft_accept_rate": result.draft_accept_rate,
        "excluded": result.excluded,
        **{f"by_{by}": accept_frame(result, by).to_dicts() for by in GROUPINGS},
        "server": None
        if server is None
        else {
            "told_by": server.told_by,
            "requests": server.requests,
            "completion_tokens": server.completion_tokens,
            "recorded_tokens": server.recorded_tokens,
            "difference": server.difference,
            "equal": server.difference == 0,
        },
        "warnings": result.warnings,
    }


def verify_steps_of(cycles: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Verify steps of the cycles, and how many (request, step) pairs are none, by kind."""
    lists = [pl.col(c).list.len() for c in ("accept_lengths", "request_ids", "accepted_draft_tokens")]
    size = pl.coalesce(*lists, pl.col("batch_size"), pl.lit(1)).clip(lower_bound=1)
    rows = cycles.with_columns(place=pl.int_ranges(0, size)).explode("place")
    at = pl.col("place")

    def element(column: str) -> pl.Expr:
        return pl.col(column).list.get(at, null_on_oob=True)

    rows = rows.select(
        "rank",
        "cycle",
        "start_ns",
        "mode",
        request=element("request_ids"),
        batch_size=pl.col("batch_size").fill_null(pl.col("accept_lengths").list.len().cast(pl.Int64)),
        drafted=pl.col("draft_tokens"),
        accepted=element("accepted_draft_tokens"),
        committed=element("accept_lengths"),
        # where the verifier tells of some requests of the batch, the others had no drafts (n-gram matching finds some only)
        undrafted=pl.col("accepted_draft_tokens").is_not_null() & element("accepted_draft_tokens").is_null(),
    )
    mixed = pl.col("mode") == "mixed"
    kind = (
        pl.when(~pl.col("mode").is_in(("speculative", "mixed")).fill_null(value=False))
        .then(pl.col("mode").fill_null("unknown"))
        .when(pl.col("drafted") == 0)
        .then(pl.lit("no_draft"))
        .when(mixed & pl.col("accepted").is_null())  # a request of the batch that was prefilled
        .then(pl.lit("prefill"))
        .when(pl.col("committed").is_null())
        .then(pl.lit("unknown"))
        .when("undrafted")
        .then(pl.lit("no_draft"))
    )
    rows = rows.with_columns(kind=kind)
    steps = rows.filter(pl.col("kind").is_null()).select(pl.col(c).cast(t) for c, t in STEP_SCHEMA.items())
    return steps, _counted(rows.filter(pl.col("kind").is_not_null()))


def _counted(rows: pl.DataFrame) -> dict[str, int]:
    return {str(kind): int(n) for kind, n in rows.group_by("kind", maintain_order=True).len().iter_rows()}


def _listed(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counted.items()) or "nothing"


def _nothing(trace: Trace, cycles: pl.DataFrame, excluded: Mapping[str, int]) -> str:
    """Why there is no verify step, and what to record."""
    beside = "give the accepted drafts beside the trace (FILE.cycles.json, --cycles FILE, or steps.jsonl)"
    if not cycles.height:
        return f"{trace.name} has no decode cycles: {advice(trace, CYCLES, beside)}"
    if set(excluded) <= {"decode", "prefill", "idle", "no_draft"}:
        return f"{trace.name} holds no verify step, only {_listed(excluded)}: was speculative decoding on?"
    return f"{trace.name} does not say how many tokens its {cycles.height} cycles committed: {advice(trace, ACCEPTS, beside)}"


def _warned(result: Accepts, environment: Mapping[str, Any]) -> Accepts:
    """Add what a reader must know."""
    result.warnings.extend(wiring_warnings(result.steps, acceptance_by_position(result.steps), environment))
    unknown = result.excluded.get("unknown", 0)
    if unknown:
        result.warnings.append(
            f"{unknown} (request, step) pairs have no known accept length and are left out; "
            f"{result.verify_steps} are counted"
        )
    impossible = (pl.col("accepted") > pl.col("drafted")) | (pl.col("committed") > pl.col("drafted") + 1)
    more = result.steps.filter(impossible).height
    if more:
        result.warnings.append(
            f"{counted(more, 'verify step')} with more tokens than its drafts and the bonus token allow: "
            "what counts steps or drafts counts something else, so these figures cannot be trusted"
        )
    if result.steps.get_column("drafted").null_count():
        result.warnings.append(
            "draft lengths are not recorded for all steps: no draft accept rate for those, and acceptance by position "
            "ends at the longest acceptance seen"
        )
    server = result.server
    if server is not None and server.difference:
        result.warnings.append(
            f"the {server.told_by} counts {counted(server.completion_tokens, 'token')} for {counted(server.requests, 'request')}, "
            f"the recording {server.recorded_tokens}: {abs(server.difference)} "
            f"{'are missing' if server.difference > 0 else 'too many'}"
        )
    return result
