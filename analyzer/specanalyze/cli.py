"""The ``specanalyze`` command line: names its commands and catches user errors in one place."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from specanalyze import commands
from specschema.errors import SpecError, UsageError

app = typer.Typer(
    name="specanalyze",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Where speculative decoding's time goes on a serving GPU, and what to change.\n\n"
    "Start with `specanalyze breakdown trace.parquet`. Every command also reads torch.profiler JSON(.gz) files, "
    "folders of ranks, and exports of Nsight Systems.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"specanalyze {version('specanalyze')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


commands.register(app)


def run(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 fine, 1 the data can't answer, 2 usage.
    """
    try:
        app(args=arguments, standalone_mode=True)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SpecError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except BrokenPipeError:
        # The reader of our pipe has gone (``| head``): nothing is wrong, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    return 0
