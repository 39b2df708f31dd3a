"""How every command hands its result over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
) -> None:
    """Write the table to ``output``, print the JSON document, or else draw; warnings go to stderr.

    Args:
        table, document, draw: made only when asked for.
        warnings: one line each.
        json, output, force: the options of every command.

    Raises:
        UsageError: the file exists and ``force`` is false, or it can't be written.
    """
    if output is not None:
        from specanalyze.render.files import write_table

        write_table(table(), output, force)
    if json:
        from specanalyze.commands.options import emit_json

        emit_json(document())
    elif output is None:
        draw()
    from specanalyze.render.terminal import warn

    warn(warnings)
