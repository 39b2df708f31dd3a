"""Tables at the width of a terminal: numbers stay whole, spare columns go, one text gives way."""

import io

import pytest
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from specanalyze.render.table_fit import BAR
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
    columns = [("", "left"), *((f"figure {n}", "right") for n in range(6)), ("", BAR)]
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


def test_a_column_goes_by_its_name_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 60 columns compare's kernels lost a column without a word, because it had no header; only bars may do that."""
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(ValueError, match="must have a name"):
        table("t", [("kernel", "name"), ("", "left"), ("ms", "right")], [["k", "appeared", "1"]])
    out = io.StringIO()
    columns = [("kernel", "name"), ("change ms", "right"), ("calls", "right"), ("", BAR), ("status", "left")]
    rows = [["void moe::dev::finalize::finalizeKernel", "+0.251", "1234.0 -> 5678.0", "███", "appeared"]]
    Console(file=out, width=40).print(table("t", columns, rows))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[2:] == ["void moe::dev::finalize::fin…     +0.251", "no room at 40 columns for: calls, status"]


def test_what_is_lost_is_named_without_a_break_before_its_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``99`` stood at the end of a line, ``% bounds`` on the next, since the line was as wide as the table and not the terminal."""
    monkeypatch.setenv("COLUMNS", "50")
    columns = [("", "left"), ("before ms", "right"), ("99 % bounds", "right"), ("change ms", "right")]
    rows = [["all of the work, draft and verify", "1234.567", "+1234.567..+2345.678", "+2.5"]]
    console().print(table("t", columns, rows, spare=("before ms", "99 % bounds")))
    assert capsys.readouterr().out.splitlines()[2:] == [
        "all of the work, draft and verify       +2.5",
        "no room at 50 columns for: before ms, 99 % bounds",
    ]


def test_lines_end_where_their_text_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """rich fills each line of a table, and each of a title or a padded text, up to its width."""
    columns = [("name", "left"), ("ms", "right"), ("meaning", "left")]
    rows = [["a", "1.0", "short"], ["much longer", "12.0", "a text that is longer, too"]]
    out = console()
    out.print(table("title", columns, rows, caption="below"))
    out.print(Padding(Text("indented\nand on"), (0, 0, 0, 3)))
    out.print(Text("two "), Text("parts"))
    out.print("open ", end="")
    out.print("end")
    shown = capsys.readouterr().out
    assert [line for line in shown.split("\n") if line != line.rstrip()] == []
    assert shown.split("\n")[-5:] == ["   indented", "   and on", "two  parts", "open end", ""]


def test_colour_stays_where_blanks_go(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = console()
    out.print(Text("bold   \nplain", style="bold"))
    assert shown.getvalue() == "\x1b[1mbold\x1b[0m\n\x1b[1mplain\x1b[0m\n"
