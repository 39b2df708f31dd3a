"""Sizes in the environment that are none end no command of either command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specschema.terminal_size import SIZES, forget_odd_sizes

SAMPLE = Path(__file__).parents[2] / "samples" / "embedded_tp2.parquet"
ODD = ["²", "٣", "wide", "", " ", "-5", "0", "0x50", "8e1", "80 ", "9" * 5000, "100000"]
COMMANDS = [
    ["specanalyze", "env", str(SAMPLE)],
    ["specanalyze", "--help"],
    ["specanalyze", "kernels", "--help"],
    ["speccollect", "--help"],
    ["speccollect", "merge", "-o", "absent/trace.parquet"],
]


@pytest.mark.parametrize("odd", ODD, ids=[ascii(odd)[:12] for odd in ODD])
def test_what_is_no_size_was_never_set(odd: str) -> None:
    for name in SIZES:
        environment = {"PATH": "/bin", name: odd}
        forget_odd_sizes(environment)
        assert environment == {"PATH": "/bin"}


def test_sizes_stay() -> None:
    environment = {"COLUMNS": "80", "LINES": "1", "TERMINAL_WIDTH": "9999"}
    forget_odd_sizes(environment)
    assert environment == {"COLUMNS": "80", "LINES": "1", "TERMINAL_WIDTH": "9999"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
def test_a_command_prints_what_it_would_without_them(command: list[str], tmp_path: Path) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in SIZES}

    def printed(environment: dict[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=environment | {"SPECANALYZE_DIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    wanted = printed(plain)
    assert (wanted[0], "Traceback" in wanted[2]) == (2 if "merge" in command else 0, False)
    assert printed(plain | dict.fromkeys(SIZES, "²")) == wanted
