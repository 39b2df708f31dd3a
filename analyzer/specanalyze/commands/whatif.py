"""``specanalyze whatif``."""

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
from specanalyze.commands.recording_arguments import open_recording


def whatif(
    traces: TraceArgument,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="BUCKET=F",
            help="A bucket takes F of its time: allreduce=0.7, verify.moe=0.5. Repeatable.",
            show_default=False,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="BUCKET",
            help="A bucket takes no time: graph_gap, draft.allreduce. Repeatable.",
            show_default=False,
        ),
    ] = None,
    draft_tp: Annotated[
        int | None,
        typer.Option("--draft-tp", metavar="1", help="The draft model on one GPU.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="N draft steps a cycle.", show_default=False)
    ] = None,
    tree: Annotated[
        int | None,
        typer.Option("--tree", metavar="K", help="K branches at each depth of the draft.", show_default=False),
    ] = None,
    second: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="RECORDING",
            help="A recording of the same server at other draft steps (or plain decoding): what verify costs a token.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RECORDING",
            help="A recording made with the change: where the prediction was off, by phase and bucket.",
            show_default=False,
        ),
    ] = None,
    draft_steps: Annotated[
        int | None,
        typer.Option(
            "--draft-steps", metavar="N", min=1, help="Draft steps of TRACE, where it does not say.", show_default=False
        ),
    ] = None,
    with_steps: Annotated[
        int | None,
        typer.Option(
            "--with-steps",
            metavar="N",
            min=0,
            help="Draft steps of the second recording, where it does not say.",
            show_default=False,
        ),
    ] = None,
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
    """What a change would give: predicted cycle and tok/s, with every assumption said.

    Examples:

      specanalyze whatif trace.parquet --scale allreduce=0.7

      specanalyze whatif trace.parquet --steps 5 --with plain.parquet

      specanalyze whatif trace.parquet --draft-tp 1 --remove graph_gap

      specanalyze whatif steps2.parquet --steps 5 --against steps5.parquet
    """
    from specanalyze.answers.whatif import Changes, scale_of, target_of, what_if, what_if_json

    scales = [scale_of(text) for text in scale or ()] + [(*target_of(text), 0.0) for text in remove or ()]
    changes = Changes(tuple(scales), draft_tp, steps, tree)
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, cycles=cycles, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    other = (
        None
        if second is None
        else open_recording(second, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    )
    truth = (
        None
        if against is None
        else open_recording(against, salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)
    )

    result = what_if(
        trace,
        changes,
        other=other,
        against=truth,
        draft_steps=draft_steps,
        other_steps=with_steps,
        phase_map=mapping,
    )

    def show() -> None:
        from specanalyze.render.whatif import draw

        draw(result)

    deliver(
        lambda: result.table, lambda: what_if_json(result), show, result.warnings, json=json, output=output, force=force
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(whatif)
