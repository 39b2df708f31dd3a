"""`speccollect` and `python -m speccollect`: one line for an error of the user's, a traceback for one of ours."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from specschema.errors import SpecError, UsageError
from specschema.terminal_size import forget_odd_sizes


def _end(number: int, _frame: FrameType | None) -> None:
    """Let ``finally`` run: a recording that this command armed is disarmed."""
    sys.exit(128 + number)


def _missing(error: ModuleNotFoundError) -> NoReturn:
    """Say what to install; a module of our own that is missing is our fault and keeps its traceback."""
    from specschema.install_line import missing

    line = missing(error, "collector")
    if line is None:
        raise error
    sys.stderr.write(f"speccollect: {line}\n")
    sys.exit(1)


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the server or the data can't do it, 2 usage."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal is the usual end of a long recording
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    forget_odd_sizes(os.environ)
    try:
        from speccollect.cli.app import app
    except ModuleNotFoundError as error:
        _missing(error)
    try:
        app()
    except ModuleNotFoundError as error:
        _missing(error)  # a command imports what it needs: torch for the demo
    except SpecError as error:
        sys.stderr.write(f"speccollect: {error}\n")
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
