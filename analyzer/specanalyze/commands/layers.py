"""``specanalyze layers``."""

from __future__ import annotations

from typing import Annotated

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
    EngineOption,
    ForceOption,
    JobsOption,
    JsonOption,
    NodeMapOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    open_for,
    phase_map_of,
)


def layers(
    traces: TraceArgument,
    phase: Annotated[
        str, typer.Option("--phase", metavar="PHASE", help="The phase whose replays are looked into.")
    ] = "verify",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Modules shown a rank in the terminal.")] = 15,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """Inside the graph replay: time, exposed allreduce and gaps by layer and module; outlier layers named.

    Needs the node map, which the collector records; FILE.nodemap.json beside a profiler trace is found by itself.

    Example: specanalyze layers trace.parquet --phase verify
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, node_map=node_map, salvage=salvage, jobs=jobs, engine=engine, output=output)
    from specanalyze.answers.layers import by_layer, by_module
    from specanalyze.answers.layers import layers as layer_table

    result = layer_table(trace, phase, mapping)

    def show() -> None:
        from specanalyze.render.layers import draw

        draw(result, top)

    deliver(
        lambda: result.table,
        lambda: {
            "trace": trace.name,
            "phase": phase,
            "replays": result.replays,
            "placed": result.placed,
            "unplaced_ns": result.unplaced_ns,
            "layers": by_layer(result).to_dicts(),
            "modules": by_module(result).to_dicts(),
            "rows": result.table.to_dicts(),
            "warnings": result.warnings,
        },
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(layers)
