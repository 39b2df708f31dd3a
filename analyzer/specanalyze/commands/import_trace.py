"""``specanalyze import``."""

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
from specanalyze.commands.output_path import refuse_output


def import_trace(
    traces: TraceArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The trace to write.", show_default=True)
    ] = Path("trace.parquet"),
    json: JsonOption = False,
    force: ForceOption = False,
    cycles: CyclesOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """Turn torch.profiler JSON(.gz) or an Nsight Systems export, files or a folder of ranks, into trace.parquet.

    Example: specanalyze import profiles/ -o trace.parquet
    """
    refuse_output(output, (".parquet",), force=force)
    trace = open_for(traces, cycles=cycles, node_map=node_map, salvage=salvage, device=device)
    from specanalyze.attribution.carry_nodes import with_nodes
    from specanalyze.formats.trace_files import write_trace
    from specanalyze.render.stderr import warn

    write_trace(with_nodes(trace), output, force=force)
    from specanalyze.answers.validate import summary

    written = summary(output)
    if json:
        emit_json(written | {"warnings": trace.warnings})
    else:
        ranks = ", ".join(str(r) for r in written["ranks"])
        typer.echo(
            f"{output}: {written['events']} events of rank(s) {ranks}, {written['bytes']} bytes "
            f"({written['bytes'] / max(written['events'], 1):.1f} an event)"
        )
    warn(trace.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_trace)
