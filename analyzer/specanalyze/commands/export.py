"""``specanalyze export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specanalyze.commands.options import (
    DeviceOption,
    ForceOption,
    JsonOption,
    NodeMapOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    emit_json,
    open_for,
    phase_map_of,
)
from specanalyze.commands.output_path import refuse_unwritable
from specschema.figures import counted


def export(
    traces: TraceArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="nsys|perfetto|chrome", help="What to write for.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default=False),
    ],
    cycles: Annotated[
        str | None,
        typer.Option("--cycles", metavar="A:B", help="Only decode cycles A to B-1.", show_default=False),
    ] = None,
    json: JsonOption = False,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """Write the recording for Nsight Systems, Perfetto or chrome://tracing.

    Example: specanalyze export trace.parquet --to nsys -o trace.nsys-rep --cycles 10:20
    """
    from specanalyze.exports.export import export as write
    from specanalyze.exports.export import refuse_name
    from specanalyze.exports.export_events import parse_cycles

    refuse_name(to, output, force=force)
    refuse_unwritable(output)
    wanted = parse_cycles(cycles)
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, node_map=node_map, salvage=salvage, device=device, output=output)
    from specanalyze.render.stderr import warn

    done = write(trace, to, output, cycles=wanted, phase_map=mapping, force=force)
    if json:
        emit_json(
            {
                "files": [str(path) for path in done.files],
                "events": done.events,
                "notes": done.notes,
                "warnings": trace.warnings,
            }
        )
    else:
        for path in done.files:
            typer.echo(f"{path}: {counted(path.stat().st_size, 'byte')}")
        typer.echo(f"{counted(done.events, 'event')} of {counted(len(trace.sources), 'rank')}")
        for note in done.notes:
            typer.echo(f"· {note}")
    warn(trace.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)
