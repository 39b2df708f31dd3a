"""What every input must lead to: an answer, or one line of error; never a traceback, never without bounds."""

from __future__ import annotations

import contextlib
import io
import resource
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from specanalyze import cli

SECONDS: Final = 20
"""CPU seconds: what else the machine does makes no input slow."""
MEMORY_BYTES: Final = 2 << 30
"""Beyond what the process held before."""


class BrokenPromise(Exception):
    """An input led to something else."""


class Outcome(NamedTuple):
    """What a command did.

    Attributes:
        code: 0 an answer, 1 the data can't answer, 2 usage.
        output: text on stdout.
        error: text on stderr.
    """

    code: int
    output: str
    error: str


def outcome(arguments: Sequence[str]) -> Outcome:
    """Run a command and hold it to the promise.

    Raises:
        BrokenPromise: another exit code, an error of more than one line, control characters of the file on the terminal, too long,
            too much memory.
        Exception: whatever the command let through.
    """
    out, err = io.StringIO(), io.StringIO()
    before = _peak_bytes(anew=True)
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = cli.run(list(arguments))
    took = time.process_time() - began
    output, error = out.getvalue(), err.getvalue()
    if code not in (0, 1, 2):
        raise BrokenPromise(f"exit code {code}: {error[-500:]}")
    if code == 2 and error.startswith("Usage:"):
        return Outcome(code, output, error)
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    if code and (len(lines) != 1 or not error.rstrip("\n").endswith(lines[0])):
        raise BrokenPromise(f"exit code {code} without one line of error: {error[-500:]!r}")
    if code and not output and len(lines[0]) > 2000:
        raise BrokenPromise(f"an error of {len(lines[0])} characters: {lines[0][:300]}")
    if "Traceback" in error or "\x1b" in error or "\x1b" in output:
        raise BrokenPromise(f"not for a terminal: {(error + output)[-500:]!r}")
    if took > SECONDS:
        raise BrokenPromise(f"took {took:.0f} s")
    grown = _peak_bytes() - before
    if grown > MEMORY_BYTES:
        raise BrokenPromise(f"took {grown >> 20} MiB")
    return Outcome(code, output, error)


def _peak_bytes(*, anew: bool = False) -> int:
    """Most resident memory so far; on Linux, with ``anew``, counted from now on.

    Thousands of inputs in one process leave something behind each: only what this one adds is its own.
    """
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
