"""What other draft steps, or a tree, do to a cycle: draft, verify and accept length follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.advice import ACCEPTS, SETTINGS, advice
from specanalyze.answers.draft_length import Lengths, tree_lengths, with_steps
from specanalyze.answers.line_fit import fit_lines
from specanalyze.answers.measured import Measured
from specanalyze.answers.wiring import simulated
from specschema.errors import TraceError
from specschema.figures import about
from specschema.phases import BUCKETS, COMMUNICATION_BUCKETS, DEVICE_BUCKETS

PER_TOKEN: Final = ("attention", "moe", "gemm", "other_compute")
"""Buckets of verify that can grow with the tokens it scores."""

Cells = dict[str, dict[str, float]]
"""Phase -> bucket -> ns a cycle."""


@dataclass
class PredictedCycle:
    """A cycle being changed.

    Attributes:
        cells: as predicted.
        extreme: as it would be under the assumptions' other extreme.
        lengths: the predicted accept length; None where the changes leave it.
        assumptions: one line each.
    """

    cells: Cells
    extreme: Cells
    lengths: Lengths | None
    assumptions: list[str] = field(default_factory=list)

    def change(self, phase: str, bucket: str, change: Callable[[float], float]) -> None:
        for cells in (self.cells, self.extreme):
            if bucket in cells.get(phase, {}):
                cells[phase][bucket] = change(cells[phase][bucket])


def change_draft(
    m: Measured, state: PredictedCycle, new_steps: int | None, tree: int | None, other: Measured | None
) -> None:
    """Other draft steps or a tree: draft, verify and accept length follow."""
    steps = m.draft_steps
    if steps is None:
        raise TraceError(
            f"{m.trace.name} does not say its draft steps: {advice(m.trace, SETTINGS, 'give --draft-steps')}"
        )
    tokens = m.verify_tokens
    if tokens is None:
        raise TraceError(f"{m.trace.name} does not say how many tokens it verifies: {advice(m.trace, ACCEPTS)}")
    target = new_steps or steps
    branches = tree or 1
    _draft_cost(m, state, steps, target)
    after = (target * branches + 1) * m.batch_size
    _verify_cost(m, state, tokens, after, other)
    acceptance = m.acceptance()
    if not len(acceptance) or m.accept_length is None:
        state.assumptions.append("acceptance by position is not recorded: accept length and tok/s cannot be predicted")
        return
    lengths, said = with_steps(acceptance, target)
    if branches > 1:
        lengths, more = tree_lengths(acceptance, target, branches)
        said += more
    invented = simulated(m.accepts().get_column("accepted"), m.environment)
    if invented is not None:
        state.assumptions.append(f"accept length is left as it is: {invented}")
        return
    recorded = 1.0 + float(acceptance[:steps].sum())
    state.lengths = lengths.scaled(m.accept_length / recorded)
    state.assumptions += said


def _draft_cost(m: Measured, state: PredictedCycle, steps: int, target: int) -> None:
    forwards = _forwards(m, steps)
    after = max(0.0, forwards + target - steps)
    if after == forwards:
        return
    if not forwards:
        _first_forwards(m, state, after)
        return
    ratio = after / forwards
    in_graph = m.per_cycle.filter(pl.col("phase") == "draft").get_column("replays").sum() > 0
    grows = [*DEVICE_BUCKETS, "graph_gap"] if in_graph else list(BUCKETS)
    once = 0.0
    for bucket in grows:
        # Waiting for a late rank happens once a graph, at its first collective; only the transfer comes with each forward.
        share = m.transfer_share("draft", bucket) if bucket in COMMUNICATION_BUCKETS else None
        fixed = m.draft_once.get(bucket, 0.0)
        moving = 1 - fixed if share is None else share
        if bucket == "memcpy" and bucket not in m.draft_once:
            continue  # a copy comes with the tree; only a graph tells it from copies of the forwards
        if bucket in DEVICE_BUCKETS:
            once += fixed * state.cells.get("draft", {}).get(bucket, 0.0)
        state.change("draft", bucket, lambda ns, moving=moving: ns * (1 - moving + moving * ratio))  # type: ignore[misc]
    state.assumptions.append(
        f"draft makes {forwards:g} forward{'s' if forwards != 1 else ''} a cycle now and {after:g} then; its device time grows with them"
        + (
            f" but for {once / 1e6:.3f} ms that come once a cycle (outside its graph, or before its first module)"
            if once
            else ""
        )
        + (", its one graph launch does not" if in_graph else ", so does its launch and host time (no graph)")
        + "; the re-extend stays"
    )


def _first_forwards(m: Measured, state: PredictedCycle, after: float) -> None:
    """From a draft phase without forwards (one step: the re-extend makes the only draft) to one that has some."""
    extend = state.cells.get("draft_extend", {})
    for bucket in (*DEVICE_BUCKETS, "graph_gap"):
        ns = extend.get(bucket, 0.0)
        if bucket in COMMUNICATION_BUCKETS:
            share = m.transfer_share("draft_extend", bucket)
            ns *= 1.0 if share is None else share
        state.cells["draft"][bucket] = state.cells["draft"].get(bucket, 0.0) + after * ns
        if bucket == "gemm":  # the least that a forward takes: the same weights
            state.extreme["draft"][bucket] = state.extreme["draft"].get(bucket, 0.0) + after * ns
    state.assumptions.append(
        f"draft makes no forward a cycle now and {after:g} then, each taken to be as long as the re-extend, which is one over more tokens "
        "(an upper bound; at least its GEMM); what a graph launch more costs is not in it"
    )


def _forwards(m: Measured, steps: int) -> float:
    """Forwards of the draft model in the draft phase: how often its kernels run there for each time in the re-extend, one forward.

    SGLang's draft phase has one forward less than steps (the re-extend before made the first draft), vLLM's has all. The median
    over the kernels of both phases: the re-extend scores more tokens, and its fusion layer runs some kernels once more.
    """
    calls = m.kernels.filter(pl.col("bucket").is_in(PER_TOKEN)).group_by("phase", "name").agg(pl.col("count").sum())
    extend = calls.filter(pl.col("phase") == "draft_extend")
    both = extend.join(calls.filter(pl.col("phase") == "draft"), on="name", suffix="_draft")
    if not extend.height:
        return float(max(1, steps))
    ratio = both.select((pl.col("count_draft") / pl.col("count")).median()).item() or 0.0
    return float(round(ratio)) if steps - 1.3 <= ratio <= steps + 0.3 else float(max(1, steps))


def _verify_cost(m: Measured, state: PredictedCycle, tokens: float, after: float, other: Measured | None) -> None:
    if after == tokens:
        return
    if other is not None and not other.speculating:
        slopes = {bucket: slope for bucket, (slope, _) in _slopes(m, other, tokens).items()}
        for bucket, slope in slopes.items():
            if bucket in state.extreme.get("verify", {}):
                state.extreme["verify"][bucket] = max(0.0, state.extreme["verify"][bucket] + slope * (after - tokens))
        state.assumptions.append(
            f"verify takes as long for {about(after)} tokens as for {about(tokens)}: it reads the same weights. At worst it grows by "
            f"{sum(slopes.values()) / 1e6:.3f} ms a token, as from plain decoding to it; plain decoding runs other kernels, so this "
            "line is too steep: a second speculating recording is better"
        )
        return
    if other is not None:
        lines = _slopes(m, other, tokens)
        for bucket, (slope, steepest) in lines.items():
            if bucket in state.cells.get("verify", {}):
                state.cells["verify"][bucket] = max(0.0, state.cells["verify"][bucket] + slope * (after - tokens))
                state.extreme["verify"][bucket] = max(
                    0.0, state.extreme["verify"][bucket] + steepest * (after - tokens)
                )
        state.assumptions.append(
            f"verify grows by {sum(s for s, _ in lines.values()) / 1e6:.3f} ms a token, busy time bucket by bucket on the straight line "
            f"through {other.trace.name}; a bucket whose line is within noise, or falls, is taken as flat (bounds: the steepest line "
            "within noise)"
        )
        return
    ratio = after / tokens
    for bucket in PER_TOKEN:
        if bucket in state.extreme.get("verify", {}):
            state.extreme["verify"][bucket] *= ratio
    if ratio > 1:
        state.assumptions.append(
            f"verify takes as long for {about(after)} tokens as for {about(tokens)}: it reads the same weights. At worst its compute grows "
            f"{ratio:.2f} times (upper bound); a second recording at another token count (--with) replaces this assumption"
        )
    else:
        state.assumptions.append(
            f"verify takes as long for {about(after)} tokens as for {about(tokens)}: it reads the same weights. At best its compute shrinks to "
            f"{ratio:.2f} of it (lower bound); a second recording at another token count (--with) replaces this assumption"
        )


def _slopes(m: Measured, other: Measured, tokens: float) -> dict[str, tuple[float, float]]:
    """ns a token for each busy bucket of the target's forward, and the steepest within noise; never below 0.

    Communication by transfer, because waiting is not its cost. A line within noise is flat.
    """
    there = other.verify_tokens
    if there is None or there == tokens:
        raise TraceError(
            f"{other.trace.name} verifies {f'{there:g}' if there else 'an unknown number of'} tokens, {m.trace.name} {tokens:g}: a second recording "
            "must verify another number of tokens"
        )
    cells = [r.matrix((r.main_phase,))[:, 0, :] for r in (m, other)]
    for r, c in zip((m, other), cells, strict=True):
        for bucket in COMMUNICATION_BUCKETS:
            share = r.transfer_share(r.main_phase, bucket)
            if share is not None:
                c[:, BUCKETS.index(bucket)] *= share
    lines = fit_lines(np.array([tokens, there]), cells)
    found = {}
    for bucket, line in zip(BUCKETS, lines, strict=True):
        slope = line.slope
        if bucket in DEVICE_BUCKETS:
            value = max(0.0, slope.value) if slope.excludes_zero or slope.low is None else 0.0
            found[bucket] = (value, max(0.0, slope.value if slope.high is None else slope.high))
    return found
