"""The ``specanalyze`` command line: names its commands and catches user errors in one place."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from specanalyze.command_group import SETTINGS, CommandGroup
from specanalyze.interruption import said
from specschema.errors import SpecError, UsageError
from specschema.standard_streams import drop_output, printing_failed
from specschema.terminal_size import forget_odd_sizes

_LONGEST_LINE = 1000

app = typer.Typer(
    name="specanalyze",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
    help="Where speculative decoding's time goes on a serving GPU, and what to change.\n\n"
    "Start with: specanalyze breakdown trace.parquet. Every command also reads torch.profiler JSON(.gz) files, "
    "folders of ranks, and exports of Nsight Systems. Each has its own --help, with examples.",
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


def _complain(error: SpecError) -> None:
    """One line; what comes from a file and a terminal would obey is made visible."""
    from specanalyze.formats.plain_text import plain

    line = plain(" ".join(str(error).splitlines()))
    with contextlib.suppress(BrokenPipeError):  # nobody reads it; the exit code stands
        sys.stderr.write(f"error: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + ' ...'}\n")


def run(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 fine, 1 the data can't answer, 2 usage.
    """
    forget_odd_sizes(os.environ)
    try:
        app(args=arguments, standalone_mode=True)
    except UsageError as error:
        _take_bars_off()
        _complain(error)
        return 2
    except SpecError as error:
        _take_bars_off()
        _complain(error)
        return 1
    except (
        ModuleNotFoundError
    ) as error:  # commands import what they need: whoever installed the collector alone has no polars
        from specschema.install_line import missing

        line = missing(error, "analyzer")
        if line is None:
            raise
        _take_bars_off()
        _complain(SpecError(line))
        return 1
    except BrokenPipeError:
        # The reader of our pipe has gone (``| head``): nothing is wrong, and Python must not complain at exit either.
        drop_output()
        return 0
    except OSError as error:
        if not printing_failed(error):
            raise
        _take_bars_off()
        drop_output()
        _complain(SpecError(f"the output could not be written: {error.strerror}"))
        return 1
    except SystemExit as stop:
        # typer and rich catch a broken pipe themselves, whoever meets it first, and leave with 1: "the data can't answer".
        if isinstance(stop.__context__, BrokenPipeError):
            return 0
        ended = said(stop.__context__)
        if ended is not None:
            _take_bars_off()
            _complain(SpecError(ended[0]))
            return ended[1]
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    finally:
        _take_bars_off()
    return 0


def _take_bars_off() -> None:
    """No progress bar outlives its command; the module is loaded only where a command read something."""
    progress = sys.modules.get("specanalyze.render.progress")
    if progress is not None:
        progress.finish()
