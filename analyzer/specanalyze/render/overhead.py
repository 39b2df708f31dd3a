"""``overhead`` in the terminal."""

from __future__ import annotations

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.overhead import Overhead
from specanalyze.render.recording_name import short_name
from specanalyze.render.terminal import Prose, console, milliseconds, notes, table
from specschema.figures import change, counted, percent, signed

ROWS = 40
"""Longer tables are cut here; --output writes all of it."""


def draw(result: Overhead) -> None:
    """Print the result."""
    out = console()
    if result.effect is None:
        out.print("What observing cost is not known.", style="bold")
    else:
        out.print(Prose(_sentence("Observing made a cycle", result.effect), "bold"))
    if result.drift is not None:
        out.print(Prose(_sentence("After the windows a cycle was, against before,", result.drift)))
    rows = [
        [
            row["rank"],
            row["stretch"],
            row["tier"],
            str(row["cycles"]),
            milliseconds(row["median_ns"]),
            "–" if row["low_ns"] is None else f"{milliseconds(row['low_ns'])} to {milliseconds(row['high_ns'])}",
            change(row["over_untraced"], 1),
        ]
        for row in result.table.head(ROWS).to_dicts()
    ]
    columns = [
        ("rank", "left"),
        ("stretch", "left"),
        ("recorded", "left"),
        ("cycles", "right"),
        ("median ms", "right"),
        ("95 % bounds", "right"),
        ("over untraced", "right"),
    ]
    out.print(
        table(
            f"Cycle time ({result.mode}), start to start, {short_name(result.name)}",
            columns,
            rows,
            spare=("95 % bounds",),
        )
    )
    said = list(result.notes)
    if result.table.height > ROWS:
        said.append(f"{counted(result.table.height - ROWS, 'more row')}: --output FILE.csv writes them all")
    notes(out, said)


def _sentence(start: str, of: Interval) -> str:
    bounds = (
        "" if of.low is None or of.high is None else f" (95 % bounds {signed(of.low * 100, 1)} to {change(of.high, 1)})"
    )
    return f"{start} {percent(abs(of.value))} {'slower' if of.value >= 0 else 'faster'}{bounds}."
