"""Tables at the width of a terminal: numbers stay whole, spare columns go, one text gives way."""

import io

import pytest
from rich.console import Console

from specanalyze.render.terminal import console, table

COLUMNS = [("phase", "left"), ("sum ms", "right"), ("p90 us", "right")]
ROWS = [["void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams>", "verify", "123.456", "7.8"]]


def printed(width: int, spare: tuple[str, ...], first: str = "name") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table("t", [("kernel", first), *COLUMNS], ROWS, spare=spare))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = printed(120, spare=("p90 us",))
    assert ROWS[0][0] in lines[2]
    assert "7.8" in lines[2]
    assert len(lines) == 3


def test_a_narrow_terminal_loses_spare_columns_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    assert printed(48, spare=("p90 us",)) == [
        "t",
        "kernel                           phase    sum ms",
        "void moe::dev::finalize::final…  verify  123.456",
        "no room at 48 columns for: p90 us",
    ]


def test_a_path_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    assert printed(48, first="path", spare=("p90 us",))[2] == "…::dev::finalize::KernelParams>  verify  123.456"


@pytest.mark.parametrize("width", [40, 45, 60])
def test_numbers_are_whole_or_absent_however_narrow(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 40 columns 0.840 was printed as 0.84, and 1012.345 would have been 1012."""
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [("", "left"), *((f"figure {n}", "right") for n in range(6)), ("", "left")]
    rows = [["allreduce (exposed)", *(f"{n}{n}12.345" for n in range(1, 7)), "█████"]]
    out = io.StringIO()
    Console(file=out, width=width).print(table("t", columns, rows))
    lines = out.getvalue().splitlines()
    shown = [word for line in lines[2:] for word in line.split() if word[:1].isdigit() and "." in word]
    assert shown != []
    assert set(shown) <= set(rows[0])
    said = " ".join(" ".join(lines).split())
    assert f"no room at {width} columns for: figure" in said
    assert all(f"figure {n}" in said for n in range(6))


def test_numbers_stay_whole_where_only_a_label_and_a_meaning_stand_beside_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns accept printed 2.00 for 2.000, because the meaning kept more than there was."""
    monkeypatch.setenv("COLUMNS", "40")
    columns = (("figure", "left"), ("value", "right"), ("meaning", "left"))
    rows = (("accepted draft tokens", "12345.678", "a long sentence of several words"),)
    console().print(table("Acceptance", columns, rows))
    shown = capsys.readouterr().out
    assert "accepted draft tokens  12345.678" in shown
    assert max(map(len, shown.splitlines())) <= 40
