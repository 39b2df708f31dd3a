"""``specanalyze phases``."""

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
    open_for,
    phase_map_of,
)


def phases(
    traces: TraceArgument,
    by: Annotated[
        str, typer.Option("--by", metavar="rank|cycle|request", help="One row a phase, a cycle or a request.")
    ] = "rank",
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
    """The cycle: draft, verify, draft extend, other, in ms and %; accept length, tok/s, inter-token latency.

    Examples:

      specanalyze phases trace.parquet

      specanalyze phases trace.parquet --by request

      specanalyze phases rank0.json.gz --cycles untraced.cycles.json --json
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    from specanalyze.answers.phases_report import phase_report, phases_frame, phases_json

    report = phase_report(trace, mapping)
    frame = phases_frame(report, by)

    def show() -> None:
        from specanalyze.render.phases import draw

        draw(report, frame, by)

    deliver(lambda: frame, lambda: phases_json(report), show, report.warnings, json=json, output=output, force=force)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(phases)
