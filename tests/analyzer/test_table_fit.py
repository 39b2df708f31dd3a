"""Tables at the width of a terminal: numbers stay whole, spare columns go, one text gives way."""

import io
import os
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from specanalyze.render.table_fit import BAR, GAP, READABLE, fit, shorten
from specanalyze.render.terminal import NARROWEST_TERMINAL, PIPE_WIDTH, TERMINAL_WIDTH, console, table

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


@pytest.mark.parametrize("width", ["40", "20", "1"])
def test_numbers_stay_whole_where_only_a_label_and_a_meaning_stand_beside_them(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns accept printed 2.00 for 2.000, because the meaning kept more than there was; below, phases 0.34 for 0.347."""
    monkeypatch.setenv("COLUMNS", width)
    columns = (("figure", "left"), ("value", "right"), ("meaning", "left"))
    rows = (("accepted draft tokens", "12345.678", "a long sentence of several words"),)
    console().print(table("Acceptance", columns, rows))
    shown = capsys.readouterr().out
    assert shown.splitlines()[2:] == [
        "accepted draft  12345.678  a long",
        "tokens                     sentence of",
        "                           several words",
    ]


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


def test_a_name_gives_way_before_a_figure_goes() -> None:
    """At 120 columns kernels lost its share and its p90 for the last letters of a name of 60."""
    headers, sides = ("rank", "count", "share", "p90 us", "kernel"), ("left", "right", "right", "right", "name")
    cells = [[Text(cell) for cell in ("0", "2880", "12.9 %", "54.7", "k" * 60)]]
    spare = ("p90 us", "share")
    figures = sum(map(len, ("rank", "count", "12.9 %", "p90 us"))) + 4 * GAP
    assert fit(headers, sides, cells, spare, figures + READABLE).kept == (0, 1, 2, 3, 4)
    assert fit(headers, sides, cells, spare, figures + READABLE).narrowed == {4: READABLE}
    assert fit(headers, sides, cells, spare, figures + READABLE - 1).kept == (0, 1, 2, 4)


def test_a_cell_of_two_lines_is_as_wide_as_the_longer_one() -> None:
    """layers --against counted both lines together, and lost a column that had room."""
    cells = [[Text("class"), Text("55"), Text("model.layers.N\nother_compute in the graph")]]
    headers, sides = ("what", "first at", "module"), ("left", "right", "left")
    needed = len("class") + len("first at") + len("other_compute in the graph") + 2 * GAP
    assert fit(headers, sides, cells, ("first at",), needed) == fit(headers, sides, cells, (), 200)


def test_texts_share_the_room_and_the_longest_gives_most() -> None:
    cells = [[Text("a" * 12), Text("b" * 40), Text("c" * 60), Text("1")]]
    headers, sides = ("one", "two", "three", "n"), ("left", "path", "name", "right")
    assert fit(headers, sides, cells, (), 12 + 40 + 41 + 1 + 3 * GAP).narrowed == {2: 41}
    assert fit(headers, sides, cells, (), 12 + 40 + 41 + 1 + 3 * GAP - 4).narrowed == {1: 39, 2: 38}


@pytest.mark.parametrize(("side", "shown"), [("name", "核函数abc…"), ("path", "…数abcdefg")])
def test_wide_letters_are_counted_as_the_terminal_draws_them(side: str, shown: str) -> None:
    cell = shorten(Text("核函数abcdefg"), side, 10)
    assert cell.plain == shown
    assert cell_len(cell.plain) == 10


_sides = st.sampled_from(["left", "right", "name", "path", BAR])
_letters = st.text(st.sampled_from("abcdef ghij_核é:<"), min_size=1, max_size=70)
_figures = st.integers(0, 10**9).map(str)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[list[str]], list[str]]:
    sides = ["left", *draw(st.lists(_sides, min_size=1, max_size=11))]
    columns = [("" if side == BAR else f"column {n}", side) for n, side in enumerate(sides)]
    row = [_figures if side == "right" else st.just("███") if side == BAR else _letters for side in sides]
    rows = draw(st.lists(st.tuples(*row).map(list), min_size=1, max_size=4))
    return columns, rows, draw(st.lists(st.sampled_from([c[0] for c in columns[1:]]), unique=True, max_size=4))


@given(_tables())
def test_a_column_is_dropped_only_if_it_does_not_fit(
    drawn: tuple[list[tuple[str, str]], list[list[str]], list[str]],
) -> None:
    """Wider never shows fewer, and what was dropped last would not have fitted beside what is kept, texts at their least."""
    columns, rows, spare = drawn
    headers, sides = [c[0] for c in columns], [c[1] for c in columns]
    cells = [[Text(cell) for cell in row] for row in rows]
    needed = [max(map(cell_len, (header, *(row[at] for row in rows)))) for at, header in enumerate(headers)]
    kept = {width: fit(headers, sides, cells, spare, width).kept for width in range(NARROWEST_TERMINAL, 241)}
    for narrow, wide in pairwise(kept):
        assert set(kept[narrow]) <= set(kept[wide])
        if kept[narrow] != kept[wide]:
            least = [
                own if side in ("right", BAR) else min(own, READABLE) for own, side in zip(needed, sides, strict=True)
            ]
            more = sum(least[at] + GAP for at in kept[wide]) - GAP
            assert narrow < more


@given(_tables(), st.integers(NARROWEST_TERMINAL, 240))
def test_nothing_is_cut_without_a_sign(
    drawn: tuple[list[tuple[str, str]], list[list[str]], list[str]], width: int
) -> None:
    columns, rows, spare = drawn
    headers, sides = [c[0] for c in columns], [c[1] for c in columns]
    cells = [[Text(cell) for cell in row] for row in rows]
    fitted = fit(headers, sides, cells, spare, width)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        Console(file=out, width=width).print(table("t", columns, rows, spare=spare))
    lines = out.getvalue().splitlines()
    assert max(cell_len(line.rstrip()) for line in lines) <= width
    letters = "".join(lines).replace(" ", "")
    for at in fitted.kept:
        for row in rows:
            if at not in fitted.narrowed:
                assert row[at].rstrip() in out.getvalue()
            elif sides[at] in ("name", "path") and cell_len(row[at]) > fitted.narrowed[at]:
                assert "…" in letters
    lost = [headers[at] for at in range(len(headers)) if at not in fitted.kept and headers[at]]
    assert all(header.replace(" ", "") in letters for header in lost)


@pytest.mark.parametrize(
    ("said", "width"),
    [
        ("", PIPE_WIDTH),
        ("0", PIPE_WIDTH),
        ("-80", PIPE_WIDTH),
        ("wide", PIPE_WIDTH),
        ("9" * 30, PIPE_WIDTH),
        ("1", NARROWEST_TERMINAL),
        ("73", 73),
        ("2147483647", 2**31 - 1),
    ],
)
def test_odd_values_of_columns(said: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert console().width == width


@pytest.mark.parametrize(("columns", "width"), [(133, 133), (0, TERMINAL_WIDTH), (30, NARROWEST_TERMINAL)])
def test_a_terminal_tells_its_width(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    termios = pytest.importorskip("termios", reason="no terminals of this kind here")
    import fcntl
    import pty

    monkeypatch.delenv("COLUMNS", raising=False)
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with open(os.dup(terminal), "w") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            assert console().width == width
            monkeypatch.setenv("COLUMNS", "90")
            assert console().width == 90
    finally:
        os.close(terminal)
        os.close(controller)
