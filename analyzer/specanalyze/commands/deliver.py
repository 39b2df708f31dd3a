"""How every command hands its result over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import polars as pl


def deliver(
    table: Callable[[], pl.DataFrame],
    document: Callable[[], Any],
    draw: Callable[[], None],
    warnings: Iterable[str],
    *,
    json: bool,
    output: Path | None,
    force: bool,
    verdict: Sequence[str] = (),
) -> None:
    """Write the table to ``output``, print the JSON document, or else draw; warnings go to stderr.

    Args:
        table, document, draw: made only when asked for.
        warnings: one line each.
        json, output, force: the options of every command.
        verdict: why the command fails, one line each, though its result stands; printed last.

    Raises:
        UsageError: the file exists and ``force`` is false, or it can't be written.
        typer.Exit: 1 where there is a verdict, whoever closed the pipe meanwhile.
    """
    try:
        _hand_over(table, document, draw, json=json, output=output, force=force)
    except (BrokenPipeError, SystemExit) as stop:  # rich leaves by itself where the reader of the pipe has gone
        if not verdict or not (isinstance(stop, BrokenPipeError) or isinstance(stop.__context__, BrokenPipeError)):
            raise
    from specanalyze.render.stderr import warn

    if not verdict:
        warn(warnings)
        return
    with contextlib.suppress(BrokenPipeError):
        warn([*warnings, *verdict])
    raise typer.Exit(1)


def _hand_over(
    table: Callable[[], pl.DataFrame],
    document: Callable[[], Any],
    draw: Callable[[], None],
    *,
    json: bool,
    output: Path | None,
    force: bool,
) -> None:
    if output is not None:
        from specanalyze.render.files import write_table

        write_table(table(), output, force)
    if json:
        from specanalyze.commands.options import emit_json

        emit_json(document())
    elif output is None:
        draw()
