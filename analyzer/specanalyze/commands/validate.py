"""``specanalyze validate``."""

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
    NodeMapOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    open_for,
    phase_map_of,
)


def validate(
    traces: TraceArgument,
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
    """Is the trace whole and sound: sums, coverage, launches, clocks, names.

    Example: specanalyze validate trace.parquet
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
    from specanalyze.answers.validate import validate as check
    from specanalyze.render.recording_name import short_name
    from specanalyze.render.terminal import console, table

    frame, result = check(trace, mapping)

    def show() -> None:
        read = "what is left of it" if any(line.startswith("lost:") for line in result.warnings) else "read whole"
        columns = [("", "left"), ("rank", "left"), ("check", "left"), ("found", "left")]
        rows = [
            ["ok" if r["result"] == "ok" else "!", r["rank"], r["check"], r["detail"]]
            for r in frame.iter_rows(named=True)
        ]
        console().print(table(f"{short_name(trace.name)}: {read}", columns, rows))

    deliver(
        lambda: frame,
        lambda: {"trace": trace.name, "checks": frame.to_dicts(), "warnings": result.warnings},
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)
