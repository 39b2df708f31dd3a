"""``specanalyze report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from specanalyze.commands.options import (
    DeviceOption,
    ForceOption,
    PhaseMapOption,
    SalvageOption,
    open_for,
    phase_map_of,
)
from specanalyze.commands.output_path import refuse_output
from specanalyze.commands.recording_arguments import open_recording, recordings_among
from specanalyze.whole_number import whole_number

_EXTRA: Final = ("altair", "jinja2", "markupsafe", "vl_convert")
"""Packages of the extra ``report``."""


def report(
    recordings: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORDING...",
            help="The recording in question, then others to set beside it: files, folders, or quoted patterns.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write; must end in .html.")
    ] = Path("report.html"),
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="RECORDING",
            help="Plain decoding of the same server: opens the verdict.",
            show_default=False,
        ),
    ] = None,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Use a baseline that ran on another environment all the same.")
    ] = False,
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="A,B,...",
            help="Draft steps of each recording, where they do not say it.",
            show_default=False,
        ),
    ] = None,
    force: ForceOption = False,
    phase_map: PhaseMapOption = None,
    salvage: SalvageOption = False,
    device: DeviceOption = None,
) -> None:
    """One self-contained HTML page with the plots and their tables; works offline, in dark mode and on paper.

    Examples:

      specanalyze report trace.parquet -o report.html

      specanalyze report trace.parquet --baseline plain.parquet

      specanalyze report steps2/ steps3/ steps5/ -o sweep.html
    """
    from specanalyze.report.page_file import write_page
    from specschema.errors import UsageError

    refuse_output(output, (".html", ".htm"), force=force)
    mapping = phase_map_of(phase_map)
    traces = [open_for(paths, salvage=salvage, device=device, output=output) for paths in recordings_among(recordings)]
    plain = None if baseline is None else open_recording(baseline, salvage=salvage, device=device, output=output)
    steps = None if values is None else [v.strip() for v in values.split(",")]
    if steps is not None and (len(steps) != len(traces) or None in map(whole_number, steps)):
        raise UsageError(
            f"--values {values}: give {len(traces)}, the draft steps of each recording"
            if len(traces) > 1
            else f"--values {values}: give one number, the draft steps of the recording"
        )
    # After the files: whoever mistyped one need not install anything to hear of it.
    try:
        from specanalyze.report.page import build_report, to_html
    except ModuleNotFoundError as error:
        from specschema.install_line import missing

        line = missing(error, "report")
        if line is None or error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise UsageError(line) from None
    from specanalyze.render.stderr import warn

    result = build_report(
        traces, baseline=plain, accept_differences=accept_differences, values=steps, phase_map=mapping
    )
    size = write_page(to_html(result), output)
    typer.echo(f"{output}: {size / 1e6:.1f} MB; open it in a browser")
    warn(line for trace in (*traces, *([plain] if plain else [])) for line in trace.warnings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)
