#!/usr/bin/env python3
"""Predictions of ``whatif`` against what the samples measured. Run where ``samples/`` is: docs/story.md shows its output.

The factor of an all-reduce comes from another pair of recordings than the one that is predicted: mean transfer of one
all-reduce by phase, NCCL over custom, on the other machine. ``specanalyze whatif ... --against`` prints the same comparison
cell by cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from specanalyze.answers.measured import Measured, measure
from specanalyze.answers.whatif import Changes, WhatIf, predict
from specanalyze.formats.load import open_trace

EVENING = "samples/sglang_tp2_eagle3_steps"
STORY = "samples/story/eagle3_steps"
DEVICE = ("device", "transfer")
HOST = ("waiting", "idle", "place")
"""Kinds of ``PredictionCheck``: what the device works, and what it stands still for the host of its own or of a late rank. How much longer
cycles of other places than the windows' are is the host's in these recordings: their device work does not grow."""


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
    Prediction("5 steps from 2", f"{EVENING}2", f"{EVENING}5", steps=5),
    Prediction("2 steps from 5", f"{EVENING}5", f"{EVENING}2", steps=2),
    Prediction("5 steps from 2, story", f"{STORY}2", f"{STORY}5", steps=5),
    Prediction("3 steps from 2, story", f"{STORY}2", f"{STORY}3", steps=3),
    Prediction("2 steps from 1, story", f"{STORY}1", f"{STORY}2", steps=2),
    Prediction("NCCL from custom", f"{EVENING}2", f"{EVENING}2_nccl", ratio=(f"{STORY}2", f"{STORY}2_nccl")),
    Prediction("NCCL from custom, story", f"{STORY}2", f"{STORY}2_nccl", ratio=(f"{EVENING}2", f"{EVENING}2_nccl")),
)
STARTS = tuple(
    f"{folder}{name}"
    for folder, names in ((EVENING, ("2", "5", "2_nccl")), (STORY, ("1", "2", "3", "5", "2_nccl", "2_nccl_p2p_off")))
    for name in names
)


@cache
def measured(name: str) -> Measured:
    return measure(open_trace([Path(f"{name}.parquet")]))


def transfer_ns(m: Measured) -> dict[str, float]:
    """Phase -> mean transfer of one all-reduce, ns."""
    assert m.waits is not None
    rows = m.waits.collectives.filter(pl.col("op") == "allreduce", ~pl.col("voided"))
    return dict(rows.group_by("phase").agg(pl.col("transfer_ns").mean()).iter_rows())


def told(prediction: Prediction) -> WhatIf:
    start, truth = measured(prediction.start), measured(prediction.measured)
    if prediction.ratio is None:
        return predict(start, Changes(steps=prediction.steps), truth=truth)
    custom, nccl = (transfer_ns(measured(name)) for name in prediction.ratio)
    scale = tuple((p, "allreduce", nccl[p] / custom[p]) for p in start.phases)
    return predict(start, Changes(scale=scale), truth=truth)


def rows_of(prediction: Prediction) -> list[tuple[str, float, float, float]]:
    """(figure, now, predicted, measured): ms a cycle, and tok/s."""
    result = told(prediction)
    assert result.against is not None
    kind, phase = pl.col("kind"), pl.col("phase")
    selections = [(f"device, {p}, ms", kind.is_in(DEVICE) & (phase == p)) for p in measured(prediction.start).phases]
    selections.append(("host: waiting and idle, ms", kind.is_in(HOST)))
    figures = [pl.col(c).sum() / 1e6 for c in ("now_ns", "predicted_ns", "measured_ns")]
    rows = [(label, *result.against.table.filter(which).select(figures).row(0)) for label, which in selections]
    bounds = f"{result.low_ns / 1e6:.2f}..{result.high_ns / 1e6:.2f}"
    cycle = (result.now_ns / 1e6, result.predicted_ns / 1e6, result.against.measured_ns / 1e6)
    speeds = (*result.tokens_per_second, result.against.tokens_per_second)
    assert None not in speeds
    return [*rows, (f"cycle, ms ({bounds})", *cycle), ("tok/s", *speeds)]


def host_ms(m: Measured) -> tuple[float, float, float]:
    """Untraced cycle; device work in it (transfer included, waiting not); the rest: the host's own and waiting for a late rank."""
    cells = m.mean_ns()
    waits = 0.0
    for p, row in cells.items():
        for bucket in ("allreduce", "other_comm"):
            share = m.transfer_share(p, bucket)
            waits += 0.0 if share is None else (1 - share) * row.get(bucket, 0.0)
    busy = sum(ns for row in cells.values() for b, ns in row.items() if b not in ("graph_gap", "launch", "host"))
    return m.step_ns / 1e6, (busy - waits) / 1e6, (m.step_ns - busy + waits) / 1e6


def main() -> None:
    print(f"{'':34}{'now':>9}{'predicted':>11}{'measured':>10}{'error':>9}")
    for prediction in PREDICTIONS:
        print(f"{prediction.title}")
        for figure, now, predicted, true in rows_of(prediction):
            digits = 1 if figure == "tok/s" else 3
            print(
                f"  {figure:32}{now:9.{digits}f}{predicted:11.{digits}f}{true:10.{digits}f}{predicted / true - 1:+9.1%}"
            )
    print(f"\n{'untraced cycle of each start, ms':34}{'cycle':>9}{'device':>11}{'host':>10}")
    for name in STARTS:
        cycle, device, host = host_ms(measured(name))
        print(f"  {name.removeprefix('samples/'):32}{cycle:9.3f}{device:11.3f}{host:10.3f}")


if __name__ == "__main__":
    main()
