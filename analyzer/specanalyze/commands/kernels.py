"""``specanalyze kernels``."""

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


def kernels(
    traces: TraceArgument,
    phase: Annotated[str, typer.Option("--phase", metavar="PHASE", help="One phase, or all.")] = "all",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Rows shown in the terminal.")] = 20,
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
    """Top kernels by phase and class, with counts and spread.

    Example: specanalyze kernels trace.parquet --phase verify --top 10
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
    import polars as pl

    from specanalyze.answers.kernels import kernels as kernel_table
    from specanalyze.attribution.breakdown_warnings import NO_DEVICE_WORK
    from specschema.errors import TraceError, UsageError
    from specschema.phases import PHASE_KEYS

    if phase != "all" and phase not in PHASE_KEYS:
        raise UsageError(f"no phase {phase!r}; use all or one of {', '.join(PHASE_KEYS)}")
    table = kernel_table(trace, mapping)
    if not table.height:
        raise TraceError(f"{trace.name}: {NO_DEVICE_WORK}")
    if phase != "all":
        table = table.filter(pl.col("phase") == phase)

    def show() -> None:
        from specanalyze.render.kernels import draw

        draw(table, phase, top)

    deliver(
        lambda: table,
        lambda: {"trace": trace.name, "kernels": table.to_dicts(), "warnings": trace.warnings},
        show,
        trace.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(kernels)
