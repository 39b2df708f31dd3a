"""A prediction of ``whatif`` against a real recording of the change: where they differ, by phase and bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from specanalyze.answers.calibrated_cycle import calibrated_cycle
from specanalyze.answers.environment import differences
from specanalyze.answers.measured import Measured
from specanalyze.answers.window_context import unlike_contexts
from specschema.errors import TraceError
from specschema.phases import BUCKETS, COMMUNICATION_BUCKETS, IDLE_BUCKETS

ELSEWHERE, PLACE = "elsewhere", "place"
"""Phase and bucket of what the typical cycle of a recording takes more than the one at the place of its windows."""
KINDS: Final = ("device", "transfer", "transfer and waiting", "waiting", "idle", PLACE)
"""device: kernels and copies but communication; transfer, waiting: of communication, and both together where one rank is known;
idle: gaps in replays, launches, host; place: cycles of other contexts than the windows' are longer or shorter."""

SCHEMA: Final = {
    "phase": pl.String,
    "bucket": pl.String,
    "kind": pl.String,
    "now_ns": pl.Float64,
    "predicted_ns": pl.Float64,
    "measured_ns": pl.Float64,
    "error_ns": pl.Float64,
}
"""Columns of ``PredictionCheck.table``: ns a cycle, error = predicted - measured; phase ``rest``: outside the phases."""

_FIGURES: Final = ("now_ns", "predicted_ns", "measured_ns", "error_ns")


@dataclass(frozen=True)
class PredictionCheck:
    """A prediction and what came.

    Attributes:
        name: of the measured recording.
        table: see SCHEMA. The errors add up to the cycle's.
        measured_ns: its cycle.
        tokens_per_second: its own, None where accepts are unknown.
        differences: facts of the environment that differ, the change's own among them, one line each.
        warnings: one line each.
    """

    name: str
    table: pl.DataFrame
    measured_ns: float
    tokens_per_second: float | None
    differences: list[str]
    warnings: list[str]

    def by_kind(self) -> pl.DataFrame:
        """Sums of the table: kind and the four figures of SCHEMA, in the order of KINDS."""
        sums = self.table.group_by("kind").agg(pl.col(c).sum() for c in _FIGURES)
        order = pl.col("kind").replace_strict({k: i for i, k in enumerate(KINDS)}, return_dtype=pl.Int64)
        return sums.sort(order)


def check_prediction(
    start: Measured, predicted: pl.DataFrame, truth: Measured, steps: int | None = None
) -> PredictionCheck:
    """Set a prediction beside a recording of the change.

    Args:
        start: the recording that the prediction starts from.
        predicted: ``WhatIf.table``.
        truth: a recording made with the change.
        steps: draft steps that were predicted; None where they stay.

    Raises:
        TraceError: one of them speculates and the other does not.
    """
    if truth.speculating != start.speculating:
        plain = start if truth.speculating else truth
        raise TraceError(
            f"{plain.trace.name} decodes plainly and the other recording speculates: --against needs the change itself"
        )
    warnings = []
    expected = steps if steps is not None else start.draft_steps
    if None not in (expected, truth.draft_steps) and expected != truth.draft_steps:
        warnings.append(
            f"{truth.trace.name} has {truth.draft_steps} draft steps, the prediction {expected}: it is no recording of this change"
        )
    if truth.batch_size != start.batch_size:
        warnings.append(
            f"mean batch {start.batch_size:.2f} in {start.trace.name}, {truth.batch_size:.2f} in {truth.trace.name}: not the same work"
        )
    warnings += unlike_contexts(start, truth)
    if truth.idle_factor is None or start.idle_factor is None:
        which = ", ".join(m.trace.name for m in (start, truth) if m.idle_factor is None)
        warnings.append(
            f"no untraced control in {which}: its idle times and its cycle are those of an observed run, too long"
        )
    here: dict[str, dict[str, float]] = {}
    there: dict[str, dict[str, float]] = {}
    for phase, bucket, now, then in predicted.select("phase", "bucket", "now_ns", "predicted_ns").iter_rows():
        here.setdefault(phase, {})[bucket] = now
        there.setdefault(phase, {})[bucket] = then
    measured = calibrated_cycle(truth)
    cells = {**measured.cells, "rest": {"host": measured.rest_ns}, ELSEWHERE: {PLACE: measured.elsewhere_ns}}
    rows = []
    for phase in dict.fromkeys([*here, *cells]):
        for bucket in (*BUCKETS, PLACE):
            figures = [c.get(phase, {}).get(bucket, 0.0) for c in (here, there, cells)]
            if any(figures):
                rows += _rows(phase, bucket, figures, start, truth)
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    differing = [str(d) for d in differences(start.environment, truth.environment)]
    return PredictionCheck(truth.trace.name, table, truth.step_ns, truth.tokens_per_second, differing, warnings)


def _rows(phase: str, bucket: str, figures: list[float], start: Measured, truth: Measured) -> list[tuple[Any, ...]]:
    """One row of the table, or two: transfer and waiting of communication."""
    now, then, true = figures
    if bucket not in COMMUNICATION_BUCKETS:
        kind = "idle" if bucket in IDLE_BUCKETS else PLACE if bucket == PLACE else "device"
        return [(phase, bucket, kind, now, then, true, then - true)]
    shares = [m.transfer_share(phase, bucket) for m in (start, truth)]
    told = [share for share, ns in zip(shares, (now, true), strict=True) if ns]
    if None in told:
        return [(phase, bucket, "transfer and waiting", now, then, true, then - true)]
    before, after = (1.0 if share is None else share for share in shares)  # no time: nothing to share out
    waiting = (1 - before) * now  # a prediction leaves it
    found = []
    for kind, values in (
        ("transfer", (now - waiting, then - waiting, after * true)),
        ("waiting", (waiting, waiting, (1 - after) * true)),
    ):
        found.append((phase, bucket, kind, *values, values[1] - values[2]))
    return found


def prediction_check_json(check: PredictionCheck) -> dict[str, Any]:
    """``against`` of the prediction's JSON document: times in ns a cycle."""
    return {
        "trace": check.name,
        "cycle_ns": check.measured_ns,
        "tokens_per_second": check.tokens_per_second,
        "differences": check.differences,
        "by_kind": check.by_kind().to_dicts(),
        "table": check.table.to_dicts(),
    }
