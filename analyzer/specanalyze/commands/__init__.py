"""One command a module: check the arguments, call one function, hand the result to one renderer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

MODULES: Final = (
    "breakdown",
    "phases",
    "accept",
    "breakeven",
    "overhead",
    "layers",
    "kernels",
    "ranks",
    "validate",
    "env",
    "import_trace",
    "export",
    "redact",
    "compare",
    "sweep",
    "whatif",
    "diagnose",
    "report",
)
"""Modules of commands, in the order of ``--help``. Each has ``register(app)`` and imports nothing heavy at its top."""


def register(app: typer.Typer) -> None:
    """Add every command to the application."""
    for module in MODULES:
        import_module(f"specanalyze.commands.{module}").register(app)
