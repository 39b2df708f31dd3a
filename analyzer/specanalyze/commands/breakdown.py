"""``specanalyze breakdown``."""

from __future__ import annotations

from typing import Annotated, Any

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


def breakdown(
    traces: TraceArgument,
    phase: Annotated[
        str | None,
        typer.Option(
            "--phase", metavar="PHASE", help="verify, draft, draft_extend, ... or all.", show_default="verify"
        ),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="rank|cycle", help="One row a rank and bucket, or a phase instance.")
    ] = "rank",
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
    """Where verify's time goes: graph replay, allreduce, MoE, attention, GEMM, host; exact to the nanosecond.

    Examples:

      specanalyze breakdown trace.parquet

      specanalyze breakdown rank0.json.gz rank1.json.gz --phase all --json

      specanalyze breakdown trace.parquet --by cycle -o cycles.csv
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
    from specanalyze.answers.breakdown import break_down
    from specanalyze.answers.breakdown_table import breakdown_frame, breakdown_json
    from specanalyze.answers.calibration import calibrate, calibrated_columns, calibration_json

    result = break_down(trace, mapping)
    calibrations = {rank.key: calibrate(rank, result.cycles) for rank in result.ranks}
    frame = breakdown_frame(result, phase, by)
    if by == "rank":
        frame = calibrated_columns(frame, calibrations)

    def document() -> dict[str, Any]:
        whole = breakdown_json(result, phase or "all")
        for key, calibration in calibrations.items():
            whole["ranks"][key]["calibrated"] = calibration_json(calibration)
        return whole

    def show() -> None:
        from specanalyze.render.breakdown import draw

        draw(result, frame, phase or result.phase, by, calibrations)

    deliver(lambda: frame, document, show, result.warnings, json=json, output=output, force=force)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(breakdown)
