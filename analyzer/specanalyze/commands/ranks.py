"""``specanalyze ranks``."""

from __future__ import annotations

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
    CyclesOption,
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


def ranks(
    traces: TraceArgument,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    cycles: CyclesOption = None,
    node_map: NodeMapOption = None,
    salvage: SalvageOption = False,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """Skew and stragglers: waiting and transfer of every collective that all ranks recorded; kernels slower on some ranks.

    Example: specanalyze ranks rank0.json.gz rank1.json.gz
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, node_map=node_map, salvage=salvage, jobs=jobs, engine=engine, output=output)
    from specanalyze.answers.ranks_report import compare_ranks, ranks_frame, ranks_json

    report = compare_ranks(trace, mapping)

    def show() -> None:
        from specanalyze.render.ranks import draw

        draw(report)

    deliver(
        lambda: ranks_frame(report),
        lambda: ranks_json(report),
        show,
        report.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ranks)
