"""``specanalyze env``."""

from __future__ import annotations

from typing import Any

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
        return [(path, " ".join(str(v) for v in value))]
    return [(path, "–" if value is None else str(value))]


LONGEST = 1000
"""Characters of a value in the terminal; ``--json`` and ``--output`` have all of it."""


def shown(pairs: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs that a person looks for, and what was left out.

    A server resolves hundreds of arguments; what was typed is the command line. The costs of each window belong to ``overhead``.
    """
    typed = any(name.startswith("environment.command_line") and value for name, value in pairs)
    arguments = [name for name, _ in pairs if name.startswith("environment.server_args.") and typed]
    windows = [name for name, _ in pairs if name.startswith(("recording.windows[", "recording.warmups["))]
    left_out = {*arguments, *windows}
    kept = [
        (n, v if len(v) <= LONGEST else f"{v[:LONGEST]}… ({len(v)} characters)") for n, v in pairs if n not in left_out
    ]
    said = [f"{len(arguments)} resolved server arguments"] if arguments else []
    said += [f"{len(windows)} figures of the profiler's windows"] if windows else []
    return kept, [f"not shown: {', '.join(said)}; --json and --output have them"] if said else []


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

    from specanalyze.render.recording_name import short_name
    from specanalyze.render.terminal import console, notes, table

    sections = {name: value for name, value in trace.metadata.items() if name != "schema_version"}
    pairs = [pair for name, value in sections.items() for pair in flat(value, name)]

    def show() -> None:
        columns = [("name", "left"), ("value", "left")]
        kept, said = shown(pairs)
        console().print(f"{short_name(trace.name)}: what ran", style="bold")
        for section in sorted(
            (name for name, value in sections.items() if value), key=lambda name: name != "environment"
        ):
            own = [(n.removeprefix(section).removeprefix("."), v) for n, v in kept if n.startswith(section)]
            console().print(table(section, columns, own))
        notes(console(), said)
        if not sections.get("environment"):
            console().print("the trace does not say what it ran on; the collector records it")

    deliver(
        lambda: pl.DataFrame(pairs, schema={"name": pl.String, "value": pl.String}, orient="row"),
        lambda: {"trace": trace.name, **trace.metadata, "warnings": trace.warnings},
        show,
        trace.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(env)
