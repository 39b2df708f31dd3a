"""Entry point: says what to install when something is missing, and turns user errors into one line."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line; exit code 0 fine, 1 the data can't answer, 2 usage."""
    try:
        from specanalyze.cli import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("specanalyze", "specschema"):
            raise
        sys.stderr.write(f'{error.name} is not installed; run: pip install "specanalyze[analyzer]"\n')
        sys.exit(1)
    _leave(run())


def _leave(code: int) -> NoReturn:
    """End at once: everything is written and closed, and taking the interpreter and big tables apart piece by piece would
    cost a seventh of the time of reading 100 MB only to free what the system frees anyway."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # the reader of our pipe has gone (``| head``)
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
