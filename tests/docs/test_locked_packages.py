"""The hashed lock file of CI covers what pyproject asks for, names no index, and every package's licence is listed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "ci.txt"
CI = ROOT / "requirements" / "ci.in"

EXTRAS = ("analyzer", "collector", "report", "test", "dev")
BESIDE = {"torch", "specanalyze"}
"""torch comes before the lock file, as a CPU build; specanalyze is what is tested."""


def entries() -> dict[str, list[str]]:
    """Pin -> its hashes."""
    found: dict[str, list[str]] = {}
    for line in LOCK.read_text().splitlines():
        if line.startswith("    --hash="):
            found[next(reversed(found))].append(line.strip(" \\").removeprefix("--hash="))
        elif line and not line.startswith("#"):
            found[line.rstrip("\\ ")] = []
    return found


def test_every_pin_has_the_hashes_of_its_files() -> None:
    pins = entries()
    assert len(pins) > 50
    assert [pin for pin in pins if len(Requirement(pin).specifier) != 1 or "==" not in pin] == []
    assert [pin for pin, hashes in pins.items() if not hashes] == []
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for hashes in pins.values() for one in hashes)


def test_no_index_is_named() -> None:
    assert not re.search(r"https?:|--index|--extra|--find|@ ", LOCK.read_text())


def test_the_lock_covers_what_pyproject_asks_for() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    asked += [line for line in CI.read_text().splitlines() if line and not line.startswith("#")]
    pinned: dict[str, list[Requirement]] = {}
    for pin in entries():
        requirement = Requirement(pin)
        pinned.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for line in asked:
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name in BESIDE:
            continue
        assert name in pinned, f"{name} is not locked: scripts/lock_ci.sh"
        for requirement in pinned[name]:
            (one,) = requirement.specifier
            assert wanted.specifier.contains(one.version), f"{requirement} is not {wanted}: scripts/lock_ci.sh"


def test_what_is_installed_beyond_the_lock_is_told(tmp_path: Path) -> None:
    first = Requirement(next(iter(entries())))
    (pinned,) = first.specifier
    for name, version in (("left-pad", "1.0"), (first.name, pinned.version), ("certifi", "0.1"), ("torch", "1.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    told = subprocess.run(
        [sys.executable, "-c", "import audit; print(*audit.unpinned(), sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{tmp_path}"},
    ).stdout.splitlines()
    assert {"left-pad 1.0", "certifi 0.1"} <= set(told)
    assert not [line for line in told if line.split()[0] in (first.name, "torch")]


def test_every_licence_is_listed() -> None:
    table = (ROOT / "requirements" / "licences.md").read_text()
    names = {Requirement(pin).name for pin in entries()}
    listed = re.findall(r"^\| (\S+) \| (.+) \|$", table, re.MULTILINE)
    rows = {name: licence for name, licence in listed if name != "package"}
    assert set(rows) == names, "python scripts/licences.py > requirements/licences.md"
    assert [name for name, licence in rows.items() if licence == "not stated"] == []
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "licences.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("# Licences of the packages in ci.txt\n")
