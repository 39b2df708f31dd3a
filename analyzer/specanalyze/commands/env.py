"""``specanalyze env``."""

from __future__ import annotations

from typing import Any

import typer

from specanalyze.commands.options import (
    ForceOption,
    JsonOption,
    OutputOption,
    SalvageOption,
    TraceArgument,
    emit_json,
    open_for,
)


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested metadata as (dotted name, text) pairs."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in flat(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return [pair for i, inner in enumerate(value) for pair in flat(inner, f"{path}[{i}]")]
    if isinstance(value, list):
        return [(path, " ".join(str(v) for v in value))]
    return [(path, "–" if value is None else str(value))]


def env(
    traces: TraceArgument,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    salvage: SalvageOption = False,
) -> None:
    """What ran: GPUs, driver, CUDA, NCCL, server and its arguments, variables, ranks, windows.

    Example: specanalyze env trace.parquet
    """
    trace = open_for(traces, salvage=salvage, device=None)
    import polars as pl

    from specanalyze.render.terminal import console, table, warn

    sections = {name: value for name, value in trace.metadata.items() if name != "schema_version"}
    pairs = [pair for name, value in sections.items() for pair in flat(value, name)]
    if output is not None:
        from specanalyze.render.files import write_table

        write_table(pl.DataFrame(pairs, schema={"name": pl.String, "value": pl.String}, orient="row"), output, force)
    if json:
        emit_json({"trace": trace.name, **trace.metadata, "warnings": trace.warnings})
    elif output is None:
        columns = [("name", "left"), ("value", "left")]
        console().print(table(f"{trace.name}: what ran", columns, pairs))
        if "environment" not in sections:
            console().print("the trace does not say what it ran on; the collector records it")
    warn(trace.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(env)
