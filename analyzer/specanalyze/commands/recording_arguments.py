"""Several recordings on one command line: which files belong together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specanalyze.commands.options import open_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specanalyze.trace import Trace

RecordingArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECORDING",
        help="One recording: a file, a folder of ranks, or a quoted pattern of its rank files ('e2_rank*.json.gz').",
        show_default=False,
    ),
]


def paths_of(recording: str) -> list[Path]:
    """The files of one recording: the path itself, or all that match the pattern.

    Raises:
        UsageError: an empty name, or a pattern that matches nothing.
    """
    from specschema.errors import UsageError

    if not recording:
        raise UsageError("a recording has an empty name; is a variable of the shell unset?")
    if not any(sign in recording for sign in "*?[") or os.path.exists(recording):
        return [Path(recording)]
    import glob

    found = sorted(Path(name) for name in glob.glob(recording))
    if not found:
        raise UsageError(f"{recording}: no file matches")
    ours = [p for p in found if not p.name.endswith((".cycles.json", ".nodemap.json"))]
    return ours or found


def open_recording(
    recording: str,
    *,
    salvage: bool = False,
    device: str | None = None,
    jobs: int | None = 1,
    engine: str = "local",
    output: Path | None = None,
) -> Trace:
    """Open one recording."""
    return open_for(paths_of(recording), salvage=salvage, device=device, jobs=jobs, engine=engine, output=output)


def recordings_among(arguments: Sequence[str]) -> list[list[Path]]:
    """Split a list of files, as a shell expands it, into recordings.

    A folder or trace.parquet is a recording of its own; rank files of one folder whose names differ in the rank only
    belong together.
    """
    from specanalyze.formats.recordings import rank_in_name, recording_in_name

    groups: dict[object, list[Path]] = {}
    for argument in arguments:
        for path in paths_of(argument):
            # tp2.parquet is a recording over two GPUs; only profilers' files are called TP-2 for their rank.
            merged = path.suffix == ".parquet" and "rank" not in path.name.lower()
            ranked = rank_in_name(path.name) is not None and not merged
            key = (path.parent, recording_in_name(path.name)) if ranked else path
            groups.setdefault(key, []).append(path)
    return list(groups.values())
