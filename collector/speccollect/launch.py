"""`speccollect run`: a server with the collector loaded, for releases without plugins and for Nsight Systems."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from speccollect.config import FOLDER_VARIABLE, SWITCH_VARIABLE
from speccollect.plugin import TEARDOWN_VARIABLE
from specschema.errors import UsageError

BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"


def server_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of a server: the folder, the switch, and the folder whose sitecustomize loads the hooks."""
    path = inherited.get("PYTHONPATH", "")
    return {
        **inherited,
        FOLDER_VARIABLE: str(folder),
        SWITCH_VARIABLE: "1",
        TEARDOWN_VARIABLE: inherited.get(TEARDOWN_VARIABLE, "1"),
        "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *([path] if path else [])]),
    }


def nsys_command(command: Sequence[str], output: str) -> list[str]:
    """The command under Nsight Systems, kernels of graphs node by node, all child processes.

    Raises:
        UsageError: nsys is not on the path.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UsageError("nsys is not on PATH: install Nsight Systems, or leave --nsys out")
    return [
        nsys,
        "profile",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--trace-fork-before-exec=true",
        "--sample=none",
        "--cpuctxsw=none",
        f"--output={output}",
        *command,
    ]


def server_command(command: Sequence[str], nsys_output: str | None = None) -> list[str]:
    """What to execute.

    Raises:
        UsageError: no command, or one that does not exist.
    """
    if not command:
        raise UsageError(
            "speccollect run needs the server's command: speccollect run -- python -m sglang.launch_server ..."
        )
    arguments = list(command) if nsys_output is None else nsys_command(command, nsys_output)
    if shutil.which(arguments[0]) is None:
        raise UsageError(f"{arguments[0]} is not a command on this machine")
    return arguments


def launch(command: Sequence[str], folder: Path, *, nsys_output: str | None = None) -> None:
    """Become the server: this process is replaced, so signals and exit codes are the server's own.

    Raises:
        UsageError: no command, or one that does not exist.
    """
    arguments = server_command(command, nsys_output)
    os.execvpe(arguments[0], arguments, server_environment(folder, os.environ))
