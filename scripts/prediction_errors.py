#!/usr/bin/env python3
"""Predictions of ``whatif`` against what the samples measured. Run where ``samples/`` is: docs/story.md shows its output.

Device time is without waiting for other ranks. The factor of an all-reduce comes from another pair of recordings than the
one that is predicted: mean transfer of one all-reduce by phase, NCCL over custom, on the other machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from specanalyze.load import open_trace
from specanalyze.measured import Measured, measure
from specanalyze.whatif import Changes, predict
from specschema.phases import COMMUNICATION_BUCKETS, DEVICE_BUCKETS

EVENING = "samples/sglang_tp2_eagle3_steps2"
STORY = "samples/story/eagle3_steps"


@dataclass(frozen=True)
class Prediction:
    """What is predicted from which recording, and the recording that tells the truth.

    Attributes:
        title: said above its rows.
        start, measured: recordings.
        steps: draft steps to predict; None where all-reduce is scaled instead.
        ratio: recordings with the custom all-reduce and with NCCL, that give the factor.
    """

    title: str
    start: str
    measured: str
    steps: int | None = None
    ratio: tuple[str, str] | None = None


PREDICTIONS = (
    Prediction("5 steps from 2", EVENING, "samples/sglang_tp2_eagle3_steps5", steps=5),
    Prediction("5 steps from 2, story", f"{STORY}2", f"{STORY}5", steps=5),
    Prediction("3 steps from 2, story", f"{STORY}2", f"{STORY}3", steps=3),
    Prediction("NCCL from custom", EVENING, f"{EVENING}_nccl", ratio=(f"{STORY}2", f"{STORY}2_nccl")),
    Prediction("NCCL from custom, story", f"{STORY}2", f"{STORY}2_nccl", ratio=(EVENING, f"{EVENING}_nccl")),
)


@cache
def measured(name: str) -> Measured:
    return measure(open_trace([Path(f"{name}.parquet")]))


def transfer_ns(m: Measured) -> dict[str, float]:
    """Phase -> mean transfer of one all-reduce, ns."""
    assert m.waits is not None
    rows = m.waits.collectives.filter(pl.col("op") == "allreduce", ~pl.col("voided"))
    return dict(rows.group_by("phase").agg(pl.col("transfer_ns").mean()).iter_rows())


def device_ns(m: Measured, cells: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Phase -> device time a cycle less the recording's own waiting, ns: ``whatif`` leaves waiting as it is."""
    now = m.mean_ns()
    found = {}
    for phase, row in cells.items():
        share = m.transfer_share(phase)
        waiting = 0.0 if share is None else (1 - share) * sum(now[phase].get(b, 0.0) for b in COMMUNICATION_BUCKETS)
        found[phase] = sum(ns for b, ns in row.items() if b in DEVICE_BUCKETS) - waiting
    return found


def rows_of(prediction: Prediction) -> list[tuple[str, float, float, float]]:
    """(figure, now, predicted, measured): ms a cycle, and tok/s."""
    start, truth = measured(prediction.start), measured(prediction.measured)
    if prediction.ratio is None:
        changes = Changes(steps=prediction.steps)
    else:
        custom, nccl = (transfer_ns(measured(name)) for name in prediction.ratio)
        changes = Changes(scale=tuple((p, "allreduce", nccl[p] / custom[p]) for p in start.phases))
    told = predict(start, changes)
    cells: dict[str, dict[str, float]] = {}
    for row in told.table.iter_rows(named=True):
        cells.setdefault(row["phase"], {})[row["bucket"]] = row["predicted_ns"]
    now, then, true = (
        device_ns(m, c)
        for m, c in (
            (start, start.mean_ns()),
            (start, {p: cells[p] for p in start.phases}),
            (truth, truth.mean_ns()),
        )
    )
    rows = [(f"device, {p}, ms", now[p] / 1e6, then[p] / 1e6, true[p] / 1e6) for p in start.phases]
    bounds = f"{told.low_ns / 1e6:.2f}..{told.high_ns / 1e6:.2f}"
    rows.append((f"cycle, ms ({bounds})", told.now_ns / 1e6, told.predicted_ns / 1e6, truth.step_ns / 1e6))
    speeds = (*told.tokens_per_second, truth.tokens_per_second)
    assert None not in speeds
    rows.append(("tok/s", *speeds))  # type: ignore[arg-type]
    return rows


def main() -> None:
    print(f"{'':34}{'now':>9}{'predicted':>11}{'measured':>10}{'error':>9}")
    for prediction in PREDICTIONS:
        print(f"{prediction.title}")
        for figure, now, predicted, true in rows_of(prediction):
            digits = 1 if figure == "tok/s" else 3
            print(
                f"  {figure:32}{now:9.{digits}f}{predicted:11.{digits}f}{true:10.{digits}f}{predicted / true - 1:+9.1%}"
            )


if __name__ == "__main__":
    main()
