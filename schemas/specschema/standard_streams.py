"""stdout and stderr of a command line, whatever they lead to: another encoding, nothing, a reader that leaves, a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Final, TextIO

OUTPUT_FAILS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What printing can end in, whatever the data: no room left, above all."""


def open_for_any_text() -> None:
    """Names and signs that an encoding lacks are no reason to fail: a locale without UTF-8, a file's name that is none."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us (``>&-``)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open until the end
        elif stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(errors="backslashreplace")


def printing_failed(error: OSError) -> bool:
    """Whether it is stdout that could not be written, and no file that has a name."""
    return error.filename is None and error.errno in OUTPUT_FAILS


def drop_output() -> None:
    """Let what is still buffered for stdout go nowhere, or it would be tried again at the end."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flushed(stream: TextIO, code: int, program: str) -> int:
    """The exit code once everything is handed over: what was asked for and is not there is a failure.

    Args:
        stream: stdout or stderr.
        code: exit code so far.
        program: begins the line on stderr.
    """
    try:
        stream.flush()
    except BrokenPipeError:  # the reader of our pipe has gone (``| head``)
        drop_output()
        return code
    except OSError as error:  # a full disk, for instance
        if stream is sys.stdout:
            drop_output()
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{program}: the output could not be written: {error.strerror or error}\n")
        return code or 1
    return code
