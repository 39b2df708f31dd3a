"""``accept`` in the terminal."""

from __future__ import annotations

import polars as pl
from rich.text import Text

from specanalyze.answers.accept import Accepts
from specanalyze.render.recording_name import short_name
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, notes, share_bar, table
from specschema.figures import counted, percent, were

ROWS = 40
"""Longer tables are cut here; --output writes all of it."""


def draw(result: Accepts, frame: pl.DataFrame, by: str) -> None:
    """Print the figures of RULES R8, then the chosen split."""
    out = console()
    rate = result.draft_accept_rate
    out.print(
        table(
            f"Acceptance in {short_name(result.name)}",
            (("figure", "left"), ("value", "right"), ("meaning", "left")),
            (
                (
                    "accept length",
                    f"{result.accept_length:.3f}",
                    "tokens committed per (request, verify step), bonus included",
                ),
                ("accepted draft tokens", f"{result.accepted_draft_tokens:.3f}", "accept length - 1"),
                ("draft accept rate", percent(rate), "accepted / drafted, as the verifier counts"),
                (
                    "verify steps",
                    str(result.verify_steps),
                    f"they committed {counted(result.committed_tokens, 'token')}",
                ),
            ),
        )
    )
    out.print()
    if by == "position":
        out.print(table("By draft position", _POSITION, [_position(row) for row in frame.to_dicts()]))
    else:
        columns, rows = _groups(frame)
        out.print(table(f"By {by}", columns, rows))
    notes(out, _remarks(result, frame))


_POSITION = (
    ("position", "right"),
    ("proposed", "right"),
    ("reached", "right"),
    ("accepted", "right"),
    ("once reached", "right"),
    ("of all", "right"),
    ("", BAR),
)


def _position(row: dict[str, float]) -> tuple[str | Text, ...]:
    return (
        *(str(row[c]) for c in ("position", "proposed", "reached", "accepted")),
        percent(row["conditional"]),
        percent(row["cumulative"]),
        share_bar(row["cumulative"]),
    )


def _groups(frame: pl.DataFrame) -> tuple[list[tuple[str, str]], list[tuple[str | Text, ...]]]:
    keys = [
        c
        for c in frame.columns
        if c in ("request", "batch_size", "drafted", "mode", "slice", "first_cycle", "last_cycle")
    ]
    columns = [(c.replace("_", " "), "left" if c in ("request", "mode") else "right") for c in keys]
    columns += [
        ("steps", "right"),
        ("tokens", "right"),
        ("accept length", "right"),
        ("accept rate", "right"),
        ("", BAR),
    ]
    top = frame.get_column("accept_length").max()
    rows: list[tuple[str | Text, ...]] = [
        (
            *("–" if row[c] is None else str(row[c]) for c in keys),
            str(row["verify_steps"]),
            str(row["committed_tokens"]),
            f"{row['accept_length']:.3f}",
            percent(row["draft_accept_rate"]),
            share_bar(row["accept_length"] / top if isinstance(top, float) and top else None),
        )
        for row in frame.head(ROWS).to_dicts()
    ]
    return columns, rows


def _remarks(result: Accepts, frame: pl.DataFrame) -> list[str]:
    said = []
    if frame.height > ROWS:
        said.append(f"{counted(frame.height - ROWS, 'more row')}: --output FILE.csv writes them all")
    if result.excluded:
        listed = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in result.excluded.items())
        said.append(f"no verify steps, left out: {listed}")
    if result.beyond_the_end:
        said.append(
            f"{counted(result.beyond_the_end, 'verified token')} beyond the end of a request {were(result.beyond_the_end)} not committed: "
            "accepted tokens + one a step count that many more"
        )
    server = result.server
    if server is None:
        said.append("the server's own count is not in this recording")
    elif not server.difference:
        said.append(
            f"equal to the {server.told_by}'s own count: {counted(server.completion_tokens, 'token')} of {counted(server.requests, 'request')}"
        )
    return said
