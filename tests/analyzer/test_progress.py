"""The progress bar on a real terminal: it shows while ranks are read, and is gone when the command ends."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "sglang_tp2_eagle3_steps2.parquet"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
"""What rich writes when a bar takes the terminal's cursor and when it gives it back."""


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--phase", "prefill"), 1)])
def test_a_bar_shows_while_reading_and_leaves_the_terminal_as_it_was(arguments: tuple[str, ...], code: int) -> None:
    command = ["breakdown", str(SAMPLE), *arguments]
    script = f"""
import sys
from specanalyze.render import progress
progress.PATIENCE_SECONDS = 0.0
from specanalyze.cli import run
sys.exit(run({command!r}))
"""
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    printed, _ = child.communicate(timeout=120)
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end of a terminal is closed
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    assert child.returncode == code
    assert b"reading" in shown
    assert shown.count(HIDE) == shown.count(SHOW) > 0
    assert HIDE not in printed
    if code:
        assert shown.rindex(b"error:") > shown.rindex(SHOW)
