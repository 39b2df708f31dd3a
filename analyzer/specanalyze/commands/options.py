"""Options that the commands share, and what they mean."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specanalyze.commands.output_path import refuse_source, table_output

if TYPE_CHECKING:
    from specanalyze.trace import Trace

TraceArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="trace.parquet, torch.profiler JSON(.gz), an Nsight Systems export (.sqlite, Parquet folder) or report, several of "
        "one form, or a folder of ranks; all of one recording.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (times in integer ns) instead of tables.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the table to FILE.parquet or FILE.csv.",
        show_default=False,
        callback=table_output,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.", is_eager=True)]
PhaseMapOption = Annotated[
    Path | None,
    typer.Option(
        "--phase-map",
        metavar="FILE",
        help='JSON object, regular expression -> phase, for range names that are not built in: {"^my verify": "verify"}.',
        show_default=False,
    ),
]
CyclesOption = Annotated[
    Path | None,
    typer.Option(
        "--cycles",
        metavar="FILE",
        help="Host stamps, accepted drafts and untraced control cycles (.cycles.json); found by itself beside the trace.",
        show_default=False,
    ),
]
NodeMapOption = Annotated[
    Path | None,
    typer.Option(
        "--node-map",
        metavar="FILE",
        help="Nodes of the captured CUDA graphs (.nodemap.json); found by itself beside the trace.",
        show_default=False,
    ),
]
SalvageOption = Annotated[
    bool, typer.Option("--salvage", help="Read what is whole in damaged or partial files and say what was lost.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="cpu", help="cpu: let CPU operators stand in for device work.", show_default=False
    ),
]

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        help="Processes that read ranks at the same time; by default as many as repay their start, 1 for small traces.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|ray",
        help="ray: work on the ranks as tasks of a Ray cluster (RAY_ADDRESS, else one on this machine).",
        show_default=False,
    ),
]


def open_for(
    paths: list[Path],
    *,
    cycles: Path | None = None,
    node_map: Path | None = None,
    salvage: bool = False,
    device: str | None = None,
    jobs: int | None = 1,
    engine: str = "local",
    output: Path | None = None,
) -> Trace:
    """Open a recording with a progress bar on stderr when that takes long and someone watches.

    Args:
        output: where the command will write; it must be none of the recording's files.
    """
    from specanalyze.engines.choice import with_engine
    from specanalyze.formats.load import open_trace
    from specanalyze.render.progress import reading
    from specschema.errors import UsageError

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: use cpu or cuda")
    limit_memory(str(paths[0]) if len(paths) == 1 else f"{paths[0]} and others")
    bar = reading()
    trace = open_trace(paths, cycles=cycles, node_map=node_map, salvage=salvage, device=device, progress=bar)
    refuse_source(output, (source.source for source in trace.sources))
    return trace if jobs == 1 and engine == "local" else with_engine(trace, engine, jobs, bar)


def limit_memory(name: str) -> None:
    """From here on this command ends with one line where it takes too much memory; ``name`` is what it reads."""
    from specanalyze.memory import watch

    watch(name, _over_memory)


def _over_memory(line: str) -> None:
    """The command is about to end; nothing of its answer has been printed."""
    from specanalyze.formats.plain_text import plain
    from specanalyze.render.progress import finish

    finish()
    sys.stderr.write(f"error: {plain(line)}\n")
    sys.stderr.flush()


def phase_map_of(path: Path | None) -> dict[str, str] | None:
    """The mapping in the ``--phase-map`` file, None without one."""
    if path is None:
        return None
    from specanalyze.phase_names import read_phase_map

    return read_phase_map(path)


def emit_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    from specanalyze.render.json import dumps

    typer.echo(dumps(document))
