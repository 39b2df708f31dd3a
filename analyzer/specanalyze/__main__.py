"""Entry point: says what to install when something is missing, and turns user errors into one line."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import Final, NoReturn

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
    try:
        from specanalyze.cli import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("specanalyze", "specschema"):
            raise
        from specschema.install_line import install_line

        sys.stderr.write(f"error: {error.name} is not installed; run: {install_line('analyzer')}\n")
        sys.exit(1)
    _leave(run())


def _leave(code: int) -> NoReturn:
    """End at once: everything is written and closed, and taking the interpreter and big tables apart piece by piece would
    cost a seventh of the time of reading 100 MB only to free what the system frees anyway."""
    atexit._run_exitfuncs()  # temporary folders are removed here
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # the reader of our pipe has gone (``| head``)
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
