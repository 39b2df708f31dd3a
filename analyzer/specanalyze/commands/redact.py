"""``specanalyze redact``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specanalyze.commands.options import (
    CyclesOption,
    DeviceOption,
    ForceOption,
    JsonOption,
    NodeMapOption,
    SalvageOption,
    TraceArgument,
    emit_json,
    open_for,
)
from specanalyze.commands.output_path import refuse_trace_output


def redact_trace(
    traces: TraceArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The redacted trace to write.", show_default=True)
    ] = Path("redacted.parquet"),
    json: JsonOption = False,
    force: ForceOption = False,
    cycles: CyclesOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """Make a trace fit to attach to a public issue: no names of models, people, machines and paths; all times and kernels.

    Example: specanalyze redact trace.parquet -o redacted.parquet
    """
    refuse_trace_output(output, force=force)
    trace = open_for(traces, cycles=cycles, node_map=node_map, salvage=salvage, device=device, output=output)
    from specanalyze.exports.redact import LEAVES, redact
    from specanalyze.formats.trace_files import write_trace
    from specanalyze.render.stderr import warn

    redacted, redaction = redact(trace)
    write_trace(redacted, output, force=force)
    if json:
        emit_json({"output": str(output), "redacted": dict(redaction.counts), "leaves": list(LEAVES)})
    else:
        typer.echo(
            f"{output}: taken out: " + ("; ".join(f"{w}: {n}" for w, n in redaction.counts.items()) or "nothing")
        )
        typer.echo("It still tells:\n" + "\n".join(f"- {line}" for line in LEAVES))
        typer.echo("Look at it once before you attach it: specanalyze env " + str(output))
    warn(trace.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("redact")(redact_trace)
