"""``specanalyze compare``."""

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
    phase_map_of,
)
from specanalyze.commands.recording_arguments import RecordingArgument, open_recording


def compare(
    before: RecordingArgument,
    after: RecordingArgument,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="The first recording is the baseline: it must have run on the same environment."
        ),
    ] = False,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Use a baseline that ran on another environment all the same.")
    ] = False,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="SHARE",
            help="Exit 1 when the second recording is slower by more than this share of a cycle, beyond noise; implies --baseline.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="List all: facts made anew for each run (ports, names of shared memory), every kernel that moved.",
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
    """What differs between two recordings: the environment first, then what moved beyond noise, then kernels.

    Examples:

      specanalyze compare before/trace.parquet after/trace.parquet

      specanalyze compare 'e2_rank*.json.gz' 'e5_rank*.json.gz'

      specanalyze compare main.parquet branch.parquet --fail-above 5%
    """
    from specanalyze.answers.compare import compare as run
    from specanalyze.answers.compare import comparison_json
    from specanalyze.answers.regressions import not_judged, regressions, share_of

    mapping = phase_map_of(phase_map)
    above = None if fail_above is None else share_of(fail_above)
    one = open_recording(before, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    other = open_recording(after, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)

    result = run(
        one,
        other,
        baseline=baseline or above is not None,
        accept_differences=accept_differences,
        phase_map=mapping,
    )

    def show() -> None:
        from specanalyze.render.compare import draw

        draw(result, everything=everything)

    deliver(
        lambda: result.table,
        lambda: comparison_json(result),
        show,
        [*result.warnings, *([] if above is None else not_judged(result))],
        json=json,
        output=output,
        force=force,
        verdict=() if above is None else regressions(result, above),
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)
