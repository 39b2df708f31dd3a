"""How break-even moves with the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import story

from specanalyze.answers.bootstrap import SEED
from specanalyze.answers.breakeven import break_even, break_even_json
from specanalyze.answers.breakeven_along import ALONG_SCHEMA, break_even_along
from specanalyze.answers.medians import bounded
from specanalyze.answers.neighbours import neighbours
from specanalyze.attribution.cycles import CYCLE_SCHEMA
from specanalyze.cli import run

SHORT: dict[str, Any] = {"cycles": 200, "traced": 10}


def eagle(**more: Any) -> story.Recording:
    return story.sweep_recording(2, environment=story.environment(), **SHORT, **more)


def plain(**more: Any) -> story.Recording:
    settings = {**SHORT, "environment": story.environment(), **more}
    return story.baseline_recording(15_900_000, tuned=False, **settings)


def test_break_even_at_three_contexts() -> None:
    found = break_even(eagle(grows_ns=100_000).trace(), plain(grows_ns=20_000).trace(), accept_differences=True)
    rows = found.along.to_dicts()
    # both have contexts 1000 to 1188, the last untraced cycles before the windows at the end
    assert [row["context_tokens"] for row in rows] == [1047, 1094, 1141]
    for row in rows:
        n = row["context_tokens"] - 1000
        cycle, step = 26_248_000 + 100_000 * n, 15_900_000 + 20_000 * n
        assert row["cycle_ns"] == pytest.approx(cycle, rel=3e-3)
        assert row["step_ns"] == pytest.approx(step, rel=3e-3)
        assert row["pays_at"] == row["cycle_ns"] / row["step_ns"]
        assert row["pays_at_low"] < cycle / step < row["pays_at_high"]
    assert break_even_json(found)["along"] == rows


def test_no_table_where_nothing_grows_or_contexts_are_unknown() -> None:
    level = break_even(eagle().trace(), plain().trace(), accept_differences=True)
    assert level.along.height == 0
    observed = break_even(
        eagle(grows_ns=100_000, control=False).trace(), plain(control=False).trace(), accept_differences=True
    )
    assert observed.along.height == 0


def test_the_table_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (r.write(tmp_path) for r in (eagle(name="eagle", grows_ns=100_000), plain(grows_ns=20_000)))
    assert run(["breakeven", str(one), "--baseline", str(other)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Over the context, from untraced cycles beside it" in out
    assert "1094 35.6" in out


# ---- cycle by cycle


def cycles_of(
    steps: Callable[[int], float], contexts: Sequence[int | None], mode: str = "speculative", **more: Any
) -> pl.DataFrame:
    """Untraced cycles; what they take goes by their context, or by their number where they tell none."""
    rows = [
        {
            "rank": "0",
            "cycle": n,
            "mode": mode,
            "start_ns": 10 * n,
            "step_ns": round(steps(n if context is None else context)),
            "control": True,
            "context_tokens": context,
            **more,
        }
        for n, context in enumerate(contexts)
    ]
    return pl.DataFrame(rows, schema=CYCLE_SCHEMA)


def cycle_of(n: int) -> float:
    return 2_000_000 + 10_000 * n + 7_000 * (n % 5)


def step_of(n: int) -> float:
    return 1_000_000 + 1_000 * n + 3_000 * (n % 7)


def test_break_even_at_the_quarters_of_the_contexts_that_both_have() -> None:
    ours, theirs = cycles_of(cycle_of, range(100, 500)), cycles_of(step_of, range(260), "decode")
    table = break_even_along(ours, theirs)
    assert table.schema == pl.Schema(ALONG_SCHEMA)
    # Both have 100 to 259.
    places = [100 + 159 * share for share in (0.25, 0.5, 0.75)]
    assert table["context_tokens"].to_list() == places
    for place, row in zip(places, table.iter_rows(named=True), strict=True):
        one, other = (
            neighbours(
                np.arange(a, b, dtype=float), np.array([round(f(n)) for n in range(a, b)], dtype=float), place, seed
            )
            for f, a, b, seed in ((cycle_of, 100, 500, SEED + 1), (step_of, 0, 260, SEED + 6))
        )
        assert one is not None
        assert other is not None
        want = bounded(one.typical(place) / other.typical(place), one.drawn_at(place) / other.drawn_at(place))
        assert (row["cycle_ns"], row["step_ns"]) == (one.typical(place), other.typical(place))
        assert (row["pays_at"], row["pays_at_low"], row["pays_at_high"]) == (want.value, want.low, want.high)


def test_the_order_of_contexts_is_theirs_and_not_the_cycles() -> None:
    contexts = [(77 * n) % 400 for n in range(400)]
    table = break_even_along(cycles_of(cycle_of, contexts), cycles_of(step_of, range(400)))
    assert table.equals(break_even_along(cycles_of(cycle_of, range(400)), cycles_of(step_of, contexts)))
    assert table["context_tokens"].to_list() == [399 * share for share in (0.25, 0.5, 0.75)]


@pytest.mark.parametrize(
    ("grows", "rows"), [((True, True), 3), ((True, False), 3), ((False, True), 3), ((False, False), 0)]
)
def test_one_of_the_two_has_to_grow(grows: tuple[bool, bool], rows: int) -> None:
    sides = [
        cycles_of(f if g else lambda _: 1_000_000, range(400))
        for f, g in zip((cycle_of, lambda n: 5000 * n + 1e6), grows, strict=True)
    ]
    assert break_even_along(*sides).height == rows


def test_contexts_that_do_not_meet_have_no_break_even() -> None:
    ours = cycles_of(cycle_of, range(100, 300))
    assert break_even_along(ours, cycles_of(step_of, range(150, 350))).height == 3
    for contexts in (range(400, 600), range(299, 500), range(280, 480)):
        # Apart, at one token, and with fewer than five cycles on one side of a quarter.
        assert break_even_along(ours, cycles_of(step_of, contexts)).height == (3 if contexts[0] == 280 else 0)
        assert break_even_along(cycles_of(step_of, contexts), ours).height == (3 if contexts[0] == 280 else 0)
    assert break_even_along(ours, cycles_of(step_of, range(284, 480))).height == 0
    assert break_even_along(cycles_of(step_of, range(284, 480)), ours).height == 0


def test_a_recording_of_a_few_cycles_has_no_break_even_along_the_context() -> None:
    few, many = cycles_of(cycle_of, range(100, 108)), cycles_of(step_of, range(400), "decode")
    assert break_even_along(few, many).height == 0
    assert break_even_along(many, few).height == 0


def test_both_have_to_tell_their_contexts_untraced() -> None:
    ours, theirs = cycles_of(cycle_of, range(400)), cycles_of(step_of, range(400), "decode")
    assert break_even_along(ours, theirs).height == 3
    silent = cycles_of(step_of, [None] * 400, "decode")
    assert break_even_along(ours, silent).height == 0
    assert break_even_along(cycles_of(cycle_of, [None] * 400), theirs).height == 0
    traced = cycles_of(step_of, range(400), "decode", control=False, window=0)
    assert break_even_along(ours, traced).height == 0
    assert break_even_along(traced, ours).height == 0
    stalled = cycles_of(lambda n: 0 if n % 2 else step_of(n), range(400), "decode")
    found = break_even_along(ours, stalled)
    assert found["step_ns"].to_list() == pytest.approx(
        [1_000_000 + 1_000 * 399 * share + 9_000 for share in (0.25, 0.5, 0.75)], rel=3e-3
    )
