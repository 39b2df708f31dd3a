"""Entry point: says what to install when something is missing, and turns user errors into one line."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import Final, NoReturn, TextIO

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
    _open_for_any_text()
    try:
        from specanalyze.cli import run
    except ModuleNotFoundError as error:
        from specschema.install_line import missing

        line = missing(error, "analyzer")
        if line is None:
            raise
        sys.stderr.write(f"error: {line}\n")
        sys.exit(1)
    _leave(run())


def _open_for_any_text() -> None:
    """Names and signs that stdout's encoding lacks are no reason to fail: a locale without UTF-8, a file's name that is none."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us (``>&-``)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open until the end
        elif stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(errors="backslashreplace")


def _leave(code: int) -> NoReturn:
    """End at once: everything is written and closed, and taking the interpreter and big tables apart piece by piece would
    cost a seventh of the time of reading 100 MB only to free what the system frees anyway."""
    atexit._run_exitfuncs()  # temporary folders are removed here
    os._exit(_flushed(sys.stderr, _flushed(sys.stdout, code)))


def _flushed(stream: TextIO, code: int) -> int:
    """The exit code once everything is handed over: what was asked for and is not there is a failure."""
    try:
        stream.flush()
    except BrokenPipeError:  # the reader of our pipe has gone (``| head``)
        return code
    except OSError as error:  # a full disk, for instance
        if stream is sys.stdout:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"error: the output could not be written: {error.strerror or error}\n")
        return code or 1
    return code


if __name__ == "__main__":
    main()
