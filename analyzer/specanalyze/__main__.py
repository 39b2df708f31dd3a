"""Entry point: says what to install when something is missing, and turns user errors into one line."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Final, NoReturn

from specschema.standard_streams import flushed, open_for_any_text

_RARELY: Final = (50_000, 20, 100)
"""Collect cycles when so many more objects live. Imports make a hundred thousand that all stay, and the default looks at them
every 700; tables are not counted, and reading leaves no cycles behind."""


def main() -> None:
    """Run the command line; exit code 0 fine, 1 the data can't answer, 2 usage."""
    gc.set_threshold(*_RARELY)
    # Nothing here multiplies matrices: numpy need not start a thread a core for it. And Arrow's own allocator keeps three times
    # what it was asked for, where tables are read once and given up.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    open_for_any_text()
    try:
        from specanalyze.cli import run
    except ModuleNotFoundError as error:
        from specschema.install_line import missing

        line = missing(error, "analyzer")
        if line is None:
            raise
        sys.stderr.write(f"error: {line}\n")
        sys.exit(1)
    from specanalyze.interruption import listen

    listen()
    _leave(run())


def _leave(code: int) -> NoReturn:
    """End at once: everything is written and closed, and taking the interpreter and big tables apart piece by piece would
    cost a seventh of the time of reading 100 MB only to free what the system frees anyway."""
    atexit._run_exitfuncs()  # temporary folders are removed here
    os._exit(flushed(sys.stderr, flushed(sys.stdout, code, "error"), "error"))


if __name__ == "__main__":
    main()
