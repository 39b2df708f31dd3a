"""``specanalyze breakeven``."""

from __future__ import annotations

from pathlib import Path
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
from specschema.errors import UsageError


def breakeven(
    traces: TraceArgument,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline",
            "-b",
            metavar="BASE",
            help="Plain decoding on the same server; give it again for more ranks.",
            show_default=False,
        ),
    ] = None,
    baseline_cycles: Annotated[
        Path | None,
        typer.Option(
            "--baseline-cycles", metavar="FILE", help="Cycle log of the baseline, as --cycles.", show_default=False
        ),
    ] = None,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Weigh against a baseline of another environment.")
    ] = False,
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
    """The accept length that pays: cycle time / baseline step time; where the trace stands, tok/s won or lost.

    Examples:

      specanalyze breakeven eagle.parquet --baseline plain.parquet

      specanalyze breakeven eagle.json.gz --baseline plain.json.gz --baseline-cycles plain_untraced.cycles.json
    """
    if not baseline:
        first, *others = traces
        second = f"--baseline {others[0]}" if len(others) == 1 else "--baseline plain.parquet"
        raise UsageError(
            "speculation is weighed against plain decoding, which must be given: record the same server once more without "
            f"speculation, then: specanalyze breakeven {first} {second}"
        )
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    base = open_for(
        baseline, cycles=baseline_cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output
    )
    from specanalyze.answers.breakeven import break_even, break_even_json

    result = break_even(trace, base, mapping, accept_differences=accept_differences)

    def show() -> None:
        from specanalyze.render.breakeven import draw

        draw(result)

    deliver(
        lambda: result.by_steps,
        lambda: break_even_json(result),
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(breakeven)
