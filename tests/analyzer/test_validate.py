"""What ``validate`` finds, check by check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import traces

from specanalyze.answers.validate import validate
from specanalyze.cli import run
from specanalyze.trace import RankTrace

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
SAMPLES = Path(__file__).parents[2] / "samples"
CHECK = "cycles numbered alike"


def rank(number: int, *cycles: int, window: int = 0, begin: int = 0) -> RankTrace:
    """A cycle every 100 ns, from ``begin`` on."""
    rows = []
    for place, cycle in enumerate(cycles):
        at = begin + 100 * place
        rows.append(traces.phase("spec.verify", at, at + 50, cycle=cycle, window=window))
        rows.append(traces.launch("cudaLaunchKernel", at + 10, place, window=window))
        rows.append(traces.kernel(GEMM, at + 20, at + 60, place, window=window))
    return traces.rank_trace(rows, rank=number)


def found(*ranks: RankTrace, check: str = CHECK, **metadata: object) -> list[tuple[str, str, str]]:
    frame, _ = validate(replace(traces.trace(*ranks), metadata=dict(metadata)))
    return [(r["rank"], r["result"], r["detail"]) for r in frame.to_dicts() if r["check"] == check]


def test_ranks_that_number_alike() -> None:
    assert found(rank(0, 3, 4, 5), rank(1, 3, 4, 5)) == [("1", "ok", "as rank 0")]
    assert found(rank(0, 3, 4, 5)) == []


def test_a_rank_that_began_to_count_later_is_told() -> None:
    """The figures paired its cycles in order, and nothing said so."""
    assert found(rank(0, 3, 4, 5), rank(1, 2, 3, 4)) == [
        (
            "1",
            "warning",
            "window 0: 3 cycles, 2 to 4, rank 0 3 cycles, 3 to 5; shifted by 1: means over ranks pair them in their order",
        )
    ]


def test_other_cycles_are_no_shift() -> None:
    ((_, result, detail),) = found(rank(0, 3, 4, 5), rank(1, 5))
    assert result == "warning"
    assert (
        detail == "window 0: cycle 5, rank 0 3 cycles, 3 to 5; not the same cycles: means over ranks pair equal numbers"
    )


ONE_HOST = [{"rank": n, "host": "a"} for n in range(2)]
TWO_HOSTS = [{"rank": n, "host": "ab"[n]} for n in range(2)]


@pytest.mark.parametrize(
    ("begin", "ranks", "words"),
    [
        (30, ONE_HOST, None),
        (
            -100,
            ONE_HOST,
            "window 0: the cycles begin 0.000 ms earlier than rank 0's (1.0 cycles): other cycles under equal numbers",
        ),
        (100, TWO_HOSTS, None),  # no shared clock: an offset may be all there is
        (100, None, None),
        (400, TWO_HOSTS, "and not while these run: other cycles, or clocks that far apart"),
    ],
)
def test_equal_numbers_of_other_cycles(begin: int, ranks: list[dict[str, object]] | None, words: str | None) -> None:
    """Each rank counts from its own first cycle: on a busy server, and on two hosts, that need not be the same one."""
    ((_, result, detail),) = found(rank(0, 3, 4, 5), rank(1, 3, 4, 5, begin=begin), ranks=ranks or [])
    assert result == ("ok" if words is None else "warning")
    assert (words or "as rank 0") in detail


def test_replicas_count_for_themselves() -> None:
    places = [{"rank": n, "data": n // 2} for n in range(4)]
    ranks = [rank(0, 3, 4), rank(1, 3, 4), rank(2, 90, 91), rank(3, 90, 91)]
    assert found(*ranks, ranks=places) == [("1", "ok", "as rank 0"), ("3", "ok", "as rank 2")]


@pytest.mark.parametrize(
    ("world", "row"),
    [
        (None, []),
        (2, [("all", "ok", "2 of 2")]),
        (4, [("all", "warning", "2 of 4; no record of 2, 3")]),
        (128, [("all", "warning", "2 of 128; no record of 2, 3, 4, 5, 6, 7, 8, 9, ...")]),
    ],
)
def test_missing_ranks_are_told(world: int | None, row: list[tuple[str, str, str]]) -> None:
    places = [{"rank": n, "world_size": world} for n in range(2)]
    assert found(rank(0, 3, 4), rank(1, 3, 4), check="all ranks recorded", ranks=places) == row


def test_the_sample_that_was_armed_before_ranks_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(SAMPLES / "sglang_tp2_eagle3_steps2.parquet")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("sglang_tp2_eagle3_steps2.parquet: read whole")
    assert (
        "! 1 cycles numbered alike window 0: 40 cycles, 62 to 101, rank 0 40 cycles, 63 to 102; shifted by 1" in shown
    )
