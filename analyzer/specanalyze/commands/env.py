"""``specanalyze env``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
    ForceOption,
    JsonOption,
    OutputOption,
    SalvageOption,
    TraceArgument,
    open_for,
)


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested metadata as (dotted name, text) pairs."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in flat(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return [pair for i, inner in enumerate(value) for pair in flat(inner, f"{path}[{i}]")]
    if isinstance(value, list):
        words = [str(v) for v in value]
        apart = ", " if any(" " in word for word in words) and "command_line" not in path else " "
        return [(path, apart.join(words))]
    return [(path, "–" if value is None else str(value))]


def env(
    traces: TraceArgument,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    salvage: SalvageOption = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show everything: resolved server arguments, process groups, long values uncut."),
    ] = False,
) -> None:
    """What ran: GPUs, driver, CUDA, NCCL, server and its arguments, variables, ranks, windows.

    It is read from the recording's metadata; the events are not read.

    Examples:

      specanalyze env trace.parquet

      specanalyze env trace.parquet --all
    """
    trace = open_for(traces, salvage=salvage, device=None, output=output)
    import polars as pl

    from specanalyze.answers.request_figures import requests_cover

    covered = requests_cover(trace.metadata)
    covers = {} if covered is None else {"recording.requests": covered}
    sections = {name: value for name, value in trace.metadata.items() if name != "schema_version"}
    pairs = [pair for name, value in sections.items() for pair in flat(value, name)]

    def show() -> None:
        from specanalyze.render.env import draw

        draw(trace.name, sections, pairs, [f"requests: {line}" for line in covers.values()], everything=everything)

    deliver(
        lambda: pl.DataFrame(pairs, schema={"name": pl.String, "value": pl.String}, orient="row"),
        lambda: {"trace": trace.name, **trace.metadata, "covers": covers, "warnings": trace.warnings},
        show,
        trace.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(env)
