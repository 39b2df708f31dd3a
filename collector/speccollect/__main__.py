"""`speccollect` and `python -m speccollect`: one line for an error of the user's, a traceback for one of ours."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from specschema.errors import SpecError, UsageError
from specschema.standard_streams import drop_output, flushed, open_for_any_text, printing_failed
from specschema.terminal_size import forget_odd_sizes


def _end(number: int, _frame: FrameType | None) -> None:
    """Let ``finally`` run: a recording that this command armed is disarmed."""
    sys.exit(128 + number)


def _missing(error: ModuleNotFoundError) -> int:
    """Say what to install; a module of our own that is missing is our fault and keeps its traceback."""
    from specschema.install_line import missing

    line = missing(error, "collector")
    if line is None:
        raise error
    sys.stderr.write(f"speccollect: {line}\n")
    return 1


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the server or the data can't do it, 2 usage."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal is the usual end of a long recording
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    forget_odd_sizes(os.environ)
    open_for_any_text()
    code = _run()
    sys.exit(flushed(sys.stderr, flushed(sys.stdout, code, "speccollect"), "speccollect"))


def _run() -> int:
    """The exit code of one command."""
    try:
        from speccollect.cli.app import app

        app()
    except ModuleNotFoundError as error:
        return _missing(error)  # a command imports what it needs: torch for the demo
    except SpecError as error:
        sys.stderr.write(f"speccollect: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # the reader of our pipe has gone (``| head``): nothing is wrong
        drop_output()
    except OSError as error:
        if not printing_failed(error):
            raise
        drop_output()
        sys.stderr.write(f"speccollect: the output could not be written: {error.strerror}\n")
        return 1
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer and rich meet it first, and leave with 1
            return 0
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


if __name__ == "__main__":
    main()
