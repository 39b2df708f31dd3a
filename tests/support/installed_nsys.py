"""The real Nsight Systems, where it is installed (scripts/install_nsys.sh puts it into a folder; NSYS names that folder)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specanalyze.formats.nsys_install import NsightSystems, find


def nsight_systems() -> NsightSystems:
    """The installation, or a skipped test that says what is missing."""
    found = find()
    if found.nsys is None or found.importer is None:
        pytest.skip("Nsight Systems is not installed: scripts/install_nsys.sh FOLDER, then NSYS=FOLDER")
    return found


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """What a program did, failed or not."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, errors="replace", check=False
    )


def run(*command: str | Path) -> str:
    """Standard output of a program that must succeed."""
    done = ran(*command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def version(nsys: Path) -> tuple[int, int]:
    """(2022, 4)."""
    number = next(word for word in run(nsys, "--version").split() if word[:2] == "20")
    year, minor = number.split(".")[:2]
    return int(year), int(minor)
