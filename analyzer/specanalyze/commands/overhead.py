"""``specanalyze overhead``."""

from __future__ import annotations

import typer

from specanalyze.commands.options import (
    CyclesOption,
    DeviceOption,
    ForceOption,
    JsonOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    emit_json,
    open_for,
    phase_map_of,
)


def overhead(
    traces: TraceArgument,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    cycles: CyclesOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """What observing cost: cycle time inside the profiler's windows against outside, before and after.

    Examples:

      specanalyze overhead trace.parquet

      specanalyze overhead rank0.json.gz --cycles untraced.cycles.json
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, salvage=salvage, device=device)
    from specanalyze.overhead import measure_overhead, overhead_json
    from specanalyze.render.terminal import warn

    result = measure_overhead(trace, mapping)
    if output is not None:
        from specanalyze.render.files import write_table

        write_table(result.table, output, force)
    if json:
        emit_json(overhead_json(result))
    elif output is None:
        from specanalyze.render.overhead import draw

        draw(result)
    warn(result.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(overhead)
