"""The test's end of ``faulty_rank.py``: a rank in a process of its own that does what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from speccollect.config import WindowSettings

PROGRAM = Path(__file__).with_name("faulty_rank.py")

SETTINGS = WindowSettings(skip=2, warmup=1, record=3, repeat=2, gap=2)
"""Decode cycles 0-1 control, 2 warm-up, 3-5 window 0, 6-7 control, 8 warm-up, 9-11 window 1, from 12 on control."""

MAX_TOKENS = 45
"""At most three a cycle: 15 cycles at least."""


class Rank:
    """One process; every method is one order."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1, port: int = 0, log: Path | None = None) -> None:
        self.folder = folder
        self._log = open(log or os.devnull, "wb")  # noqa: SIM115  closed in stop()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(size), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                **os.environ,
                "SPECANALYZE_DIR": str(folder),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
            },
        )

    def send(self, order: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line of the rank; fails when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the rank ended with status {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, order: str, **arguments: Any) -> dict[str, Any]:
        self.send(order, **arguments)
        return self.answer()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


Starter: TypeAlias = Callable[..., list[Rank]]
"""``start(folder, size)``: that many ranks of one engine."""
