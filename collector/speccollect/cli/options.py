"""Options that several commands share, and what their texts mean. Heavy libraries are imported inside functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

if TYPE_CHECKING:
    from speccollect.config import WindowSettings

_WINDOWS_HELP: Final = (
    "Which decode cycles are profiled: 'off', or e.g. 'skip=60,warmup=2,record=40,repeat=3,gap=60'; "
    "also cpu_ops, ranges, stamps, details, modules, cupti."
)
Folder = Annotated[
    Optional[Path],  # noqa: UP045  typer reads this at run time, on Python 3.10 too
    typer.Option(
        "--dir", help="The server's collector folder.", envvar="SPECANALYZE_DIR", show_default="SPECANALYZE_DIR"
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Trace to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]
Backend = Annotated[
    str,
    typer.Option(
        help="What records the windows: torch (torch.profiler), or cupti (NVIDIA's cupti-python: exact graph nodes)."
    ),
]
WindowsText = Annotated[str, typer.Option("--windows", help=_WINDOWS_HELP)]


def chosen_folder(folder: Path | None) -> Path:
    """The folder that was named, else the default one."""
    from speccollect.config import default_folder

    return folder if folder is not None else default_folder()


def window_settings(text: str, cpu_ops: bool = False, backend: str = "torch") -> WindowSettings:
    """What ``--windows``, ``--cpu-ops`` and ``--backend`` say together.

    Raises:
        UsageError: they say what can't be.
    """
    import dataclasses

    from speccollect.config import parse_windows
    from specschema.errors import UsageError

    settings = parse_windows(text)
    if backend not in ("torch", "cupti"):
        raise UsageError(f"--backend is torch or cupti, not {backend!r}")
    if backend == "cupti":
        settings = dataclasses.replace(settings, cupti=True)
    return dataclasses.replace(settings, cpu_ops=True) if cpu_ops else settings


def prompt_of(path: Path) -> str:
    """The text of a prompt's file.

    Raises:
        UsageError: it is no UTF-8, empty, or can't be read.
    """
    from specschema.errors import UsageError

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt-file {path}: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise UsageError(f"--prompt-file {path} can't be read: {error.strerror or error}") from None
    if not text.strip():
        raise UsageError(f"--prompt-file {path} is empty")
    return text
