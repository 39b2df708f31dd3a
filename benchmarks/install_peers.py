"""Installs the tools that the analyzer is measured against into a virtual environment of their own.

    python -m benchmarks.install_peers [--to FOLDER] [--tracelens REPOSITORY]

HolisticTraceAnalysis comes from PyPI. TraceLens (AMD-AGI) is not on PyPI, where that name belongs to another project: it
is taken from its git repository at the commit that docs/performance.md measures. Where that repository can't be reached, bring a
copy of it (a clone, bare or not, or a snapshot of the files) and name it with --tracelens. Its package needs only some of what its
setup.py lists, so it is put on the path without them. Neither needs torch, and none is let in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.inputs import CACHE

HTA = "HolisticTraceAnalysis==0.5.0"
TRACELENS = "https://github.com/AMD-AGI/TraceLens"
TRACELENS_COMMIT = "171dd74721ca1ec45709e5805b68ae1f65e27811"
TRACELENS_NEEDS = ("pandas", "orjson", "tqdm", "openpyxl", "tabulate", "PyYAML", "matplotlib")
NEVER = "torch<0\n"
"""A constraint that no release meets: a peer that comes to need torch fails here instead of bringing gigabytes of CUDA."""


class MissingError(Exception):
    """What could not be brought, and what to do."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=CACHE / "peers")
    parser.add_argument(
        "--tracelens", default=TRACELENS, help="its repository, a copy of that, or a snapshot of its files"
    )
    given = parser.parse_args()
    python = given.to / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", given.to], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(NEVER)
        constraint.flush()
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", constraint.name]
        subprocess.run([*pip, HTA, *TRACELENS_NEEDS], check=True)
    try:
        sources = tracelens(given.tracelens, given.to / "TraceLens")
    except MissingError as error:
        raise SystemExit(
            f"{error}\nHolisticTraceAnalysis is in {given.to} and can be measured without TraceLens"
        ) from None
    packages = given.to / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (packages / "tracelens.pth").write_text(f"{sources}\n")
    found = subprocess.run([python, "-c", "import hta, TraceLens"], capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"installed, but not to be imported: {found.stderr.strip().splitlines()[-1]}")
    print(f"HolisticTraceAnalysis and TraceLens are in {given.to}")


def tracelens(source: str, clone: Path) -> Path:
    """The folder with the files of the measured commit.

    Args:
        source: a repository's address or folder, or a folder of files without git.
        clone: where a clone of a repository goes.

    Raises:
        MissingError: there is no such repository, or it hasn't the commit.
    """
    files = Path(source)
    if (files / "TraceLens").is_dir() and not (files / ".git").exists():
        return files.resolve()  # a snapshot: nothing says of which commit
    if not clone.exists():
        # No --filter: a server may not allow it, and a copy on disk has no such server to ask later.
        cloned = subprocess.run(
            ["git", "clone", "--quiet", "--no-checkout", source, clone], capture_output=True, text=True
        )
        if cloned.returncode:
            said = (cloned.stderr.strip().splitlines() or ["no message"])[-1]
            raise MissingError(
                f"TraceLens could not be brought from {source} ({said}); give a copy: --tracelens FOLDER"
            )
    out = subprocess.run(["git", "-C", clone, "checkout", "--quiet", TRACELENS_COMMIT], capture_output=True, text=True)
    if out.returncode:
        raise MissingError(
            f"{source} has not the measured commit {TRACELENS_COMMIT[:7]} of TraceLens; give a copy that has"
        )
    return clone.resolve()


if __name__ == "__main__":
    main()
