"""Every table of every command at 60 to 240 columns: a wider terminal shows the same columns or more, and cuts nothing silently."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specanalyze.cli import run
from specanalyze.render import terminal
from specanalyze.render.table_fit import BAR, GAP, READABLE, Fit, fit

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
WIDTHS = range(60, 241)
DRAWN = (60, 73, 80, 97, 100, 120, 132, 160, 239)
"""Widths at which tables are really drawn; which columns are chosen is looked at for all."""
MOST_ROWS = 25
"""Rows looked at: which columns fit is decided by the longest cells, whichever rows they are of."""
COMMANDS = (
    "breakdown TWO",
    "breakdown TWO --phase all",
    "breakdown TWO --by cycle",
    "phases TWO",
    "phases TWO --by cycle",
    "phases TWO --by request",
    "layers FOUR",
    "layers ONE --against EAGER",
    "kernels TWO --phase all --top 40",
    "ranks FOUR",
    "accept TWO",
    "accept TWO --by request",
    "breakeven TWO --baseline PLAIN",
    "compare PLAIN TWO",
    "sweep TWO FIVE",
    "whatif TWO --steps 3",
    "whatif TWO --scale allreduce=0.7 --against FIVE",
    "overhead TWO",
    "diagnose TWO --baseline PLAIN",
    "validate TWO",
    "env TWO --all",
)
FILES = {
    "TWO": "sglang_tp2_eagle3_steps2.parquet",
    "FIVE": "sglang_tp2_eagle3_steps5.parquet",
    "PLAIN": "sglang_tp2_plain.parquet",
    "FOUR": "sglang_tp4_mla61_eagle3_steps2.parquet",
    "ONE": "sglang_tp1_eagle3_steps2.parquet",
    "EAGER": "eager/sglang_tp1_eagle3_steps2.parquet",
}

Drawn = tuple[list[str], list[str], list[list[Text]], Sequence[str]]


def tables(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Drawn]:
    """(headers, sides, cells, spare) of each table that a command draws."""
    found: list[Drawn] = []

    def noted(headers: Any, sides: Any, cells: Any, spare: Any, width: int) -> Fit:
        found.append((headers, sides, cells[:MOST_ROWS], spare))
        return fit(headers, sides, cells, spare, width)

    words = [str(SAMPLES / FILES[word]) if word in FILES else word for word in command.split()]
    with monkeypatch.context() as patch:
        patch.setattr(terminal, "fit", noted)
        code = run(words)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.out
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_more_columns_in_a_wider_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tables(command, monkeypatch, capsys)
    assert found or command.startswith("diagnose")  # which prints sentences
    for headers, sides, cells, spare in found:
        fits = {width: fit(headers, sides, cells, spare, width) for width in WIDTHS}
        for narrow, wide in pairwise(WIDTHS):
            assert set(fits[narrow].kept) <= set(fits[wide].kept), (headers, narrow)
            if fits[narrow].kept != fits[wide].kept:
                needed = [_least(headers[at], sides[at], [row[at] for row in cells]) for at in fits[wide].kept]
                assert sum(needed) + GAP * (len(needed) - 1) > narrow, (headers, narrow)
        for width in DRAWN:
            _look(headers, sides, cells, spare, width, monkeypatch)


def _least(header: str, side: str, cells: Sequence[Text]) -> int:
    own = max(cell_len(line) for text in (header, *(cell.plain for cell in cells)) for line in text.split("\n"))
    return own if side in ("right", BAR) else min(own, READABLE)


def _look(
    headers: list[str],
    sides: list[str],
    cells: list[list[Text]],
    spare: Sequence[str],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line fits, each column is whole or has its sign, and what is lost is named."""
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    Console(file=out, width=width).print(
        terminal.table("t", list(zip(headers, sides, strict=True)), cells, spare=spare)
    )
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(cell_len, lines)) <= width
    fitted = fit(headers, sides, cells, spare, width)
    for row in cells:
        for at in fitted.kept:
            for part in row[at].plain.split("\n"):
                if at not in fitted.narrowed:
                    assert any(part.rstrip() in line for line in lines), (headers[at], part, width)
                elif sides[at] in ("name", "path") and cell_len(part) > fitted.narrowed[at]:
                    kept = part[:3] if sides[at] == "name" else part[-3:]
                    assert any("…" in line and kept in line for line in lines), (headers[at], part, width)
    said = "".join(lines).replace(" ", "")
    lost = [h for at, h in enumerate(headers) if at not in fitted.kept and h]
    assert all("".join(header.split()) in said for header in lost), (lost, width)
