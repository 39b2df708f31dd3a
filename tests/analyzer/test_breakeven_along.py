"""How break-even moves with the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import story

from specanalyze.answers.breakeven import break_even, break_even_json
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
