"""``specanalyze diagnose``."""

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
    NodeMapOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    open_for,
    phase_map_of,
)
from specanalyze.commands.recording_arguments import open_recording


def diagnose(
    traces: TraceArgument,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="RECORDING",
            help="Plain decoding of the same server: opens break-even and expert rules.",
            show_default=False,
        ),
    ] = None,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Use a baseline that ran on another environment all the same.")
    ] = False,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    cycles: CyclesOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """What to change first: findings ranked by the time each token would win, with evidence, knob and what would disprove it.

    Examples:

      specanalyze diagnose trace.parquet

      specanalyze diagnose trace.parquet --baseline plain.parquet
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(
        traces,
        cycles=cycles,
        node_map=node_map,
        salvage=salvage,
        device=device,
        jobs=jobs,
        engine=engine,
        output=output,
    )
    plain = (
        None
        if baseline is None
        else open_recording(baseline, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    )
    from specanalyze.diagnosis.diagnose import diagnose as run
    from specanalyze.diagnosis.diagnose import diagnosis_json

    result = run(trace, baseline=plain, accept_differences=accept_differences, phase_map=mapping)

    def show() -> None:
        from specanalyze.render.diagnose import draw

        draw(result)

    deliver(
        lambda: result.findings,
        lambda: diagnosis_json(result),
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(diagnose)
