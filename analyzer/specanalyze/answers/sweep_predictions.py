"""tok/s of step counts that were not recorded, from those that were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.measured import Measured, acceptance_of
from specanalyze.answers.wiring import simulated
from specschema.figures import are, counted, were

PREDICTION_SCHEMA: Final = {
    "draft_steps": pl.Int64,
    "accept_length": pl.Float64,
    "cycle_ns": pl.Float64,
    "predicted": pl.Float64,
    "measured": pl.Float64,
}
"""Columns of ``Sweep.predictions``: tok/s of every step count that acceptance by position reaches."""


def no_predictions() -> pl.DataFrame:
    return pl.DataFrame(schema=PREDICTION_SCHEMA)


def predictions_of(recordings: Sequence[Measured], points: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """tok/s for every step count: the line of the cycle over draft steps, and accept length from acceptance by position.

    Draft, verify, re-extend and the rest of the cycle each grow linearly with the steps of a chain, so their sum does.

    Args:
        recordings: the recordings.
        points: columns of ``sweep.POINT_SCHEMA``, one row a recording.

    Returns:
        Columns of PREDICTION_SCHEMA, and one line each on why there are none or what else to record.
    """
    acceptance = acceptance_of(recordings)
    if not len(acceptance):
        return no_predictions(), ["accepts are not recorded: tok/s of other step counts cannot be predicted"]
    steps = points.get_column("draft_steps").to_numpy().astype(np.float64)
    if len(np.unique(steps)) < 2:
        return no_predictions(), ["one step count only: how the cycle grows with the steps is unknown; record another"]
    sizes = points.get_column("batch_size").to_numpy()
    if sizes.max() > 1.05 * sizes.min():
        return no_predictions(), ["the recordings' batch sizes differ: other step counts are not predicted from them"]
    if any(simulated(m.accepts().get_column("accepted"), m.environment) for m in recordings):
        return no_predictions(), [
            "acceptance is simulated, or each step accepted the same: other step counts cannot be predicted from it"
        ]
    slope, fixed = np.polyfit(steps, points.get_column("step_ns").to_numpy(), 1)
    measured = dict(points.select("draft_steps", "tokens_per_second").iter_rows())
    scale = float(np.mean([(m.tokens_per_cycle or 0.0) / (m.accept_length or 1.0) for m in recordings]))
    rows = []
    for n in range(1, len(acceptance) + 1):
        length, cycle = 1.0 + float(acceptance[:n].sum()), float(fixed + slope * n)
        rows.append(
            {
                "draft_steps": n,
                "accept_length": length,
                "cycle_ns": cycle,
                "predicted": length * scale / cycle * 1e9 if cycle > 0 else None,
                "measured": measured.get(n),
            }
        )
    table = pl.DataFrame(rows, schema=PREDICTION_SCHEMA).drop_nulls("predicted")
    top = table.sort("predicted", descending=True).row(0, named=True)
    said = []
    if top["measured"] is None:
        said.append(
            f"{counted(top['draft_steps'], 'draft step')} {are(top['draft_steps'])} predicted to be best but "
            f"{were(top['draft_steps'])} not recorded: record that, too"
        )
    return table, said
