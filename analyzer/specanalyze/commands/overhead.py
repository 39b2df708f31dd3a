"""``specanalyze overhead``."""

from __future__ import annotations

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
    CyclesOption,
    DeviceOption,
    EngineOption,
    ForceOption,
    JobsOption,
    JsonOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
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
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """What observing cost: cycle time inside the profiler's windows against outside, before and after.

    Examples:

      specanalyze overhead trace.parquet

      specanalyze overhead rank0.json.gz --cycles untraced.cycles.json
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    from specanalyze.answers.overhead import measure_overhead, overhead_json

    result = measure_overhead(trace, mapping)

    def show() -> None:
        from specanalyze.render.overhead import draw

        draw(result)

    deliver(
        lambda: result.table,
        lambda: overhead_json(result),
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(overhead)
