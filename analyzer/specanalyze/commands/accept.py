"""``specanalyze accept``."""

from __future__ import annotations

from typing import Annotated

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
    limit_memory,
    open_for,
    phase_map_of,
)


def accept(
    traces: TraceArgument,
    by: Annotated[
        str,
        typer.Option("--by", metavar="position|request|batch|draft|mode|time", help="How to split the verify steps."),
    ] = "position",
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
    """Accept length and acceptance by position, request, batch size, draft length and time; against the server's count.

    A steps.jsonl given, or found beside the trace, is used instead of the trace's own cycles.

    Examples:

      specanalyze accept trace.parquet

      specanalyze accept trace.parquet --by request -o requests.csv

      specanalyze accept steps.jsonl --json
    """
    mapping = phase_map_of(phase_map)
    from specanalyze.answers.accept import accept_frame, accept_json, accepts_of_steps, accepts_of_trace, steps_beside

    steps = steps_beside(traces)
    if steps is not None:
        limit_memory(str(steps))
        result = accepts_of_steps(steps)
    else:
        result = accepts_of_trace(
            open_for(traces, cycles=cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output),
            mapping,
        )
    frame = accept_frame(result, by)

    def show() -> None:
        from specanalyze.render.accept import draw

        draw(result, frame, by)

    deliver(lambda: frame, lambda: accept_json(result), show, result.warnings, json=json, output=output, force=force)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(accept)
