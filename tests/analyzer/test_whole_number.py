"""Whole numbers in texts that anybody may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specanalyze.cli import run
from specanalyze.whole_number import MOST, whole_number

SAMPLE = str(Path(__file__).parents[2] / "samples" / "sglang_tp2_eagle3_steps2.parquet")


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("0", 0),
        ("007", 7),
        (7, 7),
        (str(MOST), MOST),
        (MOST + 1, None),
        (str(MOST + 1), None),
        (10**5000, None),
        ("9" * 5000, None),
        ("²", None),
        ("٣", None),
        ("-1", None),
        (-1, None),
        ("1.5", None),
        (1.0, None),
        ("", None),
        (None, None),
        (True, None),
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:12] if isinstance(value, str) else ''}".strip(),
)
def test_whole_number(said: Any, number: int | None) -> None:
    assert whole_number(said) == number


@pytest.mark.parametrize("text", ["²", "9" * 30, "9" * 5000, "-"], ids=["superscript", "large", "endless", "sign"])
@pytest.mark.parametrize(
    "command",
    [
        ["kernels", SAMPLE, "--top"],
        ["breakdown", SAMPLE, "--jobs"],
        ["whatif", SAMPLE, "--steps"],
        ["whatif", SAMPLE, "--steps", "3", "--draft-steps"],
        ["sweep", SAMPLE, "--values"],
        ["report", SAMPLE, "-o", "/nowhere/r.html", "--values"],
        ["export", SAMPLE, "--to", "perfetto", "-o", "/nowhere/x.pftrace", "--cycles"],
    ],
    ids=lambda words: "-".join(word for word in words if not word.startswith("/")).replace("--", ""),
)
def test_numbers_that_cannot_be_are_usage(command: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--values ²`` and ``--top`` with thirty digits ended in tracebacks."""
    assert run([*command, text]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert len(shown.err) < 1200


def test_a_width_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for width in ("0", "-5", "wide", ""):
        monkeypatch.setenv("COLUMNS", width)
        assert run(["validate", SAMPLE]) == 0
    capsys.readouterr()
