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
from specanalyze.commands.output_path import refuse_trace_output
from specschema.figures import counted


def import_trace(
    traces: TraceArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The trace to write.", show_default=True)
    ] = Path("trace.parquet"),
    json: JsonOption = False,
    force: ForceOption = False,
    cycles: CyclesOption = None,
    node_map: NodeMapOption = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--capture",
            metavar="PATH",
            help="Trace, or folder of traces, that torch.profiler wrote while the server captured its CUDA graphs (vLLM's and TraceLens' "
            "capture_traces/, SGLang's graph_capture_profile/): names the module or operator of each kernel of a replay.",
            show_default=False,
        ),
    ] = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """Turn torch.profiler JSON(.gz) or an Nsight Systems export, files or a folder of ranks, into trace.parquet.

    Example: specanalyze import profiles/ -o trace.parquet
    """
    refuse_trace_output(output, force=force)
    refuse_two_sources(node_map, capture)
    trace = open_for(traces, cycles=cycles, node_map=node_map, salvage=salvage, device=device, output=output)
    from specanalyze.attribution.carry_nodes import with_nodes
    from specanalyze.formats import capture_traces
    from specanalyze.formats.trace_files import write_trace
    from specanalyze.render.stderr import warn

    if capture is not None:
        trace = capture_traces.with_captures(trace, capture, salvage=salvage)
    elif node_map is None and (folder := capture_traces.beside(traces)) is not None:
        trace.warnings.append(
            f"{folder} holds traces of graph capture: --capture {folder} names the modules of the kernels in graph replays"
        )

    write_trace(with_nodes(trace), output, force=force)
    from specanalyze.answers.validate import summary

    written = summary(output)
    if json:
        emit_json(written | {"warnings": trace.warnings})
    else:
        ranks = ", ".join(str(r) for r in written["ranks"])
        typer.echo(
            f"{output}: {counted(written['events'], 'event')} of {'rank' if len(written['ranks']) == 1 else 'ranks'} {ranks}, {written['bytes']} bytes "
            f"({written['bytes'] / max(written['events'], 1):.1f} an event)"
        )
    warn(trace.warnings)


def refuse_two_sources(node_map: Path | None, capture: Path | None) -> None:
    """The nodes of captured graphs come from one place.

    Raises:
        UsageError: both are given.
    """
    from specschema.errors import UsageError

    if node_map is not None and capture is not None:
        raise UsageError("--node-map and --capture both tell the nodes of the captured graphs: give one of them")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_trace)
