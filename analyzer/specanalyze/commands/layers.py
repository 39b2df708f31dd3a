"""``specanalyze layers``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specanalyze.commands.deliver import deliver
from specanalyze.commands.options import (
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
from specanalyze.commands.recording_arguments import open_recording
from specschema.errors import UsageError

if TYPE_CHECKING:
    from specanalyze.answers.eager_check import EagerCheck
    from specanalyze.trace import Trace


def layers(
    traces: TraceArgument,
    phase: Annotated[
        str, typer.Option("--phase", metavar="PHASE", help="The phase whose replays are looked into.")
    ] = "verify",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Modules shown a rank in the terminal.")] = 15,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    node_map: NodeMapOption = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="EAGER",
            help="An eager recording of the same forward, with --windows modules: checks the node map by it, kernel by kernel. Exit 1 "
            "where an equal kernel has another module.",
            show_default=False,
        ),
    ] = None,
    accept_differences: Annotated[
        bool,
        typer.Option(
            "--accept-differences",
            help="With --against: an eager recording of another server, model or machine all the same.",
        ),
    ] = False,
    salvage: SalvageOption = False,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
) -> None:
    """Inside the graph replay: time, exposed allreduce and gaps by layer and module; outlier layers named.

    Needs the node map, which the collector records; FILE.nodemap.json beside a profiler trace is found by itself.

    Examples:

      specanalyze layers trace.parquet --phase verify

      specanalyze layers trace.parquet --against eager.parquet
    """
    mapping = phase_map_of(phase_map)
    trace = open_for(traces, node_map=node_map, salvage=salvage, jobs=jobs, engine=engine, output=output)
    if against is not None:
        from specanalyze.answers.eager_check import check_against

        other = open_recording(against, salvage=salvage, jobs=jobs, engine=engine, output=output)
        checked = check_against(trace, other, phase, mapping, accept_differences=accept_differences)
        _deliver_check(trace, other, checked, top, json=json, output=output, force=force)
        return
    if accept_differences:
        raise UsageError("--accept-differences goes with --against: without it nothing is compared")
    from specanalyze.answers.layers import by_layer, by_module
    from specanalyze.answers.layers import layers as layer_table

    result = layer_table(trace, phase, mapping)

    def show() -> None:
        from specanalyze.render.layers import draw

        draw(result, top)

    deliver(
        lambda: result.table,
        lambda: {
            "trace": trace.name,
            "phase": phase,
            "replays": result.replays,
            "placed": result.placed,
            "unplaced_ns": result.unplaced_ns,
            "left_out_ns": result.left_out_ns,
            "layers": by_layer(result).to_dicts(),
            "modules": by_module(result).to_dicts(),
            "rows": result.table.to_dicts(),
            "warnings": result.warnings,
        },
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
    )


def _deliver_check(
    trace: Trace,
    against: Trace,
    result: EagerCheck,
    top: int,
    *,
    json: bool,
    output: Path | None,
    force: bool,
) -> None:
    """The node map beside an eager recording."""
    from specanalyze.answers.eager_check import differences, verdict

    def show() -> None:
        from specanalyze.render.eager_check import draw

        draw(result, top)

    deliver(
        lambda: result.pairs,
        lambda: {
            "trace": trace.name,
            "against": against.name,
            "phase": result.phase,
            "ranks": result.ranks.to_dicts(),
            "differences": differences(result).to_dicts(),
            "outer_parts": [{"graph": one, "eager": other} for one, other in result.prefixes],
            "pairs": result.pairs.to_dicts(),
            "faults": result.faults,
            "remarks": result.remarks,
            "warnings": result.warnings,
        },
        show,
        result.warnings,
        json=json,
        output=output,
        force=force,
        verdict=verdict(result),
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(layers)
