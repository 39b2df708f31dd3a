"""Audits what CI installed: python scripts/audit.py

Every package of this environment is one that requirements/ci.txt pins by hash (torch and the project itself apart), and the advisory
service knows of no weakness in any pinned one. Ends with 1 where that isn't so. Where the service doesn't answer, it says so: then
nothing was audited.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

from licences import LOCK, locked
from packaging.utils import canonicalize_name

BESIDE = {"torch", "specanalyze"}
"""torch comes from its own index, as a CPU build; specanalyze is what is tested."""


def unpinned() -> list[str]:
    """Installed packages that the lock doesn't have in that version."""
    pinned = {
        (canonicalize_name(r.name), specifier.version)
        for r in locked(LOCK.read_text(encoding="utf-8"))
        for specifier in r.specifier
    }
    found = {(canonicalize_name(d.metadata["Name"]), d.version) for d in importlib.metadata.distributions()}
    return sorted(f"{name} {version}" for name, version in found - pinned if name not in BESIDE)


def advisories() -> tuple[list[str], int, int]:
    """Known weaknesses, one line each; packages that the service knows; packages asked about."""
    command = ["-m", "pip_audit", "--require-hashes", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    done = subprocess.run(
        [sys.executable, *command, "--format=json", "-r", str(LOCK)], capture_output=True, text=True, check=False
    )
    try:
        asked = json.loads(done.stdout)["dependencies"]
    except ValueError:
        sys.stderr.write(done.stderr[-2000:])
        return [], 0, 0
    known = [package for package in asked if "skip_reason" not in package]
    weak = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no release'}"
        for package in known
        for found in package["vulns"]
    ]
    return weak, len(known), len(asked)


def main() -> int:
    """Print what was found."""
    strangers = unpinned()
    for line in strangers:
        print(f"not pinned by {LOCK.name}: {line}")
    weak, known, asked = advisories()
    for line in weak:
        print(line)
    if known:
        print(f"{known} of {asked} packages audited: {len(weak)} known weaknesses")
    else:
        print("the advisory service does not answer here: nothing was audited")
    return 1 if strangers or weak else 0


if __name__ == "__main__":
    sys.exit(main())
