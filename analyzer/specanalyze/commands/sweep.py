"""``specanalyze sweep``."""

from __future__ import annotations

from typing import Annotated

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
    DeviceOption,
    EngineOption,
    ForceOption,
    JobsOption,
    JsonOption,
    OutputOption,
    PhaseMapOption,
    SalvageOption,
    open_for,
    phase_map_of,
)
from specanalyze.commands.recording_arguments import recordings_among


def sweep(
    recordings: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORDING...",
            help="Recordings at several settings: files, folders, or quoted patterns; rank files of one recording are put together.",
            show_default=False,
        ),
    ],
    over: Annotated[
        str,
        typer.Option(
            "--over", metavar="NAME", help="draft_steps, batch_size (within recordings), or a server argument."
        ),
    ] = "draft_steps",
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="A,B,...",
            help="The setting of each recording, where they do not say it.",
            show_default=False,
        ),
    ] = None,
    accept_differences: Annotated[
        bool,
        typer.Option(
            "--accept-differences", help="Sweep over recordings that ran on another environment all the same."
        ),
    ] = False,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """Which setting is best: fixed and per-token cost of verify, tok/s measured and predicted for every step count.

    Examples:

      specanalyze sweep steps1/ steps2/ steps3/ steps5/

      specanalyze sweep batches.parquet --over batch_size

      specanalyze sweep e2_rank*.json.gz e5_rank*.json.gz --values 2,5
    """
    mapping = phase_map_of(phase_map)
    traces = [
        open_for(paths, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
        for paths in recordings_among(recordings)
    ]
    from specanalyze.answers.sweep import sweep as run
    from specanalyze.answers.sweep import sweep_json

    said = None if values is None else [v.strip() for v in values.split(",")]
    result = run(traces, over, said, mapping, accept_differences=accept_differences)

    def show() -> None:
        from specanalyze.render.sweep import draw

        draw(result)

    deliver(
        lambda: result.points, lambda: sweep_json(result), show, result.warnings, json=json, output=output, force=force
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sweep)
