"""``specanalyze ranks``."""

from __future__ import annotations

import typer

from specanalyze.commands.options import (
    CyclesOption,
    ForceOption,
    JsonOption,
    NodeMapOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    TraceArgument,
    emit_json,
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
) -> None:
    """Skew and stragglers: waiting and transfer of every collective that all ranks recorded.

    Example: specanalyze ranks rank0.json.gz rank1.json.gz
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, node_map=node_map, salvage=salvage)
    from specanalyze.ranks_report import compare_ranks, ranks_frame, ranks_json
    from specanalyze.render.terminal import warn

    report = compare_ranks(trace, mapping)
    if output is not None:
        from specanalyze.render.files import write_table

        write_table(ranks_frame(report), output, force)
    if json:
        emit_json(ranks_json(report))
    elif output is None:
        from specanalyze.render.ranks import draw

        draw(report)
    warn(report.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ranks)
