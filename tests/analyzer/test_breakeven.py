"""The accept length that pays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import traces

from specanalyze.answers.breakeven import break_even, break_even_json
from specanalyze.cli import run
from specanalyze.trace import Trace
from specschema.errors import TraceError

MS = 1_000_000


def accepts(mode: str, accepted: int) -> dict[str, Any]:
    if mode != "speculative":
        return {}
    return {"draft_tokens": 5, "accept_lengths": [accepted + 1], "accepted_draft_tokens": [accepted]}


def run_of(mode: str, step_ns: int, accepted: list[int], window: int | None = None, **more: Any) -> Trace:
    """Cycles of one request, ``step_ns`` from start to start; the profiler is said to have run in ``window``."""
    rows = [
        traces.phase(
            "spec.cycle",
            n * step_ns,
            n * step_ns + MS,
            cycle=n,
            mode=mode,
            window=window,
            batch_size=1,
            **accepts(mode, a),
        )
        for n, a in enumerate(accepted)
    ]
    return dataclasses.replace(traces.trace(traces.rank_trace(rows)), **more)


ACCEPTED = [2, 0, 1, 5, 1, 0, 3, 0, 0, 1]  # accept length 2.3
EAGLE = run_of("speculative", 29_900_000, ACCEPTED)
PLAIN = run_of("decode", 11_100_000, [0] * 12, name="plain.parquet")


def test_the_accept_length_that_pays_is_cycle_over_step() -> None:
    found = break_even(EAGLE, PLAIN)
    assert found.pays_at.value == pytest.approx(2.6937, abs=1e-4)
    assert (found.pays_at.low, found.pays_at.high) == (found.pays_at.value, found.pays_at.value)
    assert found.accept_length == pytest.approx(2.3)
    assert found.missing_tokens == pytest.approx(0.3937, abs=1e-4)
    assert found.tok_s == pytest.approx(2.3 / 0.0299)
    assert found.baseline_tok_s == pytest.approx(90.09, abs=0.01)
    assert found.won_tok_s == pytest.approx(-13.17, abs=0.01)
    assert not found.cycle.traced
    printed = break_even_json(found)
    assert printed["cycle"]["median_ns"] == 29_900_000
    assert printed["baseline_step"]["cycles"] == 11


def test_each_number_of_steps_has_the_cycle_it_pays_below() -> None:
    rows = break_even(EAGLE, PLAIN).by_steps.to_dicts()
    assert [row["steps"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["accept_length"] for row in rows] == pytest.approx([1.6, 1.9, 2.1, 2.2, 2.3])
    assert rows[1]["budget_ns"] == pytest.approx(1.9 * 11_100_000)
    assert rows[1]["tok_s_at_least"] == pytest.approx(1.9 / 0.0299)
    assert {row["pays"] for row in rows} == {None}
    fast = break_even(run_of("speculative", 20_000_000, ACCEPTED), PLAIN).by_steps
    assert fast["pays"].to_list() == [None, True, True, True, True]  # 20 / 11.1 = 1.80


def test_untraced_cycles_are_the_clock_and_like_is_weighed_with_like() -> None:
    traced = run_of("speculative", 40 * MS, ACCEPTED, window=0)
    slow_plain = run_of("decode", 16 * MS, [0] * 9, window=0)
    both = break_even(traced, slow_plain)
    assert (both.pays_at.value, both.cycle.traced, both.step.traced) == (2.5, True, True)
    assert any("both times are of traced cycles" in line for line in both.warnings)
    mixed = break_even(traced, PLAIN)
    assert any("errs against speculation" in line for line in mixed.warnings)


def test_where_it_stands_is_unknown_without_accepts() -> None:
    rows = [traces.phase("spec.cycle", n * MS, n * MS + 9, cycle=n, mode="speculative") for n in range(5)]
    found = break_even(traces.trace(traces.rank_trace(rows)), PLAIN)
    assert (found.accept_length, found.tok_s, found.won_tok_s, found.by_steps.height) == (None, None, None, 0)
    assert any("does not say what was accepted" in line for line in found.warnings)


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(TraceError, match="speculates itself"):
        break_even(EAGLE, EAGLE)
    with pytest.raises(TraceError, match="has no speculative cycle"):
        break_even(PLAIN, PLAIN)
    with pytest.raises(TraceError, match=r"plain\.parquet has no two neighbouring decode cycles"):
        break_even(EAGLE, run_of("decode", MS, [0], name="plain.parquet"))


def test_a_stale_baseline_is_refused_unless_accepted() -> None:
    def with_variables(trace: Trace, **values: str) -> Trace:
        return dataclasses.replace(trace, metadata={"environment": {"variables": values}})

    here, there = with_variables(EAGLE, NCCL_PROTO="LL", NCCL_ALGO="Ring"), with_variables(PLAIN, NCCL_ALGO="Ring")
    with pytest.raises(TraceError, match=r"90\.1 tok/s would mislead; NCCL_PROTO"):
        break_even(here, there)
    assert any("NCCL_PROTO" in line for line in break_even(here, there, accept_differences=True).warnings)


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (["eagle.parquet"], "specanalyze breakeven eagle.parquet --baseline plain.parquet"),
        (["eagle.parquet", "base.parquet"], "specanalyze breakeven eagle.parquet --baseline base.parquet"),
    ],
)
def test_a_missing_baseline_is_told_what_it_is_and_how_it_is_given(
    words: list[str], advised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["breakeven", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: speculation is weighed against plain decoding, which must be given: record")
    assert said.rstrip().endswith(advised)


def test_real_recordings(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "traces/sglang_h200/tp2"
    words = ["breakeven", str(folder / "e2_m17_rank0.json.gz"), "--baseline", str(folder / "base_m17_rank0.json.gz")]
    assert run([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pays_at"] == pytest.approx(2.60, abs=0.005)
    assert printed["won_tok_s"] == pytest.approx(-75.1, abs=0.1)
    assert run(words) == 0
    assert "loses 75.1 tok/s a request (23 %)" in " ".join(capsys.readouterr().out.split())
