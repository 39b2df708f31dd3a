"""A reader of the output that goes away, as ``| head -2`` does, is no failure of the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from story import sweep_recording


def test_a_reader_that_leaves_early_is_no_error_however_the_race_ends(tmp_path: Path) -> None:
    trace = sweep_recording(2, cycles=20, traced=5).write(tmp_path)
    command = [sys.executable, "-m", "specanalyze", "kernels", str(trace), "--top", "100"]
    for turn in range(20):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(turn % 3):  # 0: gone before anything is written; 1, 2: after some lines
                process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
            assert (process.wait(), "BrokenPipe" in said, "Traceback" in said) == (0, False, False)
